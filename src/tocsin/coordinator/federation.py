"""Live federation: this site among its neighbours [ePEER §4.3.2, decision 21].

    control   coordinators advertise and subscribe flows (`neighbour_links`, `overlay_head`)
    data      the home of a topic receives a flow from the neighbour's home (`flow_imports`, `broker.topics.importing`)

A topic is shared if its name matches `shared_topics`. Homes report which shared topics clients of this site publish and
receive. A site publishes a topic until the topic is deleted: a neighbour may not have received all its messages when
its last publisher leaves. A topic that a neighbour advertises is created here, because its messages pass through the
home of this site.
"""

from __future__ import annotations

import re

from tocsin.coordinator import events, topic_homes
from tocsin.coordinator import overlay_messages as overlay
from tocsin.coordinator.effects import RequestRejection, StoreFact
from tocsin.coordinator.flow_counts import CrossedMessages
from tocsin.coordinator.flow_imports import FlowImports
from tocsin.coordinator.neighbour_links import NeighbourLinks
from tocsin.coordinator.records import BrokerRecord
from tocsin.coordinator.rules import CoordinatorRules
from tocsin.coordinator.site_exchange import SiteExchange
from tocsin.coordinator.site_loads import SiteLoads
from tocsin.coordinator.topic_placing import holder_of
from tocsin.coordinator.turn import Turn
from tocsin.model.ids import BrokerId, SubscriberId, TopicName
from tocsin.model.topic import CONTROL_PREFIX, TopicDefinition, matches, topic_problem
from tocsin.model.topic_persistence import Persistence
from tocsin.policies.sites.load import reach
from tocsin.policies.sites.types import PublisherId, Reach
from tocsin.wire import neighbour_link as wire
from tocsin.wire.site_link import Federate, FlowCounts, FlowDemand, TopicDemand

SITE_RUN = "site_run"
"""The name of the fact with the number of starts of this coordinator."""
_LINGER_S = 10.0
"""How long a topic counts as received after its last receiver: a receiver that reconnects finds its messages."""
_SETTLE_S = 10.0
"""How long homes keep imports that a new coordinator does not name, and how long a topic waits for enough brokers."""
_PUBLISHERS = PublisherId("clients")
_SUBSCRIBERS = SubscriberId("clients")
_SITE = re.compile(r"[A-Za-z0-9._-]{1,128}")
_MOST_SITES = 64
"""In the path of an advertisement."""
_HOME = BrokerId("home")
"""The overlay counts all clients of the site as one: only the first and the last of a topic matter to it."""


_ZERO_S = 1_767_225_600.0
"""The beginning of 2026."""


def first_number(now_s: float) -> int:
    """Where runs and epochs of a new store begin: the minutes since 2026.

    Neighbours remember the runs and the numbers of flows, which contain epochs. If the store was lost, numbers from 1
    on would be repeats to them for ever. Sites give out less than one epoch a minute in the long run.
    """
    return max(0, int((now_s - _ZERO_S) / 60.0))


