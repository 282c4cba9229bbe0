"""Two broker cores, a data cluster and a coordinator without I/O: every message waits until the test delivers it.

The test decides which message is delivered next, so it can produce any interleaving. Three streams keep their order, as
real ones do: announcements, requests for backend subscriptions, and the pieces of one fetch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from typing import Any

from tests.broker.simulated_ends import CHANNEL, SimulatedClient, SimulatedCluster, parsed, subscription
from tocsin.broker import effects, events
from tocsin.broker.core import Broker
from tocsin.broker.hosted import CallId, Requester, SessionId
from tocsin.broker.result_batch import Batch
from tocsin.broker.state import Limits
from tocsin.model.ids import BrokerId, SubscriberId, SubscriptionId
from tocsin.wire import link
from tocsin.wire import session as wire
from tocsin.wire.errors import Code

A, B = BrokerId("a"), BrokerId("b")


class SimulatedNetwork:
    def __init__(self, *, cache_bytes: int = 1_000_000, queue_bytes: int = 100_000, chunk: int = 100) -> None:
        self.now_s = 1_000.0
        self.chunk = chunk
        self.cluster = SimulatedCluster()
        self.coordinator = SimulatedCoordinator(self)
        self.brokers: dict[BrokerId, Broker] = {}
        self.orders: dict[BrokerId, deque[Any]] = {}
        """Requests and releases of backend subscriptions that have not reached the data cluster."""
        self.granted: dict[BrokerId, events.BackendGranted | events.BackendRefused | None] = {}
        """The data cluster's answer that has not reached the broker."""
        self.fetches: dict[tuple[BrokerId, int], effects.Fetch | deque[events.Event]] = {}
        self.full_queues: set[tuple[BrokerId, SessionId]] = set()
        self.clients: dict[SubscriberId, SimulatedClient] = {}
        self.owners: dict[tuple[BrokerId, SessionId], SubscriberId] = {}
        self.answers: list[wire.ToSubscriber] = []
        self._session_count = 0
        self._request_count = 0
        self._reactions: deque[Callable[[], None]] = deque()
        for name in (A, B):
            register = link.Register(name, f"run-{name}", f"ws://{name}")
            limits = Limits(cache_bytes=cache_bytes, queue_bytes=queue_bytes)
            self.brokers[name] = Broker(name, f"run-{name}", limits, lambda: 0.5, register)
            self.orders[name] = deque()
            self.granted[name] = None
            self.cluster.streams[name] = deque([events.AnnouncementsMissed()])

    def client(self, name: str) -> SimulatedClient:
        return self.clients[SubscriberId(name)]

    # -- brokers ---------------------------------------------------------------------------------------------------

    def handle(self, broker: BrokerId, event: events.Event) -> None:
        for effect in self.brokers[broker].handle(event, self.now_s):
            self._carry_out(broker, effect)
        while self._reactions:  # reactions of clients to messages
            self._reactions.popleft()()

    def _carry_out(self, broker: BrokerId, effect: effects.Effect) -> None:
        match effect:
            case effects.SendResults(sessions, batch, _):
                for session in sessions:
                    self._on_results(broker, session, batch)
            case effects.SendToSessions(sessions, message, _):
                for session in sessions:
                    self._on_message(broker, session, message)
            case effects.AnswerCall(_, message):
                self.answers.append(message)
            case effects.AwaitDrain(session):
                self.full_queues.add((broker, session))
            case effects.CloseSession(session, _):
                self._on_closed(broker, session)
            case effects.RequestBackend() | effects.ReleaseBackend():
                self.orders[broker].append(effect)
            case effects.Fetch(number):
                self.fetches[broker, number] = effect
            case effects.CancelFetch(number):
                self.fetches.pop((broker, number), None)
            case effects.SendToCoordinator(message):
                self.coordinator.inbox.append((broker, message))

    # -- clients receive -------------------------------------------------------------------------------------------

    def _owner(self, broker: BrokerId, session: SessionId) -> SimulatedClient | None:
        name = self.owners.get((broker, session))
        return None if name is None else self.clients[name]

    def _on_results(self, broker: BrokerId, session: SessionId, batch: Batch) -> None:
        client = self._owner(broker, session)
        assert client is not None, "results for a session that was closed"
        if (broker, session) == (client.broker, client.session):
            client.receive(batch)  # a client ignores the session that it leaves

    def _on_message(self, broker: BrokerId, session: SessionId, message: wire.ToSubscriber) -> None:
        client = self._owner(broker, session)
        if client is None:
            return
        match message:
            case wire.LoggedIn():
                if client.opening == (broker, session):
                    client.broker, client.session, client.opening = broker, session, None
                for held in message.subscriptions:
                    if held.subscription in client.ended:
                        client.ignored.add(held.subscription)
                    else:
                        client.seen.setdefault(held.subscription, parsed(held.cursor))
                for identity in client.ignored:
                    again = wire.Unsubscribe(self._number(), identity)
                    self._reactions.append(lambda again=again: self.request(client.name, again))  # type: ignore[misc]
                listed = {held.subscription for held in message.subscriptions}
                for identity in client.seen.keys() - listed:
                    self._reactions.append(
                        lambda identity=identity: self._subscribe_again(client, identity)  # type: ignore[misc]
                    )
            case wire.Subscribed(_, held):
                client.on_subscribed(held)
            case wire.Gap(identity, text) if (broker, session) == (client.broker, client.session):
                client.gaps.add(identity)
                client.seen[identity] = parsed(text)
            case wire.Unsubscribed(_, identity):
                client.on_unsubscribed(identity)
            case wire.Move(migration, target):
                self._reactions.append(lambda: self.login(client.name, target, migration=migration))

    def _on_closed(self, broker: BrokerId, session: SessionId) -> None:
        name = self.owners.pop((broker, session), None)
        self.full_queues.discard((broker, session))
        if name is not None:
            self.clients[name].on_closed((broker, session))

    # -- clients act -----------------------------------------------------------------------------------------------

    def login(self, name: str, broker: str, *, migration: str | None = None) -> None:
        client = self.clients.setdefault(SubscriberId(name), SimulatedClient(SubscriberId(name)))
        self._session_count += 1
        session, target = SessionId(self._session_count), BrokerId(broker)
        self.owners[target, session] = client.name
        client.opening = (target, session)
        resume = {identity: str(cursor) for identity, cursor in client.seen.items()}
        self.handle(
            target, events.LoginRequested(Requester(session=session), client.name, 1, resume, migration=migration)
        )

    def _subscribe_again(self, client: SimulatedClient, identity: SubscriptionId) -> None:
        """The new broker does not list the subscription: subscribe again, after the last cursor."""
        parameters = {"kind": identity.removeprefix("id-")}
        self.request(client.name, wire.Subscribe(self._number(), CHANNEL, parameters, str(client.seen[identity])))

    def _number(self) -> int:
        self._request_count += 1
        return self._request_count

    def lose(self, name: str) -> None:
        """Cut the client's connections."""
        client = self.client(name)
        for broker, session in ((client.broker, client.session), client.opening or (None, None)):
            if broker is not None and session is not None:
                self._on_closed(broker, session)
                self.handle(broker, events.SessionLost(session, "gone"))

    def request(self, name: str, request: wire.FromSubscriber) -> None:
        client = self.client(name)
        if client.broker is not None and client.session is not None:
            event = events.RequestReceived(Requester(session=client.session), client.name, request)
            self.handle(client.broker, event)

    def subscribe(self, name: str, kind: str) -> None:
        self.request(name, wire.Subscribe(self._number(), CHANNEL, {"kind": kind}))

    def unsubscribe(self, name: str, kind: str) -> None:
        self.request(name, wire.Unsubscribe(self._number(), subscription(kind)))

    def call(self, broker: str, name: str, request: wire.FromSubscriber) -> wire.ToSubscriber:
        """Make a REST call and return its answer."""
        self.answers.clear()
        self.handle(BrokerId(broker), events.RequestReceived(Requester(call=CallId(1)), SubscriberId(name), request))
        return self.answers[-1]

    def block(self, name: str) -> None:
        """Fill the queue of the client's connection."""
        client = self.client(name)
        if client.broker is not None and client.session is not None:
            self.handle(client.broker, events.SessionBlocked(client.session))
            self.full_queues.add((client.broker, client.session))

    def drain(self, place: tuple[BrokerId, SessionId]) -> None:
        self.full_queues.discard(place)
        self.handle(place[0], events.SessionDrained(place[1]))

    # -- messages of the data cluster ------------------------------------------------------------------------------

    def announce(self, broker: BrokerId) -> None:
        """Deliver the next announcement."""
        if self.cluster.streams[broker]:
            self.handle(broker, self.cluster.streams[broker].popleft())

    def announce_all(self, broker: BrokerId) -> None:
        while self.cluster.streams[broker]:
            self.announce(broker)

    def place_order(self, broker: BrokerId) -> None:
        """Deliver the data cluster's answer to the broker, or else the broker's next order to the data cluster."""
        answer = self.granted[broker]
        if answer is not None:
            self.granted[broker] = None
            self.handle(broker, answer)
            return
        if not self.orders[broker]:
            return
        order = self.orders[broker].popleft()
        held = self.cluster.held.setdefault(broker, set())
        if isinstance(order, effects.RequestBackend):
            kind = order.parameters["kind"]
            if kind in self.cluster.refuses:
                self.granted[broker] = events.BackendRefused(order.key, Code.BAD_PARAMETER, "not in this epoch")
                return
            held.add(subscription(kind))
            self.granted[broker] = events.BackendGranted(
                order.key, order.channel, subscription(kind), self.cluster.head
            )
        elif order.subscription not in self.brokers[broker].state.backends:
            held.discard(order.subscription)

    def place_orders(self, broker: BrokerId) -> None:
        while self.orders[broker] or self.granted[broker] is not None:
            self.place_order(broker)

    def answer_fetch(self, place: tuple[BrokerId, int]) -> None:
        """Deliver the next piece of a fetch. The first piece fixes the content of all."""
        fetch = self.fetches[place]
        if isinstance(fetch, effects.Fetch):
            if not fetch.positions.keys() <= self.cluster.held.get(place[0], set()):
                self.fail_fetch(place, Code.UNKNOWN_SUBSCRIPTION)
                return
            fetch = self.fetches[place] = self.cluster.answer(fetch, self.chunk)
        event = fetch.popleft()
        if not fetch:
            del self.fetches[place]  # before the event, because the broker may fetch again at once
        self.handle(place[0], event)

    def finish_fetch(self, place: tuple[BrokerId, int]) -> None:
        while place in self.fetches:
            self.answer_fetch(place)

    def fail_fetch(self, place: tuple[BrokerId, int], code: str = "not_ready") -> None:
        del self.fetches[place]
        self.handle(place[0], events.FetchFailed(place[1], code))

    # -- time ------------------------------------------------------------------------------------------------------

    def tick(self, passed_s: float = 1.0) -> None:
        self.now_s += passed_s
        for broker in self.brokers:
            self.handle(broker, events.Ticked())

    def settle(self) -> None:
        """Deliver every message until none is left."""
        for _ in range(10_000):
            busy = bool(self.fetches or self.full_queues or self.coordinator.inbox)
            for broker in self.brokers:
                busy = busy or bool(self.cluster.streams[broker] or self.orders[broker] or self.granted[broker])
                self.announce_all(broker)
                self.place_orders(broker)
            for fetch in list(self.fetches):
                self.finish_fetch(fetch)
            for place in list(self.full_queues):
                self.drain(place)
            self.coordinator.receive_all()
            if not busy:
                return
        raise AssertionError("the network does not come to rest")


