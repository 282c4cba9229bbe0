"""Single decisions of the coordinator's logic, in hand-made worlds, with virtual time."""

from __future__ import annotations

import pytest

from tests.coordinator.coordinator_world import World
from tocsin.coordinator.arbiter import Decision
from tocsin.coordinator.core import Coordinator
from tocsin.coordinator.effects import Answer, Effect, KeepAtCluster, Note, Rejection, ReleaseAtCluster, Send
from tocsin.coordinator.entities import Health, Step
from tocsin.coordinator.events import (
    BrokerDismissed,
    BrokerReleased,
    BrokerRequested,
    Event,
    Heard,
    LinkClosed,
    MoveWanted,
    Placed,
    PlacementChosen,
    PlanProposed,
    Ticked,
    UserDeleted,
    UserRegistered,
)
from tocsin.coordinator.rules import Rules
from tocsin.coordinator.snapshots import balance_of
from tocsin.coords.coordinate import Coordinate
from tocsin.model.ids import BrokerId, ChannelName, SubscriberId, SubscriptionId
from tocsin.model.plan import Move, Plan, Urgency
from tocsin.model.snapshot import Place, Snapshot
from tocsin.policies.balance.placement import PlacementPolicy
from tocsin.wire import link as wire
from tocsin.wire.errors import Code
from tocsin.wire.link import FromCoordinator, Frontend

B1, B2, B3 = BrokerId("b1"), BrokerId("b2"), BrokerId("b3")


class Bench:
    """A core with brokers that only say what a test has them say."""

    def __init__(self, rules: Rules | None = None, **more: object) -> None:
        self.core = Coordinator(rules or Rules(), "e", now_s=100.0, **more)  # type: ignore[arg-type]
        self.now_s = 100.0
        self.effects: list[Effect] = []
        self._links: dict[BrokerId, int] = {}
        self._asks = 0

    def happen(self, event: Event) -> list[Effect]:
        self.effects = self.core.handle(event, self.now_s)
        return self.effects

    def register(self, *brokers: BrokerId, **about: object) -> None:
        for broker in brokers:
            self._links[broker] = len(self._links) + 1 + 100 * self._asks
            self.say(broker, wire.Register(broker, "i1", f"ws://{broker}", **about))  # type: ignore[arg-type]

    def say(self, broker: BrokerId, message: wire.FromBroker) -> list[Effect]:
        return self.happen(Heard(broker, self._links[broker], message))

    def cut(self, broker: BrokerId) -> None:
        self.happen(LinkClosed(broker, self._links[broker]))

    def ask(self, make: object) -> object:
        self._asks += 1
        self.happen(make(self._asks))  # type: ignore[operator]
        return next(one.value for one in self.effects if isinstance(one, Answer) and one.ask == self._asks)

    def user(self, name: str, place: Place | None = None, coordinate: Coordinate | None = None) -> object:
        one = SubscriberId(name)
        self.ask(lambda ask: UserRegistered(ask, one, place, coordinate))
        return self.ask(lambda ask: BrokerRequested(ask, one))

    def home(self, name: str) -> BrokerId | None:
        return self.core.registry.subscribers[SubscriberId(name)].home

    def wait(self, seconds: float, *beating: BrokerId) -> None:
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.now_s += 0.5
            for broker in beating:
                self.say(broker, wire.Heartbeat(0, 0, 0))
            self.happen(Ticked())

    def sent(self, broker: BrokerId) -> list[FromCoordinator]:
        return [one.message for one in self.effects if isinstance(one, Send) and one.broker == broker]


def frontend(name: str) -> Frontend:
    return Frontend(SubscriptionId(name), ChannelName("C"), {}, "1-0")


def at(answer: object) -> BrokerId:
    assert isinstance(answer, Placed), answer
    return answer.broker


# -- placement and load ------------------------------------------------------------------------------------------------


def test_round_robin_gives_every_broker_the_same_number() -> None:
    bench = Bench(Rules(placement=PlacementPolicy.ROUND_ROBIN))
    bench.register(B1, B2, B3)
    assert [at(bench.user(f"u{n}")) for n in range(6)] == [B1, B2, B3] * 2


def test_random_placement_is_spread_and_repeatable() -> None:
    def homes() -> list[BrokerId]:
        bench = Bench(Rules(placement=PlacementPolicy.RANDOM))
        bench.register(B1, B2, B3)
        return [at(bench.user(f"u{n}")) for n in range(300)]

    assert homes() == homes()
    assert all(70 < homes().count(broker) < 130 for broker in (B1, B2, B3))


