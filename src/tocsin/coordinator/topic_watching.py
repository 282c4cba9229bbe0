"""Trace rows about topics: their homes, bounds and states. `topic_moves` and `topic_homes` record their moves."""

from __future__ import annotations

from itertools import islice
from typing import Any

from tocsin.coordinator.core import Coordinator
from tocsin.coordinator.topic_records import TopicRecord
from tocsin.coordinator.topic_views import topic_entry
from tocsin.model.trace import Kind, TraceRow
from tocsin.model.trace_state import MAX_TOPICS


def topic_row(core: Coordinator, record: TopicRecord, now_s: float) -> TraceRow:
    entry = topic_entry(core.registry, record, latency=True)
    detail: dict[str, Any] = {
        "topic": entry.topic,
        "within_s": entry.within_s,
        "persistent": entry.persistent,
        "replicas": entry.replicas,
        "moving_to": entry.moving_to,
        "status": entry.status,
        "record_into": entry.record_into,
        "shortfall": entry.shortfall,
        "delay_s": entry.delay_s,
        "protected_per_s": entry.protected_per_s,
    }
    reported = record.reported
    if reported is not None:
        detail |= {
            "worst_s": reported.worst_s,
            "senders": reported.senders,
            "receivers": reported.receivers,
            "messages_per_s": reported.in_per_s,
            "publishers": reported.publishers,
            "subscribers": reported.subscribers,
        }
    return TraceRow(now_s, Kind.TOPIC, broker=entry.home, detail=detail)


def changed_topics(core: Coordinator, now_s: float) -> list[TraceRow]:
    """A row for each topic that has changed since the last call."""
    topics = core.registry.topics
    names, topics.changed = topics.changed, {}
    rows = []
    for name in names:
        record = topics.topics.get(name)
        gone = TraceRow(now_s, Kind.TOPIC, detail={"topic": name, "state": "gone"})
        rows.append(gone if record is None else topic_row(core, record, now_s))
    return rows


def topic_picture(core: Coordinator, now_s: float) -> list[TraceRow]:
    """A row for each of the first topics."""
    return [topic_row(core, record, now_s) for record in islice(core.registry.topics.topics.values(), MAX_TOPICS)]
