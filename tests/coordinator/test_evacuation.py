"""Failover and drain: the plans, how the arbiter carries them out, and that the plan shown is the plan that runs."""

from __future__ import annotations

from collections import Counter

from tests.coordinator.bench import ADA, B1, B2, B3, Bench, crowded, frontend
from tests.coordinator.coordinator_world import World
from tocsin.coordinator.events import PlanProposed, Ticked, UserDeleted
from tocsin.coordinator.rules import CoordinatorRules
from tocsin.model.ids import BrokerId, SubscriberId
from tocsin.model.snapshot import Place
from tocsin.policies.balance.settings import PlacementPolicy
from tocsin.wire import link as wire


def refugees(number: int, rules: CoordinatorRules) -> Bench:
    """Subscribers on b1, each with one subscription; b2 and b3 are empty."""
    bench = Bench(rules)
    bench.register(B1)
    for n in range(number):
        bench.place(f"u{n}")
        bench.connect(f"u{n}", B1, f"x{n}")
    bench.register(B2, B3)
    return bench


def test_failover_is_spread_at_a_bounded_rate_with_webhooks_first() -> None:
    bench = Bench(CoordinatorRules(failover_per_s=10))
    bench.register(B1)
    for number in range(50):
        bench.place(f"u{number}")
    hook = wire.Webhook("https://example.org", ["whsec_x"])
    bench.send(B1, wire.Changed(1, SubscriberId("u49"), webhook=hook))
    bench.register(B2, B3)
    bench.cut(B1)
    bench.wait(10.5, B2, B3)
    assert bench.home("u49") != B1, "only a broker calls the webhook"
    assert 30 < len(bench.registry.hosted(B1)) < 50
    bench.wait(5, B2, B3)
    assert not bench.registry.hosted(B1)
    assert abs(len(bench.registry.hosted(B2)) - len(bench.registry.hosted(B3))) <= 2


def test_failover_plan_shown_is_the_plan_that_runs() -> None:
    bench = refugees(30, CoordinatorRules(failover_per_s=0.001))
    bench.kill(B1, B2, B3)
    shown = bench.plan("failover")
    assert all(verdict.taken and verdict.reason == "its broker b1 is dead" for verdict in shown.verdicts)
    targets = {verdict.move.subscriber: verdict.move.target for verdict in shown.verdicts}
    assert Counter(targets.values()) == {B2: 15, B3: 15}
    assert len(bench.registry.hosted(B1)) == 30, "a dry run changes nothing"
    bench.core.rules = CoordinatorRules()
    bench.wait(1.0, B2, B3)
    assert {name: bench.home(name) for name in targets} == targets


def test_failover_sends_one_adoption_message_per_target() -> None:
    bench = refugees(30, CoordinatorRules())
    bench.cut(B1)
    bench.wait(9.5, B2, B3)
    bench.now_s += 0.5
    bench.handle(Ticked())
    assert not bench.registry.hosted(B1)
    for broker in (B2, B3):
        [adopt] = bench.sent(broker, wire.Adopt)
        assert len(adopt.subscribers) == 15
    assert bench.notes().count("subscribers re-placed") == 2


def test_failover_needs_no_free_place_and_overtakes_waiting_moves() -> None:
    bench = crowded(CoordinatorRules(migrations=1))
    bench.propose(("ada", B2), ("bob", B2), dry_run=False)
    assert bench.core.arbiter.waiting == 1 and len(bench.registry.migrations) == 1
    bench.register(B3)
    bench.kill(B1, B2, B3)
    bench.wait(1.0, B2, B3)
    assert bench.home("bob") in (B2, B3) and not bench.registry.hosted(B1).keys() - bench.registry.moving.keys()
    bench.wait(30.0, B2, B3)
    assert bench.core.arbiter.waiting == 0


def test_failover_is_not_refused_for_raising_the_highest_load() -> None:
    bench = crowded()
    bench.connect("max", B2, "max")
    bench.kill(B1, B2)
    bench.wait(1.0, B2)
    assert len(bench.registry.hosted(B2)) == 5


def test_user_deleted_before_its_broker_died_is_forgotten() -> None:
    bench = crowded()
    assert bench.ask(lambda ask: UserDeleted(ask, ADA)) is True
    assert bench.subscriber("ada").deleted, "b1 has not confirmed the release"
    bench.kill(B1, B2)
    bench.wait(1.0, B2)
    assert ADA not in bench.registry.subscribers


def test_drain_plan_shown_moves_everything_off_the_drained_broker() -> None:
    world = World(brokers=2, subscribers=3)
    drained = next(broker for broker in world.brokers if world.core.registry.hosted(broker))
    world.drain(drained, True)
    shown = world.decide(lambda ask: PlanProposed(ask, "drain"))
    assert {verdict.move.source for verdict in shown.verdicts} == {drained}
    assert all(verdict.taken and verdict.move.target != drained for verdict in shown.verdicts)