def test_a_crowd_of_newcomers_does_not_all_land_on_the_broker_that_looked_idle() -> None:
    """What was assigned and cannot have been reported yet counts [BAD §5.1]."""
    bench = Bench(Rules(placement=PlacementPolicy.LEAST_LOADED))
    bench.register(B1)
    for number in range(10):
        bench.user(f"early{number}")
    bench.register(B2)
    for _ in range(3):
        bench.say(B1, wire.LoadReport(0.0, 10.0, {}))
    homes = [at(bench.user(f"u{n}")) for n in range(40)]
    assert homes[:8] == [B2] * 8 and homes.count(B1) == 15
    for _ in range(3):  # once reported, it is not counted twice
        bench.say(B2, wire.LoadReport(0.0, 500.0, {}))
    assert bench.core.loads.of(B2).bytes_per_s == 500.0
    assert at(bench.user("late")) == B1


def test_a_subscribers_weight_is_what_its_subscriptions_deliver() -> None:
    bench = Bench()
    bench.register(B1)
    bench.user("ada")
    bench.say(B1, wire.Changed(1, SubscriberId("ada"), added=[frontend("hot"), frontend("cold")]))
    bench.say(B1, wire.LoadReport(5.0, 5.0, {SubscriptionId("hot"): 7.0, SubscriptionId("other"): 3.0}))
    ada = bench.core.registry.subscribers[SubscriberId("ada")]
    assert bench.core.loads.demand(ada) == 7.0
    bench.say(B1, wire.LoadReport(5.0, 5.0, {SubscriptionId("hot"): 0.0}))
    assert bench.core.loads.demand(ada) == 0.0


@pytest.mark.parametrize("lie", [float("nan"), float("inf"), -5.0])
def test_a_number_that_cannot_be_counts_as_nothing(lie: float) -> None:
    bench = Bench()
    bench.register(B1)
    bench.say(B1, wire.LoadReport(lie, lie, {SubscriptionId("x"): lie}))
    assert bench.core.loads.of(B1).bytes_per_s == 0.0
    assert bench.core.loads.rates.get(SubscriptionId("x"), 0.0) == 0.0


def test_the_snapshot_counts_moves_under_way_as_made_and_loads_as_the_paper_does() -> None:
    bench = Bench(Rules(placement=PlacementPolicy.ROUND_ROBIN))
    bench.register(B1, B2)
    for name in ("ada", "bob", "eve"):  # b1, b2, b1
        home = at(bench.user(name))
        bench.say(home, wire.SessionOpened(SubscriberId(name)))
        bench.say(home, wire.Changed(1, SubscriberId(name), added=[frontend("x")]))
    bench.say(B1, wire.LoadReport(10.0, 20.0, {SubscriptionId("x"): 10.0}))
    snapshot = bench.core.snapshot(bench.now_s)
    assert snapshot.broker_of.tolist() == [0, 1, 0] and snapshot.movable.all()
    # F_j = z (1 + n) λ: two subscribers share one fetch at b1.
    assert balance_of(snapshot).loads == (30.0, 20.0)
    bench.ask(lambda ask: PlanProposed(ask, None, (MoveWanted(SubscriberId("eve"), B2),), dry_run=False))
    moving = bench.core.snapshot(bench.now_s)
    assert moving.broker_of.tolist() == [0, 1, 1] and not moving.movable[2]
    assert moving.generation > snapshot.generation


# -- liveness ----------------------------------------------------------------------------------------------------------


def test_a_broker_that_misses_heartbeats_is_suspect_then_dead_and_its_subscribers_move() -> None:
    bench = Bench(Rules(placement=PlacementPolicy.ROUND_ROBIN))
    bench.register(B1, B2)
    bench.user("ada")
    bench.wait(5.0, B2)
    assert bench.core.registry.brokers[B1].health is Health.ALIVE
    bench.wait(2.0, B2)
    assert bench.core.registry.brokers[B1].health is Health.SUSPECT and bench.home("ada") == B1
    bench.wait(4.0, B2)
    assert bench.core.registry.brokers[B1].health is Health.DEAD and bench.home("ada") == B2


