"""The edge at which new receivers of a topic attach [ePEER §4.4.2, decision 20].

Receivers of one topic share an edge, so that its messages go to one edge only. The choice stays until that edge leaves
or is overloaded, since clients wait for changes of it. It moves no receiver that is attached. A new topic goes to the
edge with most capacity left or, with `site_by_distance`, to the one that is nearest to its first receiver.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from tocsin.coordinator.effects import RequestRejection
from tocsin.coordinator.events import ReceiverLocated, ReceiversRedirected
from tocsin.coordinator.records import BrokerRecord
from tocsin.coordinator.topic_records import TopicRecord
from tocsin.coordinator.turn import Turn
from tocsin.coords.coordinate import distance_s
from tocsin.model.ids import BrokerId, TopicName
from tocsin.policies.sites.offload import drd_edge
from tocsin.policies.sites.types import NO_LOAD, BrokerReport, Load, LoadState, LoadThresholds, SiteId
from tocsin.wire.errors import Code
from tocsin.wire.site_link import ExpectReceivers, RedirectReceivers, TopicLoad

_UNLIMITED = Load(math.inf, math.inf, math.inf)
_TIE = 0.01
"""Edges whose remaining capacities differ by less than this share count as equal."""


class TopicEdges:
    def __init__(self) -> None:
        self.report: Callable[[BrokerId], BrokerReport | None] = lambda broker: None
        """The load of a broker; None if it has not reported any."""
        self.topics: Callable[[BrokerId], Mapping[TopicName, TopicLoad]] = lambda broker: {}
        """The topics of a broker, as it has reported them."""
        self._thresholds = LoadThresholds()
        self._known: frozenset[tuple[BrokerId, str, bool]] = frozenset()
        """The edges at the last look: address, and whether it was overloaded."""
        self._sent: Counter[BrokerId] = Counter()
        """Edge → topics whose receivers are sent there; deleted topics count until an edge comes or leaves."""

    def check(self, turn: Turn) -> None:
        """Choose an edge for topics without one and, if an edge has come, left or changed its state, for those whose
        edge cannot take receivers any more."""
        topics = turn.registry.topics
        if not turn.registry.edges and not self._known:
            topics.without_edge.clear()
            return
        edges = [broker for name in turn.registry.edges if (broker := turn.registry.brokers[name]).topics]
        reports = [self._report(broker) for broker in edges if turn.registry.accepting(broker)]
        known = frozenset(
            (report.broker, turn.registry.brokers[report.broker].address, report.state is LoadState.OVERLOAD)
            for report in reports
        )
        if known != self._known:
            self._known, names = known, list(topics.topics)
            edges_in_use = (record.receive_at[0] for record in topics.topics.values() if record.receive_at is not None)
            self._sent = Counter(edges_in_use)
        else:
            names = list(topics.without_edge)
        topics.without_edge.clear()
        clients = self._clients(reports) if names else {}
        for name in names:
            record = topics.topics[name]
            edge = self._choose(turn, record, reports, clients)
            receive_at = None if edge is None else (edge, turn.registry.brokers[edge].address)
            if receive_at != record.receive_at:
                record.receive_at = receive_at
                topics.note_change(name)

    def _report(self, broker: BrokerRecord) -> BrokerReport:
        known = self.report(broker.id)
        return known or BrokerReport(broker.id, SiteId(""), False, LoadState.LOW, NO_LOAD, _UNLIMITED)

    def _clients(self, reports: Sequence[BrokerReport]) -> dict[BrokerId, int]:
        """Receivers of each edge, and topics whose receivers are sent there."""
        return {
            report.broker: self._sent[report.broker]
            + sum(load.receivers for load in self.topics(report.broker).values())
            for report in reports
        }

    def locate(self, turn: Turn, event: ReceiverLocated) -> bool:
        """The first receiver of a topic decides which edge is near."""
        for name in event.topics:
            record = turn.registry.topics.topics.get(name)
            if record is not None and record.first_receiver is None:
                record.first_receiver = event.coordinate
                if turn.rules.site_by_distance and not self._has_receivers(turn, name):
                    record.receive_at = None
                    turn.registry.topics.without_edge[name] = None
        return True

    def _has_receivers(self, turn: Turn, name: TopicName) -> bool:
        loads = (self.topics(edge).get(name) for edge in turn.registry.edges)
        return any(load is not None and load.receivers > 0 for load in loads)

    def _choose(
        self, turn: Turn, record: TopicRecord, reports: Sequence[BrokerReport], clients: dict[BrokerId, int]
    ) -> BrokerId | None:
        calm = [report for report in reports if report.state is not LoadState.OVERLOAD] or list(reports)
        present = None if record.receive_at is None else record.receive_at[0]
        if any(report.broker == present for report in calm):
            return present
        delays_s = None
        if turn.rules.site_by_distance:
            delays_s = {report.broker: _distance_s(turn, record, report.broker) for report in calm}
            if all(map(math.isinf, delays_s.values())):
                delays_s = None  # nothing is measured yet
        chosen = drd_edge(record.name, calm, self._thresholds, delays_s)
        report = next((report for report in calm if report.broker == chosen), None)
        if report is None:
            return None
        if record.name not in report.topics and delays_s is None:
            room = report.headroom(self._thresholds)
            ties = [
                other
                for other in calm
                if other.state is report.state and other.headroom(self._thresholds) >= room - _TIE
            ]
            ties.sort(key=lambda edge: (clients[edge.broker], _distance_s(turn, record, edge.broker), edge.broker))
            chosen = ties[0].broker
        if chosen is not None:
            clients[chosen] += 1
            self._sent[chosen] += 1
        return chosen


def _distance_s(turn: Turn, record: TopicRecord, edge: BrokerId) -> float:
    """From the topic's receivers, as far as they are known, else from where its creator said."""
    known = record.latency
    centre = record.first_receiver or (None if known is None else known.receiver_centroid) or record.coordinate
    own = turn.registry.brokers[edge].settled_coordinate
    return math.inf if centre is None or own is None else distance_s(centre, own)


def redirect(turn: Turn, event: ReceiversRedirected) -> bool | RequestRejection:
    """An administrator sends receivers of a topic from one edge to another."""
    if event.topic not in turn.registry.topics.topics:
        return RequestRejection(Code.UNKNOWN_TOPIC, f"there is no topic {event.topic}")
    for name in (event.source, event.target):
        broker = turn.registry.brokers.get(name)
        if broker is None or name not in turn.registry.edges:
            return RequestRejection(Code.NOT_FOUND, f"there is no edge {name!r}")
        if not broker.linked:
            return RequestRejection(Code.NOT_READY, f"{name} is not connected at the moment", retry_after_s=1.0)
    address = turn.registry.brokers[event.target].address
    turn.send(event.target, ExpectReceivers(event.topic, list(event.clients)))
    turn.send(event.source, RedirectReceivers(event.topic, list(event.clients), event.target, address))
    return True
