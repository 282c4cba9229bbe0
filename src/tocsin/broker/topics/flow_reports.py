"""What a home reports to the coordinator of a site with neighbours: which topics its clients use, and what has crossed.

The coordinator advertises the topics that its site publishes, and subscribes the flows of those that it receives
[ePEER §4.3.2]. A topic counts as published as long as the home knows a publisher of it: messages that a neighbour has
not received yet may be of a publisher that has left.
"""

from __future__ import annotations

from tocsin.broker.topics.hosted import OPEN, HostedTopic, TopicsState
from tocsin.broker.topics.importing import Importing
from tocsin.model.ids import TopicName
from tocsin.wire.site_link import FlowCount, FlowCounts, FlowDemand, TopicDemand

_DEMAND_S = 0.2
_FEW = 10_000
"""With more topics the reports are rarer in proportion: looking at all topics takes about a µs for each."""
_COUNTS_S = 1.0


class FlowReports:
    def __init__(self, state: TopicsState, importing: Importing) -> None:
        self._state = state
        self._importing = importing
        self._reported: dict[TopicName, tuple[int, bool, bool]] = {}
        """Topic → epoch, published, received."""
        self._counted: dict[tuple[str, str, TopicName], tuple[int, int]] = {}
        self._demand_s = self._counts_s = float("-inf")

    def report_again(self) -> None:
        """Report everything: the coordinator may be a new one."""
        self._reported.clear()
        self._counted.clear()
        self._demand_s = self._counts_s = float("-inf")
        self.tick()

    def tick(self) -> None:
        now_s = self._state.now_s
        if now_s >= self._demand_s:
            self._demand_s = now_s + _DEMAND_S * max(1.0, len(self._state.topics) / _FEW)
            self._report_demand()
        if now_s >= self._counts_s:
            self._counts_s = now_s + _COUNTS_S
            self._report_counts()

    def _report_demand(self) -> None:
        topics, reported = self._state.topics, self._reported
        changed, opened = [], 0
        for name, topic in topics.items():
            if topic.phase is OPEN:
                opened += 1
                demand = (topic.epoch, bool(topic.shares), _is_received(topic))
                if reported.get(name) != demand:
                    reported[name] = demand
                    changed.append(TopicDemand(name, *demand))
        if len(reported) > opened:
            for name in reported.keys() - topics.keys():
                del reported[name]
        if changed:
            self._state.report(FlowDemand(changed))

    def _report_counts(self) -> None:
        changed = []
        for key, (received, repeated) in self._importing.counts.items():
            if self._counted.get(key) != (received, repeated):
                self._counted[key] = (received, repeated)
                changed.append(FlowCount(*key, received, repeated))
        if changed:
            self._state.report(FlowCounts(changed))


def _is_received(topic: HostedTopic) -> bool:
    """True if clients of this site receive the topic."""
    if topic.live:
        return True
    return bool(topic.lagging) and any(identity not in topic.flows for identity in topic.lagging)