def test_each_failure_costs_twice_the_trust_of_the_one_before_until_it_is_forgiven() -> None:
    rules = Rules(probation_s=15, forgive_s=300)
    bench = Bench(rules)
    bench.register(B1, B2)
    waits = []
    for _ in range(3):
        bench.cut(B1)
        bench.wait(11, B2)
        assert bench.core.registry.brokers[B1].health is Health.DEAD
        bench._asks += 1
        bench.register(B1)
        broker = bench.core.registry.brokers[B1]
        assert broker.health is Health.PROBATION and not bench.core.registry.accepting(broker)
        waits.append(broker.trusted_at_s - bench.now_s)
        bench.wait(waits[-1] + 1, B1, B2)
        assert bench.core.registry.brokers[B1].health is Health.ALIVE
    assert waits == [15, 60, 240]
    bench.wait(301, B1, B2)
    assert bench.core.registry.brokers[B1].failures == 0


def test_one_broken_link_is_forgiven_a_second_is_not() -> None:
    bench = Bench()
    bench.register(B1, B2)
    for expected in (Health.ALIVE, Health.PROBATION):
        bench.cut(B1)
        bench.wait(1, B2)
        bench._asks += 1
        bench.register(B1)
        assert bench.core.registry.brokers[B1].health is expected


def test_when_nobody_is_trusted_those_on_probation_take_newcomers_and_are_told_so() -> None:
    bench = Bench()
    bench.register(B1)
    bench.cut(B1)
    bench.wait(11)
    assert isinstance(bench.user("ada"), Rejection)
    bench._asks += 1
    bench.register(B1)
    assert [one.accepting for one in bench.sent(B1) if isinstance(one, wire.Registered)] == [True]
    assert at(bench.user("ada")) == B1
    bench.register(B2)
    assert [one.accepting for one in bench.sent(B1) if isinstance(one, wire.Accepting)] == [False]


def test_failover_is_spread_over_the_living_at_a_bounded_rate_and_webhooks_come_first() -> None:
    bench = Bench(Rules(failover_per_s=10))
    bench.register(B1)
    for number in range(50):
        bench.user(f"u{number}")
    hook = wire.Webhook("https://example.org", ["whsec_x"])
    bench.say(B1, wire.Changed(1, SubscriberId("u49"), webhook=hook))
    bench.register(B2, B3)
    bench.cut(B1)
    bench.wait(10.5, B2, B3)
    assert bench.home("u49") != B1, "nobody calls a webhook but its broker"
    assert 30 < len(bench.core.registry.hosted(B1)) < 50
    bench.wait(5, B2, B3)
    assert not bench.core.registry.hosted(B1)
    assert abs(len(bench.core.registry.hosted(B2)) - len(bench.core.registry.hosted(B3))) <= 2


def test_who_asks_while_its_dead_brokers_others_wait_is_served_at_once() -> None:
    bench = Bench(Rules(failover_per_s=0.001))
    bench.register(B1)
    bench.user("ada")
    bench.say(B1, wire.Changed(1, SubscriberId("ada"), added=[frontend("x")]))
    bench.register(B2)
    bench.cut(B1)
    bench.wait(11, B2)
    assert bench.home("ada") == B1
    assert at(bench.ask(lambda ask: BrokerRequested(ask, SubscriberId("ada")))) == B2
    assert bench.home("ada") == B2 and any(isinstance(one, wire.Adopt) for one in bench.sent(B2))


def test_a_dead_broker_is_forgotten_in_the_end_and_what_it_held_is_let_go() -> None:
    bench = Bench(Rules(forget_broker_s=60))
    bench.register(B1)
    bench.user("ada")
    bench.cut(B1)
    bench.wait(90)
    assert B1 in bench.core.registry.brokers, "it still has a subscriber"
    bench.register(B2)
    released: list[Effect] = []
    for _ in range(10):
        bench.wait(0.5, B2)
        released += [one for one in bench.effects if isinstance(one, ReleaseAtCluster)]
    assert released == [ReleaseAtCluster(B1)]
    bench.happen(BrokerReleased(B1))
    assert B1 not in bench.core.registry.brokers


def test_a_broker_that_returns_while_it_is_being_forgotten_is_kept() -> None:
    bench = Bench(Rules(forget_broker_s=5))
    bench.register(B1, B2)
    bench.cut(B1)
    bench.wait(20, B2)
    bench._asks += 1
    bench.register(B1)
    assert KeepAtCluster(B1) in bench.effects, "what it holds now must not be let go with what it held"
    bench.happen(BrokerReleased(B1))
    assert B1 in bench.core.registry.brokers


