"""A planned move of a topic to another home, make-before-break [ePulsar §3.6, decision 13].

    preparing   the target lets clients attach          → stopping when it is prepared; a persistent topic copies first
    copying     the target's log catches up             → stopping
    stopping    the source stops and reports its state  → opening: the target is the home, stored before it opens
    opening     the target opens with that state        → done: the source forgets the topic

Until `opening` every failure leaves the topic at the source, in the same epoch. A direct hand-over [decision 18] is
stored before `stopping`, since the source then hands over to the target at a time of its own choice:

    stopping    source or target reports the hand-over  → opening, or done if the target has opened the topic
    cancelling  the source has to keep the topic        → it stays if the source confirms; else as in stopping
    either      the source's lease has ended            → the target is the home, with its own state or a gap
"""

from __future__ import annotations

from tocsin.coordinator.effects import ForgetTopicMove, RequestRejection
from tocsin.coordinator.events import TopicMoveOrdered
from tocsin.coordinator.records import BrokerRecord
from tocsin.coordinator.rules import TopicWorkflow
from tocsin.coordinator.topic_logs import dead_replica, owned, replicas_after
from tocsin.coordinator.topic_placing import choose_home, holder_of, may_host
from tocsin.coordinator.topic_records import TopicMove, TopicMoveStep, TopicRecord
from tocsin.coordinator.turn import Turn
from tocsin.model.ids import BrokerId
from tocsin.model.trace import Kind
from tocsin.wire.errors import Code
from tocsin.wire.site_link import Role
from tocsin.wire.topic_link import (
    CopyTopic,
    KeepTopic,
    OpenTopic,
    PrepareTopic,
    ReleaseTopic,
    StopTopic,
    TopicCopied,
    TopicKept,
    TopicState,
    TopicStopped,
)
from tocsin.wire.topic_log import Replica

_COPY_FACTOR = 60.0
"""Copying a log may take this many times as long as the other steps of a move together."""
_ATTACH_SHARE = 0.3
"""The share of `topic_move_s` that clients have to attach to the target before a direct hand-over."""


def order_move(turn: Turn, event: TopicMoveOrdered) -> bool | RequestRejection:
    """An administrator moves a topic. True if a move has begun, False if the target is the home already."""
    record = turn.registry.topics.topics.get(event.topic)
    target = turn.registry.brokers.get(event.target)
    if record is None:
        return RequestRejection(Code.UNKNOWN_TOPIC, f"there is no topic {event.topic}")
    if target is None:
        return RequestRejection(Code.NOT_FOUND, f"there is no broker {event.target!r}")
    if record.home == target.id and record.move is None:
        return False
    waiting = turn.registry.topics.queued.get(record.name)
    if record.move is not None or waiting is not None:
        other = record.move.target if record.move is not None else (waiting or ("",))[0]
        return RequestRejection(Code.IN_USE, f"{record.name} is moving to {other}", retry_after_s=1.0)
    if record.holder is None or not may_host(turn, target):
        what = f"{record.name} has no home" if record.holder is None else f"{target.id} cannot host topics"
        return RequestRejection(Code.NOT_READY, f"{what} at the moment; try again", retry_after_s=1.0)
    turn.registry.topics.queued[record.name] = (target.id, event.reason)
    start_queued(turn)
    return True


def start_queued(turn: Turn) -> None:
    """Start the moves that waited, as far as `topic_moves` allows. A move that became impossible is dropped."""
    topics = turn.registry.topics
    for name, (target_id, reason) in list(topics.queued.items()):
        if not _has_room(turn):
            return
        del topics.queued[name]
        record, target = topics.topics[name], turn.registry.brokers.get(target_id)
        if target is not None and record.holder is not None and record.move is None and may_host(turn, target):
            start(turn, record, target, reason)


def _has_room(turn: Turn) -> bool:
    """True if another move may begin. Pulsar moves one topic at a time."""
    one = turn.rules.topic_workflow is TopicWorkflow.PULSAR
    return len(turn.registry.topics.moving) < (1 if one else turn.rules.topic_moves)


def start(turn: Turn, record: TopicRecord, target: BrokerRecord, reason: str) -> None:
    assert record.home is not None
    epoch, deadline_s = turn.next_topic_epoch(), turn.now_s + turn.rules.topic_move_s
    move = TopicMove(record.home, record.epoch, target.id, epoch, reason, turn.now_s, deadline_s)
    if record.log is not None:
        move.replicas = replicas_after(turn, record, target.id)
    move.direct = record.log is None and turn.rules.topic_workflow is TopicWorkflow.TOCSIN
    move.looked_up = record.log is None and turn.rules.topic_workflow is TopicWorkflow.PULSAR
    turn.registry.topics.set_move(record, move)
    if move.looked_up:
        move.step = TopicMoveStep.STOPPING
        send_stop(turn, record)
    else:
        turn.send(target.id, prepare(record, epoch))
    turn.note("topic moves", topic=record.name, source=record.home, target=target.id, reason=reason)
    _trace(turn, Kind.TOPIC_MOVE, record, move, reason)


