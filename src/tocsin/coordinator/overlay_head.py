"""The head of a site in the overlay of heads: it advertises, subscribes and forwards flows [ePEER §4.3.2].

`handle(event) -> effects`: no clock, no socket. A driver (a live coordinator or a test) reports events to a head and
executes its effects. Heads advertise topics to each other (figure 4-8). Subscriptions travel along the advertisement's
path in reverse (figure 4-11). Messages flow head → head → edge, only where a subscription exists.

After any event the head compares the advertisements and subscriptions that its neighbours should have with those it
last sent, and sends the difference. So a withdrawal, a lost neighbour and a changed route need no code of their own.

Beyond the thesis, which assumes an overlay that never changes:

  - Routes and federations are kept per flow (topic and source head), not per topic. With federations per topic, two
    heads that both publish and subscribe one topic would send each message back and forth for ever.
  - The last publisher or subscriber of a topic withdraws it. Neighbours join, leave and fail (`overlay_tables.py`).
  - A source numbers its messages, and a head handles each number once. So no subscriber gets a message twice or out of
    order, however routes change. Messages on a link that breaks are lost in this layer; the cursors of the layer above
    recover them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tocsin.coordinator import overlay_messages as messages
from tocsin.coordinator.overlay_messages import Effect, Flow, Number, OverlayCode, OverlayRejection, SendToHead
from tocsin.coordinator.overlay_tables import FlowRoutes, Path, SiteClients
from tocsin.model.ids import BrokerId
from tocsin.policies.topics.types import TopicName


class OverlayHead:
    def __init__(self, head: BrokerId, epoch: int = 0) -> None:
        """`epoch` is higher at each restart, so that neighbours do not take new messages for repeated ones."""
        self.head = head
        self.clients = SiteClients()
        self.routes = FlowRoutes(head)
        self.links: dict[BrokerId, int] = {}
        """Neighbouring heads that are up, and the epoch of the link to each."""
        self._unconfirmed: dict[BrokerId, set[Flow]] = {}
        """Routes of a neighbour that has returned, until it advertises them again."""
        self._last = Number(epoch, 0)
        self._federations: dict[Flow, set[BrokerId]] = {}
        """The neighbours that have subscribed a flow from this head."""
        self._advertised: dict[Flow, dict[BrokerId, Path]] = {}
        """The path of each flow that was last advertised to each neighbour."""
        self._subscribed: dict[Flow, BrokerId] = {}
        """The neighbour from which this head has subscribed a flow."""
        self._received: dict[Flow, Number] = {}
        """The number of the latest message handled, by flow."""
        self._known: dict[TopicName, dict[Flow, None]] = {}
        """By topic, the flows that have a route, a subscription or a received message, so that a client that joins or
        leaves costs the flows of its topic only. `_settle` keeps it: every change of those tables ends there."""

    @property
    def subscribed(self) -> Mapping[Flow, BrokerId]:
        """The flows that this head has subscribed, and the neighbour of each."""
        return self._subscribed

    def is_offered(self, topic: TopicName) -> bool:
        """True if a neighbour advertises a flow of the topic."""
        return any(flow in self.routes.paths for flow in self._known.get(topic, ()))

    def size(self) -> int:
        """The number of entries in all tables. 0 when the overlay has no publisher and no subscriber."""
        tables = (self._federations, self._advertised, self._subscribed, self._received, self._known)
        return len(self.clients) + len(self.routes) + sum(len(table) for table in tables)

    def handle(self, event: messages.Event) -> list[Effect]:
        match event:
            case messages.NeighbourJoined(head, link):
                return self._on_joined(head, link)
            case messages.NeighbourReturned(head, link):
                return self._on_returned(head, link)
            case messages.NeighbourAdvertised(head, link):
                return self._on_advertised(head) if self.links.get(head) == link else []
            case messages.NeighbourLost(head, link):
                return self._on_lost(head) if self.links.get(head) == link else []
            case messages.HeadMessageReceived(head, link, message):
                return self._on_message(head, link, message)
            case messages.PublisherJoined(publisher, topic):
                self.clients.add_publisher(publisher, topic)
                return self._settle([Flow(topic, self.head)])
            case messages.PublisherLeft(publisher, topic):
                self.clients.remove_publisher(publisher, topic)
                return self._settle([Flow(topic, self.head)])
            case messages.SubscriberJoined(subscriber, topic, edge):
                self.clients.add_subscriber(subscriber, topic, edge)
                return self._settle(self._flows_of([topic]))
            case messages.SubscriberLeft(subscriber, topic):
                self.clients.remove_subscriber(subscriber, topic)
                return self._settle(self._flows_of([topic]))
            case messages.EdgeLost(edge):
                return self._settle(self._flows_of(self.clients.remove_edge(edge)))
            case messages.MessagePublished(publisher, topic, body):
                if publisher not in self.clients.publishers.get(topic, ()):
                    detail = f"{publisher} has not registered as a publisher of {topic}"
                    return [OverlayRejection(OverlayCode.UNKNOWN_PUBLISHER, detail)]
                self._last = Number(self._last.epoch, self._last.serial + 1)
                return self._forward(Flow(topic, self.head), self._last, body, None)

    # Neighbours.

    def _on_joined(self, head: BrokerId, link: int) -> list[Effect]:
        current_link = self.links.get(head)
        if current_link is not None and link == current_link:
            return []
        if current_link is not None and link < current_link:
            return [OverlayRejection(OverlayCode.OLD_LINK, f"link {link} to {head} is not newer than {current_link}")]
        effects = [] if current_link is None else self._on_lost(head)
        self.links[head] = link
        own = [Flow(topic, self.head) for topic in self.clients.publishers]
        return effects + self._settle([*own, *self.routes.paths])

    def _on_returned(self, head: BrokerId, link: int) -> list[Effect]:
        if self.links.get(head, link) >= link:
            return self._on_joined(head, link)
        self._unconfirmed[head] = {flow for flow, paths in self.routes.paths.items() if head in paths}
        changed = self._forget_exchange(head)
        self.links[head] = link
        own = [Flow(topic, self.head) for topic in self.clients.publishers]
        return self._settle(dict.fromkeys([*own, *self.routes.paths, *changed]))

    def _on_advertised(self, head: BrokerId) -> list[Effect]:
        """Forget the routes that the neighbour has not advertised again."""
        gone = sorted(self._unconfirmed.pop(head, ()))
        for flow in gone:
            self.routes.forget(flow, head)
        return self._settle(gone)

    def _on_lost(self, head: BrokerId) -> list[Effect]:
        del self.links[head]
        self._unconfirmed.pop(head, None)
        changed = dict.fromkeys(self.routes.forget_neighbour(head))
        return self._settle(changed | self._forget_exchange(head))

    def _forget_exchange(self, head: BrokerId) -> dict[Flow, None]:
        """Forget what this head has advertised to a neighbour and subscribed from it, and the neighbour from this
        head. Returns the flows whose subscriptions may change."""
        changed: dict[Flow, None] = {}
        for flow, advertised in list(self._advertised.items()):
            if advertised.pop(head, None) is not None and not advertised:
                del self._advertised[flow]
        for flow in [flow for flow, heads in self._federations.items() if head in heads]:
            self._remove_federation(flow, head)
            changed[flow] = None
        for flow in [flow for flow, source in self._subscribed.items() if source == head]:
            del self._subscribed[flow]
            changed[flow] = None
        return changed

    # Messages from neighbours.

    def _on_message(self, head: BrokerId, link: int, message: messages.HeadMessage) -> list[Effect]:
        if head not in self.links:
            return [OverlayRejection(OverlayCode.NOT_A_NEIGHBOUR, f"{head} is not a neighbour of {self.head}")]
        if link != self.links[head]:
            detail = f"link {link} to {head} has been replaced by {self.links[head]}"
            return [OverlayRejection(OverlayCode.OLD_LINK, detail)]
        match message:
            case messages.Advertise(_, path):
                if not path or path[-1] != head or len(set(path)) < len(path):
                    return [OverlayRejection(OverlayCode.BAD_PATH, f"{head} advertised by the path {path}")]
                self._unconfirmed.get(head, set()).discard(message.flow)
                self.routes.learn(message.flow, head, path)
                return self._settle([message.flow])
            case messages.Withdraw(flow):
                self.routes.forget(flow, head)
                return self._settle([flow])
            case messages.SubscribeFlow(flow):
                if head not in self._advertised.get(flow, ()):
                    # If the flow was just withdrawn, the neighbour withdraws this subscription when it learns of that.
                    return [OverlayRejection(OverlayCode.NOT_OFFERED, f"{head} subscribed {flow}")]
                self._federations.setdefault(flow, set()).add(head)
                return self._settle([flow])
            case messages.UnsubscribeFlow(flow):
                self._remove_federation(flow, head)
                return self._settle([flow])
            case messages.Carry(flow, number, body):
                return self._on_carried(head, flow, number, body)

    def _on_carried(self, head: BrokerId, flow: Flow, number: Number, body: Any) -> list[Effect]:
        if self._subscribed.get(flow) != head:
            return [OverlayRejection(OverlayCode.NOT_ASKED_FOR, f"{flow} from {head}")]
        if number <= self._received.get(flow, Number(-1, 0)):
            return [OverlayRejection(OverlayCode.REPEATED, f"{flow} {number} from {head}")]
        self._received[flow] = number
        return self._forward(flow, number, body, head)

    def _forward(self, flow: Flow, number: Number, body: Any, received_from: BrokerId | None) -> list[Effect]:
        edges = sorted(self.clients.edges.get(flow.topic, ()))
        heads = sorted(self._federations.get(flow, set()) - {received_from})
        effects: list[Effect] = [messages.SendToEdge(edge, flow.topic, number, body) for edge in edges]
        return effects + [SendToHead(other, messages.Carry(flow, number, body)) for other in heads]

    # Advertisements and subscriptions.

    def _flows_of(self, topics: Iterable[TopicName]) -> list[Flow]:
        """The known flows of the topics, withdrawn ones included: `_settle` clears the state of the latter."""
        return [flow for topic in topics for flow in self._known.get(topic, ())]

    def _settle(self, flows: Iterable[Flow]) -> list[Effect]:
        effects: list[Effect] = []
        for flow in flows:
            effects += self._advertise(flow)
            effects += self._subscribe(flow)
            if flow in self._received and not self._has_receivers(flow):
                del self._received[flow]
            self._index(flow)
        return effects

    def _index(self, flow: Flow) -> None:
        """Keep `_known` equal to the flows of the tables that it indexes."""
        if flow in self.routes.paths or flow in self._subscribed or flow in self._received:
            self._known.setdefault(flow.topic, {})[flow] = None
            return
        flows = self._known.get(flow.topic)
        if flows is not None and flows.pop(flow, 0) is None and not flows:
            del self._known[flow.topic]

    def _advertise(self, flow: Flow) -> list[Effect]:
        """[ePEER figure 4-8]: advertise to every neighbour that is not in the flow's path."""
        path = self._path(flow)
        offered = {} if path is None else {other: path for other in self.links if other not in path}
        old = self._advertised.get(flow, {})
        effects: list[Effect] = [SendToHead(other, messages.Withdraw(flow)) for other in old if other not in offered]
        effects += [
            SendToHead(other, messages.Advertise(flow.topic, by))
            for other, by in offered.items()
            if old.get(other) != by
        ]
        self._advertised[flow] = offered
        if not offered:
            del self._advertised[flow]
        return effects

    def _path(self, flow: Flow) -> Path | None:
        """The path by which this head offers a flow: its own route, then itself. None if it cannot offer the flow."""
        if flow.source == self.head:
            return (self.head,) if flow.topic in self.clients.publishers else None
        path = self.routes.path(flow)
        return None if path is None else (*path, self.head)

    def _subscribe(self, flow: Flow) -> list[Effect]:
        """[ePEER figure 4-11]: subscribe from the chosen neighbour while the flow has a receiver here or beyond."""
        source = self.routes.chosen.get(flow) if self._has_receivers(flow) else None
        old = self._subscribed.get(flow)
        if old == source:
            return []
        effects: list[Effect] = []
        if source is not None:
            self._subscribed[flow] = source
            effects.append(SendToHead(source, messages.SubscribeFlow(flow)))
        else:
            del self._subscribed[flow]
        if old is not None:
            effects.append(SendToHead(old, messages.UnsubscribeFlow(flow)))
        return effects

    def _has_receivers(self, flow: Flow) -> bool:
        return flow in self._federations or flow.topic in self.clients.edges

    def _remove_federation(self, flow: Flow, head: BrokerId) -> None:
        heads = self._federations.get(flow, set())
        heads.discard(head)
        if not heads:
            self._federations.pop(flow, None)
