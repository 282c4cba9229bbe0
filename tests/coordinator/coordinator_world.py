"""A coordinator core in a network in which anything may happen next. Virtual time, no I/O.

Brokers, subscribers and links follow the contract of `wire.link`. A broken link loses its messages, and processes die.
`World.holders` lists the broker processes that hold a subscriber: tests check that at least one always does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.coordinator.invariants import broken_invariants
from tocsin.coordinator.arbiter import Decision
from tocsin.coordinator.core import Coordinator
from tocsin.coordinator.effects import (
    AnswerRequest,
    CloseLink,
    Effect,
    RecordTrace,
    ReleaseAtCluster,
    SendHandOver,
    SendToBroker,
)
from tocsin.coordinator.events import (
    BrokerReleased,
    BrokerRequested,
    DrainOrdered,
    Event,
    LinkClosed,
    LinkMessageReceived,
    Placed,
    PlanProposed,
    RequestedMove,
    Ticked,
    UserRegistered,
)
from tocsin.coordinator.rules import CoordinatorRules
from tocsin.coordinator.storage import InMemoryStore
from tocsin.coordinator.watching import BrokerChanges, broker_row, picture
from tocsin.model.ids import BrokerId, ChannelName, SubscriberId, SubscriptionId
from tocsin.model.trace import Kind
from tocsin.model.trace_state import TraceState
from tocsin.wire import link as wire
from tocsin.wire.link import FromBroker, FromCoordinator, Frontend, SubscriberState

RULES = CoordinatorRules(grace_s=10.0, probation_s=5.0, failover_per_s=1000, drain_per_s=100, hold_s=150)


@dataclass
class Client:
    id: SubscriberId
    known: BrokerId | None = None
    """The broker of the last placement or announced move: the next login goes there."""
    migration: str | None = None
    sessions: set[BrokerId] = field(default_factory=set)
    subscriptions: set[SubscriptionId] = field(default_factory=set)


@dataclass
class Preparation:
    subscriber: SubscriberId
    deadline_s: float


class ModelBroker:
    """Behaves as `wire.link` requires of a broker."""

    def __init__(self, world: World, identity: BrokerId) -> None:
        self.world = world
        self.id = identity
        self.starts = 0
        self.link: int | None = None
        self.outgoing: deque[FromBroker] = deque()
        """Messages on the link to the coordinator."""
        self.incoming: deque[FromCoordinator] = deque()
        self.start()

    def start(self) -> None:
        self.starts += 1
        self.holds: dict[SubscriberId, dict[SubscriptionId, Frontend]] = {}
        self.prepared: dict[str, Preparation] = {}
        self.online: dict[SubscriberId, None] = {}
        self.waiting: dict[SubscriberId, None] = {}
        self.unconfirmed: list[wire.Changed] = []
        self.number = 0
        self.accepting = True

    def send(self, message: FromBroker) -> None:
        if self.link is not None:
            self.outgoing.append(message)

    def register(self) -> None:
        prepared_only = {preparation.subscriber for preparation in self.prepared.values()} - self.online.keys()
        hosting = [name for name in self.holds if name not in prepared_only]
        incarnation = f"{self.id}-{self.starts}"
        self.send(wire.Register(self.id, incarnation, f"ws://{self.id}", online=list(self.online), hosting=hosting))
        for change in self.unconfirmed:
            self.send(change)
        for name in self.waiting:
            self.send(wire.StateRequest(name))

    def report_change(self, **fields: object) -> None:
        self.number += 1
        change = wire.Changed(self.number, **fields)  # type: ignore[arg-type]
        self.unconfirmed.append(change)
        self.send(change)

    # -- messages of the coordinator -----------------------------------------------------------------------------------

    def receive(self, message: FromCoordinator) -> None:
        match message:
            case wire.Registered(accepting=accepting) | wire.Accepting(accepting=accepting):
                self.accepting = accepting
            case wire.Stored(upto=upto):
                self.unconfirmed = [change for change in self.unconfirmed if change.number > upto]
            case wire.Adopt(subscribers=states):
                for state in states:
                    self.adopt(state)
            case wire.Prepare(migration=migration, state=state, deadline_s=deadline_s):
                self.hold(state)
                self.prepared[migration] = Preparation(state.subscriber, self.world.now_s + deadline_s)
                self.send(wire.Prepared(migration))
            case wire.HandOver(migration=migration, subscriber=subscriber, broker=target):
                self.hand_over(migration, subscriber, target)
            case wire.Release(subscriber=subscriber, migration=released):
                self.release(subscriber)
                self.send(wire.Released(subscriber, released))
            case wire.Abandon(migration=migration, subscriber=subscriber):
                self.abandon(migration)

    def hold(self, state: SubscriberState) -> None:
        held = self.holds.setdefault(state.subscriber, {})  # also for a subscriber without subscriptions
        for frontend in state.subscriptions:
            held.setdefault(frontend.subscription, frontend)

    def adopt(self, state: SubscriberState) -> None:
        self.hold(state)
        self.forget_preparations(state.subscriber)
        if state.subscriber in self.waiting:
            del self.waiting[state.subscriber]
            self.open(state.subscriber, None)

    def hand_over(self, migration: str, subscriber: SubscriberId, target: BrokerId) -> None:
        if subscriber in self.online:
            client = self.world.clients[subscriber]
            client.known, client.migration = target, migration
        else:
            self.send(wire.HandOverFailed(migration, "offline", "it is not connected"))

    def release(self, subscriber: SubscriberId) -> None:
        self.holds.pop(subscriber, None)
        self.waiting.pop(subscriber, None)
        self.forget_preparations(subscriber)
        if subscriber in self.online:
            del self.online[subscriber]
            self.world.clients[subscriber].sessions.discard(self.id)

    def forget_preparations(self, subscriber: SubscriberId) -> None:
        self.prepared = {
            migration: preparation
            for migration, preparation in self.prepared.items()
            if preparation.subscriber != subscriber
        }

    def has_prepared(self, subscriber: SubscriberId) -> bool:
        return any(preparation.subscriber == subscriber for preparation in self.prepared.values())

    def abandon(self, migration: str) -> None:
        preparation = self.prepared.pop(migration, None)
        if preparation is None or preparation.subscriber in self.online:
            return
        if not self.has_prepared(preparation.subscriber):
            self.holds.pop(preparation.subscriber, None)

    def expire(self) -> None:
        now_s = self.world.now_s
        for migration in [key for key, preparation in self.prepared.items() if preparation.deadline_s <= now_s]:
            self.abandon(migration)

    # -- sessions ------------------------------------------------------------------------------------------------------

    def log_in(self, subscriber: SubscriberId, migration: str | None) -> None:
        if subscriber in self.online:
            return
        if subscriber in self.holds:
            self.open(subscriber, migration)
        elif self.accepting or migration is not None:
            self.waiting[subscriber] = None
            self.send(wire.StateRequest(subscriber))

    def open(self, subscriber: SubscriberId, migration: str | None) -> None:
        self.forget_preparations(subscriber)
        self.online[subscriber] = None
        self.world.clients[subscriber].sessions.add(self.id)
        self.send(wire.SessionOpened(subscriber, migration))

    def close(self, subscriber: SubscriberId) -> None:
        self.waiting.pop(subscriber, None)
        if subscriber in self.online:
            del self.online[subscriber]
            self.world.clients[subscriber].sessions.discard(self.id)
            self.send(wire.SessionClosed(subscriber, "gone"))


class World:
    def __init__(self, brokers: int = 3, subscribers: int = 3, rules: CoordinatorRules = RULES) -> None:
        self.rules = rules
        self.now_s = 1_000.0
        self.store = InMemoryStore()
        self.starts = 0
        self.links = 0
        self.asks = 0
        self.clients: dict[SubscriberId, Client] = {}
        self.brokers: dict[BrokerId, ModelBroker] = {}
        self.log: list[str] = []
        self.lost: set[SubscriberId] = set()
        """Subscribers whose last holder has died: no broker can hold them before they are placed again."""
        self.start_coordinator()
        for number in range(brokers):
            identity = BrokerId(f"b{number}")
            self.brokers[identity] = ModelBroker(self, identity)
            self.connect(identity)
        self.deliver_all()
        for number in range(subscribers):
            name = SubscriberId(f"s{number}")
            self.clients[name] = Client(name)
            self.register(name)
            self.request_broker(name)
            self.deliver_all()
            self.subscribe(name)
        self.deliver_all()

    # -- the coordinator -----------------------------------------------------------------------------------------------

    def start_coordinator(self) -> None:
        """Start a coordinator from the store. The links of the former process are broken."""
        self.starts += 1
        for broker in self.brokers.values():
            self._cut(broker)
        self.core = Coordinator(self.rules, f"e{self.starts}", memory=self.store.load(), now_s=self.now_s)
        self.watched, self.broker_changes = TraceState(), BrokerChanges()
        for row in picture(self.core, self.now_s):
            self.watched.fold(row)

    def handle(self, event: Event, *, die: str | None = None) -> list[Effect]:
        """Act as the driver: store, then send. `die` is None, "before storing" or "before sending"."""
        effects = self.core.handle(event, self.now_s)
        if die == "before storing":
            self.start_coordinator()
            return []
        self.store.commit(effects)
        if die == "before sending":
            self.start_coordinator()
            return []
        rows = [effect.row for effect in effects if isinstance(effect, RecordTrace)]
        for row in [*self.broker_changes.since(self.core, self.now_s), *rows]:
            self.watched.fold(row)
        for effect in effects:
            self._carry_out(effect)
        return effects

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case SendToBroker(broker, number, message):
                self._send(broker, number, message)
            case SendHandOver():
                message = wire.HandOver(
                    effect.migration, effect.subscriber, effect.target, effect.address, "token", effect.deadline_s
                )
                self._send(effect.broker, effect.link, message)
            case CloseLink(broker, number, _):
                if self.brokers[broker].link == number:
                    self._cut(self.brokers[broker])
            case ReleaseAtCluster(broker):
                self.handle(BrokerReleased(broker))

    def _send(self, broker: BrokerId, number: int, message: FromCoordinator) -> None:
        if self.brokers[broker].link == number:
            self.brokers[broker].incoming.append(message)

    def ask(self, request: Callable[[int], Event]) -> object:
        self.asks += 1
        for effect in self.handle(request(self.asks)):
            if isinstance(effect, AnswerRequest) and effect.ask == self.asks:
                return effect.value
        return None

    def decide(self, request: Callable[[int], PlanProposed]) -> Decision:
        decision = self.ask(request)
        assert isinstance(decision, Decision), decision
        return decision

    # -- links and brokers ---------------------------------------------------------------------------------------------

    def connect(self, broker: BrokerId) -> None:
        model = self.brokers[broker]
        if model.link is None:
            self.links += 1
            model.link = self.links
            model.register()

    def _cut(self, broker: ModelBroker) -> None:
        # A lost adoption is a second failure on top of the one that made it necessary: possibly no broker holds these
        # subscribers until this broker registers again or is declared dead.
        for message in broker.incoming:
            if isinstance(message, wire.Adopt):
                self.lost |= {state.subscriber for state in message.subscribers}
        broker.link = None
        broker.outgoing.clear()
        broker.incoming.clear()

    def cut(self, broker: BrokerId) -> None:
        model = self.brokers[broker]
        if model.link is not None:
            number = model.link
            self._cut(model)
            self.handle(LinkClosed(broker, number))

    def crash(self, broker: BrokerId) -> None:
        """Restart the process without its state."""
        model = self.brokers[broker]
        for name in list(model.online):
            self.clients[name].sessions.discard(broker)
        held = list(model.holds)
        self.cut(broker)
        model.start()
        self.lost |= {name for name in held if not self._firm_holders(name)}

    def send_next(self, broker: BrokerId, die: str | None = None) -> None:
        """Deliver the next message of this broker to the coordinator."""
        model = self.brokers[broker]
        if model.outgoing and model.link is not None:
            self.handle(LinkMessageReceived(broker, model.link, model.outgoing.popleft()), die=die)

    def receive_next(self, broker: BrokerId) -> None:
        """Deliver the next message of the coordinator to this broker."""
        model = self.brokers[broker]
        if model.incoming:
            model.receive(model.incoming.popleft())
        subscribers = self.core.registry.subscribers
        self.lost -= {
            name for name in self.lost if name in subscribers and subscribers[name].home in self._firm_holders(name)
        }

    def deliver_all(self) -> None:
        while any(model.outgoing or model.incoming for model in self.brokers.values()):
            for identity in self.brokers:
                self.send_next(identity)
                self.receive_next(identity)

    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds
        for broker in self.brokers.values():
            broker.expire()
        self.handle(Ticked())

    def second(self) -> None:
        self.beat()
        self.pass_time(1.0)

    def beat(self) -> None:
        for broker in self.brokers.values():
            broker.send(wire.Heartbeat(len(broker.online), 0, 0))

    # -- subscribers ---------------------------------------------------------------------------------------------------

    def register(self, name: SubscriberId) -> object:
        return self.ask(lambda ask: UserRegistered(ask, name))

    def request_broker(self, name: SubscriberId) -> None:
        """Request a broker, then log in there."""
        client = self.clients[name]
        placed = self.ask(lambda ask: BrokerRequested(ask, name))
        if isinstance(placed, Placed):
            client.known, client.migration = placed.broker, None
            self.log_in(name)

    def log_in(self, name: SubscriberId) -> None:
        client = self.clients[name]
        if client.known is not None:
            self.brokers[client.known].log_in(name, client.migration)

    def leave(self, name: SubscriberId) -> None:
        for broker in self.brokers.values():
            broker.close(name)

    def subscribe(self, name: SubscriberId) -> None:
        client = self.clients[name]
        for broker in sorted(client.sessions)[:1]:
            subscription = SubscriptionId(f"{name}-{len(client.subscriptions)}")
            frontend = Frontend(subscription, ChannelName("C"), {}, "1-0")
            client.subscriptions.add(subscription)
            self.brokers[broker].holds[name][subscription] = frontend
            self.brokers[broker].report_change(subscriber=name, added=[frontend])

    def acknowledge(self, name: SubscriberId, offset: int) -> None:
        for broker in sorted(self.clients[name].sessions)[:1]:
            held = self.brokers[broker].holds.get(name, {})
            if held:
                self.brokers[broker].report_change(subscriber=name, acked=dict.fromkeys(held, f"1-{offset}"))

    def move(self, name: SubscriberId, target: BrokerId) -> object:
        return self.ask(lambda ask: PlanProposed(ask, None, (RequestedMove(name, target),), dry_run=False))

    def drain(self, broker: BrokerId, on: bool) -> object:
        return self.ask(lambda ask: DrainOrdered(ask, broker, on))

    # -- invariants ----------------------------------------------------------------------------------------------------

    def holders(self, name: SubscriberId) -> list[BrokerId]:
        return [broker.id for broker in self.brokers.values() if name in broker.holds]

    def _firm_holders(self, name: SubscriberId) -> list[BrokerId]:
        """Holders without those that only prepare for a migration (it may be over), or have a `Release` on the link."""
        return [
            broker
            for broker in self.holders(name)
            if not self.brokers[broker].has_prepared(name)
            and not any(isinstance(m, wire.Release) and m.subscriber == name for m in self.brokers[broker].incoming)
        ]

    def homes(self, core: Coordinator) -> dict[SubscriberId, BrokerId | None]:
        return {subscriber.id: subscriber.home for subscriber in core.registry.subscribers.values()}

    def check(self) -> None:
        wrong = broken_invariants(self.core.registry)
        assert not wrong, wrong
        homes = {name: home for name, home in self.homes(self.core).items() if home is not None}
        assert self.watched.homes == homes, "the trace rows show other homes"
        for name in self.clients:
            subscriber = self.core.registry.subscribers.get(name)
            if subscriber is not None and subscriber.subscriptions and name not in self.lost:
                assert self.holders(name), f"no broker holds {name}"

    def settle(self, quiet_s: float = 300.0) -> None:
        """No more faults: all brokers are connected, heartbeats flow, time passes."""
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
        registry = self.core.registry
        assert not registry.migrations, registry.migrations
        for name in self.clients:
            subscriber = registry.subscribers[name]
            assert subscriber.home is not None
            assert self.holders(name) == [subscriber.home], (name, self.holders(name), subscriber.home)
            held = self.brokers[subscriber.home].holds[name]
            assert set(held) == set(subscriber.subscriptions), name
            assert self.clients[name].sessions <= {subscriber.home}, name
            assert (subscriber.session_at is not None) == bool(self.clients[name].sessions), name
        shown = {row.broker: row for row in self.watched.picture(0.0) if row.kind == Kind.BROKER}
        assert shown == {broker.id: broker_row(self.core, broker, 0.0) for broker in registry.brokers.values()}
        restarted = Coordinator(self.rules, "again", memory=self.store.load(), now_s=self.now_s)
        assert self.homes(restarted) == self.homes(self.core)