def test_only_dead_or_drained_brokers_are_dismissed() -> None:
    bench = Bench()
    bench.register(B1)
    refused = bench.ask(lambda ask: BrokerDismissed(ask, B1))
    assert isinstance(refused, Rejection) and refused.code is Code.IN_USE and "drain it first" in refused.message


# -- plans -------------------------------------------------------------------------------------------------------------


def crowded() -> Bench:
    """Four subscribers on b1 with one subscription each of 10 bytes/s, nobody on b2."""
    bench = Bench()
    bench.register(B1)
    for name in ("ada", "bob", "eve", "joe"):
        bench.user(name)
        bench.say(B1, wire.SessionOpened(SubscriberId(name)))
        bench.say(B1, wire.Changed(1, SubscriberId(name), added=[frontend(name)]))
    bench.say(B1, wire.LoadReport(40.0, 40.0, {SubscriptionId(name): 10.0 for name in ("ada", "bob", "eve", "joe")}))
    bench.register(B2)
    return bench


def decided(answer: object) -> Decision:
    assert isinstance(answer, Decision), answer
    return answer


def propose(
    bench: Bench, *moves: tuple[str, BrokerId], dry_run: bool = True, generation: int | None = None
) -> Decision:
    wanted = tuple(MoveWanted(SubscriberId(one), target) for one, target in moves)
    return decided(bench.ask(lambda ask: PlanProposed(ask, None, wanted, dry_run, generation)))


def test_a_dry_run_says_what_would_change_and_changes_nothing() -> None:
    bench = crowded()
    decision = propose(bench, ("ada", B2), ("bob", B2))
    assert [one.taken for one in decision.verdicts] == [True, True]
    assert decision.before.loads == (80.0, 0.0) and decision.after.loads == (40.0, 40.0)
    assert (decision.before.cov, decision.after.cov) == (1.0, 0.0)
    assert not bench.core.registry.migrations and not bench.sent(B2)


def test_a_stale_plan_is_refused_as_a_whole() -> None:
    bench = crowded()
    generation = bench.core.registry.generation
    bench.user("newcomer")
    decision = propose(bench, ("ada", B2), dry_run=False, generation=generation)
    assert [one.taken for one in decision.verdicts] == [False] and "plan again" in decision.verdicts[0].reason
    assert not bench.core.registry.migrations


@pytest.mark.parametrize(
    ("move", "reason"),
    [
        (("nobody", B2), "no such subscriber"),
        (("ada", B1), "there already"),
        (("ada", B3), "no broker b3"),
        (("bob", B2), "on its way"),
    ],
)
def test_every_refused_move_has_a_reason(move: tuple[str, BrokerId], reason: str) -> None:
    bench = crowded()
    propose(bench, ("bob", B2), dry_run=False)
    [verdict] = propose(bench, move).verdicts
    assert not verdict.taken and reason in verdict.reason


def test_moves_wait_for_a_place_and_each_leaves_a_reason_in_the_log() -> None:
    bench = crowded()
    bench.core.rules = Rules(migrations=1)
    propose(bench, ("ada", B2), ("bob", B2), ("eve", B2), dry_run=False)
    notes = [one.event for one in bench.effects if isinstance(one, Note)]
    assert notes.count("move taken") == 3
    assert len(bench.core.registry.migrations) == 1 and bench.core.arbiter.waiting == 2
    [first] = bench.core.registry.migrations.values()
    bench.say(B2, wire.PrepareFailed(first.id, "not_ready", "no"))
    bench.happen(Ticked())
    [second] = bench.core.registry.migrations.values()
    assert second.subscriber != first.subscriber and bench.core.arbiter.waiting == 1


def test_the_more_urgent_plan_goes_first() -> None:
    bench = crowded()
    bench.core.rules = Rules(migrations=1)
    bench.core.planners["even"] = lambda snapshot: Plan(
        snapshot.generation, "even", Urgency.IMBALANCE,
        tuple(Move(SubscriberId(one), B1, B2, "even out") for one in ("ada", "bob")),
    )  # fmt: skip
    bench.ask(lambda ask: PlanProposed(ask, "even", dry_run=False))
    propose(bench, ("joe", B2), dry_run=False)
    assert list(bench.core.registry.moving) == ["ada"]
    bench.say(B2, wire.PrepareFailed(next(iter(bench.core.registry.migrations)), "not_ready", "no"))
    bench.happen(Ticked())
    assert list(bench.core.registry.moving) == ["joe"]


