"""A network around the coordinator's logic in which anything may happen next: brokers, subscribers and links that do
what the contract says (`wire.link`), lose what a broken link loses, and die. Virtual time, no I/O.

`holders` says which broker processes hold a subscriber: the promise under test is that somebody always does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from tocsin.coordinator.core import Coordinator
from tocsin.coordinator.effects import Answer, CloseLink, Effect, ReleaseAtCluster, Send, SendHandOver, Watched
from tocsin.coordinator.events import (
    BrokerReleased,
    BrokerRequested,
    DrainOrdered,
    Event,
    Heard,
    LinkClosed,
    MoveWanted,
    Placed,
    PlanProposed,
    Ticked,
    UserRegistered,
)
from tocsin.coordinator.ledger import Ledger
from tocsin.coordinator.rules import Rules
from tocsin.coordinator.watching import BrokerChanges, broker_row, picture
from tocsin.model.ids import BrokerId, ChannelName, SubscriberId, SubscriptionId
from tocsin.model.trace import Kind
from tocsin.model.trace_state import TraceState
from tocsin.wire import link as wire
from tocsin.wire.link import FromBroker, FromCoordinator, Frontend, SubscriberState

RULES = Rules(grace_s=10.0, probation_s=5.0, failover_per_s=1000, drain_per_s=100, hold_s=150)


@dataclass
class Client:
    id: SubscriberId
    known: BrokerId | None = None
    """Where it was told to go."""
    migration: str | None = None
    sessions: set[BrokerId] = field(default_factory=set)
    wants: set[SubscriptionId] = field(default_factory=set)


@dataclass
class Prepared:
    subscriber: SubscriberId
    deadline_s: float


class ModelBroker:
    """Does what `wire.link` says a broker does."""

    def __init__(self, world: World, identity: BrokerId) -> None:
        self.world = world
        self.id = identity
        self.life = 0
        self.link: int | None = None
        self.out: deque[FromBroker] = deque()
        """On its way to the coordinator."""
        self.into: deque[FromCoordinator] = deque()
        self.start()

    def start(self) -> None:
        self.life += 1
        self.holds: dict[SubscriberId, dict[SubscriptionId, Frontend]] = {}
        self.prepared: dict[str, Prepared] = {}
        self.online: dict[SubscriberId, None] = {}
        self.waiting: dict[SubscriberId, None] = {}
        self.unconfirmed: list[wire.Changed] = []
        self.number = 0
        self.accepting = True

    def say(self, message: FromBroker) -> None:
        if self.link is not None:
            self.out.append(message)

    def register(self) -> None:
        prepared_only = {one.subscriber for one in self.prepared.values()} - self.online.keys()
        hosting = [one for one in self.holds if one not in prepared_only]
        self.say(wire.Register(self.id, f"{self.id}-{self.life}", f"ws://{self.id}", 1.0, online=list(self.online),
                               hosting=hosting))  # fmt: skip
        for change in self.unconfirmed:
            self.say(change)
        for one in self.waiting:
            self.say(wire.Wanted(one))

    def changed(self, **what: object) -> None:
        self.number += 1
        change = wire.Changed(self.number, **what)  # type: ignore[arg-type]
        self.unconfirmed.append(change)
        self.say(change)

    # -- what the coordinator says -------------------------------------------------------------------------------------

    def hear(self, message: FromCoordinator) -> None:
        match message:
            case wire.Registered(accepting=accepting) | wire.Accepting(accepting=accepting):
                self.accepting = accepting
            case wire.Stored(upto=upto):
                self.unconfirmed = [one for one in self.unconfirmed if one.number > upto]
            case wire.Adopt(subscribers=states):
                for state in states:
                    self.adopt(state)
            case wire.Prepare(migration=migration, state=state, deadline_s=deadline_s):
                self.hold(state)
                self.prepared[migration] = Prepared(state.subscriber, self.world.now_s + deadline_s)
                self.say(wire.Prepared(migration))
            case wire.HandOver(migration=migration, subscriber=subscriber, broker=target):
                self.hand_over(migration, subscriber, target)
            case wire.Release(subscriber=subscriber, migration=released):
                self.release(subscriber)
                self.say(wire.Released(subscriber, released))
            case wire.Abandon(migration=migration, subscriber=subscriber):
                self.give_up(migration)

    def hold(self, state: SubscriberState) -> None:
        held = self.holds.setdefault(state.subscriber, {})  # with nothing in it, if it holds nothing
        for one in state.subscriptions:
            held.setdefault(one.subscription, one)

    def adopt(self, state: SubscriberState) -> None:
        self.hold(state)
        for migration in [key for key, one in self.prepared.items() if one.subscriber == state.subscriber]:
            del self.prepared[migration]
        if state.subscriber in self.waiting:
            del self.waiting[state.subscriber]
            self.open(state.subscriber, None)

    def hand_over(self, migration: str, subscriber: SubscriberId, target: BrokerId) -> None:
        if subscriber in self.online:
            client = self.world.clients[subscriber]
            client.known, client.migration = target, migration
        else:
            self.say(wire.HandOverFailed(migration, "offline", "it is not connected"))

    def release(self, subscriber: SubscriberId) -> None:
        self.holds.pop(subscriber, None)
        self.waiting.pop(subscriber, None)
        for migration in [key for key, one in self.prepared.items() if one.subscriber == subscriber]:
            del self.prepared[migration]
        if subscriber in self.online:
            del self.online[subscriber]
            self.world.clients[subscriber].sessions.discard(self.id)

    def give_up(self, migration: str) -> None:
        prepared = self.prepared.pop(migration, None)
        if prepared is None or prepared.subscriber in self.online:
            return
        if not any(one.subscriber == prepared.subscriber for one in self.prepared.values()):
            self.holds.pop(prepared.subscriber, None)

    def expire(self) -> None:
        for migration in [key for key, one in self.prepared.items() if one.deadline_s <= self.world.now_s]:
            self.give_up(migration)

    # -- what subscribers do -------------------------------------------------------------------------------------------

    def log_in(self, subscriber: SubscriberId, migration: str | None) -> bool:
        if subscriber in self.online:
            return True
        if subscriber in self.holds:
            self.open(subscriber, migration)
        elif self.accepting or migration is not None:
            self.waiting[subscriber] = None
            self.say(wire.Wanted(subscriber))
        else:
            return False
        return True

    def open(self, subscriber: SubscriberId, migration: str | None) -> None:
        for key in [key for key, one in self.prepared.items() if one.subscriber == subscriber]:
            del self.prepared[key]
        self.online[subscriber] = None
        self.world.clients[subscriber].sessions.add(self.id)
        self.say(wire.SessionOpened(subscriber, migration))

    def close(self, subscriber: SubscriberId) -> None:
        self.waiting.pop(subscriber, None)
        if subscriber in self.online:
            del self.online[subscriber]
            self.world.clients[subscriber].sessions.discard(self.id)
            self.say(wire.SessionClosed(subscriber, "gone"))


class World:
    def __init__(self, brokers: int = 3, subscribers: int = 3, rules: Rules = RULES) -> None:
        self.rules = rules
        self.now_s = 1_000.0
        self.ledger = Ledger()
        self.starts = 0
        self.links = 0
        self.asks = 0
        self.clients: dict[SubscriberId, Client] = {}
        self.brokers: dict[BrokerId, ModelBroker] = {}
        self.log: list[str] = []
        self.lost: set[SubscriberId] = set()
        """Whose last holder has died: nobody can hold them before they are placed again."""
        self.start_coordinator()
        for number in range(brokers):
            identity = BrokerId(f"b{number}")
            self.brokers[identity] = ModelBroker(self, identity)
            self.connect(identity)
        self.deliver_all()
        for number in range(subscribers):
            one = SubscriberId(f"s{number}")
            self.clients[one] = Client(one)
            self.register(one)
            self.come(one)
            self.deliver_all()
            self.subscribe(one)
        self.deliver_all()

    # -- the coordinator -----------------------------------------------------------------------------------------------

    def start_coordinator(self) -> None:
        """From the ledger; every link is gone with the former process."""
        self.starts += 1
        for broker in self.brokers.values():
            self._cut(broker)
        self.core = Coordinator(self.rules, f"e{self.starts}", memory=self.ledger.load(), now_s=self.now_s)
        self.seen, self.broker_changes = TraceState(), BrokerChanges()
        for row in picture(self.core, self.now_s):
            self.seen.fold(row)

    def happen(self, event: Event, *, die: str | None = None) -> list[Effect]:
        """The driver's part: store, then tell. It may die before the one or between the two."""
        effects = self.core.handle(event, self.now_s)
        if die == "before storing":
            self.start_coordinator()
            return []
        self.ledger.commit(effects)
        if die == "before telling":
            self.start_coordinator()
            return []
        told = [effect.row for effect in effects if isinstance(effect, Watched)]
        for row in [*self.broker_changes.since(self.core, self.now_s), *told]:
            self.seen.fold(row)
        for effect in effects:
            self._do(effect)
        return effects

    def _do(self, effect: Effect) -> None:
        match effect:
            case Send(broker, number, message):
                self._tell(broker, number, message)
            case SendHandOver():
                message = wire.HandOver(
                    effect.migration, effect.subscriber, effect.target, effect.address, "token", effect.deadline_s
                )
                self._tell(effect.broker, effect.link, message)
            case CloseLink(broker, number, _):
                if self.brokers[broker].link == number:
                    self._cut(self.brokers[broker])
            case ReleaseAtCluster(broker):
                self.happen(BrokerReleased(broker))

    def _tell(self, broker: BrokerId, number: int, message: FromCoordinator) -> None:
        if self.brokers[broker].link == number:
            self.brokers[broker].into.append(message)

    def ask(self, make: Callable[[int], Event]) -> object:
        self.asks += 1
        for effect in self.happen(make(self.asks)):
            if isinstance(effect, Answer) and effect.ask == self.asks:
                return effect.value
        return None

    # -- links and brokers ---------------------------------------------------------------------------------------------

    def connect(self, broker: BrokerId) -> None:
        found = self.brokers[broker]
        if found.link is None:
            self.links += 1
            found.link = self.links
            found.register()

    def _cut(self, broker: ModelBroker) -> None:
        # An adoption that is lost on its way is a second failure on top of the one that made it necessary: nobody may
        # hold its subscribers until the broker registers again, or is called dead.
        adopted = {state.subscriber for one in broker.into if isinstance(one, wire.Adopt) for state in one.subscribers}
        self.lost |= adopted
        broker.link = None
        broker.out.clear()
        broker.into.clear()

    def cut(self, broker: BrokerId) -> None:
        found = self.brokers[broker]
        if found.link is not None:
            number = found.link
            self._cut(found)
            self.happen(LinkClosed(broker, number))

    def crash(self, broker: BrokerId) -> None:
        """The process dies and is started again, remembering nothing."""
        found = self.brokers[broker]
        for one in list(found.online):
            self.clients[one].sessions.discard(broker)
        held = list(found.holds)
        self.cut(broker)
        found.start()
        self.lost |= {one for one in held if not self._firm_holders(one)}

    def send_next(self, broker: BrokerId, die: str | None = None) -> None:
        found = self.brokers[broker]
        if found.out and found.link is not None:
            self.happen(Heard(broker, found.link, found.out.popleft()), die=die)

    def receive_next(self, broker: BrokerId) -> None:
        found = self.brokers[broker]
        if found.into:
            found.hear(found.into.popleft())
        homes = self.core.registry.subscribers
        self.lost -= {one for one in self.lost if one in homes and homes[one].home in self._firm_holders(one)}

    def deliver_all(self) -> None:
        while any(one.out or one.into for one in self.brokers.values()):
            for identity in self.brokers:
                self.send_next(identity)
                self.receive_next(identity)

    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds
        for broker in self.brokers.values():
            broker.expire()
        self.happen(Ticked())

    def second(self) -> None:
        self.beat()
        self.pass_time(1.0)

    def beat(self) -> None:
        for broker in self.brokers.values():
            broker.say(wire.Heartbeat(len(broker.online), 0, 0))

    # -- subscribers ---------------------------------------------------------------------------------------------------

    def register(self, one: SubscriberId) -> object:
        return self.ask(lambda ask: UserRegistered(ask, one))

    def come(self, one: SubscriberId) -> None:
        """requestbroker, then log in there."""
        client = self.clients[one]
        placed = self.ask(lambda ask: BrokerRequested(ask, one))
        if isinstance(placed, Placed):
            client.known, client.migration = placed.broker, None
            self.log_in(one)

    def log_in(self, one: SubscriberId) -> None:
        client = self.clients[one]
        if client.known is not None:
            self.brokers[client.known].log_in(one, client.migration)

    def leave(self, one: SubscriberId) -> None:
        for broker in self.brokers.values():
            broker.close(one)

    def subscribe(self, one: SubscriberId) -> None:
        client = self.clients[one]
        for broker in sorted(client.sessions)[:1]:
            wanted = Frontend(SubscriptionId(f"{one}-{len(client.wants)}"), ChannelName("C"), {}, "1-0")
            client.wants.add(wanted.subscription)
            self.brokers[broker].holds[one][wanted.subscription] = wanted
            self.brokers[broker].changed(subscriber=one, added=[wanted])

    def acknowledge(self, one: SubscriberId, offset: int) -> None:
        for broker in sorted(self.clients[one].sessions)[:1]:
            held = self.brokers[broker].holds.get(one, {})
            if held:
                self.brokers[broker].changed(subscriber=one, acked=dict.fromkeys(held, f"1-{offset}"))

    def move(self, one: SubscriberId, target: BrokerId) -> object:
        return self.ask(lambda ask: PlanProposed(ask, None, (MoveWanted(one, target),), dry_run=False))

    def drain(self, broker: BrokerId, on: bool) -> object:
        return self.ask(lambda ask: DrainOrdered(ask, broker, on))

    # -- what must hold ------------------------------------------------------------------------------------------------

    def holders(self, one: SubscriberId) -> list[BrokerId]:
        return [broker.id for broker in self.brokers.values() if one in broker.holds]

    def _firm_holders(self, one: SubscriberId) -> list[BrokerId]:
        """Without those that hold it for a migration that may be over (what they prepared has a deadline), and without
        those who have been told to let go and are about to hear it."""
        return [
            broker
            for broker in self.holders(one)
            if not any(prepared.subscriber == one for prepared in self.brokers[broker].prepared.values())
            and not any(isinstance(said, wire.Release) and said.subscriber == one for said in self.brokers[broker].into)
        ]

    def check(self) -> None:
        wrong = self.core.registry.broken_invariants()
        assert not wrong, wrong
        homes = {one.id: one.home for one in self.core.registry.subscribers.values() if one.home is not None}
        assert self.seen.homes == homes, "whoever watches sees something else"
        for one in self.clients:
            found = self.core.registry.subscribers.get(one)
            if found is not None and found.subscriptions and one not in self.lost:
                assert self.holders(one), f"nobody holds {one}"

    def settle(self, quiet_s: float = 300.0) -> None:
        """No more faults: everybody is connected, heartbeats flow, time passes."""
        for broker in self.brokers:
            self.drain(broker, False)
        until_s = self.now_s + quiet_s
        while self.now_s < until_s:
            for broker in self.brokers:
                self.connect(broker)
            self.beat()
            self.deliver_all()
            self.pass_time(1.0)
            self.check()
        self.deliver_all()

    def check_settled(self) -> None:
        assert not self.core.registry.migrations, self.core.registry.migrations
        for one in self.clients:
            found = self.core.registry.subscribers[one]
            assert found.home is not None
            assert self.holders(one) == [found.home], (one, self.holders(one), found.home)
            held = self.brokers[found.home].holds[one]
            assert set(held) == set(found.subscriptions), one
            assert self.clients[one].sessions <= {found.home}, one
            assert (found.session_at is not None) == bool(self.clients[one].sessions), one
        shown = {row.broker: row for row in self.seen.picture(0.0) if row.kind == Kind.BROKER}
        assert shown == {one.id: broker_row(self.core, one, 0.0) for one in self.core.registry.brokers.values()}
        memory = Coordinator(self.rules, "again", memory=self.ledger.load(), now_s=self.now_s).registry
        assert {one.id: one.home for one in memory.subscribers.values()} == {
            one.id: one.home for one in self.core.registry.subscribers.values()
        }
