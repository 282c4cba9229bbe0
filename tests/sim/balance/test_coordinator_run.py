"""The same worlds under the live coordinator's own logic: it decides as the policies alone do, and loses nobody."""

from __future__ import annotations

import numpy as np
import pytest

from tests.sim.balance.test_run import CHURN, CITY, FAILURE, OFF, QUICK, ran, world_of
from tocsin.policies.balance.load import LoadModel, known_rates
from tocsin.policies.balance.multistage import BalanceSettings
from tocsin.policies.balance.placement import PlacementPolicy
from tocsin.sim.balance.coordinator_run import CoordinatorRun, rules_for
from tocsin.sim.balance.trace import Trace


def ran_live(
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
    """Where the coordinator believes everybody is."""
    index = {name: j for j, name in enumerate(run.world.brokers)}
    known = run.core.registry.subscribers
    return [index[home] if (home := known[name].home) is not None else -1 for name in run.world.subscribers]


@pytest.mark.parametrize("placement", [PlacementPolicy.NEAREST, PlacementPolicy.ROUND_ROBIN])
def test_without_balancing_everybody_is_placed_where_the_policy_alone_places_them(placement: PlacementPolicy) -> None:
    live, alone = ran_live(OFF, placement=placement), ran(OFF, placement=placement)
    assert live.brokers.served_by.tolist() == alone.brokers.served_by.tolist() == homes(live)
    assert [one.cov for one in live.log.samples] == [one.cov for one in alone.log.samples]
    assert live.log.migrations == 0


@pytest.mark.parametrize("settings", [QUICK, BalanceSettings(hits=1, shuffle="gsh", max_shuffle_moves=0)])
def test_it_needs_as_many_migrations_as_the_policy_alone_and_balances_as_well(settings: BalanceSettings) -> None:
    live, alone = ran_live(settings).log, ran(settings).log
    assert live.migrations == pytest.approx(alone.migrations, rel=0.1) and live.migrations > 50
    assert live.samples[-1].cov == pytest.approx(alone.samples[-1].cov, abs=0.02)
    assert live.unserved_subscriber_s == 0.0


@pytest.mark.parametrize("world", [CITY, CITY + FAILURE, CITY + CHURN + FAILURE], ids=["quiet", "failure", "churn"])
def test_in_the_end_coordinator_brokers_and_load_model_agree(world: str) -> None:
    run = ran_live(QUICK, world)
    served = run.brokers.served_by
    assert [at for at, home in zip(served, homes(run), strict=True) if at >= 0 and at != home] == []
    model = LoadModel(run.snapshot(), broker_of=served)
    assert np.allclose(model.loads, run.brokers.loads(known_rates(run.rate_seen)))
    assert not run.core.registry.migrations


def test_a_dead_brokers_subscribers_find_another_and_its_return_is_used_again() -> None:
    run = ran_live(QUICK, CITY + FAILURE)
    at = {sample.at_s: sample for sample in run.log.samples}
    assert at[160.0].subscribers[0] == 0 and at[160.0].subscribers.sum() == 300
    assert run.log.unserved_subscriber_s == run.log.failed_over * run.world.scenario.detect_s > 0
    assert run.log.samples[-1].subscribers[0] > 20


def test_the_same_seed_gives_the_same_run() -> None:
    one, other = ran_live(QUICK, CITY + CHURN + FAILURE), ran_live(QUICK, CITY + CHURN + FAILURE)
    assert one.brokers.served_by.tolist() == other.brokers.served_by.tolist()
    assert one.log.migrations == other.log.migrations


def test_its_trace_tells_where_everybody_ended_up() -> None:
    trace = Trace()
    run = ran_live(QUICK, CITY + CHURN + FAILURE, trace=trace)
    where: dict[str, str | None] = {}
    rows = trace.table().to_pylist()
    for row in rows:
        if row["kind"] in ("join", "moved", "failover", "leave"):
            where[row["subscriber"]] = None if row["kind"] == "leave" else row["target"] or row["broker"]
    index: dict[str | None, int] = {None: -1, **{name: j for j, name in enumerate(run.world.brokers)}}
    assert [index[where[name]] for name in run.world.subscribers] == run.brokers.served_by.tolist()
    assert sum(row["kind"] == "move" for row in rows) == run.log.migrations
    assert sum(row["kind"] == "plan" for row in rows) == len(run.log.plans)