def test_a_policy_enters_by_name_and_its_memory_comes_back_with_the_next_snapshot() -> None:
    seen: list[Snapshot] = []

    def planner(snapshot: Snapshot) -> Plan:
        seen.append(snapshot)
        return Plan(
            snapshot.generation, "mine", Urgency.IMBALANCE, memory={"hits": 1.0 + snapshot.memory.get("hits", 0)}
        )

    bench = crowded()
    bench.core.planners["mine"] = planner
    for dry_run in (True, False, False):
        decided(bench.ask(lambda ask, dry_run=dry_run: PlanProposed(ask, "mine", dry_run=dry_run)))
    assert [snapshot.memory.get("hits", 0) for snapshot in seen] == [0, 0, 1]
    unknown = bench.ask(lambda ask: PlanProposed(ask, "magic"))
    assert isinstance(unknown, Rejection)
    assert all(name in unknown.message for name in ("drain", "failover", "mine", "multistage"))


def test_a_plan_to_even_out_that_makes_things_worse_is_refused() -> None:
    bench = crowded()
    propose(bench, ("ada", B2), ("bob", B2), dry_run=False)
    bench.core.planners["mad"] = lambda snapshot: Plan(
        snapshot.generation, "mad", Urgency.OVERLOAD, (Move(SubscriberId("eve"), B1, B2, "because"),)
    )
    decision = decided(bench.ask(lambda ask: PlanProposed(ask, "mad", dry_run=False)))
    assert [one.taken for one in decision.verdicts] == [False] and "raise the highest load" in decision.verdicts[
        0
    ].reason


def test_the_drain_policy_shows_what_draining_is_about_to_do() -> None:
    world = World(brokers=2, subscribers=3)
    world.core.planners.clear()
    drained = next(broker for broker in world.brokers if world.core.registry.hosted(broker))
    world.drain(drained, True)
    decision = decided(world.ask(lambda ask: PlanProposed(ask, "drain")))
    assert {one.move.source for one in decision.verdicts} == {drained}
    assert all(one.taken and one.move.target != drained for one in decision.verdicts)


def test_a_drain_ends_with_nobody_left_and_everybody_still_connected() -> None:
    world = World(brokers=3, subscribers=6)
    drained = next(broker for broker in world.brokers if world.core.registry.hosted(broker))
    world.drain(drained, True)
    for _ in range(30):
        world.second()
        world.deliver_all()
        for one, client in world.clients.items():
            if client.migration is not None and client.known not in client.sessions:
                world.log_in(one)
        world.check()
    assert not world.core.registry.hosted(drained) and not world.core.registry.migrations
    assert all(client.sessions and drained not in client.sessions for client in world.clients.values())


# -- migrations --------------------------------------------------------------------------------------------------------


def test_a_subscription_made_during_the_preparation_is_prepared_too() -> None:
    bench = crowded()
    propose(bench, ("ada", B2), dry_run=False)
    bench.say(B1, wire.Changed(2, SubscriberId("ada"), added=[frontend("new")]))
    [prepare] = [one for one in bench.sent(B2) if isinstance(one, wire.Prepare)]
    assert {one.subscription for one in prepare.state.subscriptions} == {"ada", "new"}


def test_a_target_hears_that_the_last_subscription_was_given_up_during_the_hand_over() -> None:
    bench = crowded()
    propose(bench, ("ada", B2), dry_run=False)
    [prepare] = [one for one in bench.sent(B2) if isinstance(one, wire.Prepare)]
    bench.say(B2, wire.Prepared(prepare.migration))
    bench.say(B1, wire.Changed(2, SubscriberId("ada"), removed=[SubscriptionId("ada")]))
    [adopt] = [one for one in bench.sent(B2) if isinstance(one, wire.Adopt)]
    assert [(one.subscriber, one.subscriptions) for one in adopt.subscribers] == [("ada", [])]


def test_acknowledgements_only_advance_and_nonsense_is_passed_over() -> None:
    bench = crowded()
    for number, cursor in enumerate(("1-7", "1-3", "nonsense", "1-9", "0-99")):
        bench.say(B1, wire.Changed(number, SubscriberId("ada"), acked={SubscriptionId("ada"): cursor}))
    assert bench.core.registry.subscribers[SubscriberId("ada")].subscriptions[SubscriptionId("ada")].cursor == "1-9"


