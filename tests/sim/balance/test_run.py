"""Runs of the broker network: aggregated brokers count as single brokers would, and no subscriber is lost."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from tocsin.model.trace import from_table, problem_with
from tocsin.model.trace_state import TraceState
from tocsin.policies.balance.load import LoadModel, known_rates
from tocsin.policies.balance.settings import BalanceSettings, PlacementPolicy
from tocsin.sim.balance.brokers import AggregatedBrokers
from tocsin.sim.balance.policy_coordinator import PolicyCoordinator
from tocsin.sim.balance.run import BalanceRun
from tocsin.sim.balance.scenario import parse
from tocsin.sim.balance.trace import Trace
from tocsin.sim.balance.world import BalanceWorld, draw
from tocsin.sim.kernel import Kernel

CITY = """
name = "city"
length_s = 400
handover_s = 2
[brokers]
count = 4
crowd = [8, 2, 1, 1]
[subscribers]
count = 300
subscriptions = [2, 6]
join_within_s = 30
subscribe_until_s = 60
[channels]
periods_s = [5, 10]
subscriptions = 30
mean_bytes_per_s = 1000
sd_bytes_per_s = 200
[bursts]
share = 0.25
"""
CHURN = "[churn]\nleave_per_s = 0.01\naway_s = 20\n"
FAILURE = "[[failures]]\nbroker = 0\nat_s = 150\nback_s = 250\n"
QUICK = BalanceSettings(hits=1, rest_s=20.0, shuffle="none")
OFF = BalanceSettings(scheme="none", shuffle="none")


def world_of(text: str = CITY, seed: int = 3) -> tuple[Kernel, BalanceWorld]:
    kernel = Kernel(seed)
    return kernel, draw(parse(text, "test"), kernel.stream)


def run_policies(
    settings: BalanceSettings, text: str = CITY, placement: PlacementPolicy = PlacementPolicy.NEAREST, **more: Any
) -> BalanceRun:
    kernel, world = world_of(text)
    run = BalanceRun(kernel, world, PolicyCoordinator(placement, settings), **more)
    run.run()
    return run


class PlainBrokers:
    """Brokers that handle each message: fetch a result once if it has a subscriber, deliver it to each subscriber."""

    def __init__(self, brokers: int) -> None:
        self.subscribers: list[dict[int, set[int]]] = [defaultdict(set) for _ in range(brokers)]
        self.bytes_in, self.bytes_out = [0.0] * brokers, [0.0] * brokers

    def result(self, subscription: int, size_bytes: float) -> None:
        for j, subscribers in enumerate(self.subscribers):
            if subscribers[subscription]:
                self.bytes_in[j] += size_bytes
                for _ in subscribers[subscription]:
                    self.bytes_out[j] += size_bytes


def test_aggregated_brokers_handle_the_bytes_of_single_brokers() -> None:
    _, world = world_of()
    rng = np.random.default_rng(5)
    together, plain = AggregatedBrokers(world), PlainBrokers(4)
    subscribed: dict[int, set[int]] = defaultdict(set)
    for _ in range(400):
        act, i, j = rng.integers(4), int(rng.integers(len(world.subscribers))), int(rng.integers(4))
        subscriber, at = np.array([i]), int(together.served_by[i])
        if act == 0:
            entries = np.flatnonzero(~together.subscribed)[:2]
            together.subscribe(entries)
            for entry in entries.tolist():
                owner = int(np.searchsorted(world.start, entry, side="right")) - 1
                subscribed[owner].add(int(world.wants[entry]))
                if together.served_by[owner] >= 0:
                    plain.subscribers[together.served_by[owner]][int(world.wants[entry])].add(owner)
        elif act == 1 and at < 0:
            together.connect(subscriber, np.array([j], dtype=np.int32))
            for k in subscribed[i]:
                plain.subscribers[j][k].add(i)
        elif at >= 0:
            for k in subscribed[i]:
                plain.subscribers[at][k].remove(i)
            if act == 2:
                together.move(subscriber, np.array([j], dtype=np.int32))
                for k in subscribed[i]:
                    plain.subscribers[j][k].add(i)
            else:
                together.disconnect(subscriber)
        results = rng.choice(60, 3, replace=False)
        sizes = rng.integers(1, 100, 3).astype(np.float64)
        together.deliver(results, sizes)
        for k, size_bytes in zip(results.tolist(), sizes.tolist(), strict=True):
            plain.result(k, size_bytes)
    assert together.bytes_in.tolist() == plain.bytes_in
    assert together.bytes_out.tolist() == plain.bytes_out
    assert together.bytes_out.sum() > together.bytes_in.sum() > 0


def test_handled_bytes_equal_the_load_equations_at_steady_rates() -> None:
    steady = CITY.replace("share = 0.25", "share = 0.0").replace(
        "subscriptions = 30", "subscriptions = 30\njitter = 0.0"
    )
    kernel, world = world_of(steady.replace("length_s = 400", "length_s = 80"))
    run = BalanceRun(kernel, world, PolicyCoordinator(PlacementPolicy.NEAREST, OFF))
    run.run()
    before = run.brokers.bytes_in + run.brokers.bytes_out
    kernel.run(180.0)  # all subscriptions are made; ten executions of one channel, twenty of the other
    handled = (run.brokers.bytes_in + run.brokers.bytes_out - before) / 100.0
    assert np.allclose(handled, run.brokers.loads(world.rate), rtol=1e-9)


@pytest.mark.parametrize("text", [CITY, CITY + CHURN, CITY + FAILURE, CITY + CHURN + FAILURE])
def test_load_model_agrees_with_brokers_after_a_run(text: str) -> None:
    run = run_policies(QUICK, text)
    model = LoadModel(run.snapshot(), broker_of=run.brokers.served_by)
    assert np.allclose(model.loads, run.brokers.loads(known_rates(run.rate_seen)))
    assert run.brokers.counts.min() >= 0
    assert run.log.migrations > 0


def test_migration_balances_nearest_placement_without_unserved_subscribers() -> None:
    balanced, unbalanced = run_policies(QUICK), run_policies(OFF)
    assert unbalanced.log.samples[-1].cov > 0.5 > 0.2 > balanced.log.samples[-1].cov
    assert balanced.log.samples[-1].maximum < 0.7 * unbalanced.log.samples[-1].maximum
    assert balanced.log.unserved_subscriber_s == 0.0
    assert balanced.brokers.served_by.tolist() == balanced.assigned.tolist()


def test_rates_and_deliveries_do_not_depend_on_the_policy() -> None:
    balanced, unbalanced = run_policies(QUICK), run_policies(OFF)
    assert np.array_equal(balanced.rate_seen, unbalanced.rate_seen)
    assert np.isclose(balanced.brokers.bytes_out.sum(), unbalanced.brokers.bytes_out.sum())


def test_same_seed_gives_same_run() -> None:
    first, again = run_policies(QUICK, CITY + CHURN), run_policies(QUICK, CITY + CHURN)
    assert [plan.moves for plan in first.log.plans] == [plan.moves for plan in again.log.plans]
    assert np.array_equal(first.brokers.counts, again.brokers.counts)


def test_policies_see_moving_averages_of_rates() -> None:
    kernel, world = world_of()
    run = BalanceRun(kernel, world, PolicyCoordinator(PlacementPolicy.NEAREST, OFF))
    assert np.isnan(run.rate_seen).all()
    run.run()
    held = run.brokers.counts.any(axis=0)
    assert not np.isnan(run.rate_seen[held]).any()
    assert 0.01 < np.abs(run.rate_seen[held] / world.rate[held] - 1.0).mean() < 1.0


def test_old_broker_serves_until_the_new_broker_takes_over() -> None:
    kernel, world = world_of()
    run = BalanceRun(kernel, world, PolicyCoordinator(PlacementPolicy.NEAREST, QUICK))
    kernel.call_at(10.5, _stop_when_moving, kernel, run)
    with pytest.raises(RuntimeError, match="move observed"):
        run.run()


def _stop_when_moving(kernel: Kernel, run: BalanceRun) -> None:
    moving = np.flatnonzero(run.assigned != run.brokers.served_by)
    if moving.size and run.log.plans:
        snapshot = run.snapshot()
        assert (run.brokers.served_by[moving] >= 0).all()
        assert not snapshot.movable[moving].any()
        assert np.array_equal(snapshot.broker_of[moving], run.assigned[moving])
        raise RuntimeError("move observed")
    kernel.call_after(1.0, _stop_when_moving, kernel, run)


def test_subscribers_of_dead_broker_are_placed_anew() -> None:
    run = run_policies(OFF, CITY + FAILURE)
    at = {sample.at_s: sample for sample in run.log.samples}
    assert at[140.0].subscribers[0] > 150 and at[160.0].subscribers[0] == 0
    assert at[160.0].subscribers.sum() == 300
    assert run.log.failed_over == at[140.0].subscribers[0]
    assert 0 < run.log.unserved_subscriber_s <= run.log.failed_over * 6.0
    assert run.alive.all() and at[400.0].subscribers[0] == 0


def test_returned_broker_gets_subscribers_again() -> None:
    run = run_policies(QUICK, CITY + FAILURE)
    assert run.log.samples[-1].subscribers[0] > 20


def test_least_loaded_placement_spreads_subscribers_without_subscriptions() -> None:
    """The paper's warning: without their expected load all of them would land on one broker."""
    run = run_policies(OFF, CITY + CHURN, PlacementPolicy.LEAST_LOADED)
    assert run.log.samples[-1].subscribers.max() < 150


