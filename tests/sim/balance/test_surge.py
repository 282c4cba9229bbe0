"""A disaster in the simulator: the answer to the announced surge against the planner that knows averages only."""

from __future__ import annotations

import numpy as np
import pytest

from tocsin.policies.balance.settings import BalanceSettings, PlacementPolicy
from tocsin.sim.balance import scenario as balance_scenario
from tocsin.sim.balance.coordinator_run import CoordinatorRun, rules_for
from tocsin.sim.balance.policy_coordinator import PolicyCoordinator
from tocsin.sim.balance.run import BalanceLog, BalanceRun
from tocsin.sim.balance.world import draw
from tocsin.sim.kernel import Kernel

SURGE_S = 601.0


def run_surge(seed: int, *, surges: bool, live_core: bool = False) -> BalanceLog:
    kernel = Kernel(seed)
    world = draw(balance_scenario.load("surge"), kernel.stream)
    settings = BalanceSettings(scheme="ldm", shuffle="none", surges=surges)
    if live_core:
        return CoordinatorRun(kernel, world, rules_for(world.scenario, PlacementPolicy.NEAREST, settings)).run()
    return BalanceRun(kernel, world, PolicyCoordinator(PlacementPolicy.NEAREST, settings)).run()


def maximum_after(log: BalanceLog) -> float:
    """The mean of the highest load from 15 s to 75 s after the surge began."""
    return float(np.mean([s.maximum for s in log.samples if SURGE_S + 15 <= s.at_s <= SURGE_S + 75]))


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_announced_surge_lowers_the_maximum_by_a_fifth(seed: int) -> None:
    answered, averaged = run_surge(seed, surges=True), run_surge(seed, surges=False)
    first = next(plan for plan in answered.plans if plan.at_s > SURGE_S)
    assert first.at_s - SURGE_S <= 15.0, "the first execution of the channel after the surge, and 1.5 s"
    assert maximum_after(answered) <= 0.8 * maximum_after(averaged)


def test_live_core_answers_the_surge_too() -> None:
    log = run_surge(1, surges=True, live_core=True)
    first = next(plan for plan in log.plans if plan.at_s > SURGE_S)
    assert first.at_s - SURGE_S <= 15.0
    assert maximum_after(log) <= 0.8 * maximum_after(run_surge(1, surges=False))


def test_world_without_a_surge_sees_none() -> None:
    log = run_surge(1, surges=True)
    periods = {plan.at_s % 10.0 for plan in log.plans if plan.at_s < SURGE_S}
    assert periods <= {0.0}, "only periodic rounds before the disaster"
