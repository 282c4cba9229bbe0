"""The real logic of all three, joined without I/O: brokers, the coordinator, subscribers' sessions and applications.

The data cluster is the simulated one of the brokers' tests. Every message waits until somebody delivers it; streams
keep their own order, as real ones do, and everything else may overtake everything else. A broken link or connection
loses what was on its way, a crashed process what it had not stored. Applications complain the moment something wrong
is delivered; `check` says whether all three agree in the end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

import msgspec

from tests.broker.simulated import CHANNEL, SimulatedCluster, subscription
from tocsin.broker import effects as wanted
from tocsin.broker import events as seen
from tocsin.broker.core import Broker
from tocsin.broker.hosted import Requester, SessionId
from tocsin.broker.state import Limits
from tocsin.client import events as client
from tocsin.client.session import SubscriberSession
from tocsin.coordinator import effects as decided
from tocsin.coordinator import events
from tocsin.coordinator.core import Coordinator
from tocsin.coordinator.ledger import Ledger
from tocsin.coordinator.rules import Rules
from tocsin.model.cursor import Cursor
from tocsin.model.ids import BrokerId, SubscriberId, SubscriptionId
from tocsin.wire import link
from tocsin.wire import session as wire
from tocsin.wire.errors import Code

KINDS = ("fire", "flood", "quake")
RULES = Rules(grace_s=10.0, probation_s=5.0, failover_per_s=1000, drain_per_s=100)


@dataclass(eq=False)
class Node:
    """A broker's process, its way to the data cluster and its link."""

    core: Broker
    orders: deque[wanted.RequestBackend | wanted.ReleaseBackend] = field(default_factory=deque)
    granted: seen.BackendGranted | None = None
    fetches: dict[int, wanted.Fetch | deque[seen.Event]] = field(default_factory=dict)
    full: dict[SessionId, None] = field(default_factory=dict)
    """Sessions that wait for their connection to drain."""
    number: int | None = None
    """Of its link; None while that is broken."""
    out: deque[link.FromBroker] = field(default_factory=deque)
    into: deque[link.FromCoordinator] = field(default_factory=deque)


@dataclass(eq=False)
class Connection:
    node: Node
    place: client.Place
    session: SessionId
    opened: bool = False
    left: bool = False
    """Its client wants nothing more from it, once what it sent has gone out."""
    closing: str | None = None
    """Why the broker has closed it, once what it sent has gone out."""
    up: deque[wire.FromSubscriber] = field(default_factory=deque)
    down: deque[wire.ToSubscriber] = field(default_factory=deque)


@dataclass
class Application:
    """What it holds by what it was told, and what of that it got."""

    session: SubscriberSession
    began: dict[SubscriptionId, Cursor] = field(default_factory=dict)
    numbers: dict[SubscriptionId, list[int]] = field(default_factory=dict)
    wishes: dict[int, SubscriptionId] = field(default_factory=dict)
    untaken: deque[wire.Result] = field(default_factory=deque)


