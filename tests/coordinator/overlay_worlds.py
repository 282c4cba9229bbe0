"""Heads and the links between them, with events in any order: the worlds of the overlay's tests.

A link keeps the order of its messages and delivers each at any later moment. A link that breaks loses its messages, and
each end learns of it at a different time; meanwhile the link may be up again, in a new epoch. An edge delivers a
message to its present subscribers.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from tocsin.coordinator.overlay_head import OverlayHead
from tocsin.coordinator.overlay_messages import (
    Advertise,
    Carry,
    EdgeLost,
    Event,
    HeadMessage,
    HeadMessageReceived,
    MessagePublished,
    NeighbourJoined,
    NeighbourLost,
    OverlayRejection,
    PublisherJoined,
    PublisherLeft,
    SendToEdge,
    SendToHead,
    SubscriberJoined,
    SubscriberLeft,
)
from tocsin.model.ids import BrokerId, SubscriberId
from tocsin.policies.sites.types import PublisherId
from tocsin.policies.topics.types import TopicName

Pair = tuple[BrokerId, BrokerId]
STEPS_AT_MOST = 200_000


@dataclass
class Site:
    head: OverlayHead
    publishers: dict[tuple[PublisherId, TopicName], None] = field(default_factory=dict)
    subscribers: dict[tuple[SubscriberId, TopicName], BrokerId] = field(default_factory=dict)


class Overlay:
    def __init__(self, heads: Iterable[str], links: Iterable[tuple[str, str]] = ()) -> None:
        self.sites = {BrokerId(name): Site(OverlayHead(BrokerId(name))) for name in heads}
        self.epoch_of: dict[frozenset[BrokerId], int] = {}
        self.up: set[frozenset[BrokerId]] = set()
        self.queues: dict[Pair, deque[Event]] = {}
        """Per direction, in order: messages, and events that the link is up or down."""
        self.received: list[tuple[SubscriberId, TopicName, str]] = []
        self.carried: Counter[Pair] = Counter()
        self.advertised = 0
        self.rejected: list[OverlayRejection] = []
        self.epochs = 0
        for head, other in links:
            self.connect(head, other)

    # Events.

    def connect(self, head: str, other: str) -> None:
        ends = frozenset((BrokerId(head), BrokerId(other)))
        if ends in self.up or len(ends) < 2:
            return
        self.epochs += 1
        self.epoch_of[ends] = self.epochs
        self.up.add(ends)
        for here, there in self._directions(ends):
            self._queue(there, here).append(NeighbourJoined(there, self.epochs))

    def cut(self, head: str, other: str) -> None:
        """Break the link and drop its messages. Each end still learns first that the link was up."""
        ends = frozenset((BrokerId(head), BrokerId(other)))
        if ends not in self.up:
            return
        self.up.discard(ends)
        for here, there in self._directions(ends):
            queue = self._queue(there, here)
            kept = [event for event in queue if not isinstance(event, HeadMessageReceived)]
            queue.clear()
            queue.extend([*kept, NeighbourLost(there, self.epoch_of[ends])])

    def crash(self, name: str) -> None:
        """Restart a head without state, in a new epoch: its links break and its clients have to register again."""
        head = BrokerId(name)
        for ends in [ends for ends in self.up if head in ends]:
            self.cut(*ends)
        for there in self.sites:
            self._queue(there, head).clear()
        self.epochs += 1
        self.sites[head] = Site(OverlayHead(head, self.epochs))

    def join_publisher(self, head: str, publisher: str, topic: str) -> None:
        self.sites[BrokerId(head)].publishers[PublisherId(publisher), TopicName(topic)] = None
        self._handle(head, PublisherJoined(PublisherId(publisher), TopicName(topic)))

    def leave_publisher(self, head: str, publisher: str, topic: str) -> None:
        self.sites[BrokerId(head)].publishers.pop((PublisherId(publisher), TopicName(topic)), None)
        self._handle(head, PublisherLeft(PublisherId(publisher), TopicName(topic)))

    def join_subscriber(self, head: str, subscriber: str, topic: str, edge: str) -> None:
        self.sites[BrokerId(head)].subscribers[SubscriberId(subscriber), TopicName(topic)] = BrokerId(edge)
        self._handle(head, SubscriberJoined(SubscriberId(subscriber), TopicName(topic), BrokerId(edge)))

    def leave_subscriber(self, head: str, subscriber: str, topic: str) -> None:
        self.sites[BrokerId(head)].subscribers.pop((SubscriberId(subscriber), TopicName(topic)), None)
        self._handle(head, SubscriberLeft(SubscriberId(subscriber), TopicName(topic)))

    def lose_edge(self, head: str, edge: str) -> None:
        site = self.sites[BrokerId(head)]
        site.subscribers = {key: its_edge for key, its_edge in site.subscribers.items() if its_edge != edge}
        self._handle(head, EdgeLost(BrokerId(edge)))

    def publish(self, head: str, publisher: str, topic: str, body: str) -> None:
        self._handle(head, MessagePublished(PublisherId(publisher), TopicName(topic), body))

    def deliver_next(self, choose: random.Random) -> bool:
        """Deliver the first event of a random direction; returns False when no event is pending."""
        pending = [pair for pair, queue in self.queues.items() if queue]
        if not pending:
            return False
        pair = choose.choice(pending)
        self._handle(pair[1], self.queues[pair].popleft())
        return True

    def settle(self, choose: random.Random) -> None:
        for _ in range(STEPS_AT_MOST):
            if not self.deliver_next(choose):
                return
        raise AssertionError("the overlay never settles")

    # Expectations.

    def reachable(self, head: BrokerId) -> set[BrokerId]:
        seen, pending = {head}, [head]
        while pending:
            here = pending.pop()
            for ends in self.up:
                if here in ends:
                    (there,) = ends - {here}
                    if there not in seen:
                        seen.add(there)
                        pending.append(there)
        return seen

    def audience(self, head: str, topic: str) -> list[tuple[SubscriberId, TopicName]]:
        return sorted(
            key for site in self.reachable(BrokerId(head)) for key in self.sites[site].subscribers if key[1] == topic
        )

    def size(self) -> int:
        return sum(site.head.size() for site in self.sites.values())

    # Execution of effects.

    def _handle(self, head: str, event: Event) -> None:
        site = self.sites[BrokerId(head)]
        for effect in site.head.handle(event):
            match effect:
                case SendToHead(there, message):
                    self._send(BrokerId(head), there, site.head.links[there], message)
                case SendToEdge(edge, topic, _, body):
                    served = [key for key, its_edge in site.subscribers.items() if its_edge == edge and key[1] == topic]
                    assert served, f"{edge} got a message on {topic} without a subscriber"
                    self.received += [(subscriber, topic, body) for subscriber, _ in served]
                case OverlayRejection():
                    self.rejected.append(effect)

    def _send(self, here: BrokerId, there: BrokerId, link: int, message: HeadMessage) -> None:
        ends = frozenset((here, there))
        self.advertised += isinstance(message, Advertise)
        if isinstance(message, Carry):
            self.carried[here, there] += 1
        if ends in self.up and self.epoch_of[ends] == link:
            self._queue(here, there).append(HeadMessageReceived(here, link, message))

    def _queue(self, here: BrokerId, there: BrokerId) -> deque[Event]:
        return self.queues.setdefault((here, there), deque())

    @staticmethod
    def _directions(ends: frozenset[BrokerId]) -> tuple[Pair, Pair]:
        head, other = sorted(ends)
        return (head, other), (other, head)
