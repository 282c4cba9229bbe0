"""A planned move of a topic to another home, make-before-break [ePulsar §3.6, decision 13].

    preparing   the target lets clients attach          → stopping when it is prepared
    stopping    the source stops and reports its state  → opening: the target is the home, stored before it opens
    opening     the target opens with that state        → done: the source forgets the topic

Until `opening` every failure leaves the topic at the source, in the same epoch.
"""

from __future__ import annotations

from tocsin.coordinator.effects import RequestRejection
from tocsin.coordinator.events import TopicMoveOrdered
from tocsin.coordinator.records import BrokerRecord
from tocsin.coordinator.topic_placing import choose_home, holder_of, may_host
from tocsin.coordinator.topic_records import TopicMove, TopicMoveStep, TopicRecord
from tocsin.coordinator.turn import Turn
from tocsin.wire.errors import Code
from tocsin.wire.topic_link import OpenTopic, PrepareTopic, ReleaseTopic, StopTopic, TopicStopped


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
    if record.move is not None:
        return RequestRejection(Code.IN_USE, f"{record.name} is moving to {record.move.target}", retry_after_s=1.0)
    if record.holder is None or not may_host(turn, target):
        what = f"{record.name} has no home" if record.holder is None else f"{target.id} cannot host topics"
        return RequestRejection(Code.NOT_READY, f"{what} at the moment; try again", retry_after_s=1.0)
    start(turn, record, target, event.reason)
    return True


def start(turn: Turn, record: TopicRecord, target: BrokerRecord, reason: str) -> None:
    assert record.home is not None
    epoch, deadline_s = turn.next_topic_epoch(), turn.now_s + turn.rules.topic_move_s
    move = TopicMove(record.home, record.epoch, target.id, epoch, reason, turn.now_s, deadline_s)
    turn.registry.topics.set_move(record, move)
    turn.send(target.id, PrepareTopic(record.name, epoch))
    turn.note("topic moves", topic=record.name, source=record.home, target=target.id, reason=reason)


def handle_prepared(turn: Turn, record: TopicRecord, broker: BrokerRecord, epoch: int) -> None:
    move = record.move
    if move is None or (move.target, move.epoch) != (broker.id, epoch):
        turn.send(broker.id, ReleaseTopic(record.name, epoch))
    elif move.step is TopicMoveStep.PREPARING:
        move.step = TopicMoveStep.STOPPING
        send_stop(turn, record)


def send_stop(turn: Turn, record: TopicRecord) -> None:
    move = record.move
    target = None if move is None else turn.registry.brokers.get(move.target)
    if move is not None and target is not None and move.step is TopicMoveStep.STOPPING:
        turn.send(move.source, StopTopic(record.name, record.epoch, target.id, target.address))


def handle_stopped(turn: Turn, record: TopicRecord, broker: BrokerRecord, message: TopicStopped) -> None:
    """The source accepts nothing more: make the target the home, and store that before the target opens."""
    move = record.move
    if move is None or move.step is not TopicMoveStep.STOPPING or record.holder != holder_of(broker):
        return
    target = turn.registry.brokers.get(move.target)
    if message.epoch != record.epoch or target is None:
        return
    if not may_host(turn, target):
        abort(turn, record, "the target went away")
        return
    move.step = TopicMoveStep.OPENING
    record.epoch, record.state = move.epoch, message.state
    turn.registry.topics.set_holder(record, holder_of(target))
    turn.store_topic(record)
    turn.send(target.id, OpenTopic(record.owned))


def handle_opened(turn: Turn, record: TopicRecord) -> None:
    move = record.move
    if move is not None and move.step is TopicMoveStep.OPENING:
        turn.registry.topics.set_move(record, None)
        turn.send(move.source, ReleaseTopic(record.name, move.source_epoch))
        took_s = turn.now_s - move.began_s
        turn.note("topic moved", topic=record.name, source=move.source, target=move.target, took_s=round(took_s, 4))


def abort(turn: Turn, record: TopicRecord, reason: str) -> None:
    """Leave the topic at the source: the source opens it again if it has stopped already."""
    move = record.move
    if move is None or move.step is TopicMoveStep.OPENING:
        return
    forget(turn, record)
    if move.step is TopicMoveStep.STOPPING and record.home is not None:
        turn.send(record.home, OpenTopic(record.owned))
    turn.note("topic stays", "warning", topic=record.name, source=move.source, target=move.target, reason=reason)


def forget(turn: Turn, record: TopicRecord) -> None:
    """Forget a move and release the other broker: the target's preparation, or the source that was left."""
    move = record.move
    if move is not None:
        turn.registry.topics.set_move(record, None)
        if move.step is TopicMoveStep.OPENING:
            turn.send(move.source, ReleaseTopic(record.name, move.source_epoch))
        else:
            turn.send(move.target, ReleaseTopic(record.name, move.epoch))


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
            if len(topics.moving) >= turn.rules.topic_moves:
                return
            target = choose_home(turn, record, avoid={broker.id}) if record.move is None else None
            if target is not None:
                start(turn, record, target, f"{broker.id} drains")
