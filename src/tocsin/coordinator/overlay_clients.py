"""The clients of one site as its head knows them: the publishing topic list (PTL) and the map from topics to edges.

Publishers are served by the head and subscribers by the edges [ePEER §4.2]. Tables only: what follows from a change is
the head's business (`overlay.py`).
"""

from __future__ import annotations

from collections import Counter

from tocsin.model.ids import BrokerId, SubscriberId
from tocsin.policies.sites.offload_types import PublisherId
from tocsin.policies.topics.types import TopicName


class SiteClients:
    def __init__(self) -> None:
        self._publishers: dict[TopicName, set[PublisherId]] = {}
        self._edge_of: dict[tuple[SubscriberId, TopicName], BrokerId] = {}
        self._edges: dict[TopicName, Counter[BrokerId]] = {}

    def __len__(self) -> int:
        return len(self._edge_of) + sum(len(publishers) for publishers in self._publishers.values())

    def is_published(self, topic: TopicName) -> bool:
        return topic in self._publishers

    def publishes(self, publisher: PublisherId, topic: TopicName) -> bool:
        return publisher in self._publishers.get(topic, ())

    def is_subscribed(self, topic: TopicName) -> bool:
        return topic in self._edges

    def published(self) -> list[TopicName]:
        return list(self._publishers)

    def edges(self, topic: TopicName) -> list[BrokerId]:
        """Edges with a subscriber of the topic, in a fixed order."""
        return sorted(self._edges.get(topic, ()))

    def add_publisher(self, publisher: PublisherId, topic: TopicName) -> None:
        self._publishers.setdefault(topic, set()).add(publisher)

    def remove_publisher(self, publisher: PublisherId, topic: TopicName) -> None:
        known = self._publishers.get(topic, set())
        known.discard(publisher)
        if not known:
            self._publishers.pop(topic, None)

    def seat(self, subscriber: SubscriberId, topic: TopicName, edge: BrokerId) -> None:
        """One edge per subscriber and topic: a second registration is a move [ePEER §4.4.4.1]."""
        self.unseat(subscriber, topic)
        self._edge_of[subscriber, topic] = edge
        self._edges.setdefault(topic, Counter())[edge] += 1

    def unseat(self, subscriber: SubscriberId, topic: TopicName) -> None:
        edge = self._edge_of.pop((subscriber, topic), None)
        if edge is None:
            return
        seats = self._edges[topic]
        seats[edge] -= 1
        if not seats[edge]:
            del seats[edge]
        if not seats:
            del self._edges[topic]

    def unseat_edge(self, edge: BrokerId) -> list[TopicName]:
        """Remove all subscribers of an edge; returns their topics."""
        gone = [key for key, at in self._edge_of.items() if at == edge]
        for subscriber, topic in gone:
            self.unseat(subscriber, topic)
        return list(dict.fromkeys(topic for _, topic in gone))
