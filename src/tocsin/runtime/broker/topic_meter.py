"""Counts the load of each topic at a broker as it is *offered*: bytes in, bytes out, messages matched.

A shaper may send less, later; the difference is the size of an overload. So a receiver that lags counts with the
messages that it should get now, and not with those that it gets when it catches up. The meter observes the events and
effects of the topics core: work per frame, none per receiver, and none at all in a broker without limits and role.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tocsin.broker.topics import events
from tocsin.broker.topics.effects import Send
from tocsin.broker.topics.events import ConnectionId
from tocsin.broker.topics.hosted import TopicsState
from tocsin.model.ids import TopicName
from tocsin.policies.sites.load import LoadMeter
from tocsin.policies.sites.types import Load
from tocsin.wire import topic as wire

_PUBLISH_BYTES = 40
_MESSAGES_BYTES = 60
"""Bytes of a frame besides its messages: from a publisher and to a receiver, in MessagePack."""
_NUMBER_BYTES = 18
"""Bytes of publisher and number of each message to a receiver."""


class TopicMeter:
    def __init__(self, state: TopicsState, now_s: Callable[[], float]) -> None:
        self.sent_bytes = 0
        """Bytes of messages handed to the connections, or to the shaper, since the start."""
        self._state = state
        self._now_s = now_s
        self._loads = LoadMeter(now_s())
        self.since_s = now_s()
        self._published: dict[tuple[TopicName, ConnectionId], int] = {}
        """Bytes of each sender since the last `take`."""
        self.senders: dict[tuple[TopicName, ConnectionId], float] = {}
        """Bytes per second of each sender in the second before."""

    def observe(self, event: events.Event, effects: Sequence[Any]) -> None:
        """Called with each event of the topics core and its effects."""
        kind, catching_up = type(event), False
        alone: ConnectionId | None = None
        if kind is events.PublishedAlone or kind is events.RequestReceived:
            assert isinstance(event, events.PublishedAlone | events.RequestReceived)
            if type(event.request) is wire.Publish:
                self._count_published(event.connection, event.request, effects)
            else:
                alone = event.connection  # an attach: what this receiver alone gets is older
        elif kind is events.ConnectionDrained or kind is events.LogRead or kind is events.OlderReceived:
            catching_up = True
        for effect in effects:
            if type(effect) is Send and type(effect.message) is wire.Messages:
                size_bytes = len(effect.data) * len(effect.connections)
                self.sent_bytes += size_bytes
                topic = self._state.by_number.get(effect.message.at)
                if topic is not None and not catching_up and effect.connections != (alone,):
                    self._loads.count(topic.name, 0, size_bytes)

    def _count_published(self, connection: ConnectionId, request: wire.Publish, effects: Sequence[Any]) -> None:
        topic = self._state.by_number.get(request.at)
        if topic is None:
            return
        messages, size_bytes = len(request.messages), sum(map(len, request.messages))
        refused = any(type(effect) is Send and type(effect.message) is wire.NotAccepted for effect in effects)
        key = (topic.name, connection)
        self._published[key] = self._published.get(key, 0) + size_bytes + _PUBLISH_BYTES
        self._count(topic.name, size_bytes, messages, 0 if refused else len(topic.lagging), matched=not refused)

    def relayed(self, event: events.RelayReceived, lagging: int) -> None:
        """Count messages that a home sent to this relay, before they are matched. Receivers that do not lag count when
        the messages are sent to them; `lagging` is the number of the others."""
        size_bytes = sum(len(entry[2]) for entry in event.entries)
        self._count(event.topic, size_bytes, len(event.entries), lagging, matched=True)

    def _count(self, topic: TopicName, size_bytes: int, messages: int, lagging: int, *, matched: bool) -> None:
        due_bytes = lagging * (size_bytes + _MESSAGES_BYTES + messages * _NUMBER_BYTES) if lagging else 0
        self._loads.count(topic, size_bytes + _PUBLISH_BYTES, due_bytes, messages if matched else 0)

    def take(self) -> dict[TopicName, Load]:
        """The load of each topic since the last call, per second."""
        now_s = self._now_s()
        passed_s = now_s - self.since_s
        loads = self._loads.take(now_s)
        if passed_s > 0.0:
            self.senders = {key: size_bytes / passed_s for key, size_bytes in self._published.items()}
            self.since_s, self._published = now_s, {}
        return loads