def test_drain_plan_spreads_subscribers_over_all_targets() -> None:
    bench = refugees(20, CoordinatorRules())
    bench.drain(B1)
    shown = bench.plan("drain")
    assert Counter(verdict.move.target for verdict in shown.verdicts) == {B2: 10, B3: 10}
    bench.wait(1.0, B1, B2, B3)
    moving = {name: migration.target for name, migration in bench.registry.moving.items()}
    assert moving == {verdict.move.subscriber: verdict.move.target for verdict in shown.verdicts}


def test_drain_ends_with_an_empty_broker_and_all_subscribers_connected() -> None:
    world = World(brokers=3, subscribers=6)
    drained = next(broker for broker in world.brokers if world.core.registry.hosted(broker))
    world.drain(drained, True)
    for _ in range(30):
        world.second()
        world.deliver_all()
        for name, client in world.clients.items():
            if client.migration is not None and client.known not in client.sessions:
                world.log_in(name)
        world.check()
    assert not world.core.registry.hosted(drained) and not world.core.registry.migrations
    assert all(client.sessions and drained not in client.sessions for client in world.clients.values())


def test_drain_respects_rate_and_places_per_broker() -> None:
    bench = refugees(20, CoordinatorRules(drain_per_s=4, migrations_per_broker=3))
    bench.drain(B1)
    bench.wait(0.5, B1, B2, B3)
    assert not bench.registry.migrations, "the rate is measured from the first tick"
    bench.wait(0.5, B1, B2, B3)
    assert len(bench.registry.migrations) == 2
    bench.wait(5.0, B1, B2, B3)
    assert len(bench.registry.migrations) == 3, "b1 may hand over three at a time"
    assert bench.core.arbiter.waiting == 0, "drain moves do not wait: the next plan contains them again"


def test_full_broker_does_not_stop_the_drain_of_another() -> None:
    bench = Bench(CoordinatorRules(migrations_per_broker=2))
    bench.register(B1)
    for n in range(10):
        bench.place(f"u{n}")
        bench.connect(f"u{n}", B1, f"x{n}")
    bench.register(B2)
    bench.connect("ada", B2, "x")
    bench.register(B3, BrokerId("b4"))
    bench.drain(B1)
    bench.wait(1.0, B1, B2, B3)
    assert bench.registry.count_migrations(B1, as_target=False) == 2
    bench.drain(B2)
    bench.wait(1.0, B1, B2, B3)
    assert ADA in bench.registry.moving


def test_subscriber_rests_after_a_failed_drain_move_and_avoids_that_target() -> None:
    bench = Bench()
    bench.register(B1)
    bench.place("ada")
    bench.connect("ada", B1, "x")
    bench.register(B2, B3)
    bench.drain(B1)
    bench.wait(1.0, B1, B2, B3)
    [first] = bench.registry.migrations.values()
    bench.send(first.target, wire.PrepareFailed(first.id, "not_ready", "no"))
    bench.wait(5.0, B1, B2, B3)
    assert not bench.registry.migrations
    assert bench.plan("drain").plan.note == "every subscriber left is moving or rests"
    bench.wait(6.0, B1, B2, B3)
    [second] = bench.registry.migrations.values()
    assert {first.target, second.target} == {B2, B3}


def test_drain_waits_until_a_broker_accepts() -> None:
    bench = Bench()
    bench.register(B1)
    bench.place("ada")
    bench.send(B1, wire.Changed(1, ADA, added=[frontend("x")]))
    bench.drain(B1)
    bench.wait(2.0, B1)
    assert bench.plan("drain").plan.note == "no broker accepts subscribers" and not bench.registry.migrations
    bench.register(B2)
    bench.wait(1.0, B1, B2)
    assert ADA in bench.registry.moving


def test_drain_with_a_full_target_does_not_stop_another_drain() -> None:
    rules = CoordinatorRules(replacement=PlacementPolicy.NEAREST, migrations_per_broker=1, drain_per_s=1, prepare_s=1e6)
    bench = Bench(rules)
    south, north, b4 = Place(0.0, 0.0), Place(50.0, 0.0), BrokerId("b4")
    bench.register(B1, lat=0.0, lon=0.0)
    bench.place("south", south)
    bench.place("south too", south)
    bench.register(B3, lat=50.0, lon=0.0)
    bench.place("north", north)
    bench.register(B2, lat=0.0, lon=1.0)
    bench.register(b4, lat=50.0, lon=1.0)
    bench.place("mover", Place(50.0, 1.0))
    bench.move("mover", B2)
    assert [bench.home(name) for name in ("south", "north", "mover")] == [B1, B3, b4]
    bench.drain(B1)
    bench.drain(B3)
    bench.wait(5.0, B1, B2, B3, b4)
    moving = {migration.subscriber: migration.target for migration in bench.registry.migrations.values()}
    assert moving == {"mover": B2, "north": b4}, "b2, the nearest to the south, has no free place"