def prepare(record: TopicRecord, epoch: int) -> PrepareTopic:
    if record.log is not None:
        return PrepareTopic(record.name, epoch, record.created)
    return PrepareTopic(record.name, epoch, record=record.record)


def handle_prepared(turn: Turn, record: TopicRecord, broker: BrokerRecord, epoch: int) -> None:
    move = record.move
    if (record.home, record.epoch) == (broker.id, epoch):
        return  # an old report: the broker has become the home meanwhile
    if move is None or (move.target, move.epoch) != (broker.id, epoch):
        turn.send(broker.id, ReleaseTopic(record.name, epoch))
    elif move.step is TopicMoveStep.PREPARING and record.log is not None:
        move.step = TopicMoveStep.COPYING
        move.deadline_s = turn.now_s + _COPY_FACTOR * turn.rules.topic_move_s
        send_copy(turn, record)
    elif move.step is TopicMoveStep.PREPARING:
        move.step, move.target_run = TopicMoveStep.STOPPING, broker.incarnation
        if move.direct:
            turn.store_topic_move(record)
        send_stop(turn, record)


def send_copy(turn: Turn, record: TopicRecord) -> None:
    move = record.move
    target = None if move is None else turn.registry.brokers.get(move.target)
    if move is not None and target is not None and move.step is TopicMoveStep.COPYING:
        turn.send(move.source, CopyTopic(record.name, record.epoch, Replica(target.id, target.address)))


def handle_copied(turn: Turn, record: TopicRecord, broker: BrokerRecord, message: TopicCopied) -> None:
    move = record.move
    if move is None or move.step is not TopicMoveStep.COPYING or record.holder != holder_of(broker):
        return
    if message.epoch == record.epoch and message.target == move.target:
        move.step = TopicMoveStep.STOPPING
        move.deadline_s = turn.now_s + turn.rules.topic_move_s
        send_stop(turn, record)


def send_stop(turn: Turn, record: TopicRecord) -> None:
    move = record.move
    target = None if move is None else turn.registry.brokers.get(move.target)
    if move is None or target is None:
        return
    if move.step is TopicMoveStep.CANCELLING:
        turn.send(move.source, KeepTopic(record.name, record.epoch, move.epoch))
    elif move.step is TopicMoveStep.STOPPING:
        how = (move.epoch, _ATTACH_SHARE * turn.rules.topic_move_s) if move.direct else (None, 0.0)
        where = (target.id, "" if move.looked_up else target.address, list(move.replicas))
        turn.send(move.source, StopTopic(record.name, record.epoch, *where, *how))


def handle_stopped(turn: Turn, record: TopicRecord, broker: BrokerRecord, message: TopicStopped) -> None:
    """The source accepts nothing more: make the target the home, and store that before the target opens."""
    move = record.move
    if move is None or record.holder != holder_of(broker) or message.epoch != record.epoch:
        return
    if message.handed_over and move.may_have_opened:
        make_target_home(turn, record, message.state)
    if move.step is not TopicMoveStep.STOPPING:
        return
    target = turn.registry.brokers.get(move.target)
    if target is None:
        return
    if not may_host(turn, target):
        abort(turn, record, "the target went away")
        return
    move.target_run = target.incarnation
    make_target_home(turn, record, message.state)


def make_target_home(turn: Turn, record: TopicRecord, state: TopicState | None) -> None:
    """Store the target as the home, and let it open the topic with this state unless it has opened it already."""
    move = record.move
    assert move is not None
    if move.direct:
        turn.do(ForgetTopicMove(record.name))
    move.step = TopicMoveStep.OPENING
    record.epoch, record.state = move.epoch, state
    if record.log is not None and state is not None:
        record.log.replicas, record.log.least = move.replicas, state.sequence
        record.log.opened, record.log.in_sync = False, ()
    turn.registry.topics.set_holder(record, (move.target, move.target_run))
    turn.store_topic(record)
    target = turn.registry.brokers.get(move.target)
    if target is not None and holder_of(target) == record.holder:  # another run must not open this epoch
        turn.send(target.id, OpenTopic(owned(turn, record)))


def handle_kept(turn: Turn, record: TopicRecord, broker: BrokerRecord, message: TopicKept) -> None:
    """The source has confirmed that it keeps the topic: the target never opens it in the epoch of this move."""
    move = record.move
    if move is None or move.step is not TopicMoveStep.CANCELLING or record.holder != holder_of(broker):
        return
    if (message.epoch, message.target_epoch) == (record.epoch, move.epoch):
        forget(turn, record)
        turn.note("topic stays", "warning", topic=record.name, source=move.source, target=move.target)


