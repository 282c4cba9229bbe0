"""Two brokers, a data cluster and a coordinator without I/O: every message waits until somebody delivers it.

Who delivers decides the interleaving; a test draws it. Streams keep their own order, as real ones do: announcements,
orders for subscriptions, the pieces of one fetch. Everything else may overtake everything else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tocsin.broker import effects, events
from tocsin.broker.core import Broker
from tocsin.broker.hosted import CallId, Requester, SessionId
from tocsin.broker.state import Limits
from tocsin.model.cursor import Cursor, offset_of
from tocsin.model.ids import BrokerId, ChannelName, SubscriberId, SubscriptionId
from tocsin.wire import link
from tocsin.wire import session as wire
from tocsin.wire.errors import Code

CHANNEL = ChannelName("Reports")


def subscription(kind: str) -> SubscriptionId:
    return SubscriptionId(f"id-{kind}")


class SimulatedCluster:
    """The truth: every result there ever was."""

    def __init__(self) -> None:
        self.epoch = 1
        self.execution = 0
        self.kept_from = 1
        self.results: dict[SubscriptionId, list[tuple[Cursor, bytes]]] = {}
        self.held: dict[BrokerId, set[SubscriptionId]] = {}
        self.streams: dict[BrokerId, deque[events.Event]] = {}
        self.refuses: set[str] = set()
        """Kinds that the channel in its present life does not take."""

    @property
    def head(self) -> Cursor:
        return Cursor(self.epoch, offset_of(self.execution + 1))

    def execute(self, kinds: dict[str, int]) -> None:
        self.execution += 1
        for kind, count in kinds.items():
            rows = self.results.setdefault(subscription(kind), [])
            for number in range(count):
                cursor = Cursor(self.epoch, offset_of(self.execution, number) + 1)
                rows.append((cursor, msgspec.json.encode({"n": len(rows), "of": kind})))
        for broker, stream in self.streams.items():
            mine = [subscription(kind) for kind in kinds if subscription(kind) in self.held.get(broker, ())]
            if mine:
                stream.append(events.ExecutionAnnounced(CHANNEL, self.epoch, self.execution, mine))
            stream.append(events.ProgressAnnounced({CHANNEL: self.head}))

    def expire(self) -> None:
        self.kept_from = self.execution + 1

    def replace(self) -> None:
        """Another life of the channel. Its subscriptions stay, unless somebody takes them away."""
        self.epoch, self.execution, self.kept_from = self.epoch + 1, 0, 1
        for stream in self.streams.values():
            stream.append(events.ProgressAnnounced({CHANNEL: self.head}))

    def kept(self, identity: SubscriptionId, after: Cursor) -> list[tuple[Cursor, bytes]]:
        start = Cursor(self.epoch, offset_of(self.kept_from))
        return [one for one in self.results.get(identity, []) if one[0] > max(after, start)]

    def answer(self, effect: effects.Fetch, chunk: int) -> deque[events.Event]:
        """All events of one fetch, as of now."""
        pieces: deque[events.Event] = deque()
        start = Cursor(self.epoch, offset_of(self.kept_from))
        for identity, cursor in effect.positions.items():
            if cursor.epoch != self.epoch or cursor < start or cursor > self.head:
                pieces.append(events.GapFound(effect.fetch, identity, start))
                cursor = Cursor(0, 0)
            rows = self.kept(identity, cursor)
            for place in range(0, len(rows), chunk):
                part = rows[place : place + chunk]
                pieces.append(
                    events.ResultsFetched(
                        effect.fetch, identity, self.epoch, [one.offset for one, _ in part], [row for _, row in part]
                    )
                )
        pieces.append(events.FetchEnded(effect.fetch, self.head))
        return pieces


@dataclass
class Client:
    """A subscriber: remembers what it has seen, and complains."""

    name: SubscriberId
    broker: BrokerId | None = None
    session: SessionId | None = None
    coming: tuple[BrokerId, SessionId] | None = None
    seen: dict[SubscriptionId, Cursor] = field(default_factory=dict)
    """Its own memory of cursors."""
    numbers: dict[SubscriptionId, list[int]] = field(default_factory=dict)
    excused: set[SubscriptionId] = field(default_factory=set)
    """Told of a gap: results may be missing, never repeated or out of order."""
    asked: dict[int, str] = field(default_factory=dict)


class SimulatedNetwork:
    def __init__(self, *, cache_bytes: int, queue_bytes: int, chunk: int, coordinated: bool = True) -> None:
        self.now_s = 1_000.0
        self.chunk = chunk
        self.cluster = SimulatedCluster()
        self.brokers: dict[BrokerId, Broker] = {}
        self.orders: dict[BrokerId, deque[Any]] = {}
        self.granted: dict[BrokerId, events.BackendGranted | events.BackendRefused | None] = {}
        self.fetches: dict[tuple[BrokerId, int], effects.Fetch | deque[events.Event]] = {}
        self.asked_drained: set[tuple[BrokerId, SessionId]] = set()
        self.clients: dict[SubscriberId, Client] = {}
        self.owner: dict[tuple[BrokerId, SessionId], SubscriberId] = {}
        self.told: deque[tuple[BrokerId, link.FromBroker]] = deque()
        self.moves: dict[str, tuple[SubscriberId, BrokerId, BrokerId]] = {}
        self.answers: list[wire.ToSubscriber] = []
        self._sessions = 0
        self._requests = 0
        self._next: deque[Callable[[], None]] = deque()
        for name in (BrokerId("a"), BrokerId("b")):
            register = link.Register(name, f"run-{name}", f"ws://{name}") if coordinated else None
            limits = Limits(cache_bytes=cache_bytes, queue_bytes=queue_bytes)
            self.brokers[name] = Broker(name, f"run-{name}", limits, lambda: 0.5, register)
            self.orders[name] = deque()
            self.granted[name] = None
            self.cluster.streams[name] = deque([events.AnnouncementsMissed()])

    # -- brokers ---------------------------------------------------------------------------------------------------

    def handle(self, broker: BrokerId, event: events.Event) -> None:
        for effect in self.brokers[broker].handle(event, self.now_s):
            self._do(broker, effect)
        while self._next:  # what clients do when they hear something
            self._next.popleft()()

    def _do(self, broker: BrokerId, effect: effects.Effect) -> None:
        match effect:
            case effects.SendResults(sessions, batch, _):
                for session in sessions:
                    self._delivered(broker, session, batch)
            case effects.SendToSessions(sessions, message, _):
                for session in sessions:
                    self._said(broker, session, message)
            case effects.AnswerCall(_, message):
                self.answers.append(message)
            case effects.AwaitDrain(session):
                self.asked_drained.add((broker, session))
            case effects.CloseSession(session, _):
                self._closed(broker, session)
            case effects.RequestBackend() | effects.ReleaseBackend():
                self.orders[broker].append(effect)
            case effects.Fetch(number):
                self.fetches[broker, number] = effect
            case effects.CancelFetch(number):
                self.fetches.pop((broker, number), None)
            case effects.SendToCoordinator(message):
                self.told.append((broker, message))
            case effects.CallWebhook():
                pass

    # -- what clients see ------------------------------------------------------------------------------------------

    def _client(self, broker: BrokerId, session: SessionId) -> Client | None:
        name = self.owner.get((broker, session))
        return None if name is None else self.clients[name]

    def _delivered(self, broker: BrokerId, session: SessionId, batch: Any) -> None:
        client = self._client(broker, session)
        assert client is not None, "results for a session that was closed"
        if (broker, session) != (client.broker, client.session):
            return  # the session it is leaving: it reads no more there
        identity = batch.subscription
        assert identity in client.seen, f"{client.name} holds no {identity}"
        for cursor, row in zip(batch.cursors(), batch.rows, strict=True):
            assert cursor > client.seen[identity], "a result came again, or out of order"
            number = msgspec.json.decode(row)["n"]
            known = client.numbers.setdefault(identity, [])
            if identity in client.excused:
                client.excused.discard(identity)
            elif known:
                assert number == known[-1] + 1, f"{client.name} missed {known[-1] + 1} of {identity}, got {number}"
            known.append(number)
            client.seen[identity] = cursor

    def _said(self, broker: BrokerId, session: SessionId, message: wire.ToSubscriber) -> None:
        client = self._client(broker, session)
        if client is None:
            return
        match message:
            case wire.LoggedIn():
                if client.coming == (broker, session):
                    client.broker, client.session, client.coming = broker, session, None
                for held in message.subscriptions:
                    cursor = Cursor.parse(held.cursor)
                    assert cursor is not None
                    client.seen.setdefault(held.subscription, cursor)
                listed = {held.subscription for held in message.subscriptions}
                for identity in client.seen.keys() - listed:
                    self._next.append(lambda identity=identity: self._bring(client, identity))  # type: ignore[misc]
            case wire.Subscribed(_, held):
                cursor = Cursor.parse(held.cursor)
                assert cursor is not None
                if held.subscription not in client.seen:
                    client.seen[held.subscription] = cursor
            case wire.Gap(identity, text) if (broker, session) == (client.broker, client.session):
                cursor = Cursor.parse(text)
                assert cursor is not None
                client.excused.add(identity)
                client.seen[identity] = cursor
            case wire.Unsubscribed(_, identity):
                client.seen.pop(identity, None)
                client.numbers.pop(identity, None)
                client.excused.discard(identity)
            case wire.Move(migration, target):
                self._next.append(lambda: self.login(client.name, target, migration=migration))

    def _closed(self, broker: BrokerId, session: SessionId) -> None:
        name = self.owner.pop((broker, session), None)
        self.asked_drained.discard((broker, session))
        if name is not None:
            client = self.clients[name]
            if (client.broker, client.session) == (broker, session):
                client.broker = client.session = None
            if client.coming == (broker, session):
                client.coming = None

    # -- what clients do -------------------------------------------------------------------------------------------

    def login(self, name: str, broker: str, *, migration: str | None = None) -> None:
        client = self.clients.setdefault(SubscriberId(name), Client(SubscriberId(name)))
        self._sessions += 1
        session, target = SessionId(self._sessions), BrokerId(broker)
        self.owner[target, session] = client.name
        client.coming = (target, session)
        resume = {identity: str(cursor) for identity, cursor in client.seen.items()}
        event = events.LoginRequested(Requester(session=session), client.name, 1, resume, migration=migration)
        self.handle(target, event)

    def _bring(self, client: Client, identity: SubscriptionId) -> None:
        """The new broker does not know of a subscription: it is subscribed again, from where it stood."""
        self._requests += 1
        kind = identity.removeprefix("id-")
        self.request(client.name, wire.Subscribe(self._requests, CHANNEL, {"kind": kind}, str(client.seen[identity])))

    def lose(self, name: str) -> None:
        client = self.clients[SubscriberId(name)]
        for place in ((client.broker, client.session), client.coming or (None, None)):
            broker, session = place
            if broker is not None and session is not None:
                self._closed(broker, session)
                self.handle(broker, events.SessionLost(session, "gone"))

    def request(self, name: str, request: wire.FromSubscriber) -> None:
        client = self.clients[SubscriberId(name)]
        if client.broker is not None and client.session is not None:
            event = events.RequestReceived(Requester(session=client.session), client.name, request)
            self.handle(client.broker, event)

    def subscribe(self, name: str, kind: str) -> None:
        self._requests += 1
        self.request(name, wire.Subscribe(self._requests, CHANNEL, {"kind": kind}))

    def unsubscribe(self, name: str, kind: str) -> None:
        self._requests += 1
        self.request(name, wire.Unsubscribe(self._requests, subscription(kind)))

    def block(self, name: str) -> None:
        client = self.clients[SubscriberId(name)]
        if client.broker is not None and client.session is not None:
            self.handle(client.broker, events.SessionBlocked(client.session))
            self.asked_drained.add((client.broker, client.session))

    def drain(self, place: tuple[BrokerId, SessionId]) -> None:
        self.asked_drained.discard(place)
        self.handle(place[0], events.SessionDrained(place[1]))

    # -- what waits to be delivered --------------------------------------------------------------------------------

    def announce(self, broker: BrokerId) -> None:
        if self.cluster.streams[broker]:
            self.handle(broker, self.cluster.streams[broker].popleft())

    def place_order(self, broker: BrokerId) -> None:
        """One step of the link: the next order reaches the data cluster, or the answer to the last one comes back."""
        if self.granted[broker] is not None:
            event, self.granted[broker] = self.granted[broker], None
            assert event is not None
            self.handle(broker, event)
            return
        if not self.orders[broker]:
            return
        order = self.orders[broker].popleft()
        held = self.cluster.held.setdefault(broker, set())
        if isinstance(order, effects.RequestBackend):
            identity = subscription(order.parameters["kind"])
            if order.parameters["kind"] in self.cluster.refuses:
                self.granted[broker] = events.BackendRefused(order.key, Code.BAD_PARAMETER, "not in this life")
                return
            held.add(identity)
            self.granted[broker] = events.BackendGranted(order.key, order.channel, identity, self.cluster.head)
        elif order.subscription not in self.brokers[broker].state.backends:
            held.discard(order.subscription)

    def answer_fetch(self, place: tuple[BrokerId, int]) -> None:
        """The next piece of a fetch; what it brings was decided when its first piece came."""
        found = self.fetches[place]
        if isinstance(found, effects.Fetch):
            if not found.positions.keys() <= self.cluster.held.get(place[0], set()):
                self.fail_fetch(place, Code.UNKNOWN_SUBSCRIPTION)
                return
            found = self.fetches[place] = self.cluster.answer(found, self.chunk)
        event = found.popleft()
        if not found:
            del self.fetches[place]  # before the broker hears of it: it may ask again at once
        self.handle(place[0], event)

    def fail_fetch(self, place: tuple[BrokerId, int], code: str = "not_ready") -> None:
        del self.fetches[place]
        self.handle(place[0], events.FetchFailed(place[1], code))

    def tick(self, passed_s: float = 1.0) -> None:
        self.now_s += passed_s
        for broker in self.brokers:
            self.handle(broker, events.Ticked())

    # -- the coordinator -------------------------------------------------------------------------------------------

    def link_up(self) -> None:
        for broker in self.brokers:
            self.handle(broker, events.LinkOpened())
            self.say(broker, link.Registered(5.0, 5.0, True))

    def say(self, broker: BrokerId, message: link.FromCoordinator) -> None:
        self.handle(broker, events.CoordinatorMessageReceived(message))

    def migrate(self, name: str) -> None:
        """What the coordinator knows of a subscriber is what its broker does: this one is told nothing wrong."""
        client = self.clients[SubscriberId(name)]
        if client.broker is None or client.name in [move[0] for move in self.moves.values()]:
            return
        source = client.broker
        target = BrokerId("b" if source == "a" else "a")
        identity = f"m{len(self.moves)}-{self.now_s}-{name}"
        self.moves[identity] = (client.name, source, target)
        self.say(target, link.Prepare(identity, self._state(client.name, source), 60.0))

    def _state(
        self, name: SubscriberId, source: BrokerId, but: Collection[SubscriptionId] = ()
    ) -> link.SubscriberState:
        held = self.brokers[source].state.subscribers.get(name)
        states = [
            link.Frontend(identity, CHANNEL, frontend.parameters, str(frontend.acked))
            for identity, frontend in ({} if held is None else held.frontends).items()
            if identity not in but
        ]
        return link.SubscriberState(name, states)

    def hear(self) -> None:
        """The coordinator reads one message."""
        if not self.told:
            return
        broker, message = self.told.popleft()
        match message:
            case link.Changed(number, name, _, removed):
                self.say(broker, link.Stored(number))
                for moving, source, target in self.moves.values():
                    if removed and (moving, source) == (name, broker):
                        self.say(target, link.Adopt([self._state(name, source, set(removed))]))
            case link.Wanted(name):
                self.say(broker, link.Adopt([link.SubscriberState(name, [])]))
            case link.Prepared(identity) if identity in self.moves:
                name, source, target = self.moves[identity]
                self.say(source, link.HandOver(identity, name, target, f"ws://{target}", "token", 60.0))
            case link.SessionOpened(name, identity) if identity in self.moves:
                _, source, _ = self.moves.pop(identity)
                self.say(source, link.Release(name, identity))
            case link.HandOverFailed(identity) | link.PrepareFailed(identity) if identity in self.moves:
                name, _, target = self.moves.pop(identity)
                self.say(target, link.Abandon(identity, name))

    # -- the end ---------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Deliver everything there is, until nothing happens any more."""
        for _ in range(10_000):
            busy = False
            for broker in self.brokers:
                while self.cluster.streams[broker]:
                    busy = True
                    self.announce(broker)
                while self.orders[broker] or self.granted[broker] is not None:
                    busy = True
                    self.place_order(broker)
            for fetch in list(self.fetches):
                busy = True
                while fetch in self.fetches:
                    self.answer_fetch(fetch)
            for place in list(self.asked_drained):
                busy = True
                self.drain(place)
            while self.told:
                busy = True
                self.hear()
            if not busy:
                return
        raise AssertionError("it does not come to rest")

    def call(self, broker: str, name: str, request: wire.FromSubscriber) -> wire.ToSubscriber:
        """A REST call."""
        self.answers.clear()
        self.handle(BrokerId(broker), events.RequestReceived(Requester(call=CallId(1)), SubscriberId(name), request))
        return self.answers[-1]
