"""Topics as clients and administrators see them."""

from __future__ import annotations

from tocsin.coordinator.registry import Registry
from tocsin.coordinator.topic_logs import status
from tocsin.coordinator.topic_records import TopicRecord
from tocsin.wire.topic_directory import TopicEntry


def topic_entry(
    registry: Registry, record: TopicRecord, *, receive: bool = True, latency: bool = False, edge: bool = False
) -> TopicEntry:
    """`latency`: with the figure that changes all the time; a watch would never end with it. `edge`: with the edge for
    new receivers."""
    broker, move = registry.broker(record.home), record.move
    log = record.log
    return TopicEntry(
        record.name,
        record.created,
        record.epoch,
        record.home,
        None if broker is None or (move is not None and move.hides_home) else broker.address,
        record.within_s,
        None if move is None else move.target,
        receive,
        log is not None,
        None if log is None else log.persistence.quorum,
        [] if log is None else list(log.replicas),
        status(record),
        None if log is None else log.persistence.retain_bytes,
        None if log is None else log.persistence.retain_s,
        None if record.record is None else record.record.dataset,
        record.reported.worst_s if latency and record.reported is not None else None,
        record.shortfall if latency else None,
        str(move.step) if latency and move is not None else None,
        record.receive_at[1] if edge and receive and record.receive_at is not None else None,
        delay_s=record.delay_s,
        protected_per_s=record.protected_per_s,
    )
