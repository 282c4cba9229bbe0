"""The flows that homes of this site import from neighbouring sites [decision 21].

The overlay subscribes a flow from one neighbour. The home of the topic gets the order to receive it there, and every
later home of the topic gets it too. An import that the overlay does not want any more goes on for `_KEEP_S` unless
another neighbour replaces it: messages flow on while a coordinator restarts, although the overlay has no route then.
"""

from __future__ import annotations

from dataclasses import dataclass

from tocsin.coordinator import overlay_messages as overlay
from tocsin.coordinator.overlay_head import OverlayHead
from tocsin.coordinator.topic_records import Holder
from tocsin.coordinator.turn import Turn
from tocsin.model.ids import BrokerId, TopicName
from tocsin.wire.site_link import ImportFlows

_KEEP_S = 30.0


@dataclass(slots=True)
class _Imported:
    neighbour: str
    ends_s: float | None = None
    """When the import ends: the overlay has no subscription of the flow."""


class FlowImports:
    def __init__(self, head: OverlayHead) -> None:
        self._head = head
        self._topics: dict[TopicName, dict[str, _Imported]] = {}
        """Topic → source → where its flow comes from."""
        self._sent: dict[TopicName, tuple[Holder, int]] = {}
        """Topic → the home that has the present order, and the topic's first epoch."""
        self._revision = -1

    def source_of(self, topic: TopicName, source: str) -> str | None:
        """The neighbour from which a flow comes."""
        imported = self._topics.get(topic, {}).get(source)
        return None if imported is None else imported.neighbour

    def follow(self, turn: Turn, decided: list[overlay.Effect]) -> None:
        """The overlay has decided something: begin the imports that it has subscribed."""
        changed: dict[TopicName, None] = {}
        for effect in decided:
            if isinstance(effect, overlay.SendToHead) and isinstance(effect.message, overlay.SubscribeFlow):
                topic, source = effect.message.flow
                imported = self._topics.setdefault(topic, {}).setdefault(source, _Imported(""))
                imported.ends_s = None
                if imported.neighbour != effect.head:
                    imported.neighbour = effect.head
                    changed[topic] = None
        for topic in changed:
            self._send(turn, topic)

    def check(self, turn: Turn) -> None:
        """Called at every tick: end imports that the overlay does not want, and inform new homes."""
        for topic in list(self._topics):
            if self._end_unwanted(turn, topic):
                self._send(turn, topic)
        self.follow_homes(turn)

    def _end_unwanted(self, turn: Turn, topic: TopicName) -> bool:
        """Returns True if an import has ended. Subscribed flows of a topic that does not exist wait for it: it may wait
        for brokers, or be created again."""
        flows, ended = self._topics[topic], []
        exists = topic in turn.registry.topics.topics
        if not exists:
            self._sent.pop(topic, None)
        for source, imported in flows.items():
            if self._head.subscribed.get(overlay.Flow(topic, BrokerId(source))) is not None:
                imported.ends_s = None
            elif not exists:
                ended.append(source)
            elif imported.ends_s is None:
                imported.ends_s = turn.now_s + _KEEP_S
            elif turn.now_s >= imported.ends_s:
                ended.append(source)
        for source in ended:
            del flows[source]
        return bool(ended)

    def follow_homes(self, turn: Turn) -> None:
        """Send the orders of topics whose home has changed."""
        topics = turn.registry.topics
        if topics.revision == self._revision:
            return
        self._revision = topics.revision
        for topic in self._topics:
            record = topics.topics.get(topic)
            if record is None or record.holder is None:
                continue
            if self._sent.get(topic) != (record.holder, record.created):
                self._send(turn, topic)

    def _send(self, turn: Turn, topic: TopicName) -> None:
        record = turn.registry.topics.topics.get(topic)
        former, _ = self._sent.pop(topic, (None, 0))
        if record is not None:
            if former is not None and former != record.holder:
                turn.send(former[0], ImportFlows(topic, record.created, {}))
            if record.holder is not None and turn.send(record.holder[0], self._order(turn, topic)):
                self._sent[topic] = (record.holder, record.created)
        if not self._topics[topic]:
            del self._topics[topic]
            self._sent.pop(topic, None)

    def _order(self, turn: Turn, topic: TopicName) -> ImportFlows:
        flows: dict[str, list[str]] = {}
        for source, imported in sorted(self._topics[topic].items()):
            flows.setdefault(imported.neighbour, []).append(source)
        return ImportFlows(topic, turn.registry.topics.topics[topic].created, flows)

    def orders_of(self, turn: Turn, holder: Holder) -> list[ImportFlows]:
        """The orders of all topics of a broker that has registered. It forgets others: a topic whose home it becomes
        again needs its order then."""
        self._sent = {topic: sent for topic, sent in self._sent.items() if sent[0] != holder}
        records = [record for record in turn.registry.topics.records_of(holder) if record.name in self._topics]
        for record in records:
            self._sent[record.name] = (holder, record.created)
        return [self._order(turn, record.name) for record in records]
