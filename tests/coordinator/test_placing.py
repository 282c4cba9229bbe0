"""Placement of users, the loads it compares, and the snapshot that policies see."""

from __future__ import annotations

import pytest

from tests.coordinator.bench import ADA, B1, B2, B3, Bench, frontend, placed_at
from tocsin.coordinator.events import BrokerRequested, PlacementChosen
from tocsin.coordinator.rules import CoordinatorRules
from tocsin.model.ids import BrokerId, SubscriberId, SubscriptionId
from tocsin.policies.balance.load import snapshot_balance
from tocsin.policies.balance.settings import PlacementPolicy
from tocsin.wire import link as wire

ROUND_ROBIN = CoordinatorRules(placement=PlacementPolicy.ROUND_ROBIN)


def test_round_robin_gives_every_broker_the_same_number() -> None:
    bench = Bench(ROUND_ROBIN)
    bench.register(B1, B2, B3)
    assert [placed_at(bench.place(f"u{n}")) for n in range(6)] == [B1, B2, B3] * 2


def test_random_placement_is_spread_and_repeatable() -> None:
    def homes() -> list[BrokerId]:
        bench = Bench(CoordinatorRules(placement=PlacementPolicy.RANDOM))
        bench.register(B1, B2, B3)
        return [placed_at(bench.place(f"u{n}")) for n in range(300)]

    assert homes() == homes()
    assert all(70 < homes().count(broker) < 130 for broker in (B1, B2, B3))


def test_least_loaded_placement_counts_subscribers_not_reported_yet() -> None:
    """A crowd of new subscribers does not all get the broker that looked idle [BAD §5.1]."""
    bench = Bench(CoordinatorRules(placement=PlacementPolicy.LEAST_LOADED))
    bench.register(B1)
    for number in range(10):
        bench.place(f"early{number}")
    bench.register(B2)
    for _ in range(3):
        bench.send(B1, wire.LoadReport(0.0, 10.0, {}))
    homes = [placed_at(bench.place(f"u{n}")) for n in range(40)]
    assert homes[:8] == [B2] * 8 and homes.count(B1) == 15
    for _ in range(3):  # reported load is not counted twice
        bench.send(B2, wire.LoadReport(0.0, 500.0, {}))
    assert bench.core.loads.of(B2).bytes_per_s == 500.0
    assert placed_at(bench.place("late")) == B1


def test_subscriber_weight_is_the_rate_of_its_subscriptions() -> None:
    bench = Bench()
    bench.register(B1)
    bench.place("ada")
    bench.send(B1, wire.Changed(1, ADA, added=[frontend("hot"), frontend("cold")]))
    bench.send(B1, wire.LoadReport(5.0, 5.0, {SubscriptionId("hot"): 7.0, SubscriptionId("other"): 3.0}))
    assert bench.core.loads.demand(bench.subscriber("ada")) == 7.0
    bench.send(B1, wire.LoadReport(5.0, 5.0, {SubscriptionId("hot"): 0.0}))  # measured: it is quiet now
    assert bench.core.loads.demand(bench.subscriber("ada")) == 0.0


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -5.0])
def test_impossible_reported_number_counts_as_zero(value: float) -> None:
    bench = Bench()
    bench.register(B1)
    bench.send(B1, wire.LoadReport(value, value, {SubscriptionId("x"): value}))
    assert bench.core.loads.of(B1).bytes_per_s == 0.0
    assert bench.core.loads.rates.known[SubscriptionId("x")] == 0.0


def test_snapshot_counts_migrations_in_progress_as_made() -> None:
    bench = Bench(ROUND_ROBIN)
    bench.register(B1, B2)
    for name in ("ada", "bob", "eve"):  # b1, b2, b1
        bench.connect(name, placed_at(bench.place(name)), "x")
    bench.send(B1, wire.LoadReport(10.0, 20.0, {SubscriptionId("x"): 10.0}))
    snapshot = bench.snapshot()
    assert snapshot.broker_of.tolist() == [0, 1, 0] and snapshot.movable.all()
    # F_j = z (1 + n) λ [BAD eq. 5]: two subscribers share one fetch at b1.
    assert snapshot_balance(snapshot).loads == (30.0, 20.0)
    bench.move("eve", B2)
    moving = bench.snapshot()
    assert moving.broker_of.tolist() == [0, 1, 1] and not moving.movable[2]
    assert moving.generation > snapshot.generation


def test_user_of_dead_broker_gets_another_at_once_on_request() -> None:
    bench = Bench(CoordinatorRules(failover_per_s=0.001))
    bench.register(B1)
    bench.place("ada")
    bench.send(B1, wire.Changed(1, ADA, added=[frontend("x")]))
    bench.register(B2)
    bench.kill(B1, B2)
    assert bench.home("ada") == B1
    assert placed_at(bench.ask(lambda ask: BrokerRequested(ask, SubscriberId("ada")))) == B2
    assert bench.home("ada") == B2 and bench.sent(B2, wire.Adopt)


def test_chosen_placement_takes_effect_at_once() -> None:
    bench = Bench()
    bench.register(B1, B2)
    assert bench.ask(lambda ask: PlacementChosen(ask, PlacementPolicy.ROUND_ROBIN)) is True
    assert {placed_at(bench.place("a")), placed_at(bench.place("b"))} == {B1, B2}
