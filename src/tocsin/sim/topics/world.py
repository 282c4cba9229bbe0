"""Brokers, topics and clients that exchange messages: the data plane of the topic simulation.

Each topic has one home broker; producers send to it, and it sends to consumers. Every message, acknowledgement and
hand-over takes its time through the simulated network, and each end decides from its own state:

- A producer keeps a message until the home has acknowledged it, and sends unacknowledged messages again, in order, when
  it has a new connection.
- A home numbers the messages that it accepts and keeps them for a while. A consumer knows the offset that it expects
  next, and receives from there when it has a new connection.
- A broker that releases a topic hands its offsets, messages and marks over to the next home. An end drops what arrives
  over a connection that it has closed.

No message is lost or repeated if the workflow of a move is right, and only then: `Mistake` has wrong ones. The control
plane (`migration`) calls `release`, `acquire`, `close` and `register`. Messages carry no payload: a simulation may
follow a sample of them and give the full rate to the load model.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from tocsin.model.ids import BrokerId
from tocsin.policies.topics.types import TopicName
from tocsin.sim.kernel import Kernel
from tocsin.sim.topics.deliveries import Deliveries, SimulatedMessage
from tocsin.sim.topics.network import Network

RETAINED_S = 30.0
"""Ours: how long a home keeps messages for consumers that reconnect."""
LATE_RESEND_S = 0.2


class Mistake(StrEnum):
    """A deliberately wrong workflow. Tests and experiments use it to show that the observer finds losses."""

    FORGET_UNACKNOWLEDGED = "forget-unacknowledged"
    """A producer drops the messages without acknowledgement when it reconnects."""
    EMPTY_HAND_OVER = "empty-hand-over"
    """The new home starts without the offsets, messages and marks of the old one."""
    START_AT_LATEST = "start-at-latest"
    """A consumer that reconnects receives from the latest message on, not from the one it expects."""
    RESEND_LATE = "resend-late"
    """A producer sends new messages before the unacknowledged ones, and the home accepts any order."""


@dataclass(slots=True)
class ClientSession:
    """A client's end of its connection for one topic."""

    connected: BrokerId | None = None
    """The broker of the connection; None without one."""
    connection: int = 0
    published: int = 0
    """Messages published so far."""
    unacknowledged: deque[SimulatedMessage] = field(default_factory=deque)
    """Published messages without acknowledgement, oldest first."""
    expected: int | None = None
    """Offset of the next message; None for a consumer that has never been registered."""


@dataclass(slots=True)
class HandOver:
    """The state of a topic that the old home sends to the new one."""

    next_offset: int = 0
    log: deque[tuple[int, SimulatedMessage]] = field(default_factory=deque)
    """(offset, message), oldest first."""
    accepted: dict[str, int] = field(default_factory=dict)
    """Per producer: number of the latest accepted message."""


@dataclass(slots=True)
class HostedTopic:
    """A home's state of one topic."""

    state: HandOver
    connections: dict[str, int] = field(default_factory=dict)
    """Per registered client: its connection."""


@dataclass(slots=True)
class TopicState:
    """What the load manager's directory knows of a topic."""

    name: TopicName
    home: BrokerId | None
    """The home broker; None between release and acquisition."""
    bound_s: float | None
    producers: set[str] = field(default_factory=set)
    consumers: set[str] = field(default_factory=set)
    rate_per_producer: float = 0.0
    """Messages per second that the load model sees."""

    @property
    def clients(self) -> list[str]:
        return sorted(self.producers | self.consumers)