def handle_opened(turn: Turn, record: TopicRecord, broker: BrokerRecord, epoch: int) -> None:
    move = record.move
    if move is None or (move.target, move.target_run, move.epoch) != (*holder_of(broker), epoch):
        return
    if move.may_have_opened:  # its report is the first news of the hand-over
        make_target_home(turn, record, None)
    if move.step is TopicMoveStep.OPENING:
        record.state = None
        turn.registry.topics.set_move(record, None)
        _release(turn, record, move.source, move.source_epoch)
        took_s = turn.now_s - move.began_s
        turn.note("topic moved", topic=record.name, source=move.source, target=move.target, took_s=round(took_s, 4))
        _trace(turn, Kind.TOPIC_MOVED, record, move, move.reason)


def abort(turn: Turn, record: TopicRecord, reason: str) -> None:
    """Leave the topic at the source: the source opens it again if it has stopped already.

    A source that may have handed over must confirm that it keeps the topic.
    """
    move = record.move
    if move is None or move.step in (TopicMoveStep.OPENING, TopicMoveStep.CANCELLING):
        return
    if move.may_have_opened:
        move.step = TopicMoveStep.CANCELLING
        send_stop(turn, record)
        turn.note("topic is to stay", "warning", topic=record.name, target=move.target, reason=reason)
        return
    forget(turn, record)
    if move.step in (TopicMoveStep.STOPPING, TopicMoveStep.COPYING) and record.home is not None:
        turn.send(record.home, OpenTopic(owned(turn, record)))
    turn.note("topic stays", "warning", topic=record.name, source=move.source, target=move.target, reason=reason)
    _trace(turn, Kind.TOPIC_STAYS, record, move, reason)


def _trace(turn: Turn, kind: Kind, record: TopicRecord, move: TopicMove, reason: str) -> None:
    turn.trace(kind, broker=move.source, target=move.target, note=reason, detail={"topic": record.name})


def forget(turn: Turn, record: TopicRecord) -> None:
    """Forget a move and release the other broker: the target's preparation, or the source that was left."""
    move = record.move
    if move is not None:
        turn.registry.topics.set_move(record, None)
        if move.may_have_opened:
            turn.do(ForgetTopicMove(record.name))
        if move.step is TopicMoveStep.OPENING:
            _release(turn, record, move.source, move.source_epoch)
        else:
            _release(turn, record, move.target, move.epoch)


def _release(turn: Turn, record: TopicRecord, broker: BrokerId, epoch: int) -> None:
    """The broker is not the topic's home. It keeps the log of a persistent topic only if it is one of its replicas."""
    drops = record.log is not None and broker not in record.log.replicas
    turn.send(broker, ReleaseTopic(record.name, epoch, drop_log=record.created if drops else None))


def check_deadlines(turn: Turn) -> None:
    for name, move in list(turn.registry.topics.moving.items()):
        record = turn.registry.topics.topics[name]
        if turn.now_s >= move.deadline_s or turn.registry.is_dead(move.target):
            abort(turn, record, "the move took too long")


def drain(turn: Turn) -> None:
    """Move topics away from draining brokers, a bounded number at a time."""
    topics = turn.registry.topics
    for holder in list(topics.held):
        broker = turn.registry.brokers.get(holder[0])
        if broker is None or not broker.draining:
            continue
        for record in topics.records_of(holder):
            if not _has_room(turn):
                return
            waits = record.move is None and record.name not in topics.queued
            target = _drain_target(turn, record, broker.id) if waits else None
            if target is not None:
                start(turn, record, target, f"{broker.id} drains")


def return_to_heads(turn: Turn) -> None:
    """Move topics from edges, which were their homes while no head was alive, to a head that can be the home again."""
    if not turn.registry.heads:
        return
    topics = turn.registry.topics
    for holder in list(topics.held):
        broker = turn.registry.brokers.get(holder[0])
        if broker is None or broker.role is not Role.EDGE or may_host(turn, broker):
            continue
        for record in topics.records_of(holder):
            if not _has_room(turn):
                return
            waits = record.move is None and record.name not in topics.queued and turn.now_s >= record.not_before_s
            target = choose_home(turn, record, {broker.id}) if waits else None
            if target is not None and target.role is Role.HEAD:
                start(turn, record, target, f"{target.id} is a head, {broker.id} is an edge")


def _drain_target(turn: Turn, record: TopicRecord, source: BrokerId) -> BrokerRecord | None:
    """Another home. For a persistent topic rather a broker that is no replica: the source leaves the replicas then."""
    avoid = {source} if record.log is None else {source, *record.log.replicas}
    return choose_home(turn, record, avoid) or choose_home(turn, record, {source})


def replace_dead_replicas(turn: Turn) -> None:
    """Copy logs whose follower is dead to another broker, by a move to it: it takes the place of the dead one."""
    topics = turn.registry.topics
    for name in list(topics.logged):
        record = topics.topics[name]
        dead = dead_replica(turn, record)
        if dead is None or record.log is None or not _has_room(turn):
            continue
        target = choose_home(turn, record, avoid=record.log.replicas)
        if target is not None:
            start(turn, record, target, f"{dead} is dead, and kept a replica")