def test_trace_reproduces_the_run(tmp_path: Path) -> None:
    trace = Trace()
    run = run_policies(QUICK, CITY + CHURN + FAILURE, trace=trace)
    path = tmp_path / "run" / "trace.parquet"
    trace.write(path)
    table = pq.read_table(path)
    assert problem_with(table.schema) is None
    rows = list(from_table(table))
    kinds = Counter(row.kind for row in rows)
    assert [row.time_s for row in rows] == sorted(row.time_s for row in rows)
    moving = int(np.count_nonzero(run.assigned != run.brokers.served_by))
    assert kinds["move"] == run.log.migrations == kinds["moved"] + kinds["move-failed"] + moving
    assert kinds["sample"] == 4 * len(run.log.samples) and kinds["position"] == len(run.world.subscribers)
    assert {"join", "plan", "balance", "failover", "broker-failed", "broker-back"} <= set(kinds)
    present = TraceState()
    for row in rows:
        present.fold(row)
    served_by = {
        name: run.world.brokers[j]
        for name, j in zip(run.world.subscribers, run.brokers.served_by.tolist(), strict=True)
        if j >= 0
    }
    assert present.homes == served_by
    states = {row.broker: row.detail["state"] for row in present.picture(0.0) if row.kind == "broker" and row.detail}
    assert states == dict.fromkeys(run.world.brokers, "alive")
