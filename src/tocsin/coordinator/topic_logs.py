"""Persistent topics at the coordinator: the choice of the replicas, and of a home among them [decision 16].

A message is acknowledged when `quorum` of the replicas have it on disk. So of any `replicas - quorum + 1` replicas at
least one has it. The coordinator asks the replicas to follow no earlier home any more and to report where their logs
end. When that many have answered, the one whose log ends last, by (epoch, sequence), has every acknowledged message and
becomes the home. With fewer answers the topic waits.
"""

from __future__ import annotations

from tocsin.coordinator.effects import RequestRejection
from tocsin.coordinator.records import BrokerRecord
from tocsin.coordinator.topic_placing import choose_home, holder_of, lease_holds, may_follow, may_host, may_stand_in
from tocsin.coordinator.topic_records import Election, TopicLog, TopicRecord
from tocsin.coordinator.turn import Turn
from tocsin.model.ids import BrokerId
from tocsin.model.topic_persistence import Persistence
from tocsin.model.trace import Kind
from tocsin.wire.errors import Code
from tocsin.wire.topic_link import FenceTopic, LogReport, OpenTopic, OwnedTopic, RecordPlan, TopicFenced
from tocsin.wire.topic_log import LogPlan, Replica

_ASK_AGAIN_S = 1.0
_WAIT_FOR_ANOTHER_S = 2.0
"""How long an election waits for another replica than the one whose disk refused."""


def owned(turn: Turn, record: TopicRecord) -> OwnedTopic:
    """The topic as its home gets it."""
    if record.log is None:
        return OwnedTopic(record.name, record.epoch, record.state, record=_record_plan(record))
    keep = record.log.persistence
    replicas = [_replica(turn, name) for name in record.log.replicas]
    plan = LogPlan(record.created, replicas, keep.quorum, keep.retain_bytes, keep.retain_s, record.log.least)
    return OwnedTopic(record.name, record.epoch, None, plan, _record_plan(record))


def _record_plan(record: TopicRecord) -> RecordPlan | None:
    plan = record.record
    return None if plan is None else RecordPlan(plan.dataset, plan.recording, record.created)


def _replica(turn: Turn, name: BrokerId) -> Replica:
    broker = turn.registry.brokers.get(name)
    return Replica(name, "" if broker is None else broker.address)


# -- the replicas ------------------------------------------------------------------------------------------------------


def choose_replicas(turn: Turn, record: TopicRecord, persistence: Persistence) -> TopicLog | RequestRejection:
    """The brokers that keep a new topic: near its place if that is known, else the least loaded ones.

    Brokers on probation are taken only if there are too few others.
    """
    problem = persistence.problem()
    if problem is not None:
        return RequestRejection(Code.BAD_REQUEST, problem)
    chosen: list[BrokerId] = []
    while len(chosen) < persistence.replicas:
        ways = (may_host, may_stand_in, may_follow)
        broker = next((found for may in ways if (found := choose_home(turn, record, chosen, may)) is not None), None)
        if broker is None:
            message = f"REPLICAS {persistence.replicas} needs as many brokers; {len(chosen)} can host topics now"
            return RequestRejection(Code.NOT_READY, message, retry_after_s=1.0)
        chosen.append(broker.id)
    return TopicLog(persistence, tuple(chosen))


def replicas_after(turn: Turn, record: TopicRecord, target: BrokerId) -> tuple[BrokerId, ...]:
    """The replicas when `target` is the home. A new one takes the place of a dead replica, else of the present home."""
    assert record.log is not None
    replicas = record.log.replicas
    if target in replicas:
        return replicas
    dead = [name for name in replicas if name != record.home and turn.registry.is_dead(name)]
    leaves = dead[0] if dead else record.home
    return (*(name for name in replicas if name != leaves), target)


def dead_replica(turn: Turn, record: TopicRecord) -> BrokerId | None:
    """A follower that is dead, or whose broker was dismissed: another broker should keep the log in its place."""
    if record.log is None or record.move is not None or not record.log.opened:
        return None
    gone = (name for name in record.log.replicas if name != record.home and turn.registry.is_dead(name))
    return next(gone, None)


# -- the home ----------------------------------------------------------------------------------------------------------


