"""The life cycle of brokers: silence, death, probation, dismissal."""

from __future__ import annotations

from tests.coordinator.bench import B1, B2, Bench, placed_at
from tocsin.coordinator.effects import Effect, KeepAtCluster, ReleaseAtCluster, RequestRejection
from tocsin.coordinator.events import BrokerDismissed, BrokerReleased
from tocsin.coordinator.records import Health
from tocsin.coordinator.rules import CoordinatorRules
from tocsin.policies.balance.settings import PlacementPolicy
from tocsin.wire import link as wire
from tocsin.wire.errors import Code


def test_silent_broker_is_suspect_then_dead_and_loses_its_subscribers() -> None:
    bench = Bench(CoordinatorRules(placement=PlacementPolicy.ROUND_ROBIN))
    bench.register(B1, B2)
    bench.place("ada")
    bench.wait(5.0, B2)
    assert bench.broker(B1).health is Health.ALIVE
    bench.wait(2.0, B2)
    assert bench.broker(B1).health is Health.SUSPECT and bench.home("ada") == B1
    bench.wait(4.0, B2)
    assert bench.broker(B1).health is Health.DEAD and bench.home("ada") == B2


def test_probation_doubles_with_each_failure_until_forgiven() -> None:
    """A death counts as two failures, so probation grows fourfold."""
    bench = Bench(CoordinatorRules(probation_s=15, forgive_s=300))
    bench.register(B1, B2)
    waits = []
    for _ in range(3):
        bench.kill(B1, B2)
        assert bench.broker(B1).health is Health.DEAD
        bench.register(B1)
        broker = bench.broker(B1)
        assert broker.health is Health.PROBATION and not bench.registry.accepting(broker)
        waits.append(broker.trusted_at_s - bench.now_s)
        bench.wait(waits[-1] + 1, B1, B2)
        assert bench.broker(B1).health is Health.ALIVE
    assert waits == [15, 60, 240]
    bench.wait(301, B1, B2)
    assert bench.broker(B1).failures == 0


def test_second_broken_link_leads_to_probation() -> None:
    bench = Bench()
    bench.register(B1, B2)
    for expected in (Health.ALIVE, Health.PROBATION):
        bench.cut(B1)
        bench.wait(1, B2)
        bench.register(B1)
        assert bench.broker(B1).health is expected


def test_broker_on_probation_accepts_while_no_broker_is_trusted() -> None:
    bench = Bench()
    bench.register(B1)
    bench.kill(B1)
    assert isinstance(bench.place("ada"), RequestRejection)
    bench.register(B1)
    assert [message.accepting for message in bench.sent(B1, wire.Registered)] == [True]
    assert placed_at(bench.place("ada")) == B1
    bench.register(B2)
    assert [message.accepting for message in bench.sent(B1, wire.Accepting)] == [False]


def test_dead_broker_is_forgotten_after_release_at_the_cluster() -> None:
    bench = Bench(CoordinatorRules(forget_broker_s=60))
    bench.register(B1)
    bench.place("ada")
    bench.cut(B1)
    bench.wait(90)
    assert B1 in bench.registry.brokers, "it still has a subscriber"
    bench.register(B2)
    released: list[Effect] = []
    for _ in range(10):
        bench.wait(0.5, B2)
        released += [effect for effect in bench.effects if isinstance(effect, ReleaseAtCluster)]
    assert released == [ReleaseAtCluster(B1)]
    bench.handle(BrokerReleased(B1))
    assert B1 not in bench.registry.brokers


def test_broker_that_returns_during_its_dismissal_is_kept() -> None:
    bench = Bench(CoordinatorRules(forget_broker_s=5))
    bench.register(B1, B2)
    bench.cut(B1)
    bench.wait(20, B2)
    bench.register(B1)
    assert KeepAtCluster(B1) in bench.effects, "the data cluster must keep what the broker holds now"
    bench.handle(BrokerReleased(B1))
    assert B1 in bench.registry.brokers


def test_living_broker_is_not_dismissed_before_it_is_drained() -> None:
    bench = Bench()
    bench.register(B1)
    refused = bench.ask(lambda ask: BrokerDismissed(ask, B1))
    assert isinstance(refused, RequestRejection)
    assert refused.code is Code.IN_USE and "drain it first" in refused.message
