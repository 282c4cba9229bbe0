"""A site of one head and edges in virtual time: the real coordinator core, and brokers that measure and redirect.

A topic is a rate of messages. A redirected receiver attaches to its new edge and leaves the old one after `move_s`. An
edge reports each second what was offered in that second, so a burst in the middle of it is reported in part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tests.coordinator.bench import Bench
from tocsin.coordinator.effects import Effect, Note, RecordTrace, SendToBroker
from tocsin.coordinator.events import Event, Ticked, TopicCreated
from tocsin.coordinator.rules import CoordinatorRules
from tocsin.model.ids import BrokerId, TopicName
from tocsin.model.topic import TopicDefinition
from tocsin.model.trace import TraceRow
from tocsin.policies.sites.types import LoadState
from tocsin.wire import link
from tocsin.wire.site_link import (
    Capacity,
    ExpectReceivers,
    ReceiverArrived,
    ReceiverLeft,
    RedirectReceivers,
    ReportProfile,
    Role,
    SiteLoad,
    SiteProfile,
    TopicLoad,
)
from tocsin.wire.topic_link import RenewLease

HEAD = BrokerId("head")
STEP_S = 0.05
TICK_S = 0.25


@dataclass
class Topic:
    rate_per_s: float
    size_bytes: float = 1_000.0
    delay_s: float | None = None
    moves: bool = True
    """False: its receivers ignore redirects."""


@dataclass
class Edge:
    receivers: dict[TopicName, list[str]] = field(default_factory=dict)
    offered: dict[TopicName, float] = field(default_factory=dict)
    """Messages of the second that is being measured."""
    sent: dict[TopicName, float] = field(default_factory=dict)
    """The same times receivers."""
    answers: bool = True
    """False: redirected receivers never move."""


class SimulatedSite(Bench):
    def __init__(self, edges: Iterable[str], capacity: Capacity, rules: CoordinatorRules | None = None) -> None:
        super().__init__(rules)
        self.topics: dict[TopicName, Topic] = {}
        self.edges = {BrokerId(name): Edge() for name in edges}
        self.move_s = 0.2
        self.rows: list[TraceRow] = []
        self.all_notes: list[str] = []
        self.states: list[tuple[float, dict[BrokerId, LoadState]]] = []
        self.used: list[tuple[float, dict[BrokerId, float]]] = []
        self.redirected: list[tuple[float, str, TopicName, BrokerId, BrokerId]] = []
        """(time, client, topic, source, target)."""
        self._later: list[tuple[float, Callable[[], None]]] = []
        self._lease = 0
        self.register(HEAD, topics=True, role=Role.HEAD)
        for edge in self.edges:
            self.register(edge, topics=True, role=Role.EDGE)
            self.core.site_loads.set_capacity(edge, capacity)
        self.core.site_loads.set_role(HEAD, Role.HEAD)
        self._renew()

    def add_topic(self, name: str, edge: str, receivers: int, topic: Topic) -> TopicName:
        topic_name = TopicName(name)
        self.topics[topic_name] = topic
        self.ask(lambda ask: TopicCreated(ask, TopicDefinition(topic_name, delay_s=topic.delay_s)))
        clients = [f"{name}-user-{number}/1" for number in range(receivers)]
        self.edges[BrokerId(edge)].receivers[topic_name] = clients
        return topic_name

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds / STEP_S)):
            self._step()

    def clients(self) -> list[tuple[str, TopicName]]:
        return sorted(
            (client, topic)
            for edge in self.edges.values()
            for topic, clients in edge.receivers.items()
            for client in clients
        )

    def busy(self) -> frozenset[BrokerId]:
        return self.core.site_control.busy

    def utilisation(self, edge: BrokerId) -> float:
        """The present utilisation of an edge, by the rates of its topics."""
        own, capacity = self.edges[edge], self.core.site_loads.capacity(edge)
        served = {topic: clients for topic, clients in own.receivers.items() if clients}
        matched = sum(self.topics[topic].rate_per_s for topic in served)
        taken = sum(self.topics[topic].rate_per_s * self.topics[topic].size_bytes for topic in served)
        out = sum(
            self.topics[topic].rate_per_s * self.topics[topic].size_bytes * len(clients)
            for topic, clients in served.items()
        )
        return max(taken / capacity[0], out / capacity[1], matched / capacity[2])

    def waiting_bytes(self, edge: BrokerId) -> float:
        """The bytes that wait for output. Edges without queues have none."""
        return 0.0

    # -- the brokers' part ---------------------------------------------------------------------------------------------

    def handle(self, event: Event) -> list[Effect]:
        effects = super().handle(event)
        for effect in effects:
            match effect:
                case SendToBroker(broker, _, message) if broker in self.edges:
                    self._receive(broker, message)
                case RecordTrace(row):
                    self.rows.append(row)
                case Note(text):
                    self.all_notes.append(text)
        return effects

    def _receive(self, broker: BrokerId, message: link.FromCoordinator) -> None:
        match message:
            case ReportProfile(number):
                self._after(0.01, lambda: self._profile(broker, number))
            case ExpectReceivers():
                pass
            case RedirectReceivers(topic, clients, target, _):
                for client in clients:
                    self.redirected.append((self.now_s, client, topic, broker, target))
                    if self.edges[broker].answers and self.topics[topic].moves:
                        self._after(self.move_s, self._mover(client, topic, broker, target))

    def _profile(self, broker: BrokerId, number: int) -> None:
        topics = {
            topic: [(client, self.topics[topic].rate_per_s * self.topics[topic].size_bytes) for client in clients]
            for topic, clients in self.edges[broker].receivers.items()
            if clients
        }
        self.send(broker, SiteProfile(number, topics))

    def _mover(self, client: str, topic: TopicName, source: BrokerId, target: BrokerId) -> Callable[[], None]:
        def move() -> None:
            if client not in self.edges[source].receivers.get(topic, ()):
                return
            self.edges[source].receivers[topic].remove(client)
            self.edges[target].receivers.setdefault(topic, []).append(client)
            self.send(target, ReceiverArrived(topic, client))
            self.send(source, ReceiverLeft(topic, client))

        return move

    # -- time ----------------------------------------------------------------------------------------------------------

    def _after(self, seconds: float, action: Callable[[], None]) -> None:
        self._later.append((self.now_s + seconds, action))

    def _step(self) -> None:
        before_s, self.now_s = self.now_s, self.now_s + STEP_S
        due = [action for at_s, action in self._later if at_s <= self.now_s + 1e-9]
        self._later = [(at_s, action) for at_s, action in self._later if at_s > self.now_s + 1e-9]
        for action in due:
            action()
        for edge in self.edges.values():
            for topic, clients in edge.receivers.items():
                if clients:
                    count = self.topics[topic].rate_per_s * STEP_S
                    edge.offered[topic] = edge.offered.get(topic, 0.0) + count
                    edge.sent[topic] = edge.sent.get(topic, 0.0) + count * len(clients)
        if _passes(before_s, self.now_s, 1.0):
            self._measure()
        if _passes(before_s, self.now_s, TICK_S):
            self.handle(Ticked())

    def _measure(self) -> None:
        self._renew()
        for broker, edge in self.edges.items():
            if self.broker(broker).link is None:
                continue
            loads = [
                TopicLoad(
                    topic,
                    edge.offered.get(topic, 0.0) * self.topics[topic].size_bytes,
                    edge.sent.get(topic, 0.0) * self.topics[topic].size_bytes,
                    edge.offered.get(topic, 0.0),
                    len(edge.receivers.get(topic, ())),
                    0,
                )
                for topic in {*edge.offered, *(name for name, clients in edge.receivers.items() if clients)}
            ]
            self.send(broker, link.Heartbeat(0, 0, 0))
            self.send(broker, SiteLoad(loads, waiting_bytes=round(self.waiting_bytes(broker))))
            edge.offered.clear()
            edge.sent.clear()
        reports = {broker: self.core.site_loads.report(broker) for broker in self.edges}
        self.states.append((self.now_s, {name: report.state for name, report in reports.items() if report is not None}))
        self.used.append((self.now_s, {broker: self.utilisation(broker) for broker in self.edges}))

    def _renew(self) -> None:
        self._lease += 1
        self.send(HEAD, link.Heartbeat(0, 0, 0))
        for broker in (HEAD, *self.edges):
            if self.broker(broker).link is not None:
                self.send(broker, RenewLease(self._lease))


def _passes(before_s: float, now_s: float, period_s: float) -> bool:
    return int((before_s + 1e-9) / period_s) != int((now_s + 1e-9) / period_s)
