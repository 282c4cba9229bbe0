"""Topics and their homes: create, delete, assign and fail over [decision 13]. `topic_reports` has messages of brokers.

A broker may accept messages of a topic only in the epoch of its assignment and under its lease. So the coordinator
assigns another home only when the former one has confirmed that it stopped (`topic_moves`), or when its lease has
ended.
"""

from __future__ import annotations

from collections.abc import Collection

from tocsin.coordinator import topic_definitions, topic_logs, topic_moves
from tocsin.coordinator.effects import ForgetTopic, RequestRejection
from tocsin.coordinator.events import TopicCreated, TopicsUsed
from tocsin.coordinator.records import BrokerRecord
from tocsin.coordinator.topic_placing import choose_home, holder_of, may_host
from tocsin.coordinator.topic_records import TopicRecord
from tocsin.coordinator.turn import Turn
from tocsin.model.ids import BrokerId, TopicName
from tocsin.model.topic import CONTROL_PREFIX, topic_problem
from tocsin.model.trace import Kind
from tocsin.wire.errors import Code
from tocsin.wire.topic_link import (
    FollowTopic,
    OpenTopic,
    ReleaseTopic,
)

LEASE_MARGIN = 1.1
"""The coordinator counts leases longer than the brokers do, by this factor: clocks differ in rate."""
_OWN_STALL = 0.5
"""A pause between two ticks, as a share of a lease, after which missing renewals are the coordinator's own fault."""


# -- requests ----------------------------------------------------------------------------------------------------------


def create_topic(turn: Turn, event: TopicCreated, made_by: str | None = None) -> TopicRecord | RequestRejection:
    """`made_by`: for whose quota the topic counts, if an administrator has not created it."""
    definition = event.definition
    problem = topic_problem(definition.name)
    if problem is not None:
        return RequestRejection(Code.BAD_REQUEST, problem)
    existing = turn.registry.topics.topics.get(definition.name)
    if existing is not None and event.replace:
        return topic_definitions.change(turn, existing, event)
    if existing is not None:
        return RequestRejection(Code.EXISTS, f"there is a topic {definition.name} already")
    if _is_full(turn):
        return RequestRejection(Code.TOO_MANY, f"this network has at most {turn.rules.topics:,} topics")
    record = TopicRecord(definition.name, 0, definition.within_s, place=event.place, coordinate=event.coordinate)
    record.delay_s, record.protected_per_s = definition.delay_s, definition.protected_per_s
    record.made_by = made_by
    record.record = topic_definitions.record_plan(event)
    if definition.persistence is not None:
        log = topic_logs.choose_replicas(turn, record, definition.persistence)
        if isinstance(log, RequestRejection):
            return log
        record.log = log
    return _create(turn, record)


def use_topics(turn: Turn, event: TopicsUsed) -> dict[TopicName, RequestRejection]:
    """Create those of the topics that do not exist, where a prefix allows it. Returns why the others cannot be used."""
    refused: dict[TopicName, RequestRejection] = {}
    for name in event.topics:
        problem = topic_problem(name)
        if name in turn.registry.topics.topics:
            continue
        if problem is not None:
            refused[name] = RequestRejection(Code.BAD_REQUEST, problem)
        elif not _may_create(name, turn.rules.topic_prefixes):
            refused[name] = RequestRejection(Code.UNKNOWN_TOPIC, f"there is no topic {name}; create it first")
        elif _is_full(turn):
            refused[name] = RequestRejection(Code.TOO_MANY, f"this network has at most {turn.rules.topics:,} topics")
        elif _has_used_quota(turn, user := event.creator(name)):
            message = f"messages of {user} have created {turn.rules.user_topics:,} topics, as many as a user may create"
            refused[name] = RequestRejection(Code.TOO_MANY, f"{message}; create the topic, or delete unused ones")
        else:
            record = TopicRecord(name, 0, made_on_use=True, place=event.place, coordinate=event.coordinate)
            record.made_by = user
            _create(turn, record)
    return refused


def _has_used_quota(turn: Turn, user: str | None) -> bool:
    return user is not None and turn.registry.topics.made_by.get(user, 0) >= turn.rules.user_topics


def _may_create(name: TopicName, prefixes: str | None) -> bool:
    """True if the first message may create the topic."""
    allowed = [prefix for prefix in (prefixes or "").split(",") if prefix]
    return any(name.startswith(prefix) for prefix in (*allowed, CONTROL_PREFIX))


def _is_full(turn: Turn) -> bool:
    return len(turn.registry.topics.topics) >= turn.rules.topics


def _create(turn: Turn, record: TopicRecord) -> TopicRecord:
    topics = turn.registry.topics
    record.created = turn.next_topic_epoch()
    former, until_s = topics.retired.pop(record.name, (None, topics.settled_s))
    record.not_before_s = until_s
    topics.add(record)
    for replica in () if record.log is None else record.log.replicas:
        turn.send(replica, FollowTopic(record.name, record.created))
    if record.log is not None and turn.now_s >= until_s:
        assign(turn, record, turn.registry.brokers[record.log.replicas[0]])
    elif record.log is None and former is not None and former[0] in turn.registry.brokers and _is_present(turn, former):
        record.not_before_s = 0.0  # its link delivers the deletion before the new assignment
        assign(turn, record, turn.registry.brokers[former[0]])
    else:
        find_home(turn, record)
    turn.store_topic(record)
    turn.note("topic created", topic=record.name, home=record.home, epoch=record.epoch)
    return record


