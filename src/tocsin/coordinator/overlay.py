"""The head of a site in the overlay of heads: advertising, subscribing and carrying messages [ePEER §4.3.2].

`handle(event) -> effects`: no clock, no socket. A driver (a live coordinator or a test) tells a head what happened and
sends what it asks for. Topics are advertised from head to head (figure 4-8); subscriptions travel the advertisement's
way back (figure 4-11); messages flow head → head → edge only where somebody subscribed.

After any event the head compares what its neighbours should have been told with what it told them, and says the
difference. That is why a withdrawal, a lost neighbour and a changed route need no code of their own.

Beyond the thesis, which assumes an overlay that never changes:

- routes and federations are kept per flow (topic and source head), not per topic. With federations per topic, two heads
  that both publish and subscribe one topic would send each message back and forth for ever;
- the last publisher or subscriber of a topic is withdrawn; neighbours come, go and fail (`overlay_routes.py`);
- messages are numbered by their source, and a head handles a number once: whatever routes do meanwhile, nobody gets a
  message twice or out of order. What was on its way over a link that broke is lost here; filling such gaps is the
  business of cursors, one layer up.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tocsin.coordinator.overlay_clients import SiteClients
from tocsin.coordinator.overlay_messages import (
    Advertise,
    Carry,
    Code,
    EdgeLost,
    Effect,
    Event,
    Flow,
    HeadMessage,
    MessageReceived,
    NeighbourJoined,
    NeighbourLost,
    Number,
    Published,
    PublisherJoined,
    PublisherLeft,
    Reject,
    SendToEdge,
    SendToHead,
    Subscribe,
    SubscriberJoined,
    SubscriberLeft,
    Unsubscribe,
    Withdraw,
)
from tocsin.coordinator.overlay_routes import Path, Routes
from tocsin.model.ids import BrokerId
from tocsin.policies.topics.types import TopicName


class OverlayHead:
    def __init__(self, head: BrokerId, life: int = 0) -> None:
        """`life` is higher at each restart, so that neighbours do not take new messages for old ones."""
        self.head = head
        self.clients = SiteClients()
        self.routes = Routes(head)
        self.links: dict[BrokerId, int] = {}
        """Neighbouring heads that are up, and the life of the link to each."""
        self._last = Number(life, 0)
        self._wanted: dict[Flow, set[BrokerId]] = {}
        """Federations to other heads: who subscribed which flow here."""
        self._told: dict[Flow, dict[BrokerId, Path]] = {}
        """What each neighbour was last told of a flow."""
        self._asked: dict[Flow, BrokerId] = {}
        """Whom this head subscribed a flow from."""
        self._heard: dict[Flow, Number] = {}
        """The latest message handled."""

    def size(self) -> int:
        """Entries in all tables. 0 when nobody publishes or subscribes anywhere."""
        tables = (self._wanted, self._told, self._asked, self._heard)
        return len(self.clients) + len(self.routes) + sum(len(table) for table in tables)

    def handle(self, event: Event) -> list[Effect]:
        match event:
            case NeighbourJoined(head, link):
                return self._on_joined(head, link)
            case NeighbourLost(head, link):
                return self._on_lost(head) if self.links.get(head) == link else []
            case MessageReceived(head, link, message):
                return self._on_message(head, link, message)
            case PublisherJoined(publisher, topic):
                self.clients.add_publisher(publisher, topic)
                return self._settle([Flow(topic, self.head)])
            case PublisherLeft(publisher, topic):
                self.clients.remove_publisher(publisher, topic)
                return self._settle([Flow(topic, self.head)])
            case SubscriberJoined(subscriber, topic, edge):
                self.clients.seat(subscriber, topic, edge)
                return self._settle(self._flows_of([topic]))
            case SubscriberLeft(subscriber, topic):
                self.clients.unseat(subscriber, topic)
                return self._settle(self._flows_of([topic]))
            case EdgeLost(edge):
                return self._settle(self._flows_of(self.clients.unseat_edge(edge)))
            case Published(publisher, topic, body):
                if not self.clients.publishes(publisher, topic):
                    return [Reject(Code.UNKNOWN_PUBLISHER, f"{publisher} has not registered as a publisher of {topic}")]
                self._last = Number(self._last.life, self._last.serial + 1)
                return self._pass_on(Flow(topic, self.head), self._last, body, None)

    # Neighbours.

    def _on_joined(self, head: BrokerId, link: int) -> list[Effect]:
        known = self.links.get(head)
        if known is not None and link <= known:
            return [Reject(Code.OLD_LINK, f"link {link} to {head} is not newer than {known}")] if link < known else []
        effects = [] if known is None else self._on_lost(head)
        self.links[head] = link
        own = [Flow(topic, self.head) for topic in self.clients.published()]
        return effects + self._settle([*own, *self.routes.flows()])

    def _on_lost(self, head: BrokerId) -> list[Effect]:
        del self.links[head]
        touched = dict.fromkeys(self.routes.lose(head))
        for flow, told in list(self._told.items()):
            if told.pop(head, None) is not None and not told:
                del self._told[flow]
        for flow in [flow for flow, wanting in self._wanted.items() if head in wanting]:
            self._unwant(flow, head)
            touched[flow] = None
        for flow in [flow for flow, asked in self._asked.items() if asked == head]:
            del self._asked[flow]
            touched[flow] = None
        return self._settle(touched)

    # Messages of neighbours.

    def _on_message(self, head: BrokerId, link: int, message: HeadMessage) -> list[Effect]:
        if head not in self.links:
            return [Reject(Code.NOT_A_NEIGHBOUR, f"{head} is not a neighbour of {self.head}")]
        if link != self.links[head]:
            return [Reject(Code.OLD_LINK, f"link {link} to {head} has been replaced by {self.links[head]}")]
        match message:
            case Advertise(_, path):
                if not path or path[-1] != head or len(set(path)) < len(path):
                    return [Reject(Code.BAD_PATH, f"{head} advertised by the path {path}")]
                self.routes.learn(message.flow, head, path)
                return self._settle([message.flow])
            case Withdraw(flow):
                self.routes.forget(flow, head)
                return self._settle([flow])
            case Subscribe(flow):
                self._wanted.setdefault(flow, set()).add(head)
                return self._settle([flow])
            case Unsubscribe(flow):
                self._unwant(flow, head)
                return self._settle([flow])
            case Carry(flow, number, body):
                return self._on_carried(head, flow, number, body)

    def _on_carried(self, head: BrokerId, flow: Flow, number: Number, body: Any) -> list[Effect]:
        if self._asked.get(flow) != head:
            return [Reject(Code.NOT_ASKED_FOR, f"{flow} from {head}")]
        if number <= self._heard.get(flow, Number(-1, 0)):
            return [Reject(Code.REPEATED, f"{flow} {number} from {head}")]
        self._heard[flow] = number
        return self._pass_on(flow, number, body, head)

    def _pass_on(self, flow: Flow, number: Number, body: Any, received_from: BrokerId | None) -> list[Effect]:
        edges = [SendToEdge(edge, flow.topic, number, body) for edge in self.clients.edges(flow.topic)]
        onwards = sorted(self._wanted.get(flow, set()) - {received_from})
        return [*edges, *(SendToHead(other, Carry(flow, number, body)) for other in onwards)]

    # Telling neighbours what has changed.

    def _flows_of(self, topics: Iterable[TopicName]) -> list[Flow]:
        """Also flows that are no longer offered: with the last subscriber goes what was remembered of them."""
        wanted = set(topics)
        known = [*self.routes.flows(), *self._asked, *self._heard]
        return [flow for flow in dict.fromkeys(known) if flow.topic in wanted]

    def _settle(self, flows: Iterable[Flow]) -> list[Effect]:
        effects: list[Effect] = []
        for flow in flows:
            effects += self._advertise(flow)
            effects += self._subscribe(flow)
            if flow in self._heard and not self._is_of_interest(flow):
                del self._heard[flow]
        return effects

    def _advertise(self, flow: Flow) -> list[Effect]:
        """[ePEER figure 4-8]: to every neighbour but those the flow has already come by."""
        path = self._path(flow)
        offered = {} if path is None else {other: path for other in self.links if other not in path}
        told = self._told.get(flow, {})
        effects: list[Effect] = [SendToHead(other, Withdraw(flow)) for other in told if other not in offered]
        effects += [
            SendToHead(other, Advertise(flow.topic, by)) for other, by in offered.items() if told.get(other) != by
        ]
        self._told[flow] = offered
        if not offered:
            del self._told[flow]
        return effects

    def _path(self, flow: Flow) -> Path | None:
        """How this head offers a flow: by the way it comes, and then itself."""
        if flow.source == self.head:
            return (self.head,) if self.clients.is_published(flow.topic) else None
        way = self.routes.path(flow)
        return None if way is None else (*way, self.head)

    def _subscribe(self, flow: Flow) -> list[Effect]:
        """[ePEER figure 4-11]: from the neighbour the advertisement came by, while anybody here or beyond wants it."""
        wanted_from = self.routes.chosen(flow) if self._is_of_interest(flow) else None
        asked = self._asked.get(flow)
        if asked == wanted_from:
            return []
        effects: list[Effect] = []
        if wanted_from is not None:
            self._asked[flow] = wanted_from
            effects.append(SendToHead(wanted_from, Subscribe(flow)))
        else:
            del self._asked[flow]
        if asked is not None:
            effects.append(SendToHead(asked, Unsubscribe(flow)))
        return effects

    def _is_of_interest(self, flow: Flow) -> bool:
        return flow in self._wanted or self.clients.is_subscribed(flow.topic)

    def _unwant(self, flow: Flow, head: BrokerId) -> None:
        wanting = self._wanted.get(flow, set())
        wanting.discard(head)
        if not wanting:
            self._wanted.pop(flow, None)