def elect(turn: Turn, record: TopicRecord) -> bool:
    """Choose a home among the replicas. Returns True if one is chosen; else the next answer or tick goes on."""
    log = record.log
    assert log is not None
    if record.holder is not None:
        turn.registry.topics.set_holder(record, None)
        turn.store_topic(record)
    if turn.now_s < record.not_before_s:
        return False
    if log.election is None:
        log.election = Election(turn.next_topic_epoch(), turn.now_s)
        log.opened, log.in_sync = False, ()
    if turn.now_s - log.election.asked_s >= _ASK_AGAIN_S:
        log.election.asked_s = turn.now_s
        for name in log.replicas:
            if name not in log.election.answers:
                turn.send(name, FenceTopic(record.name, record.created, log.election.epoch))
    return _decide(turn, record, log, log.election)


def handle_fenced(turn: Turn, record: TopicRecord, broker: BrokerRecord, message: TopicFenced) -> None:
    log = record.log
    if log is None or log.election is None or log.election.epoch != message.epoch or broker.id not in log.replicas:
        return
    log.election.answers[broker.id] = (message.log_epoch, message.end)
    _decide(turn, record, log, log.election)


def _decide(turn: Turn, record: TopicRecord, log: TopicLog, election: Election) -> bool:
    answers, needed = election.answers, log.persistence.answers
    if len(answers) < needed:
        return False
    end = max(answers.values())
    able = [turn.registry.brokers[name] for name, answer in answers.items() if answer == end]
    able = [broker for broker in able if broker.topics and broker.linked and lease_holds(turn, broker)]
    if not able:
        return False
    broker = min(able, key=lambda broker: (broker.id == log.failed, not may_host(turn, broker)))
    others_may_answer = len(answers) < len(log.replicas) and turn.now_s - election.began_s < _WAIT_FOR_ANOTHER_S
    if broker.id == log.failed and others_may_answer:
        return False
    log.election, log.least, record.epoch = None, end[1], election.epoch
    turn.registry.topics.set_holder(record, holder_of(broker))
    turn.store_topic(record)
    turn.send(broker.id, OpenTopic(owned(turn, record)))
    turn.note("a replica becomes the home", topic=record.name, home=broker.id, epoch=record.epoch, end=end[1])
    turn.trace(Kind.TOPIC_FAILOVER, target=broker.id, detail={"topic": record.name})
    return True


def handle_opened(turn: Turn, record: TopicRecord) -> None:
    if record.log is not None:
        record.log.opened, record.log.problem = True, None
        turn.registry.topics.changed[record.name] = None


def handle_log_report(turn: Turn, record: TopicRecord, broker: BrokerRecord, message: LogReport) -> None:
    if record.log is not None and record.holder == holder_of(broker) and record.epoch == message.epoch:
        record.log.in_sync, record.log.problem = tuple(message.in_sync), message.problem
        turn.registry.topics.changed[record.name] = None


def readdress(turn: Turn, broker: BrokerRecord) -> None:
    """A broker has registered with another address: tell the homes whose topics it follows."""
    topics = turn.registry.topics
    for record in (topics.topics[name] for name in topics.logged):
        if record.log is not None and broker.id in record.log.replicas and record.holder and record.home != broker.id:
            turn.send(record.holder[0], OpenTopic(owned(turn, record)))


def status(record: TopicRecord) -> str | None:
    """Why a persistent topic does not work as it should, in words; None if it does."""
    log = record.log
    if log is None:
        return None
    keep, detail = log.persistence, f" ({log.problem})" if log.problem else ""
    if record.holder is None:
        answers = 0 if log.election is None else len(log.election.answers)
        return f"not available: {answers} of {keep.answers} replicas that are needed have answered{detail}"
    if not log.opened:
        return f"not available: {record.home} waits until {keep.quorum} of {keep.replicas} replicas follow{detail}"
    if len(log.in_sync) < keep.quorum:
        return f"not available: {len(log.in_sync)} of {keep.quorum} replicas that are needed follow{detail}"
    if len(log.in_sync) < keep.replicas:
        return f"{len(log.in_sync)} of {keep.replicas} replicas follow{detail}"
    return None