def test_an_old_removal_from_a_former_broker_does_not_count() -> None:
    bench = crowded()
    bench.say(B2, wire.Changed(1, SubscriberId("ada"), removed=[SubscriptionId("ada")]))
    assert SubscriptionId("ada") in bench.core.registry.subscribers[SubscriberId("ada")].subscriptions
    bench.say(B1, wire.Changed(2, SubscriberId("ada"), removed=[SubscriptionId("ada")]))
    assert not bench.core.registry.subscribers[SubscriberId("ada")].subscriptions


def test_a_deleted_user_is_not_made_again_by_a_broker_that_was_away() -> None:
    bench = crowded()
    ada = SubscriberId("ada")
    bench.cut(B1)
    bench.wait(11, B2)
    assert bench.ask(lambda ask: UserDeleted(ask, ada)) is True
    bench.say(B2, wire.Released(ada))
    assert ada not in bench.core.registry.subscribers
    bench.register(B1, hosting=[ada])
    bench.say(B1, wire.Changed(2, ada, added=[frontend("new")], acked={SubscriptionId("ada"): "1-7"}))
    assert ada not in bench.core.registry.subscribers
    assert bench.sent(B1) == [wire.Stored(2)], "it need not be said again"
    bench.user("ada")
    bench.say(B1, wire.Changed(3, ada, added=[frontend("new")]))
    assert SubscriptionId("new") in bench.core.registry.subscribers[ada].subscriptions, "registered anew, and no ghost"


def test_nobody_becomes_a_user_by_letting_something_go() -> None:
    bench = crowded()
    una, ida = SubscriberId("una"), SubscriberId("ida")
    bench.say(B1, wire.Changed(2, una, removed=[SubscriptionId("new")], webhook_removed=True))
    bench.say(B1, wire.Changed(3, ida, added=[frontend("new")]))
    assert una not in bench.core.registry.subscribers and ida in bench.core.registry.subscribers


def moved_to_b2() -> Bench:
    """Ada has just moved to B2, and B1 is to let go."""
    bench = crowded()
    propose(bench, ("ada", B2), dry_run=False)
    [migration] = bench.core.registry.migrations.values()
    bench.say(B2, wire.Prepared(migration.id))
    bench.say(B2, wire.SessionOpened(SubscriberId("ada"), migration.id))
    assert migration.step is Step.RELEASING and bench.home("ada") == B2
    return bench


def test_what_was_unsubscribed_just_before_the_move_is_not_held_after_it() -> None:
    bench = moved_to_b2()
    bench.say(B1, wire.Changed(2, SubscriberId("ada"), removed=[SubscriptionId("ada")]))
    assert not bench.core.registry.subscribers[SubscriberId("ada")].subscriptions
    [adopt] = [one for one in bench.sent(B2) if isinstance(one, wire.Adopt)]
    assert adopt.subscribers == [wire.SubscriberState(SubscriberId("ada"), [])]


def test_an_old_removal_does_not_take_away_what_was_subscribed_again_after_the_move() -> None:
    """It was said into a broken link, and is said again when that broker is back."""
    bench = moved_to_b2()
    bench.say(B2, wire.Changed(1, SubscriberId("ada"), added=[frontend("ada")]))
    bench.say(B1, wire.Changed(2, SubscriberId("ada"), removed=[SubscriptionId("ada")]))
    assert SubscriptionId("ada") in bench.core.registry.subscribers[SubscriberId("ada")].subscriptions
    bench.say(B2, wire.Changed(2, SubscriberId("ada"), removed=[SubscriptionId("ada")]))
    assert not bench.core.registry.subscribers[SubscriberId("ada")].subscriptions


def test_a_hand_over_that_nobody_follows_ends_at_the_source() -> None:
    bench = crowded()
    propose(bench, ("ada", B2), dry_run=False)
    [migration] = bench.core.registry.migrations.values()
    bench.say(B2, wire.Prepared(migration.id))
    assert migration.step is Step.HANDING_OVER
    bench.wait(25, B1, B2)
    assert not bench.core.registry.migrations and bench.home("ada") == B1


def test_a_choice_of_placement_counts_at_once() -> None:
    bench = Bench()
    bench.register(B1, B2)
    assert bench.ask(lambda ask: PlacementChosen(ask, PlacementPolicy.ROUND_ROBIN)) is True
    assert {at(bench.user("a")), at(bench.user("b"))} == {B1, B2}
