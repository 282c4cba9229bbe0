"""Runs under the live coordinator core: it decides as the policies alone do, and no subscriber is lost."""

from __future__ import annotations

import numpy as np
import pytest

from tests.sim.balance.test_run import CHURN, CITY, FAILURE, OFF, QUICK, run_policies, world_of
from tocsin.policies.balance.load import LoadModel, known_rates
from tocsin.policies.balance.settings import BalanceSettings, PlacementPolicy
from tocsin.sim.balance.coordinator_run import CoordinatorRun, rules_for
from tocsin.sim.balance.trace import Trace


def run_coordinator(
    settings: BalanceSettings,
    text: str = CITY,
    placement: PlacementPolicy = PlacementPolicy.NEAREST,
    trace: Trace | None = None,
) -> CoordinatorRun:
    kernel, world = world_of(text)
    run = CoordinatorRun(kernel, world, rules_for(world.scenario, placement, settings), trace)
    run.run()
    return run


def homes(run: CoordinatorRun) -> list[int]:
    """The home broker of each subscriber in the coordinator's registry."""
    index = {name: j for j, name in enumerate(run.world.brokers)}
    known = run.core.registry.subscribers
    return [index[home] if (home := known[name].home) is not None else -1 for name in run.world.subscribers]


@pytest.mark.parametrize("placement", [PlacementPolicy.NEAREST, PlacementPolicy.ROUND_ROBIN])
def test_coordinator_places_subscribers_as_the_policy_alone(placement: PlacementPolicy) -> None:
    live, alone = run_coordinator(OFF, placement=placement), run_policies(OFF, placement=placement)
    assert live.brokers.served_by.tolist() == alone.brokers.served_by.tolist() == homes(live)
    assert [sample.cov for sample in live.log.samples] == [sample.cov for sample in alone.log.samples]
    assert live.log.migrations == 0


@pytest.mark.parametrize("settings", [QUICK, BalanceSettings(hits=1, shuffle="gsh", max_shuffle_moves=0)])
def test_coordinator_balances_as_well_as_the_policy_alone(settings: BalanceSettings) -> None:
    live, alone = run_coordinator(settings).log, run_policies(settings).log
    assert live.migrations == pytest.approx(alone.migrations, rel=0.1) and live.migrations > 50
    assert live.samples[-1].cov == pytest.approx(alone.samples[-1].cov, abs=0.02)
    assert live.unserved_subscriber_s == 0.0


@pytest.mark.parametrize("world", [CITY, CITY + FAILURE, CITY + CHURN + FAILURE], ids=["quiet", "failure", "churn"])
def test_coordinator_brokers_and_load_model_agree_after_a_run(world: str) -> None:
    run = run_coordinator(QUICK, world)
    served = run.brokers.served_by
    assert [at for at, home in zip(served, homes(run), strict=True) if at >= 0 and at != home] == []
    model = LoadModel(run.snapshot(), broker_of=served)
    assert np.allclose(model.loads, run.brokers.loads(known_rates(run.rate_seen)))
    assert not run.core.registry.migrations


def test_subscribers_leave_dead_broker_and_use_it_after_its_return() -> None:
    run = run_coordinator(QUICK, CITY + FAILURE)
    at = {sample.at_s: sample for sample in run.log.samples}
    assert at[160.0].subscribers[0] == 0 and at[160.0].subscribers.sum() == 300
    assert run.log.unserved_subscriber_s == run.log.failed_over * run.world.scenario.detect_s > 0
    assert run.log.samples[-1].subscribers[0] > 20


def test_same_seed_gives_same_coordinator_run() -> None:
    first, second = run_coordinator(QUICK, CITY + CHURN + FAILURE), run_coordinator(QUICK, CITY + CHURN + FAILURE)
    assert first.brokers.served_by.tolist() == second.brokers.served_by.tolist()
    assert first.log.migrations == second.log.migrations


def test_trace_contains_the_final_broker_of_each_subscriber() -> None:
    trace = Trace()
    run = run_coordinator(QUICK, CITY + CHURN + FAILURE, trace=trace)
    final: dict[str, str | None] = {}
    rows = trace.table().to_pylist()
    for row in rows:
        if row["kind"] in ("join", "moved", "failover", "leave"):
            final[row["subscriber"]] = None if row["kind"] == "leave" else row["target"] or row["broker"]
    index: dict[str | None, int] = {None: -1, **{name: j for j, name in enumerate(run.world.brokers)}}
    assert [index[final[name]] for name in run.world.subscribers] == run.brokers.served_by.tolist()
    assert sum(row["kind"] == "move" for row in rows) == run.log.migrations
    assert sum(row["kind"] == "plan" for row in rows) == len(run.log.plans)
