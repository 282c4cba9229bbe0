"""The home imports flows of its topics from neighbouring sites [decision 21].

The coordinator names for each topic the neighbours and the sites whose flows come from them. The home receives the
flows there, as a client does, and gives each message the next position of its own topic. The message keeps the flow and
the number that it has at its source: a repeat, by whichever route, has a number that the home has accepted already. The
numbers are part of the topic's state. They are in its log, and move with it, so that any later home continues the
import behind them.

If the home cannot accept a message, it ends the import and begins it again behind the last number, later.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count

from tocsin.broker.topics import events
from tocsin.broker.topics.effects import RequestFlush, StartImport, StopImport, UseNeighbours
from tocsin.broker.topics.hosted import OPEN, HostedTopic, TopicsState
from tocsin.broker.topics.limiting import Limiting
from tocsin.model.flow import LARGEST_NUMBER, flow_of, flow_publisher, is_mark, mark_of
from tocsin.model.ids import TopicName
from tocsin.wire import topic as wire
from tocsin.wire.site_link import Federate, ImportFlows

_RETRY_S = 0.2
_FLUSH = RequestFlush()


@dataclass(slots=True, eq=False)
class Import:
    number: int
    order: ImportFlows
    neighbour: str
    sources: tuple[str, ...]
    flows: dict[int, str]
    """Flow → its site."""
    epoch: int
    """Of the topic, when the import began. A later home, also at this broker, may have less of the flows."""


class Importing:
    def __init__(self, state: TopicsState, limiting: Limiting) -> None:
        self._state = state
        self._limiting = limiting
        self._orders: dict[TopicName, ImportFlows] = {}
        self._imports: dict[TopicName, dict[str, Import]] = {}
        """Topic → neighbour → the import that runs."""
        self._by_number: dict[int, Import] = {}
        self._retry_s: dict[tuple[TopicName, str], float] = {}
        """When an import that has ended may begin again."""
        self._told: dict[tuple[TopicName, int], tuple[int, int]] = {}
        """(topic, flow) → epoch and number behind which a mark was made: a gap is not reported twice."""
        self._numbers = count(1)
        self.counts: dict[tuple[str, str, TopicName], list[int]] = {}
        """(neighbour, source, topic) → messages received, and those of them that this home had already."""

    def __len__(self) -> int:
        return len(self._by_number)

    @property
    def received(self) -> int:
        """Messages from neighbours since the start of the process."""
        return sum(received for received, _ in self.counts.values())

    @property
    def repeated(self) -> int:
        """Those of them that had come before, by another route or another connection."""
        return sum(repeated for _, repeated in self.counts.values())

    # -- the coordinator -----------------------------------------------------------------------------------------------

    def on_message(self, event: events.FederationReceived) -> None:
        match event.message:
            case ImportFlows(topic=topic) as order:
                self._set(order)
                self._check(topic)
            case Federate(site, neighbours, imports, complete):
                self._state.site = site
                self._state.effects.append(UseNeighbours(neighbours))
                if complete:
                    self._orders.clear()
                for order in imports:
                    self._set(order)
                self.tick()

    def _set(self, order: ImportFlows) -> None:
        if order.flows:
            self._orders[order.topic] = order
        else:
            self._orders.pop(order.topic, None)

    def tick(self) -> None:
        for topic in {**self._orders, **self._imports}:
            self._check(topic)

    def _check(self, name: TopicName) -> None:
        """Begin and end imports, so that those of the order run while this broker accepts messages of the topic."""
        order, topic = self._orders.get(name), self._state.topics.get(name)
        wanted = order.flows if order is not None and self._accepts(topic) else {}
        for running in list(self._imports.get(name, {}).values()):
            same = tuple(wanted.get(running.neighbour, ())) == running.sources
            if topic is None or not same or running.epoch != topic.epoch:
                self._end(running)
        for neighbour, sources in wanted.items():
            is_due = self._state.now_s >= self._retry_s.get((name, neighbour), float("-inf"))
            is_due = is_due and not self._is_full(topic)
            if order is not None and topic is not None and is_due and neighbour not in self._imports.get(name, {}):
                self._begin(topic, order, neighbour, tuple(sources))

    def _begin(self, topic: HostedTopic, order: ImportFlows, neighbour: str, sources: tuple[str, ...]) -> None:
        self._retry_s.pop((topic.name, neighbour), None)
        flows = {flow_publisher(site): site for site in sources}
        begun = Import(next(self._numbers), order, neighbour, sources, flows, topic.epoch)
        self._imports.setdefault(topic.name, {})[neighbour] = self._by_number[begun.number] = begun
        self._state.effects.append(StartImport(begun.number, topic.name, neighbour, sources))

    def _end(self, running: Import) -> None:
        del self._by_number[running.number]
        of_topic = self._imports[running.order.topic]
        del of_topic[running.neighbour]
        if not of_topic:
            del self._imports[running.order.topic]
        self._state.effects.append(StopImport(running.number))

    def _accepts(self, topic: HostedTopic | None) -> bool:
        return topic is not None and topic.phase is OPEN and self._state.lease.valid(self._state.now_s)

    # -- messages ------------------------------------------------------------------------------------------------------

    def numbers(self, number: int) -> dict[str, int]:
        """The sites of an import, and the last number that this home has of each."""
        running = self._by_number.get(number)
        topic = None if running is None else self._state.topics.get(running.order.topic)
        if running is None or topic is None:
            return {}
        return {site: topic.publishers.get(flow_publisher(site), 0) for site in running.sources}

    def is_backlogged(self, number: int) -> bool:
        """True while the log of the import's topic has much to store: the neighbour should wait."""
        running = self._by_number.get(number)
        return running is not None and self._is_full(self._state.topics.get(running.order.topic))

    def _is_full(self, topic: HostedTopic | None) -> bool:
        log = None if topic is None else topic.log
        return log is not None and log.uncommitted_bytes > self._state.limits.topic_uncommitted_bytes // 2

    def on_received(self, event: events.ImportReceived) -> None:
        running = self._by_number.get(event.number)
        if running is None:
            return
        topic = self._state.topics.get(running.order.topic)
        if topic is None or topic.epoch != running.epoch or not self._accepts(topic):
            self._break(running)
        elif self._accept(running, topic, event.entries):
            self._state.effects.append(_FLUSH)

    def on_broken(self, event: events.ImportBroken) -> None:
        if (running := self._by_number.get(event.number)) is not None:
            self._break(running)

    def _break(self, running: Import) -> None:
        self._retry_s[running.order.topic, running.neighbour] = self._state.now_s + _RETRY_S
        self._end(running)

    def _accept(self, running: Import, topic: HostedTopic, entries: list[wire.Entry]) -> bool:
        """Give the new messages their places. Returns True if there are any."""
        accepted: list[wire.Entry] = []
        for entry in entries:
            publisher, number, data = entry
            flow = flow_of(publisher)
            if flow not in running.flows:
                continue  # not asked for
            if is_mark(publisher):
                if topic.publishers.get(flow, 0) or topic.since > running.order.created:
                    accepted += self._mark(topic, flow)
                continue  # what came before the first message that the topic ever had of the flow is not missing
            if not 0 < number <= LARGEST_NUMBER:
                accepted += self._mark(topic, flow)  # no home gives such a number
                continue
            is_new = number > topic.publishers.get(flow, 0)
            self._count(running, flow, is_new)
            if is_new and len(data) > self._state.limits.topic_message_bytes:
                accepted += self._mark(topic, flow)
                topic.publishers[flow] = number
            elif is_new:
                topic.publishers[flow] = number
                accepted.append((flow, number, data))
                if self._limiting.counting:
                    self._limiting.count(topic, flow, [data])
        if accepted:
            self._append(topic, accepted)
        return bool(accepted)

    def _count(self, running: Import, flow: int, is_new: bool) -> None:
        key = (running.neighbour, running.flows[flow], running.order.topic)
        counts = self.counts.setdefault(key, [0, 0])
        counts[0] += 1
        counts[1] += not is_new

    def _mark(self, topic: HostedTopic, flow: int) -> list[wire.Entry]:
        """A mark behind the last message of the flow, unless there is one."""
        number = topic.publishers.get(flow, 0)
        if self._told.get((topic.name, flow)) == (topic.epoch, number):
            return []
        self._told[topic.name, flow] = (topic.epoch, number)
        topic.marked = True
        last = topic.publishers[mark_of(flow)] = topic.publishers.get(mark_of(flow), 0) + 1
        return [(mark_of(flow), last, b"")]

    def _append(self, topic: HostedTopic, entries: list[wire.Entry]) -> None:
        state = self._state
        topic.sequence += len(entries)
        topic.recent.extend(entries)
        topic.unsent.extend(entries)
        state.recent_order.extend([topic] * len(entries))
        state.recent_bytes += sum(len(entry[2]) for entry in entries)
        state.accepted += len(entries)
        dirty = state.dirty if topic.log is None else state.unlogged
        dirty[topic.name] = topic
