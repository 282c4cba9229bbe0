"""The tables of a head in the overlay of heads: the clients of its site, and the routes of flows [ePEER §4.2–4.3.2].

Tables only: the head (`overlay_head.py`) reacts to their changes.
"""

from __future__ import annotations

from collections import Counter

from tocsin.coordinator.overlay_messages import Flow
from tocsin.model.ids import BrokerId, SubscriberId
from tocsin.policies.sites.types import PublisherId
from tocsin.policies.topics.types import TopicName

Path = tuple[BrokerId, ...]


class SiteClients:
    """The publishing topic list (PTL) and the map from topics to edges.

    The head serves publishers, and the edges serve subscribers [ePEER §4.2].
    """

    def __init__(self) -> None:
        self.publishers: dict[TopicName, set[PublisherId]] = {}
        self.edges: dict[TopicName, Counter[BrokerId]] = {}
        """Per topic, the number of subscribers at each edge."""
        self._edge_of: dict[tuple[SubscriberId, TopicName], BrokerId] = {}

    def __len__(self) -> int:
        return len(self._edge_of) + sum(len(publishers) for publishers in self.publishers.values())

    def add_publisher(self, publisher: PublisherId, topic: TopicName) -> None:
        self.publishers.setdefault(topic, set()).add(publisher)

    def remove_publisher(self, publisher: PublisherId, topic: TopicName) -> None:
        publishers = self.publishers.get(topic, set())
        publishers.discard(publisher)
        if not publishers:
            self.publishers.pop(topic, None)

    def add_subscriber(self, subscriber: SubscriberId, topic: TopicName, edge: BrokerId) -> None:
        """A subscriber has one edge per topic: a second registration moves it [ePEER §4.4.4.1]."""
        self.remove_subscriber(subscriber, topic)
        self._edge_of[subscriber, topic] = edge
        self.edges.setdefault(topic, Counter())[edge] += 1

    def remove_subscriber(self, subscriber: SubscriberId, topic: TopicName) -> None:
        edge = self._edge_of.pop((subscriber, topic), None)
        if edge is None:
            return
        counts = self.edges[topic]
        counts[edge] -= 1
        if not counts[edge]:
            del counts[edge]
        if not counts:
            del self.edges[topic]

    def remove_edge(self, edge: BrokerId) -> list[TopicName]:
        """Remove all subscribers of an edge; returns their topics."""
        removed = [key for key, its_edge in self._edge_of.items() if its_edge == edge]
        for subscriber, topic in removed:
            self.remove_subscriber(subscriber, topic)
        return list(dict.fromkeys(topic for _, topic in removed))


class FlowRoutes:
    """The advertisement table (ADT): the neighbours that offer a flow, and the one from which the head receives it.

    The head chooses the first neighbour that advertises a flow. An advertisement of the same flow by another neighbour
    is a duplicate and is not forwarded [ePEER §4.3.2, figure 4-8]. The thesis discards duplicates; here they are spare
    routes. When the chosen neighbour is lost or withdraws, the head takes the shortest spare route (then the smaller
    id). The chosen route stays until it is lost, even if a shorter one appears, because each change of route may lose
    messages.

    Routes always settle. A head keeps a route that has not changed. So the source's neighbours that use their direct
    link keep it, then their neighbours, and so on: after finitely many messages no path changes.
    """

    def __init__(self, head: BrokerId) -> None:
        self._head = head
        self.paths: dict[Flow, dict[BrokerId, Path]] = {}
        """Per flow, the path by which each neighbour offers it: the chosen route and the spare ones."""
        self.chosen: dict[Flow, BrokerId] = {}
        self.offered: Counter[BrokerId] = Counter()
        """The number of flows that each neighbour offers."""

    def __len__(self) -> int:
        return sum(len(paths) for paths in self.paths.values())

    def path(self, flow: Flow) -> Path | None:
        """The path from the source to the chosen neighbour; None without a route."""
        chosen = self.chosen.get(flow)
        return None if chosen is None else self.paths[flow][chosen]

    def learn(self, flow: Flow, neighbour: BrokerId, path: Path) -> None:
        """`neighbour` offers `flow` by `path`. A path through this head counts as withdrawn."""
        if self._head in path:
            self.forget(flow, neighbour)
            return
        paths = self.paths.setdefault(flow, {})
        self.offered[neighbour] += neighbour not in paths
        paths[neighbour] = path
        self.chosen.setdefault(flow, neighbour)

    def forget(self, flow: Flow, neighbour: BrokerId) -> None:
        paths = self.paths.get(flow)
        if paths is None or paths.pop(neighbour, None) is None:
            return
        self.offered[neighbour] -= 1
        if self.chosen[flow] == neighbour:
            del self.chosen[flow]
            if paths:
                self.chosen[flow] = min(paths, key=lambda other: (len(paths[other]), other))
        if not paths:
            del self.paths[flow]

    def forget_neighbour(self, neighbour: BrokerId) -> list[Flow]:
        """Forget all routes of a neighbour; returns the flows that it offered."""
        offered = [flow for flow, paths in self.paths.items() if neighbour in paths]
        for flow in offered:
            self.forget(flow, neighbour)
        return offered