class TopicWorld:
    def __init__(self, kernel: Kernel, network: Network, mistake: Mistake | None = None) -> None:
        self.kernel, self.network, self._mistake = kernel, network, mistake
        self.deliveries = Deliveries()
        self.topics: dict[TopicName, TopicState] = {}
        self.sessions: dict[tuple[str, TopicName], ClientSession] = {}
        self.on_register: list[Callable[[TopicName, str, BrokerId], object]] = []
        """Called with (topic, client, broker) when a broker registers a client."""
        self.is_reachable: Callable[[TopicState, str], bool] = lambda state, producer: True
        """For the observer: whether any broker could meet the bound of a message published now."""
        self.work: Callable[[float], float] | None = None
        """For the observer: seconds that a delivery takes beyond the network, by the time of publishing (`work`)."""
        self._hosted: dict[tuple[BrokerId, TopicName], HostedTopic] = {}
        self._connections = 0

    def create(
        self, name: TopicName, home: BrokerId, *, bound_s: float | None = None, rate_per_producer: float = 0.0
    ) -> TopicState:
        self.deliveries.latencies[name] = []
        self._hosted[home, name] = HostedTopic(HandOver())
        state = self.topics[name] = TopicState(name, home, bound_s, rate_per_producer=rate_per_producer)
        return state

    def topics_of(self, client: str) -> list[TopicState]:
        return [self.topics[topic] for who, topic in self.sessions if who == client]

    def join(self, topic: TopicName, producers: Iterable[str] = (), consumers: Iterable[str] = ()) -> None:
        """Add clients that are connected from the start."""
        state = self.topics[topic]
        state.producers.update(producers)
        state.consumers.update(consumers)
        for client in state.clients:
            if state.home is not None:
                host = self._hosted[state.home, topic]
                connection = self._connect(host, client)
                self.sessions[client, topic] = ClientSession(state.home, connection, expected=host.state.next_offset)

    def _connect(self, host: HostedTopic, client: str) -> int:
        self._connections += 1
        host.connections[client] = self._connections
        return self._connections

    def leave(self, topic: TopicName, consumer: str) -> None:
        """A consumer unsubscribes: it closes its connection, and the home learns it one delay later."""
        self.topics[topic].consumers.discard(consumer)
        self.deliveries.leave(topic, consumer)
        session = self.sessions.pop((consumer, topic), None)
        if session is not None and session.connected is not None:
            home, connection = session.connected, session.connection
            self.network.send(consumer, home, self._disconnect, home, topic, consumer, connection)

    def _disconnect(self, broker: BrokerId, topic: TopicName, client: str, connection: int) -> None:
        host = self._hosted.get((broker, topic))
        if host is not None and host.connections.get(client) == connection:
            del host.connections[client]

    def publish(self, topic: TopicName, producer: str) -> SimulatedMessage:
        state, session = self.topics[topic], self.sessions[producer, topic]
        session.published += 1
        message = SimulatedMessage(topic, producer, session.published, self.kernel.now_s, set())
        message.reachable = self.is_reachable(state, producer)
        self.deliveries.publish(message, state.consumers)
        session.unacknowledged.append(message)
        self._submit(session, message)
        return message

    def publish_every(self, topic: TopicName, producer: str, period_s: float, first_s: float, until_s: float) -> None:
        beat = self.kernel.every(period_s, self.publish, topic, producer, first_s=first_s)
        self.kernel.call_at(until_s, beat.cancel)

    def _submit(self, session: ClientSession, message: SimulatedMessage) -> None:
        broker = session.connected
        if broker is not None:
            self.network.send(message.producer, broker, self._at_broker, broker, session.connection, message)

    def _at_broker(self, broker: BrokerId, connection: int, message: SimulatedMessage) -> None:
        topic, producer = message.topic, message.producer
        host = self._hosted.get((broker, topic))
        if host is None or host.connections.get(producer) != connection:
            return  # the broker has released the topic: the producer gets no acknowledgement and sends it again
        state, latest = host.state, host.state.accepted.get(producer, 0)
        if message.number > latest or self._mistake is Mistake.RESEND_LATE:
            state.accepted[producer] = max(latest, message.number)
            offset, state.next_offset = state.next_offset, state.next_offset + 1
            while state.log and state.log[0][1].published_s < self.kernel.now_s - RETAINED_S:
                state.log.popleft()
            state.log.append((offset, message))
            for consumer in sorted(host.connections.keys() & self.topics[topic].consumers):
                self._deliver(broker, host, consumer, offset, message)
        self.network.send(broker, producer, self._acknowledge, producer, topic, connection, message.number)

    def _acknowledge(self, producer: str, topic: TopicName, connection: int, number: int) -> None:
        session = self.sessions[producer, topic]
        if session.connected is not None and session.connection == connection:
            waiting = session.unacknowledged
            while waiting and waiting[0].number <= number:
                waiting.popleft()

    def _deliver(
        self, broker: BrokerId, host: HostedTopic, consumer: str, offset: int, message: SimulatedMessage
    ) -> None:
        connection = host.connections[consumer]
        self.network.send(broker, consumer, self._at_consumer, consumer, connection, offset, message)

    def _at_consumer(self, consumer: str, connection: int, offset: int, message: SimulatedMessage) -> None:
        session = self.sessions.get((consumer, message.topic))
        if session is None or session.connected is None or session.connection != connection:
            return
        if session.expected is None or offset >= session.expected:
            session.expected = offset + 1
            work_s = 0.0 if self.work is None else self.work(message.published_s)
            self.deliveries.receive(message, consumer, self.kernel.now_s + work_s)

    # Calls of the control plane.

    def release(self, topic: TopicName) -> HandOver:
        """The home releases the topic: it accepts and sends no more messages, and returns its state."""
        state = self.topics[topic]
        if state.home is None:
            raise RuntimeError(f"{topic} has no home that could release it")
        host = self._hosted.pop((state.home, topic))
        state.home = None
        return HandOver() if self._mistake is Mistake.EMPTY_HAND_OVER else host.state

    def acquire(self, topic: TopicName, broker: BrokerId, hand_over: HandOver) -> None:
        """The broker has the old home's state and becomes the home."""
        state = self.topics[topic]
        if state.home is not None:
            raise RuntimeError(f"{broker} acquires {topic}, which {state.home} has not released")
        state.home = broker
        self._hosted[broker, topic] = HostedTopic(hand_over)

    def close(self, topic: TopicName, client: str) -> None:
        """Notify the client that its connection is closed."""
        session = self.sessions.get((client, topic))
        if session is not None:
            session.connected = None

    def register(self, topic: TopicName, client: str, broker: BrokerId) -> None:
        """The home registers the client, and sends a reply and then the messages from the expected offset on.

        The client's request names that offset, which does not change while the client has no connection.
        """
        host = self._hosted[broker, topic]
        session = self.sessions.setdefault((client, topic), ClientSession())
        start = session.expected
        if start is None or self._mistake is Mistake.START_AT_LATEST:
            start = host.state.next_offset
        connection = self._connect(host, client)
        for notify in self.on_register:
            notify(topic, client, broker)
        self.network.send(broker, client, self._resume, session, topic, client, broker, connection, start)
        if client in self.topics[topic].consumers:
            for offset, message in host.state.log:
                if offset >= start:
                    self._deliver(broker, host, client, offset, message)

    def _resume(
        self, session: ClientSession, topic: TopicName, client: str, broker: BrokerId, connection: int, start: int
    ) -> None:
        """The client has its connection. It sends the messages that it has kept."""
        if self.sessions.get((client, topic)) is not session:
            return  # the client has unsubscribed meanwhile
        session.connected, session.connection = broker, connection
        session.expected = max(session.expected or 0, start)
        if self._mistake is Mistake.FORGET_UNACKNOWLEDGED:
            session.unacknowledged.clear()
        for message in session.unacknowledged:
            if self._mistake is Mistake.RESEND_LATE:
                self.kernel.call_after(LATE_RESEND_S, self._submit, session, message)
            else:
                self._submit(session, message)