def _is_present(turn: Turn, holder: tuple[BrokerId, str]) -> bool:
    broker = turn.registry.brokers[holder[0]]
    return holder_of(broker) == holder and may_host(turn, broker)


def delete_topic(turn: Turn, name: TopicName) -> bool | RequestRejection:
    record = turn.registry.topics.topics.get(name)
    if record is None:
        return RequestRejection(Code.UNKNOWN_TOPIC, f"there is no topic {name}")
    topics = turn.registry.topics
    if record.move is not None:
        for broker, epoch in ((record.move.source, record.move.source_epoch), (record.move.target, record.move.epoch)):
            turn.send(broker, ReleaseTopic(name, epoch, deleted=True, drop_log=_log_of(record)))
    if record.log is not None:
        for broker in {*record.log.replicas} - {record.home}:
            turn.send(broker, ReleaseTopic(name, 0, deleted=True, drop_log=record.created))
    if record.holder is not None:
        turn.send(record.holder[0], ReleaseTopic(name, record.epoch, deleted=True, drop_log=_log_of(record)))
        topics.retired[name] = (record.holder, topics.leases.get(record.holder, topics.settled_s))
        if record.move is not None and record.move.may_have_opened:
            target = (record.move.target, record.move.target_run)
            until_s = max(topics.retired[name][1], topics.leases.get(target, topics.settled_s))
            topics.retired[name] = (None, until_s)
    topics.remove(record)
    turn.do(ForgetTopic(name))
    turn.note("topic deleted", topic=name)
    return True


def _log_of(record: TopicRecord) -> int | None:
    """What `ReleaseTopic` names to delete the topic's log; None for a volatile topic."""
    return None if record.log is None else record.created


# -- assignment --------------------------------------------------------------------------------------------------------


def find_home(turn: Turn, record: TopicRecord, avoid: Collection[BrokerId] = ()) -> bool:
    """Assign a home in a new epoch. Returns False if none can be assigned now.

    The caller knows that the former home cannot accept messages any more.
    """
    if record.log is not None:
        return topic_logs.elect(turn, record)
    broker = None if turn.now_s < record.not_before_s else choose_home(turn, record, avoid)
    if broker is None:
        if record.holder is not None:
            turn.registry.topics.set_holder(record, None)
            turn.store_topic(record)
        return False
    assign(turn, record, broker)
    return True


def assign(turn: Turn, record: TopicRecord, broker: BrokerRecord) -> None:
    record.epoch = turn.next_topic_epoch() if record.epoch else record.created
    record.state = None
    turn.registry.topics.set_holder(record, holder_of(broker))
    turn.store_topic(record)
    turn.send(broker.id, OpenTopic(topic_logs.owned(turn, record)))


def check(turn: Turn) -> None:
    """Called at every tick: fail over, place topics without a home, drain, end moves that take too long."""
    topics = turn.registry.topics
    if turn.now_s - topics.checked_s > _OWN_STALL * turn.rules.topic_lease_s:
        topics.patient_until_s = turn.now_s + _OWN_STALL * turn.rules.topic_lease_s
    topics.checked_s = turn.now_s
    if turn.now_s < topics.patient_until_s:
        return
    for holder in [holder for holder in topics.held if topics.leases.get(holder, topics.settled_s) <= turn.now_s]:
        for record in topics.records_of(holder):
            fail_over(turn, record)
    for name in list(topics.unassigned):
        find_home(turn, topics.topics[name])
    topics.leases = {
        holder: until_s for holder, until_s in topics.leases.items() if until_s > turn.now_s or holder in topics.held
    }
    for name in [name for name, (_, until_s) in topics.retired.items() if until_s <= turn.now_s]:
        del topics.retired[name]
    topic_moves.check_deadlines(turn)
    topic_moves.start_queued(turn)
    topic_moves.drain(turn)
    topic_moves.return_to_heads(turn)
    topic_moves.replace_dead_replicas(turn)


def fail_over(turn: Turn, record: TopicRecord) -> None:
    """The home's lease has ended: assign another home in a new epoch, without the state of the former one."""
    former, former_epoch, move = record.holder, record.epoch, record.move
    turn.note("the home's lease has ended", "warning", topic=record.name, home=record.home, epoch=record.epoch)
    if not let_target_open(turn, record):
        prepared = None if move is None else turn.registry.brokers.get(move.target)
        topic_moves.forget(turn, record)
        volatile_target = record.log is None and move is not None and move.source == record.home
        if prepared is not None and volatile_target and may_host(turn, prepared):
            assign(turn, record, prepared)
        else:
            find_home(turn, record)
    if record.log is None and record.home is not None:
        turn.trace(Kind.TOPIC_FAILOVER, target=record.home, detail={"topic": record.name})
    if former is not None:
        turn.send(former[0], ReleaseTopic(record.name, former_epoch))


def let_target_open(turn: Turn, record: TopicRecord) -> bool:
    """The source of a direct hand-over accepts nothing more, and may have handed over: only its target can be the home.

    A target that has not opened the topic opens it with a gap. If the target is gone, its own lease has to end.
    """
    if record.move is None or not record.move.may_have_opened:
        return False
    topic_moves.make_target_home(turn, record, None)
    turn.registry.topics.set_move(record, None)
    return True
