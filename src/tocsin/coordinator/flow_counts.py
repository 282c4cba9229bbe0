"""Messages that have crossed the links to neighbouring sites, as homes have counted them since this coordinator began.

A broker counts from the start of its process. The counts of a process that has ended are kept.
"""

from __future__ import annotations

from collections import Counter

from tocsin.model.ids import BrokerId, TopicName
from tocsin.wire.site_link import FlowCount, FlowCounts

_Key = tuple[str, str, TopicName]
"""(neighbour, source, topic)."""


class CrossedMessages:
    def __init__(self) -> None:
        self._incarnations: dict[BrokerId, str] = {}
        self._present: dict[BrokerId, dict[_Key, FlowCount]] = {}
        self._ended: dict[_Key, tuple[int, int]] = {}

    def restarted(self, broker: BrokerId, incarnation: str) -> None:
        """The broker has registered; add the counts of its former process to those that have ended."""
        if self._incarnations.get(broker, incarnation) != incarnation:
            for key, count in self._present.pop(broker, {}).items():
                received, repeated = self._ended.get(key, (0, 0))
                self._ended[key] = (received + count.received, repeated + count.repeated)
        self._incarnations[broker] = incarnation

    def receive(self, broker: BrokerId, message: FlowCounts) -> None:
        counts = self._present.setdefault(broker, {})
        for count in message.flows:
            counts[count.neighbour, count.source, count.topic] = count

    def totals(self) -> dict[_Key, tuple[int, int]]:
        """(neighbour, source, topic) → messages received, and those of them that the site had already."""
        received: Counter[_Key] = Counter({key: count for key, (count, _) in self._ended.items()})
        repeated: Counter[_Key] = Counter({key: count for key, (_, count) in self._ended.items()})
        for counts in self._present.values():
            for key, count in counts.items():
                received[key] += count.received
                repeated[key] += count.repeated
        return {key: (received[key], repeated[key]) for key in received}
