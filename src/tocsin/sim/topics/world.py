"""Brokers, topics and clients that exchange messages: the data plane of the topic simulation.

Each topic has one home broker; producers send to it, and it sends to consumers. While a topic migrates, producers keep
the messages they publish and the new home keeps the messages its consumers have not received, so no message is lost or
delivered twice. The control plane (`migration`) calls `release`, `acquire`, `close`, `register` and `resume`. Messages
carry no payload: a simulation may follow a sample of them and give the full rate to the load model.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tocsin.model.ids import BrokerId
from tocsin.policies.topics.types import TopicName
from tocsin.sim.kernel import Kernel
from tocsin.sim.topics.network import Network


@dataclass(slots=True, eq=False)
class SimulatedMessage:
    topic: TopicName
    producer: str
    published_s: float
    waiting: set[str]
    """Consumers that have not received the message."""
    accepted: bool = False
    """True if the home has received the message. A broker that is no longer the home does not accept it."""


@dataclass(slots=True)
class SimulatedSession:
    """A client's connection for one topic, as each end sees it."""

    attached: BrokerId | None = None
    """The broker that has registered the client and sends to it."""
    connected: BrokerId | None = None
    """The broker to which the client publishes. The client believes that it is connected to this broker."""
    unaccepted: deque[SimulatedMessage] = field(default_factory=deque)
    """Published messages without acceptance, oldest first: the client sends them again when it reconnects."""
    unreceived: list[SimulatedMessage] = field(default_factory=list)
    """Messages accepted for this consumer while it was not attached."""


@dataclass(slots=True)
class TopicState:
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
    def __init__(self, kernel: Kernel, network: Network) -> None:
        self.kernel, self.network = kernel, network
        self.topics: dict[TopicName, TopicState] = {}
        self.sessions: defaultdict[tuple[str, TopicName], SimulatedSession] = defaultdict(SimulatedSession)
        self.latencies: dict[TopicName, list[tuple[float, float]]] = {}
        """Per topic: (published, latency until the last consumer received the message), seconds."""
        self.on_delivery: list[Callable[[SimulatedMessage, str], object]] = []
        """Called with (message, consumer) when a consumer receives a message."""
        self.on_register: list[Callable[[TopicName, str], object]] = []
        """Called with (topic, client) when a broker registers a client."""
        self.owed = self.delivered = self.abandoned = 0
        """Deliveries: owed since publishing; made; dropped because the consumer had left."""

    def create(
        self, name: TopicName, home: BrokerId, *, bound_s: float | None = None, rate_per_producer: float = 0.0
    ) -> TopicState:
        self.latencies[name] = []
        state = self.topics[name] = TopicState(name, home, bound_s, rate_per_producer=rate_per_producer)
        return state

    @property
    def outstanding(self) -> int:
        """Deliveries owed and not made. When no message is in transit, these are lost."""
        return self.owed - self.delivered - self.abandoned

    def topics_of(self, client: str) -> list[TopicState]:
        return [state for state in self.topics.values() if client in state.producers or client in state.consumers]

    def join(self, topic: TopicName, producers: Iterable[str] = (), consumers: Iterable[str] = ()) -> None:
        """Add clients that are connected from the start."""
        state = self.topics[topic]
        state.producers.update(producers)
        state.consumers.update(consumers)
        for client in state.clients:
            session = self.sessions[client, topic]
            session.attached = session.connected = state.home

    def leave(self, topic: TopicName, consumer: str) -> None:
        """Unsubscribe a consumer. Messages that it has not received count as abandoned."""
        self.topics[topic].consumers.discard(consumer)
        session = self.sessions.pop((consumer, topic), None)
        for message in session.unreceived if session else ():
            self._abandon(message, consumer)

    def publish(self, topic: TopicName, producer: str) -> SimulatedMessage:
        state = self.topics[topic]
        message = SimulatedMessage(topic, producer, self.kernel.now_s, set(state.consumers))
        self.owed += len(message.waiting)
        session = self.sessions[producer, topic]
        session.unaccepted.append(message)
        if session.connected is not None:
            self._submit(message, session.connected)
        return message

    def publish_every(self, topic: TopicName, producer: str, period_s: float, first_s: float, until_s: float) -> None:
        beat = self.kernel.every(period_s, self.publish, topic, producer, first_s=first_s)
        self.kernel.call_at(until_s, beat.cancel)

    def _submit(self, message: SimulatedMessage, broker: BrokerId) -> None:
        self.network.send(message.producer, broker, self._at_broker, broker, message)

    def _at_broker(self, broker: BrokerId, message: SimulatedMessage) -> None:
        if self.topics[message.topic].home != broker or message.accepted:
            return  # the home has released the topic: the producer gets no acceptance and will send the message again
        message.accepted = True
        unaccepted = self.sessions[message.producer, message.topic].unaccepted
        while unaccepted and unaccepted[0].accepted:
            unaccepted.popleft()
        for consumer in sorted(message.waiting):
            self._send(consumer, message, broker)

    def _send(self, consumer: str, message: SimulatedMessage, broker: BrokerId) -> None:
        if consumer not in self.topics[message.topic].consumers:
            self._abandon(message, consumer)
            return
        session = self.sessions[consumer, message.topic]
        if session.attached == broker:
            self.network.send(broker, consumer, self._at_consumer, message, consumer)
        else:
            session.unreceived.append(message)

    def _at_consumer(self, message: SimulatedMessage, consumer: str) -> None:
        if consumer in message.waiting:
            message.waiting.discard(consumer)
            self.delivered += 1
            if not message.waiting:
                self.latencies[message.topic].append((message.published_s, self.kernel.now_s - message.published_s))
            for notify in self.on_delivery:
                notify(message, consumer)

    def _abandon(self, message: SimulatedMessage, consumer: str) -> None:
        if consumer in message.waiting:
            message.waiting.discard(consumer)
            self.abandoned += 1

    # Calls of the control plane.

    def release(self, topic: TopicName) -> None:
        """The home releases the topic: it accepts and sends no more messages."""
        state = self.topics[topic]
        state.home = None
        for client in state.clients:
            self.sessions[client, topic].attached = None

    def acquire(self, topic: TopicName, broker: BrokerId) -> None:
        state = self.topics[topic]
        if state.home is not None:
            raise RuntimeError(f"{broker} acquires {topic}, which {state.home} has not released")
        state.home = broker

    def close(self, topic: TopicName, client: str) -> None:
        """Notify the client that its connection is closed."""
        self.sessions[client, topic].connected = None

    def register(self, topic: TopicName, client: str, broker: BrokerId) -> None:
        """The new home registers the client and sends the messages that it has missed."""
        session = self.sessions[client, topic]
        session.attached = broker
        for notify in self.on_register:
            notify(topic, client)
        missed, session.unreceived = session.unreceived, []
        for message in missed:
            self._send(client, message, broker)

    def resume(self, topic: TopicName, client: str, broker: BrokerId) -> None:
        """Notify the client that it is connected. The client then sends the messages that it has kept."""
        session = self.sessions[client, topic]
        session.connected = broker
        for message in session.unaccepted:
            self._submit(message, broker)
