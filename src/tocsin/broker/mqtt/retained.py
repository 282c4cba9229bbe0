"""Retained messages [MQTT5 §3.3.1.3]: the last message of a topic with the retain flag, for later subscribers.

Each broker with MQTT clients has a copy of all of them, so they survive the failure of any broker. Changes go through
the control topic: its positions decide which of two changes is later. A change of this broker's own clients is visible
here at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

from tocsin.broker.mqtt import control
from tocsin.broker.mqtt.control import CONTROL_TOPIC, RetainedEntry, RetainedSet
from tocsin.broker.mqtt.effects import PublishToTopic
from tocsin.broker.mqtt.publication import Publication, publication_of
from tocsin.broker.mqtt.session import MqttState
from tocsin.broker.mqtt.subscriptions import filter_matches
from tocsin.model.topic import Position
from tocsin.wire.topic_envelope import unwrapped

_MOST_REMOVED = 10_000
"""Removals that are remembered, so that an older state cannot bring a message back."""
_PART_BYTES = 24 << 10
_PART_ENTRIES = 200


@dataclass(slots=True)
class _Entry:
    position: Position
    publication: Publication | None
    """None for a removal."""
    data: bytes


class Retained:
    def __init__(self, state: MqttState) -> None:
        self._state = state
        self._entries: dict[str, _Entry] = {}
        self._pending: dict[str, tuple[int, Publication | None]] = {}
        """Changes of this broker's clients that have not come back through the control topic."""
        self._removed = 0
        self._numbers = count(1)
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._entries) - self._removed

    # -- changes -------------------------------------------------------------------------------------------------------

    def full(self, topic: str, payload: bytes) -> str | None:
        """Why no further message can be retained; None if it can."""
        limits = self._state.limits
        if not payload or topic in self._entries:
            return None
        if len(self) >= limits.mqtt_retained_messages:
            return f"the network retains at most {limits.mqtt_retained_messages:,} messages"
        if self.size_bytes + len(payload) > limits.mqtt_retained_bytes:
            return f"the network retains at most {limits.mqtt_retained_bytes:,} bytes"
        return None

    def set(self, ticket: int, topic: str, data: bytes, user: str, *, has_payload: bool) -> None:
        """Retain a message of a client; without a payload, remove the retained one [MQTT-3.3.1-6]."""
        number = next(self._numbers)
        publication = publication_of(topic, data, None, self._state.now_s) if has_payload else None
        self._pending[topic] = (number, publication)
        record = RetainedSet(self._state.broker, number, topic, data if has_payload else b"")
        self._state.effects.append(PublishToTopic(ticket, CONTROL_TOPIC, control.record_bytes(record), user))

    def apply(self, record: RetainedSet, position: Position) -> None:
        if record.broker == self._state.broker:
            pending = self._pending.get(record.topic)
            if pending is not None and pending[0] <= record.number:
                del self._pending[record.topic]
        self._store(record.topic, record.data, position, 0.0)

    def merge(self, entries: list[RetainedEntry]) -> None:
        for entry in entries:
            self._store(entry.topic, entry.data, Position(entry.epoch, entry.sequence), entry.age_s)

    def _store(self, topic: str, data: bytes, position: Position, age_s: float) -> None:
        known = self._entries.get(topic)
        if known is not None:
            if known.position >= position:
                return
            self._forget(topic, known)
        publication = None
        if data and unwrapped(data)[0]:
            publication = publication_of(topic, data, None, self._state.now_s - age_s)
            self.size_bytes += len(data)
        else:
            self._removed += 1
        self._entries[topic] = _Entry(position, publication, data)
        if self._removed > _MOST_REMOVED:
            oldest = next(topic for topic, entry in self._entries.items() if entry.publication is None)
            self._forget(oldest, self._entries[oldest])

    def _forget(self, topic: str, entry: _Entry) -> None:
        del self._entries[topic]
        if entry.publication is None:
            self._removed -= 1
        else:
            self.size_bytes -= len(entry.data)

    def forget_pending(self) -> None:
        """Records of the control topic are missing: changes of this broker may be among them."""
        self._pending.clear()

    # -- reading -------------------------------------------------------------------------------------------------------

    def matching(self, pattern: str) -> list[Publication]:
        """The retained messages that an MQTT filter matches and that have not expired."""
        return [
            publication
            for publication in self._present()
            if filter_matches(pattern, publication.name) and not publication.is_expired(self._state.now_s)
        ]

    def _present(self) -> Iterator[Publication]:
        for topic, entry in self._entries.items():
            if topic not in self._pending and entry.publication is not None:
                yield entry.publication
        for _, publication in list(self._pending.values()):
            if publication is not None:
                yield publication

    def parts(self) -> Iterator[list[RetainedEntry]]:
        """All entries, in parts that fit into messages."""
        part: list[RetainedEntry] = []
        size_bytes = 0
        for topic, entry in self._entries.items():
            age_s = 0.0 if entry.publication is None else self._state.now_s - entry.publication.arrived_s
            if part and (size_bytes + len(entry.data) > _PART_BYTES or len(part) >= _PART_ENTRIES):
                yield part
                part, size_bytes = [], 0
            part.append(RetainedEntry(topic, entry.position.epoch, entry.position.sequence, entry.data, age_s))
            size_bytes += len(entry.data)
        yield part
