"""Messages of brokers about topics: a broker that registers is settled, and reports change homes and moves.

`topic_homes` and `topic_moves` decide; this module finds the topic that a message is about.
"""

from __future__ import annotations

from tocsin.coordinator import topic_logs, topic_moves
from tocsin.coordinator.effects import CheckStore
from tocsin.coordinator.records import BrokerRecord
from tocsin.coordinator.topic_homes import LEASE_MARGIN, fail_over, find_home, let_target_open
from tocsin.coordinator.topic_placing import holder_of
from tocsin.coordinator.topic_records import TopicRecord
from tocsin.coordinator.turn import Turn
from tocsin.wire.topic_link import (
    FromBroker,
    LeaseRenewed,
    LogReport,
    OwnTopics,
    RenewLease,
    ReturnLease,
    TopicCopied,
    TopicFenced,
    TopicKept,
    TopicLatency,
    TopicOpened,
    TopicPrepared,
    TopicRefused,
    TopicStopped,
)

_REFUSED_S = 5.0
_DISK_S = 1.0
"""A disk that refuses may do so again: the replicas choose a home no more often."""


def settle_broker(turn: Turn, broker: BrokerRecord) -> None:
    """A broker has registered: send the complete list of its topics, then the messages of moves that were lost."""
    topics = turn.registry.topics
    if not broker.topics:
        return
    owned = [topic_logs.owned(turn, record) for record in topics.records_of(holder_of(broker))]
    arriving = [
        (name, move.epoch)
        for name, move in topics.moving.items()
        if move.may_have_opened and (move.target, move.target_run) == holder_of(broker)
    ]
    turn.send(broker.id, OwnTopics(owned, topics.logs_of(broker.id), arriving))
    for name, move in topics.moving.items():
        record = topics.topics[name]
        if move.target == broker.id and move.may_have_opened and move.target_run != broker.incarnation:
            topic_moves.abort(turn, record, f"{broker.id} was restarted")
        elif move.target == broker.id and record.home != broker.id:
            turn.send(broker.id, topic_moves.prepare(record, move.epoch))
        elif move.source == broker.id and record.home == broker.id:
            topic_moves.send_copy(turn, record)
            topic_moves.send_stop(turn, record)


def handle_report(turn: Turn, broker: BrokerRecord, message: FromBroker) -> None:
    _handle_report(turn, broker, message)
    topic_moves.start_queued(turn)


def _handle_report(turn: Turn, broker: BrokerRecord, message: FromBroker) -> None:
    topics = turn.registry.topics
    if isinstance(message, RenewLease):
        topics.leases[holder_of(broker)] = turn.now_s + LEASE_MARGIN * turn.rules.topic_lease_s
        if topics.topics:
            turn.store_lease_s()
            turn.do(CheckStore())
        turn.send(broker.id, LeaseRenewed(message.number, turn.rules.topic_lease_s))
        return
    if isinstance(message, ReturnLease):
        topics.leases[holder_of(broker)] = turn.now_s
        for held in topics.records_of(holder_of(broker)):
            fail_over(turn, held)
        return
    record = topics.topics.get(message.topic)
    if record is None:
        return
    match message:
        case TopicPrepared(epoch=epoch):
            topic_moves.handle_prepared(turn, record, broker, epoch)
        case TopicStopped():
            topic_moves.handle_stopped(turn, record, broker, message)
        case TopicKept():
            topic_moves.handle_kept(turn, record, broker, message)
        case TopicOpened(epoch=epoch):
            topic_moves.handle_opened(turn, record, broker, epoch)
            if record.holder == holder_of(broker) and record.epoch == epoch:
                record.state = None
                topic_logs.handle_opened(turn, record)
        case TopicRefused():
            _handle_refused(turn, record, broker, message)
        case TopicFenced():
            topic_logs.handle_fenced(turn, record, broker, message)
        case TopicCopied():
            topic_moves.handle_copied(turn, record, broker, message)
        case TopicLatency(epoch=epoch):
            if record.holder == holder_of(broker) and record.epoch == epoch:
                record.latency = message
                topics.changed[record.name] = None
        case LogReport():
            topic_logs.handle_log_report(turn, record, broker, message)


def _handle_refused(turn: Turn, record: TopicRecord, broker: BrokerRecord, message: TopicRefused) -> None:
    """The broker has too many topics, or its disk refuses. It does not serve this epoch, so another broker may."""
    turn.note("a broker refuses a topic", "warning", topic=record.name, broker=broker.id, reason=message.message)
    if record.move is not None and record.move.target == broker.id and record.move.epoch == message.epoch:
        topic_moves.abort(turn, record, message.message)
    if record.holder == holder_of(broker) and record.epoch == message.epoch:
        if let_target_open(turn, record):
            return
        topic_moves.forget(turn, record)
        if record.log is not None:
            record.log.problem, record.log.failed = f"{broker.id}: {message.message}", broker.id
            record.not_before_s = turn.now_s + _DISK_S
        if not find_home(turn, record, avoid={broker.id}) and record.log is None:
            record.not_before_s = turn.now_s + _REFUSED_S
