"""Brokers, topics and clients that exchange messages: the data plane of the topic simulation.

Each topic has one home broker; producers send to it, it sends to consumers. While a topic migrates, clients keep what
they publish and the new home keeps what their consumers have not had, so nothing is lost and nothing is delivered
twice. The control plane (`topic_migration`, `topic_control`) calls `release`, `acquire`, `close`, `register`.
Messages carry no payload: a simulation may follow a sample of them and state the full rate for the load model.
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
class Message:
    topic: TopicName
    producer: str
    published_s: float
    waiting: set[str]
    """Consumers that have not had it."""
    accepted: bool = False
    """The home has it. A broker that was no longer the home when it came has not."""


@dataclass(slots=True)
class Session:
    """A client's connection for one topic, as both ends see it."""

    attached: BrokerId | None = None
    """The broker that counts the client as connected, and sends to it."""
    connected: BrokerId | None = None
    """The broker the client believes to be connected to, and publishes to."""
    unaccepted: deque[Message] = field(default_factory=deque)
    """Published and not known to be accepted, oldest first: sent again, in order, when connected anew."""
    unreceived: list[Message] = field(default_factory=list)
    """Accepted for this consumer while it was not attached."""


@dataclass(slots=True)
class TopicState:
    name: TopicName
    home: BrokerId | None
    """None between release and acquisition."""
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
        self.sessions: defaultdict[tuple[str, TopicName], Session] = defaultdict(Session)
        self.on_delivery: list[Callable[[Message, str], object]] = []
        """Called with (message, consumer) at the moment a consumer has it."""
        self.on_register: list[Callable[[TopicName, str], object]] = []
        """Called with (topic, client) when a broker counts a client as connected."""
        self.owed = self.delivered = self.abandoned = 0
        """Deliveries: promised by publishing; made; dropped because the consumer had left."""

    def create(
        self, name: TopicName, home: BrokerId, *, bound_s: float | None = None, rate_per_producer: float = 0.0
    ) -> TopicState:
        state = TopicState(name, home, bound_s, rate_per_producer=rate_per_producer)
        self.topics[name] = state
        return state

    @property
    def outstanding(self) -> int:
        """Deliveries promised and not made. When nothing is on its way any more, these are lost."""
        return self.owed - self.delivered - self.abandoned

    def join(self, topic: TopicName, producers: Iterable[str] = (), consumers: Iterable[str] = ()) -> None:
        """Clients that are connected from the start."""
        state = self.topics[topic]
        state.producers.update(producers)
        state.consumers.update(consumers)
        for client in state.clients:
            session = self.sessions[client, topic]
            session.attached = session.connected = state.home

    def leave(self, topic: TopicName, consumer: str) -> None:
        """A consumer unsubscribes. What it has not had yet it will not miss."""
        self.topics[topic].consumers.discard(consumer)
        session = self.sessions.pop((consumer, topic), None)
        for message in session.unreceived if session else ():
            self._abandon(message, consumer)

    def publish(self, topic: TopicName, producer: str) -> Message:
        state = self.topics[topic]
        message = Message(topic, producer, self.kernel.now_s, set(state.consumers))
        self.owed += len(message.waiting)
        session = self.sessions[producer, topic]
        session.unaccepted.append(message)
        if session.connected is not None:
            self._submit(message, session.connected)
        return message

    def _submit(self, message: Message, broker: BrokerId) -> None:
        self.network.send(message.producer, broker, self._at_broker, broker, message)

    def _at_broker(self, broker: BrokerId, message: Message) -> None:
        if self.topics[message.topic].home != broker or message.accepted:
            return  # released meanwhile: its producer, never told that it was accepted, will send it again
        message.accepted = True
        unaccepted = self.sessions[message.producer, message.topic].unaccepted
        while unaccepted and unaccepted[0].accepted:
            unaccepted.popleft()
        for consumer in sorted(message.waiting):
            self._towards(consumer, message, broker)

    def _towards(self, consumer: str, message: Message, broker: BrokerId) -> None:
        if consumer not in self.topics[message.topic].consumers:
            self._abandon(message, consumer)
            return
        session = self.sessions[consumer, message.topic]
        if session.attached == broker:
            self.network.send(broker, consumer, self._at_consumer, message, consumer)
        else:
            session.unreceived.append(message)

    def _at_consumer(self, message: Message, consumer: str) -> None:
        if consumer in message.waiting:
            message.waiting.discard(consumer)
            self.delivered += 1
            for notify in self.on_delivery:
                notify(message, consumer)

    def _abandon(self, message: Message, consumer: str) -> None:
        if consumer in message.waiting:
            message.waiting.discard(consumer)
            self.abandoned += 1

    # What the control plane does.

    def release(self, topic: TopicName) -> None:
        """The home gives the topic up: it takes and sends nothing any more."""
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
        """The client learns that its connection is gone."""
        self.sessions[client, topic].connected = None

    def register(self, topic: TopicName, client: str, broker: BrokerId) -> None:
        """The new home counts the client as connected, and sends what it has missed."""
        session = self.sessions[client, topic]
        session.attached = broker
        for notify in self.on_register:
            notify(topic, client)
        missed, session.unreceived = session.unreceived, []
        for message in missed:
            self._towards(client, message, broker)

    def resume(self, topic: TopicName, client: str, broker: BrokerId) -> None:
        """The client knows that it is connected, and sends what it has kept."""
        session = self.sessions[client, topic]
        session.connected = broker
        for message in session.unaccepted:
            self._submit(message, broker)