class Network:
    def __init__(
        self, dice: Callable[[], float], brokers: int = 3, subscribers: int = 3, queue_bytes: int = 300
    ) -> None:
        self.dice = dice
        self.now_s = 1_000.0
        self.queue_bytes = queue_bytes
        self.cluster = SimulatedCluster()
        self.ledger = Ledger()
        self.nodes: dict[BrokerId, Node] = {}
        self.applications: dict[SubscriberId, Application] = {}
        self.connections: dict[tuple[SubscriberId, int], Connection] = {}
        self.locating: deque[tuple[SubscriberId, BrokerId | None]] = deque()
        self._numbers = count(1)
        for number in range(brokers):
            self._start_broker(BrokerId(f"b{number}"))
        self.start_coordinator()
        for number in range(subscribers):
            name = SubscriberId(f"s{number}")
            self.applications[name] = Application(SubscriberSession(dice))
            self.tell(name, client.Started())
        self.settle(10)
        for name in self.applications:
            self.subscribe(name, KINDS[0])
            self.subscribe(name, KINDS[1])
        self.settle(5)

    # -- the coordinator -----------------------------------------------------------------------------------------------

    def start_coordinator(self) -> None:
        """From what is stored; the links are gone with the former process."""
        for node in self.nodes.values():
            self._cut(node)
        self.coordinator = Coordinator(RULES, f"e{next(self._numbers)}", memory=self.ledger.load(), now_s=self.now_s)

    def coordinate(self, event: events.Event, die: str | None = None) -> object:
        """Store, then tell; it may die before the one or between the two."""
        effects = self.coordinator.handle(event, self.now_s)
        if die != "before storing":
            self.ledger.commit(effects)
        if die is not None:
            self.start_coordinator()
            return None
        answer = None
        for effect in effects:
            match effect:
                case decided.Send(broker, number, message):
                    self._say(broker, number, message)
                case decided.SendHandOver():
                    self._say(effect.broker, effect.link, link.HandOver(
                        effect.migration, effect.subscriber, effect.target, effect.address, effect.migration,
                        effect.deadline_s,
                    ))  # fmt: skip
                case decided.CloseLink(broker, number, _) if self.nodes[broker].number == number:
                    self._cut(self.nodes[broker])
                case decided.Answer(_, value):
                    answer = value
        assert not self.coordinator.registry.broken_invariants()
        return answer

    def _say(self, broker: BrokerId, number: int, message: link.FromCoordinator) -> None:
        if self.nodes[broker].number == number:
            self.nodes[broker].into.append(message)

    def move(self, name: SubscriberId, target: BrokerId) -> None:
        moves = (events.MoveWanted(name, target),)
        self.coordinate(events.PlanProposed(next(self._numbers), None, moves, dry_run=False))

    # -- brokers and links ---------------------------------------------------------------------------------------------

    def _start_broker(self, broker: BrokerId) -> None:
        life = f"{broker}-{next(self._numbers)}"
        limits = Limits(cache_bytes=1_000_000, queue_bytes=self.queue_bytes)
        self.nodes[broker] = Node(
            Broker(broker, life, limits, self.dice, link.Register(broker, life, f"ws://{broker}"))
        )
        self.cluster.streams[broker] = deque([seen.AnnouncementsMissed()])

    def crash(self, broker: BrokerId) -> None:
        """The process dies and is started again, remembering nothing."""
        node = self.nodes[broker]
        self.cut(broker)
        for key in [key for key, one in self.connections.items() if one.node is node]:
            self.break_connection(key)
        self._start_broker(broker)

    def connect(self, broker: BrokerId) -> None:
        node = self.nodes[broker]
        if node.number is None:
            node.number = next(self._numbers)
            self.handle(node, seen.LinkOpened())

    def cut(self, broker: BrokerId) -> None:
        number = self.nodes[broker].number
        if number is not None:
            self._cut(self.nodes[broker])
            self.coordinate(events.LinkClosed(broker, number))

    def _cut(self, node: Node) -> None:
        if node.number is not None:
            node.number = None
            node.out.clear()
            node.into.clear()
            self.handle(node, seen.LinkLost())

    def hear(self, broker: BrokerId, die: str | None = None) -> None:
        """The coordinator hears the next thing this broker said."""
        node = self.nodes[broker]
        if node.out and node.number is not None:
            self.coordinate(events.Heard(broker, node.number, node.out.popleft()), die)

    def obey(self, broker: BrokerId) -> None:
        """This broker hears the next thing the coordinator said."""
        node = self.nodes[broker]
        if node.into:
            self.handle(node, seen.CoordinatorMessageReceived(node.into.popleft()))

    def handle(self, node: Node, event: seen.Event) -> None:
        for effect in node.core.handle(event, self.now_s):
            self._do(node, effect)

    def _do(self, node: Node, effect: wanted.Effect) -> None:
        match effect:
            case wanted.SendResults(sessions, batch, _):
                for cursor, row in zip(batch.cursors(), batch.rows, strict=True):
                    result = wire.Result(batch.subscription, batch.channel, str(cursor), msgspec.Raw(row))
                    self._send(node, sessions, result)
            case wanted.SendToSessions(sessions, message, _):
                self._send(node, sessions, message)
            case wanted.CloseSession(session, reason):
                for one in self._of(node, (session,)):
                    one.closing = reason
            case wanted.AwaitDrain(session):
                node.full[session] = None
            case wanted.RequestBackend() | wanted.ReleaseBackend():
                node.orders.append(effect)
            case wanted.Fetch(number):
                node.fetches[number] = effect
            case wanted.CancelFetch(number):
                node.fetches.pop(number, None)
            case wanted.SendToCoordinator(said) if node.number is not None:
                node.out.append(said)

    def _of(self, node: Node, sessions: tuple[SessionId, ...]) -> list[Connection]:
        return [one for one in self.connections.values() if one.node is node and one.session in sessions]

    def _send(self, node: Node, sessions: tuple[SessionId, ...], message: wire.ToSubscriber) -> None:
        for one in self._of(node, sessions):
            one.down.append(message)

    # -- the data cluster ----------------------------------------------------------------------------------------------

    def announce(self, broker: BrokerId) -> None:
        if self.cluster.streams[broker]:
            self.handle(self.nodes[broker], self.cluster.streams[broker].popleft())

    def place_order(self, broker: BrokerId) -> None:
        """The next order reaches the data cluster, or the answer to the last one comes back."""
        node = self.nodes[broker]
        if node.granted is not None:
            event, node.granted = node.granted, None
            self.handle(node, event)
        elif node.orders:
            order, held = node.orders.popleft(), self.cluster.held.setdefault(broker, set())
            if isinstance(order, wanted.RequestBackend):
                identity = subscription(order.parameters["kind"])
                held.add(identity)
                node.granted = seen.BackendGranted(order.key, order.channel, identity, self.cluster.head)
            elif order.subscription not in node.core.state.backends:
                held.discard(order.subscription)

    def answer_fetch(self, broker: BrokerId, fails: bool = False) -> None:
        node = self.nodes[broker]
        if not node.fetches:
            return
        number, found = next(iter(node.fetches.items()))
        if isinstance(found, wanted.Fetch):
            unknown = not found.positions.keys() <= self.cluster.held.get(broker, set())
            if fails or unknown:
                del node.fetches[number]
                code = Code.UNKNOWN_SUBSCRIPTION if unknown else Code.NOT_READY
                self.handle(node, seen.FetchFailed(number, code))
                return
            found = node.fetches[number] = self.cluster.answer(found, chunk=2)
        event = found.popleft()
        if not found:
            del node.fetches[number]
        self.handle(node, event)

    # -- subscribers ---------------------------------------------------------------------------------------------------

    def tell(self, name: SubscriberId, event: client.Event) -> None:
        for effect in self.applications[name].session.handle(event, self.now_s):
            self._perform(name, effect)

    def _perform(self, name: SubscriberId, effect: client.Effect) -> None:
        application = self.applications[name]
        match effect:
            case client.Locate(avoid):
                self.locating.append((name, avoid))
            case client.Open(number, place):
                node, session = self.nodes[place.broker], SessionId(next(self._numbers))
                self.connections[name, number] = Connection(node, place, session)
            case client.Send(number, message) if (name, number) in self.connections:
                self.connections[name, number].up.append(message)
            case client.Close(number) if (name, number) in self.connections:
                self.connections[name, number].left = True
            case client.Deliver(message):
                self._delivered(name, application, message)
            case client.Grant(ticket, held):
                cursor = Cursor.parse(held.cursor)
                assert cursor is not None and application.wishes.pop(ticket) == held.subscription
                application.began[held.subscription] = cursor
                application.numbers[held.subscription] = []
            case client.Confirm(ticket):
                gone = application.wishes.pop(ticket)
                del application.began[gone]
                application.untaken = deque(one for one in application.untaken if one.subscription != gone)
            case client.Refuse() | client.End() | client.GiveUp():
                raise AssertionError(f"{name}: {effect}")

    def _delivered(self, name: SubscriberId, of: Application, message: wire.Result | wire.Gap | wire.Recovered) -> None:
        identity = message.subscription
        if identity not in of.began and identity in of.wishes.values():
            return  # it is held, and only the answer was lost; what counts is what comes after the next answer
        assert identity in of.began, f"{name} gets a {type(message).__name__} of {identity}, which it does not hold"
        assert not isinstance(message, wire.Gap), f"{name} is told of a gap in {identity}, where nothing was lost"
        if isinstance(message, wire.Result):
            number, got = msgspec.json.decode(message.result)["n"], of.numbers[identity]
            assert not got or number == got[-1] + 1, f"{name} gets {number} of {identity} after {got[-1]}"
            got.append(number)
            of.untaken.append(message)

    def subscribe(self, name: SubscriberId, kind: str) -> None:
        application, identity, ticket = self.applications[name], subscription(kind), next(self._numbers)
        if identity not in application.began and identity not in application.wishes.values():
            application.wishes[ticket] = identity
            self.tell(name, client.Wanted(ticket, CHANNEL, {"kind": kind}))

    def unsubscribe(self, name: SubscriberId, kind: str) -> None:
        application, identity, ticket = self.applications[name], subscription(kind), next(self._numbers)
        if identity in application.began and identity not in application.wishes.values():
            application.wishes[ticket] = identity
            self.tell(name, client.Unwanted(ticket, identity))

    def take(self, name: SubscriberId) -> None:
        if self.applications[name].untaken:
            message = self.applications[name].untaken.popleft()
            cursor = Cursor.parse(message.cursor)
            assert cursor is not None
            self.tell(name, client.Handled(message.subscription, cursor))

    def locate(self) -> None:
        if self.locating:
            name, avoid = self.locating.popleft()
            self.coordinate(events.UserRegistered(next(self._numbers), name))
            avoided = frozenset() if avoid is None else frozenset({avoid})
            found = self.coordinate(events.BrokerRequested(next(self._numbers), name, avoid=avoided))
            if isinstance(found, events.Placed):
                self.tell(name, client.Located(client.Place(found.broker, found.address, "")))
            else:
                self.tell(name, client.NotLocated(Code.NOT_READY, "no broker accepts", retry=True, retry_after_s=2.0))

    # -- connections ---------------------------------------------------------------------------------------------------

    def upwards(self, key: tuple[SubscriberId, int]) -> None:
        """It is opened, or its broker hears the next thing."""
        one, name = self.connections[key], key[0]
        if not one.opened and one.left:
            del self.connections[key]
        elif not one.opened:
            one.node, one.opened = self.nodes[one.place.broker], True
            self.tell(name, client.Opened(key[1]))
        elif one.up:
            message, asker = one.up.popleft(), Requester(session=one.session)
            if isinstance(message, wire.Login):
                migration = one.place.token or None
                self.handle(one.node, seen.LoginRequested(asker, name, message.id, message.resume, migration=migration))
            elif one.closing is None:
                self.handle(one.node, seen.RequestReceived(asker, name, message))
        elif one.left:
            self.break_connection(key)

    def downwards(self, key: tuple[SubscriberId, int]) -> None:
        """Its client hears the next thing, or that it was closed."""
        one = self.connections[key]
        if one.down:
            message = one.down.popleft()
            if not one.left:
                self.tell(key[0], client.Received(key[1], message))
        elif one.closing is not None:
            self.break_connection(key, one.closing)

    def break_connection(self, key: tuple[SubscriberId, int], reason: str = "reset") -> None:
        """With all that was on its way; both ends notice."""
        one = self.connections.pop(key)
        if one.opened:
            self.handle(one.node, seen.SessionLost(one.session, reason))
        if not one.left:
            self.tell(key[0], client.Lost(key[1], reason))

    def block(self, key: tuple[SubscriberId, int]) -> None:
        one = self.connections[key]
        if one.opened and one.closing is None:
            self.handle(one.node, seen.SessionBlocked(one.session))
            one.node.full[one.session] = None

    def drain(self, broker: BrokerId) -> None:
        node = self.nodes[broker]
        if node.full:
            session = next(iter(node.full))
            del node.full[session]
            self.handle(node, seen.SessionDrained(session))

    # -- time and the end ----------------------------------------------------------------------------------------------

    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds
        for node in self.nodes.values():
            self.handle(node, seen.Ticked())
        self.coordinate(events.Ticked())
        for name, application in self.applications.items():
            if application.session.due_s() <= self.now_s:
                self.tell(name, client.Ticked())

    def deliver_all(self) -> None:
        for _ in range(10_000):
            if not self._deliver_some():
                return
        raise AssertionError("it does not come to rest")

    def _deliver_some(self) -> bool:
        busy = bool(self.locating) or any(one.untaken for one in self.applications.values())
        self.locate()
        for name in self.applications:
            self.take(name)
        for broker, node in list(self.nodes.items()):
            waits = (self.cluster.streams[broker], node.orders, node.fetches, node.full, node.out, node.into)
            busy |= any(waits) or node.granted is not None
            for step in (self.announce, self.place_order, self.answer_fetch, self.drain, self.hear, self.obey):
                step(broker)
        for key, one in list(self.connections.items()):
            busy |= not one.opened or one.left or one.closing is not None or bool(one.up or one.down)
            for way in (self.upwards, self.downwards):
                if key in self.connections:
                    way(key)
        return busy

    def settle(self, seconds: int) -> None:
        """Everything works from here on."""
        for _ in range(seconds):
            for broker in self.nodes:
                self.connect(broker)
            self.deliver_all()
            self.pass_time(1.0)
        self.deliver_all()

    def check(self) -> None:
        """Everybody got all that was due; coordinator and home hold what the application does, nobody else anything."""
        assert not self.coordinator.registry.migrations
        for name, application in self.applications.items():
            assert not application.wishes, f"{name} still waits for {application.wishes}"
            for identity, began in application.began.items():
                rows = [row for cursor, row in self.cluster.results.get(identity, []) if cursor > began]
                due = [msgspec.json.decode(row)["n"] for row in rows]
                assert application.numbers[identity] == due, f"{name} of {identity}"
            known = self.coordinator.registry.subscribers[name]
            assert known.subscriptions.keys() == application.began.keys(), f"the coordinator of {name}"
            for broker, node in self.nodes.items():
                held = node.core.state.subscribers.get(name)
                mine = application.began.keys() if broker == known.home else set()
                assert (set() if held is None else held.frontends.keys()) == mine, f"{broker} of {name}"
        for broker, node in self.nodes.items():
            assert node.core.state.backends.keys() <= self.cluster.held.get(broker, set()), (
                f"{broker} at the data cluster"
            )
