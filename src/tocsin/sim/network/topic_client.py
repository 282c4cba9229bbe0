"""A client of topics in virtual time: the SDK's own session, and an application that records everything it gets."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

from tocsin.broker.topics import events as broker_events
from tocsin.broker.topics.events import ConnectionId
from tocsin.client import topic_events as events
from tocsin.client.timing import Patience
from tocsin.client.topic_receiving import ReceiverState
from tocsin.client.topic_session import TopicSession
from tocsin.model.ids import TopicName
from tocsin.model.topic import Position
from tocsin.sim.network.topic_broker import SimulatedTopicBroker
from tocsin.sim.network.transport import ACCESS_S, Pipe, Transport
from tocsin.wire import topic as wire
from tocsin.wire.site_link import VISITOR_MARK
from tocsin.wire.topic_directory import WatchAnswer

WATCH_S = 0.5
"""How often the simulated client asks the directory; a live client gets changes at once."""
PATIENCE = Patience(shortest_s=0.1, longest_s=1.0, open_s=3.0)

FindBroker = Callable[[str], SimulatedTopicBroker | None]
Directory = Callable[[tuple[TopicName, ...], tuple[str, ...]], WatchAnswer | None]


class SimulatedTopicConnection:
    def __init__(self, client: SimulatedTopicClient, number: int, identity: ConnectionId) -> None:
        self.client = client
        self.number = number
        self.identity = identity
        self.broker: SimulatedTopicBroker | None = None
        self._open = True
        self.up: Pipe[wire.FromClient] = Pipe(client.transport, ACCESS_S, self._reach_broker)
        self.down: Pipe[wire.ToClient | None] = Pipe(client.transport, ACCESS_S, self._reach_client)

    def accept(self, broker: SimulatedTopicBroker | None) -> None:
        if not self._open:
            return
        if broker is None or not broker.running:
            self.break_off()
            return
        self.broker = broker
        broker.connections[self.identity] = self
        self.client.handle(events.ConnectionOpened(self.number))

    def _reach_broker(self, message: wire.FromClient) -> None:
        assert self.broker is not None
        if isinstance(message, wire.Login):
            token = message.token or ""
            user = token if VISITOR_MARK in token else self.client.user  # a visitor's token is its name at the host
            opened = broker_events.ConnectionOpened(self.identity, user, message.id, run=message.run)
            self.broker.happened(opened)
        else:
            self.broker.happened(broker_events.RequestReceived(self.identity, message))

    def _reach_client(self, message: wire.ToClient | None) -> None:
        if message is None:
            self.break_off()
        elif self._open:
            self.client.handle(events.MessageReceived(self.number, message))

    def block(self, seconds: float) -> None:
        """Let the connection be full for a while, as with a client that does not read."""
        broker = self.broker
        if broker is not None:
            broker.happened(broker_events.ConnectionBlocked(self.identity))
            drained = broker_events.ConnectionDrained(self.identity)
            self.client.transport.kernel.call_after(seconds, broker.happened, drained)

    def break_off(self, *, told: bool = True) -> None:
        """Break the connection and lose everything in flight. `told`: the client notices it."""
        if not self._open:
            return
        self._open = False
        self.up.close()
        self.down.close()
        if self.broker is not None:
            self.broker.connections.pop(self.identity, None)
            self.broker.happened(broker_events.ConnectionLost(self.identity))
        self.client.connections.pop(self.number, None)
        if told:
            self.client.handle(events.ConnectionLost(self.number, "reset"))


class SimulatedTopicClient:
    def __init__(
        self,
        user: str,
        run: int,
        transport: Transport,
        find: FindBroker,
        directory: Directory,
        *,
        make_receiver: Callable[[TopicName, Position | None], ReceiverState] = ReceiverState,
        take: Callable[[events.Item], None] | None = None,
    ) -> None:
        """`take` gets every item instead of the application, for relays."""
        self.user = user
        self.transport = transport
        jitter = transport.kernel.stream(f"jitter-{user}-{run}" if take is not None else f"jitter-{user}").random
        self.session = TopicSession(run, jitter, PATIENCE, make_receiver=make_receiver)
        self._take = take
        self._running = True
        self.connections: dict[int, SimulatedTopicConnection] = {}
        self.items: dict[TopicName, list[events.Item]] = {}
        """Everything that the application got, by topic."""
        self.starts: dict[TopicName, Position] = {}
        """The position at which the client began to receive a topic."""
        self.blind = False
        """True while the coordinator's answers do not reach this client: it stays at the homes that it knows."""
        self.ready: set[int] = set()
        self.settled: dict[int, str | None] = {}
        """Ticket → None if it was acknowledged, else the code of the refusal."""
        self._find = find
        self._directory = directory
        self._identities = count(run * 1_000_000)
        self._watch = events.Watch((), ())

    def kill(self) -> None:
        """End the process: its connections break."""
        self._running = False
        for connection in list(self.connections.values()):
            connection.break_off(told=False)

    def handle(self, event: events.Event) -> None:
        if not self._running:
            return
        if isinstance(event, events.MessageReceived) and isinstance(event.message, wire.ReceiverAttached):
            self._note_start(event.connection, event.message)
        for effect in self.session.handle(event, self.transport.kernel.now_s):
            self._perform(effect)

    def _note_start(self, connection: int, message: wire.ReceiverAttached) -> None:
        requested = self.session.requested_topic(connection, message.id)
        if requested is not None:
            missed = None if message.missed is None else Position(message.missed[0], message.missed[1] - 1)
            self.starts.setdefault(requested, missed or Position(message.epoch, message.sequence))

    def _perform(self, effect: events.Effect) -> None:
        match effect:
            case events.Connect(number, address):
                connection = SimulatedTopicConnection(self, number, ConnectionId(next(self._identities)))
                self.connections[number] = connection
                self.transport.later(2 * ACCESS_S, lambda: connection.accept(self._find(address)))
            case events.Send(number, message) if number in self.connections:
                self.connections[number].up.send(message)
            case events.Disconnect(number) if number in self.connections:
                self.connections[number].break_off(told=False)
            case events.Watch():
                self._watch = effect
                self.transport.later(ACCESS_S, self._ask, effect)
            case events.RequestFlush():
                self.transport.kernel.call_after(0.0, self.handle, events.FlushDue())
            case events.Deliver(_, items):
                for item in items:
                    if self._take is not None:
                        self._take(item)
                        continue
                    self.items.setdefault(item.topic, []).append(item)
            case events.MarkReady(subscription):
                self.ready.add(subscription)
            case events.Settle(ticket, code):
                self.settled[ticket] = code

    def _ask(self, watch: events.Watch) -> None:
        """The request has reached the coordinator. Ask again later, as long as the client's interest is the same."""
        if watch is not self._watch:
            return
        answer = self._directory(watch.send, watch.receive)
        if answer is not None:
            self.transport.later(ACCESS_S, self._learn, watch, answer)
        self.transport.kernel.call_after(WATCH_S, self._ask, watch)

    def _learn(self, watch: events.Watch, answer: WatchAnswer) -> None:
        if watch is self._watch and not self.blind:
            self.handle(events.DirectoryReceived(answer, watch.receive))
