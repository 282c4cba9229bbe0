"""CREATE OR REPLACE TOPIC for a topic that exists: change in place what can change while messages flow.

WITHIN, DELAY, PROTECTED, the retention and the dataset of RECORD INTO change in place. The number of replicas and the
quorum do not: the topic has to be deleted for that, and its messages with it, so an administrator has to say so.
"""

from __future__ import annotations

from dataclasses import replace

from tocsin.coordinator.effects import RequestRejection
from tocsin.coordinator.events import TopicCreated
from tocsin.coordinator.topic_logs import owned
from tocsin.coordinator.topic_records import TopicRecord
from tocsin.coordinator.turn import Turn
from tocsin.wire.errors import Code
from tocsin.wire.topic_link import OpenTopic, RecordPlan


def record_plan(event: TopicCreated) -> RecordPlan | None:
    """What the home records; None if the definition has no RECORD INTO."""
    dataset = event.definition.record_into
    return None if dataset is None else RecordPlan(dataset, event.recording)


def change(turn: Turn, record: TopicRecord, event: TopicCreated) -> TopicRecord | RequestRejection:
    definition, log = event.definition, record.log
    persistence = definition.persistence
    if (log is None) != (persistence is None):
        return _refused(record, "a topic cannot become persistent or volatile in place")
    if log is not None and persistence is not None:
        if (problem := persistence.problem()) is not None:
            return RequestRejection(Code.BAD_REQUEST, problem)
        if (persistence.replicas, persistence.quorum) != (log.persistence.replicas, log.persistence.quorum):
            return _refused(record, "REPLICAS and QUORUM cannot change in place")
        log.persistence = replace(log.persistence, retain_bytes=persistence.retain_bytes, retain_s=persistence.retain_s)
    record.within_s, record.made_on_use = definition.within_s, False
    record.delay_s, record.protected_per_s = definition.delay_s, definition.protected_per_s
    present = None if record.record is None else record.record.dataset
    if present != definition.record_into:
        record.record = record_plan(event)
    turn.store_topic(record)
    turn.registry.topics.note_change(record.name)
    if record.holder is not None and record.move is None:
        turn.send(record.holder[0], OpenTopic(owned(turn, record)))
    turn.note("topic changed", topic=record.name, record_into=definition.record_into)
    return record


def _refused(record: TopicRecord, reason: str) -> RequestRejection:
    message = f"{reason}: delete the topic {record.name} first, with its messages, and create it again"
    return RequestRejection(Code.BAD_REQUEST, message)