class SimulatedCoordinator:
    """Confirms changes and carries out migrations.

    It has the same state of a subscriber as the broker that serves the subscriber.
    """

    def __init__(self, network: SimulatedNetwork) -> None:
        self._network = network
        self.inbox: deque[tuple[BrokerId, link.FromBroker]] = deque()
        self.migrations: dict[str, tuple[SubscriberId, BrokerId, BrokerId]] = {}
        """Migration → (subscriber, source, target)."""

    def of(self, kind: type) -> list[Any]:
        """The unread messages of this type."""
        return [message for _, message in self.inbox if isinstance(message, kind)]

    def link_up(self, *brokers: BrokerId) -> None:
        for broker in brokers or (A, B):
            self._network.handle(broker, events.LinkOpened())
            self.send(broker, link.Registered(5.0, 5.0, True))

    def send(self, broker: BrokerId, message: link.FromCoordinator) -> None:
        self._network.handle(broker, events.CoordinatorMessageReceived(message))

    def migrate(self, name: str) -> None:
        """Begin to move a subscriber to the other broker, unless it is offline or moving."""
        client = self._network.client(name)
        if client.broker is None or client.name in [moving for moving, _, _ in self.migrations.values()]:
            return
        source = client.broker
        target = B if source == A else A
        identity = f"m{len(self.migrations)}-{self._network.now_s}-{name}"
        self.migrations[identity] = (client.name, source, target)
        self.send(target, link.Prepare(identity, self._state(client.name, source), 60.0))

    def _state(
        self, name: SubscriberId, source: BrokerId, without: Collection[SubscriptionId] = ()
    ) -> link.SubscriberState:
        subscriber = self._network.brokers[source].state.subscribers.get(name)
        frontends = {} if subscriber is None else subscriber.frontends
        states = [
            link.Frontend(identity, CHANNEL, frontend.parameters, str(frontend.acked))
            for identity, frontend in frontends.items()
            if identity not in without
        ]
        return link.SubscriberState(name, states)

    def receive_all(self) -> None:
        while self.inbox:
            self.receive()

    def receive(self) -> None:
        """Read one message and react to it."""
        if not self.inbox:
            return
        broker, message = self.inbox.popleft()
        match message:
            case link.Changed(number, name, _, removed):
                self.send(broker, link.Stored(number))
                for moving, source, target in self.migrations.values():
                    if removed and (moving, source) == (name, broker):
                        self.send(target, link.Adopt([self._state(name, source, set(removed))]))
            case link.StateRequest(name):
                self.send(broker, link.Adopt([link.SubscriberState(name, [])]))
            case link.Prepared(identity) if identity in self.migrations:
                name, source, target = self.migrations[identity]
                self.send(source, link.HandOver(identity, name, target, f"ws://{target}", "token", 60.0))
            case link.SessionOpened(name, identity) if identity in self.migrations:
                _, source, _ = self.migrations.pop(identity)
                self.send(source, link.Release(name, identity))
            case link.HandOverFailed(identity) | link.PrepareFailed(identity) if identity in self.migrations:
                name, _, target = self.migrations.pop(identity)
                self.send(target, link.Abandon(identity, name))


# -- scenes ------------------------------------------------------------------------------------------------------------

FIRE, FLOOD = subscription("fire"), subscription("flood")


def linked_network() -> SimulatedNetwork:
    """Two brokers that are registered with the coordinator."""
    network = SimulatedNetwork()
    network.coordinator.link_up()
    return network


def subscribed(*names: str, cache_bytes: int = 1_000_000, queue_bytes: int = 100_000) -> SimulatedNetwork:
    """Two brokers without a link; these clients have subscribed to "fire" at broker A."""
    network = SimulatedNetwork(cache_bytes=cache_bytes, queue_bytes=queue_bytes)
    for name in names:
        network.login(name, "a")
        network.subscribe(name, "fire")
    network.settle()
    return network


def state_of(name: str, *kinds: str) -> link.SubscriberState:
    """A subscriber's state as the coordinator sends it."""
    states = [link.Frontend(subscription(kind), CHANNEL, {"kind": kind}, "1-0") for kind in kinds]
    return link.SubscriberState(SubscriberId(name), states)
