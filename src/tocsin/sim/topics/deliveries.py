"""The observer of a topic simulation: which deliveries are owed, made, lost, repeated or out of order.

It sees everything and changes nothing. Brokers and clients of the simulation decide from their own state and from the
messages that reached them (`world`), so a wrong workflow shows here as a loss, a repetition or a wrong order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tocsin.policies.topics.types import TopicName


@dataclass(slots=True, eq=False)
class SimulatedMessage:
    topic: TopicName
    producer: str
    number: int
    """Number of the message among those of its producer in this topic, from 1."""
    published_s: float
    waiting: set[str]
    """For the observer: consumers that have not received the message."""
    reachable: bool = True
    """For the observer: whether any broker could have met the bound for these clients."""


class Deliveries:
    def __init__(self) -> None:
        self.latencies: dict[TopicName, list[tuple[float, float]]] = {}
        """Per topic: (published, latency until the last consumer received the message), seconds."""
        self.out_of_reach = 0
        """Messages whose bound no broker could meet, for these clients; `latencies` leaves them out."""
        self.owed = self.delivered = self.abandoned = 0
        """Deliveries: owed since publishing; made; dropped because the consumer had left."""
        self.repeated = self.out_of_order = 0
        """Messages that a consumer received twice; after a later message of the same producer."""
        self.on_delivery: list[Callable[[SimulatedMessage, str, float], object]] = []
        """Called with (message, consumer, time) when a consumer receives a message."""
        self._owed_to: defaultdict[tuple[str, TopicName], set[SimulatedMessage]] = defaultdict(set)
        self._latest: dict[tuple[str, TopicName, str], int] = {}

    @property
    def outstanding(self) -> int:
        """Deliveries owed and not made. When no message is in transit, these are lost."""
        return self.owed - self.delivered - self.abandoned

    def publish(self, message: SimulatedMessage, consumers: Iterable[str]) -> None:
        for consumer in consumers:
            message.waiting.add(consumer)
            self._owed_to[consumer, message.topic].add(message)
            self.owed += 1

    def receive(self, message: SimulatedMessage, consumer: str, now_s: float) -> None:
        key = (consumer, message.topic, message.producer)
        latest = self._latest.get(key, 0)
        if consumer not in message.waiting:
            # A consumer that subscribed while the message was in transit may receive it; nothing is owed then.
            self.repeated += message.number <= latest
            return
        self.out_of_order += message.number < latest
        self._latest[key] = max(latest, message.number)
        message.waiting.discard(consumer)
        self._owed_to[consumer, message.topic].discard(message)
        self.delivered += 1
        if not message.waiting:
            if message.reachable:
                self.latencies[message.topic].append((message.published_s, now_s - message.published_s))
            else:
                self.out_of_reach += 1
        for notify in self.on_delivery:
            notify(message, consumer, now_s)

    def leave(self, topic: TopicName, consumer: str) -> None:
        """The consumer has unsubscribed. Messages that it has not received count as abandoned."""
        for message in self._owed_to.pop((consumer, topic), ()):
            message.waiting.discard(consumer)
            self.abandoned += 1