class Federation:
    def __init__(self, site: str, rules: CoordinatorRules, loads: SiteLoads, last_run: int, now_s: float) -> None:
        """`site` is the name of this site; `last_run`: of the coordinator's former process, as stored."""
        self.links = NeighbourLinks(site, last_run + 1, rules.neighbours)
        self.imports = FlowImports(self.links.head)
        self.exchange = SiteExchange(self.links, loads, self.shares)
        self.crossed = CrossedMessages()
        self._most_topics = rules.neighbour_topics
        self._patterns = [pattern for pattern in rules.shared_topics.split(",") if pattern]
        self._stored = self._complete = False
        self._started_s = now_s
        self._published: dict[TopicName, None] = {}
        self._received: dict[TopicName, None] = {}
        self._idle_s: dict[TopicName, float] = {}
        """Topics that count as received, and since when they have no receiver."""
        self._missing: dict[TopicName, tuple[str, float]] = {}
        """Topics that a neighbour advertises and this site does not have → the neighbour, and since when."""
        self._revision = -1

    def reach_of(self, topic: TopicName) -> Reach:
        """Where the publishers of a topic are: here, at other sites, or both."""
        return reach(topic in self._published, self.links.head.is_offered(topic))

    def shares(self, topic: TopicName) -> bool:
        return not topic.startswith(CONTROL_PREFIX) and any(matches(pattern, topic) for pattern in self._patterns)

    # -- neighbours ----------------------------------------------------------------------------------------------------

    def handle(self, turn: Turn, event: events.NeighbourEvent) -> None:
        self._store_run(turn)
        match event:
            case events.NeighbourOpened(site, connection):
                self.links.opened(turn, site, connection)
            case events.NeighbourClosed(site, connection, silent):
                self.links.closed(turn, site, connection, silent)
                self._follow(turn, self.links.check(turn))
            case events.NeighbourMeasured(site, round_trip_s):
                self.exchange.round_trips_s[site] = round_trip_s
            case events.NeighbourMessageReceived(site, connection, message):
                if isinstance(message, wire.Advertise) and self.links.is_open(site, connection):
                    if (problem := self._problem(site, message)) is not None:
                        self.links.reject(turn, *problem)
                        return
                    if not self.shares(message.topic):
                        return
                    if self.links.site not in message.path:
                        self._learn(turn, site, message)
                self._follow(turn, self.links.received(turn, site, connection, message))

    def _problem(self, site: str, message: wire.Advertise) -> tuple[overlay.OverlayCode, str] | None:
        """Why an advertisement is not accepted; None if it is."""
        topic, path, kept = message.topic, message.path, message.kept
        if (problem := topic_problem(topic)) is not None:
            return overlay.OverlayCode.BAD_TOPIC, problem
        if kept is not None and (problem := _persistence(kept, kept.replicas).problem()) is not None:
            return overlay.OverlayCode.BAD_TOPIC, f"{topic}: {problem}"
        is_path = 0 < len(path) <= _MOST_SITES and path[-1] == site and len(set(path)) == len(path)
        if not is_path or not all(map(_SITE.fullmatch, path)):
            return overlay.OverlayCode.BAD_PATH, f"{site} advertised {topic} by a path that is not valid"
        routes = self.links.head.routes
        is_known = site in routes.paths.get(overlay.Flow(topic, BrokerId(path[0])), ())
        if not is_known and routes.offered[BrokerId(site)] >= self._most_topics:
            return overlay.OverlayCode.TOO_MANY, f"{site} offers more than {self._most_topics:,} flows"
        return None

    def _store_run(self, turn: Turn) -> None:
        """Store the number of this run before any neighbour gets it."""
        if not self._stored:
            self._stored = True
            turn.do(StoreFact(SITE_RUN, str(self.links.run)))

    def _follow(self, turn: Turn, decided: list[overlay.Effect]) -> None:
        self.imports.follow(turn, decided)

    # -- topics --------------------------------------------------------------------------------------------------------

    def _learn(self, turn: Turn, site: str, message: wire.Advertise) -> None:
        """Create an advertised topic, now or when there are brokers for it."""
        if message.topic not in turn.registry.topics.topics and message.topic not in self._missing:
            self._missing[message.topic] = (site, turn.now_s)
            self.links.kept[message.topic] = message.kept
            self._create(turn, message.topic)

    def _create(self, turn: Turn, topic: TopicName) -> None:
        site, since_s = self._missing[topic]
        maker = f"site {site}"
        if turn.registry.topics.made_by.get(maker, 0) >= self._most_topics:
            return
        kept = self.links.kept.get(topic)
        most = 1 if kept is None else kept.replicas
        fewest = 1 if turn.now_s - since_s > _SETTLE_S else most
        for replicas in range(most, fewest - 1, -1):
            persistence = None if kept is None else _persistence(kept, replicas)
            definition = TopicDefinition(topic, persistence=persistence)
            made = topic_homes.create_topic(turn, events.TopicCreated(0, definition), maker)
            if not isinstance(made, RequestRejection):
                self._forget_missing(topic)
                return

    def _forget_missing(self, topic: TopicName) -> None:
        del self._missing[topic]
        self.links.kept.pop(topic, None)

    # -- brokers -------------------------------------------------------------------------------------------------------

    def settle_broker(self, turn: Turn, broker: BrokerRecord) -> None:
        """A broker has registered: name the neighbours and all imports of its topics."""
        if broker.topics:
            self.crossed.restarted(broker.id, broker.incarnation)
            turn.send(broker.id, self._federate(turn, broker))

    def _federate(self, turn: Turn, broker: BrokerRecord) -> Federate:
        neighbours = [neighbour.access for neighbour in self.links.neighbours.values()]
        return Federate(self.links.site, neighbours, self.imports.orders_of(turn, holder_of(broker)), self._complete)

    def handle_report(self, turn: Turn, broker: BrokerId, message: FlowDemand | FlowCounts) -> None:
        if isinstance(message, FlowCounts):
            self.crossed.receive(broker, message)
            return
        for demand in message.topics:
            record = turn.registry.topics.topics.get(demand.topic)
            if record is not None and demand.epoch >= record.epoch and self.shares(demand.topic):
                self._note_demand(turn, demand)

    def _note_demand(self, turn: Turn, demand: TopicDemand) -> None:
        topic = demand.topic
        if demand.published and topic not in self._published:
            self._published[topic] = None
            self._follow(turn, self.links.happened(turn, overlay.PublisherJoined(_PUBLISHERS, topic)))
        if demand.received:
            self._idle_s.pop(topic, None)
            if topic not in self._received:
                self._received[topic] = None
                self._follow(turn, self.links.happened(turn, overlay.SubscriberJoined(_SUBSCRIBERS, topic, _HOME)))
        elif topic in self._received:
            self._idle_s.setdefault(topic, turn.now_s)

    # -- time ----------------------------------------------------------------------------------------------------------

    def check(self, turn: Turn) -> None:
        """Called at every tick."""
        self._store_run(turn)
        self._follow(turn, self.links.check(turn))
        for topic in [topic for topic, since_s in self._idle_s.items() if turn.now_s - since_s >= _LINGER_S]:
            self._leave(turn, topic)
        if turn.registry.topics.revision != self._revision:
            self._revision = turn.registry.topics.revision
            self._forget_deleted(turn)
        for topic in list(self._missing):
            if topic not in turn.registry.topics.topics and self.links.head.is_offered(topic):
                self._create(turn, topic)
            else:
                self._forget_missing(topic)
        self.imports.check(turn)
        if not self._complete and turn.now_s - self._started_s >= _SETTLE_S:
            self._complete = True
            for broker in turn.registry.brokers.values():
                if broker.topics and broker.linked:
                    turn.send(broker.id, self._federate(turn, broker))

    def _leave(self, turn: Turn, topic: TopicName) -> None:
        """No client of this site receives the topic any more."""
        self._idle_s.pop(topic, None)
        if self._received.pop(topic, 0) is None:
            self._follow(turn, self.links.happened(turn, overlay.SubscriberLeft(_SUBSCRIBERS, topic)))

    def _forget_deleted(self, turn: Turn) -> None:
        topics = turn.registry.topics.topics
        for topic in [topic for topic in self._received if topic not in topics]:
            self._leave(turn, topic)
        for topic in [topic for topic in self._published if topic not in topics]:
            del self._published[topic]
            self._follow(turn, self.links.happened(turn, overlay.PublisherLeft(_PUBLISHERS, topic)))


def _persistence(kept: wire.Kept, replicas: int) -> Persistence:
    """As a neighbour keeps a topic, with this number of replicas."""
    return Persistence(replicas, min(kept.quorum, replicas), kept.retain_bytes, kept.retain_s)
