"""Heads with links between them in which anything may happen next: the worlds that the overlay's tests walk.

A link keeps the order of what is sent on it and delivers at any later moment. When it breaks, what is on it is gone,
and each end learns of it in its own time; meanwhile it may be back, as a new life of the link. Edges and subscribers
are real enough to be counted: an edge fans a message out to those of its subscribers that are there.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from tocsin.coordinator.overlay import OverlayHead
from tocsin.coordinator.overlay_messages import (
    Advertise,
    Carry,
    EdgeLost,
    Event,
    HeadMessage,
    MessageReceived,
    NeighbourJoined,
    NeighbourLost,
    Published,
    PublisherJoined,
    PublisherLeft,
    Reject,
    SendToEdge,
    SendToHead,
    SubscriberJoined,
    SubscriberLeft,
)
from tocsin.model.ids import BrokerId, SubscriberId
from tocsin.policies.sites.offload_types import PublisherId
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
        self.life: dict[frozenset[BrokerId], int] = {}
        self.up: set[frozenset[BrokerId]] = set()
        self.queues: dict[Pair, deque[Event]] = {}
        """Per direction, in order: messages, and the news that the link came or went."""
        self.received: list[tuple[SubscriberId, TopicName, str]] = []
        self.carried: Counter[Pair] = Counter()
        self.advertised = 0
        self.rejected: list[Reject] = []
        self.lives = 0
        for one, other in links:
            self.connect(one, other)

    # What may happen.

    def connect(self, one: str, other: str) -> None:
        ends = frozenset((BrokerId(one), BrokerId(other)))
        if ends in self.up or len(ends) < 2:
            return
        self.lives += 1
        self.life[ends] = self.lives
        self.up.add(ends)
        for here, there in self._directions(ends):
            self._queue(there, here).append(NeighbourJoined(there, self.lives))

    def cut(self, one: str, other: str) -> None:
        """What is on the way is gone; that the link came up earlier is still learnt first."""
        ends = frozenset((BrokerId(one), BrokerId(other)))
        if ends not in self.up:
            return
        self.up.discard(ends)
        for here, there in self._directions(ends):
            queue = self._queue(there, here)
            kept = [event for event in queue if not isinstance(event, MessageReceived)]
            queue.clear()
            queue.extend([*kept, NeighbourLost(there, self.life[ends])])

    def crash(self, name: str) -> None:
        """A head restarts with nothing: its links break, its clients have to register again, its life is a new one."""
        head = BrokerId(name)
        for ends in [ends for ends in self.up if head in ends]:
            self.cut(*ends)
        for there in self.sites:
            self._queue(there, head).clear()
        self.lives += 1
        self.sites[head] = Site(OverlayHead(head, self.lives))

    def join_publisher(self, head: str, publisher: str, topic: str) -> None:
        self.sites[BrokerId(head)].publishers[PublisherId(publisher), TopicName(topic)] = None
        self._tell(head, PublisherJoined(PublisherId(publisher), TopicName(topic)))

    def leave_publisher(self, head: str, publisher: str, topic: str) -> None:
        self.sites[BrokerId(head)].publishers.pop((PublisherId(publisher), TopicName(topic)), None)
        self._tell(head, PublisherLeft(PublisherId(publisher), TopicName(topic)))

    def join_subscriber(self, head: str, subscriber: str, topic: str, edge: str) -> None:
        self.sites[BrokerId(head)].subscribers[SubscriberId(subscriber), TopicName(topic)] = BrokerId(edge)
        self._tell(head, SubscriberJoined(SubscriberId(subscriber), TopicName(topic), BrokerId(edge)))

    def leave_subscriber(self, head: str, subscriber: str, topic: str) -> None:
        self.sites[BrokerId(head)].subscribers.pop((SubscriberId(subscriber), TopicName(topic)), None)
        self._tell(head, SubscriberLeft(SubscriberId(subscriber), TopicName(topic)))

    def lose_edge(self, head: str, edge: str) -> None:
        site = self.sites[BrokerId(head)]
        site.subscribers = {key: at for key, at in site.subscribers.items() if at != edge}
        self._tell(head, EdgeLost(BrokerId(edge)))

    def publish(self, head: str, publisher: str, topic: str, body: str) -> None:
        self._tell(head, Published(PublisherId(publisher), TopicName(topic), body))

    def deliver_one(self, choose: random.Random) -> bool:
        """Whatever waits first on some direction happens. False when nothing waits."""
        waiting = [pair for pair, queue in self.queues.items() if queue]
        if not waiting:
            return False
        pair = choose.choice(waiting)
        self._tell(pair[1], self.queues[pair].popleft())
        return True

    def settle(self, choose: random.Random) -> None:
        for _ in range(STEPS_AT_MOST):
            if not self.deliver_one(choose):
                return
        raise AssertionError("the overlay never comes to rest")

    # What should be.

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
            key for one in self.reachable(BrokerId(head)) for key in self.sites[one].subscribers if key[1] == topic
        )

    def size(self) -> int:
        return sum(site.head.size() for site in self.sites.values())

    # How it happens.

    def _tell(self, head: str, event: Event) -> None:
        site = self.sites[BrokerId(head)]
        for effect in site.head.handle(event):
            match effect:
                case SendToHead(there, message):
                    self._send(BrokerId(head), there, site.head.links[there], message)
                case SendToEdge(edge, topic, _, body):
                    mine = [key for key, at in site.subscribers.items() if at == edge and key[1] == topic]
                    assert mine, f"{edge} got a message on {topic} that nobody there wants"
                    self.received += [(subscriber, topic, body) for subscriber, _ in mine]
                case Reject():
                    self.rejected.append(effect)

    def _send(self, here: BrokerId, there: BrokerId, link: int, message: HeadMessage) -> None:
        ends = frozenset((here, there))
        self.advertised += isinstance(message, Advertise)
        if isinstance(message, Carry):
            self.carried[here, there] += 1
        if ends in self.up and self.life[ends] == link:
            self._queue(here, there).append(MessageReceived(here, link, message))

    def _queue(self, here: BrokerId, there: BrokerId) -> deque[Event]:
        return self.queues.setdefault((here, there), deque())

    @staticmethod
    def _directions(ends: frozenset[BrokerId]) -> tuple[Pair, Pair]:
        one, other = sorted(ends)
        return (one, other), (other, one)
