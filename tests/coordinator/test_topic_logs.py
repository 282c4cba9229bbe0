"""Persistent topics at the coordinator: replicas, elections, moves that copy the log, and restarts."""

from __future__ import annotations

import pytest

from tests.coordinator.bench import B1, B2, B3
from tests.coordinator.test_topics import T, TopicBench, code
from tocsin.coordinator.events import TopicCreated, TopicDeleted
from tocsin.coordinator.records import Health
from tocsin.coordinator.topic_records import TopicMoveStep, TopicRecord
from tocsin.coordinator.topic_views import topic_entry
from tocsin.model.ids import BrokerId
from tocsin.model.topic import TopicDefinition
from tocsin.model.topic_persistence import Persistence
from tocsin.wire.errors import Code
from tocsin.wire.topic_link import (
    CopyTopic,
    FenceTopic,
    FollowTopic,
    LogReport,
    OpenTopic,
    ReleaseTopic,
    ReturnLease,
    StopTopic,
    TopicCopied,
    TopicFenced,
    TopicOpened,
    TopicPrepared,
    TopicRefused,
    TopicState,
    TopicStopped,
)
from tocsin.wire.topic_log import Replica


class LogBench(TopicBench):
    def kept(self, replicas: int = 3, quorum: int = 2) -> TopicRecord:
        definition = TopicDefinition(T, None, Persistence(replicas, quorum))
        record = self.ask(lambda ask: TopicCreated(ask, definition))
        assert isinstance(record, TopicRecord), record
        assert record.log is not None and record.home is not None
        self.created = self.effects
        self.send(record.home, TopicOpened(T, record.epoch))
        self.send(record.home, LogReport(T, record.epoch, list(record.log.replicas)))
        return record

    def lose_home(self, record: TopicRecord) -> BrokerId:
        """The home returns its lease. Returns it."""
        home = record.home
        assert home is not None
        self.live.remove(home)
        self.send(home, ReturnLease())
        return home

    def status(self, record: TopicRecord) -> str | None:
        return topic_entry(self.registry, record).status


def test_replicas_are_distinct_brokers_that_may_follow_and_home_gets_the_plan() -> None:
    bench = LogBench(B1, B2, B3)
    record = bench.kept()
    assert record.log is not None
    assert {*record.log.replicas} == {B1, B2, B3}
    assert record.home is not None
    bench.effects = bench.created
    (opened,) = bench.sent(record.home, OpenTopic)
    assert opened.topic.log is not None
    assert [replica.broker for replica in opened.topic.log.replicas] == list(record.log.replicas)
    for broker in (B1, B2, B3):
        assert bench.sent(broker, FollowTopic) == [FollowTopic(T, record.created)]
    assert bench.status(record) is None


def test_topic_with_more_replicas_than_brokers_is_refused() -> None:
    bench = LogBench(B1, B2)
    definition = TopicDefinition(T, None, Persistence(3, 2))
    assert code(bench.ask(lambda ask: TopicCreated(ask, definition))) is Code.NOT_READY
    definition = TopicDefinition(T, None, Persistence(2, 3))
    assert code(bench.ask(lambda ask: TopicCreated(ask, definition))) is Code.BAD_REQUEST


@pytest.mark.parametrize(("replicas", "keeps"), [(2, False), (3, True)])
def test_broker_on_probation_keeps_a_log_only_if_others_are_too_few(replicas: int, keeps: bool) -> None:
    bench = LogBench(B1, B2, B3)
    broker = bench.registry.brokers[B1]
    broker.health, broker.trusted_at_s = Health.PROBATION, bench.now_s + 60.0
    record = bench.kept(replicas, 2)
    assert record.log is not None
    assert (B1 in record.log.replicas) == keeps
    assert record.home != B1


def test_home_is_elected_only_when_every_quorum_has_answered_through_some_replica() -> None:
    bench = LogBench(B1, B2, B3)
    record = bench.kept(3, 2)
    home = bench.lose_home(record)
    one, other = (broker for broker in (B1, B2, B3) if broker != home)
    (fence,) = bench.sent(one, FenceTopic)
    assert fence.epoch > record.epoch
    bench.send(one, TopicFenced(T, fence.epoch, 1, 9))
    assert record.home is None
    assert bench.status(record) == "not available: 1 of 2 replicas that are needed have answered"
    bench.send(other, TopicFenced(T, fence.epoch, 1, 12))
    assert record.epoch == fence.epoch
    assert bench.status(record) == f"not available: {other} waits until 2 of 3 replicas follow"


@pytest.mark.parametrize(("one_end", "other_end"), [((4, 9), (2, 12)), ((4, 9), (4, 8))])
def test_later_epoch_wins_over_a_longer_log_of_an_earlier_one(
    one_end: tuple[int, int], other_end: tuple[int, int]
) -> None:
    """A longer tail of an earlier epoch was never committed: the home of the later epoch was elected without it."""
    bench = LogBench(B1, B2, B3)
    record = bench.kept(3, 2)
    home = bench.lose_home(record)
    one, other = (broker for broker in (B1, B2, B3) if broker != home)
    (fence,) = bench.sent(one, FenceTopic)
    bench.send(other, TopicFenced(T, fence.epoch, *other_end))
    bench.send(one, TopicFenced(T, fence.epoch, *one_end))
    assert record.home == one
    opened = bench.sent(one, OpenTopic)[-1]
    assert opened.topic.log is not None
    assert opened.topic.log.least == one_end[1]


def test_answers_to_an_earlier_fence_and_of_other_brokers_do_not_count() -> None:
    bench = LogBench(B1, B2, B3)
    record = bench.kept(2, 2)
    assert record.log is not None
    outsider = next(broker for broker in (B1, B2, B3) if broker not in record.log.replicas)
    home = bench.lose_home(record)
    follower = next(broker for broker in record.log.replicas if broker != home)
    (fence,) = bench.sent(follower, FenceTopic)
    bench.send(outsider, TopicFenced(T, fence.epoch, 9, 99))
    bench.send(follower, TopicFenced(T, fence.epoch - 1, 1, 5))
    assert record.home is None
    bench.send(follower, TopicFenced(T, fence.epoch, 1, 5))
    assert record.home == follower


def test_home_whose_disk_refuses_gives_way_to_another_replica() -> None:
    bench = LogBench(B1, B2, B3)
    record = bench.kept(2, 2)
    home = record.home
    assert home is not None and record.log is not None
    bench.send(home, TopicRefused(T, record.epoch, "No space left on device"))
    assert record.home is None
    assert "No space left on device" in (bench.status(record) or "")
    bench.pass_time(4.0)
    follower = next(broker for broker in record.log.replicas if broker != home)
    election = record.log.election
    assert election is not None
    bench.send(home, TopicFenced(T, election.epoch, 1, 5))
    assert record.home is None
    bench.send(follower, TopicFenced(T, election.epoch, 1, 5))
    assert record.home == follower


def test_home_whose_disk_refuses_is_tried_again_if_no_other_replica_answers() -> None:
    bench = LogBench(B1)
    record = bench.kept(1, 1)
    bench.send(B1, TopicRefused(T, record.epoch, "No space left on device"))
    bench.pass_time(4.0)
    assert record.log is not None and record.log.election is not None
    bench.send(B1, TopicFenced(T, record.log.election.epoch, 1, 5))
    assert record.home == B1


def test_move_copies_the_log_first_and_releases_the_source_last() -> None:
    bench = LogBench(B1, B2, B3)
    record = bench.kept(2, 2)
    source, replicas = record.home, record.log.replicas if record.log is not None else ()
    assert source is not None and record.log is not None
    target = next(broker for broker in (B1, B2, B3) if broker not in replicas)
    follower = next(broker for broker in replicas if broker != source)
    assert bench.order(target) is True
    move = record.move
    assert move is not None
    bench.send(target, TopicPrepared(T, move.epoch))
    assert move.step is TopicMoveStep.COPYING
    address = bench.registry.brokers[target].address
    assert bench.sent(source, CopyTopic) == [CopyTopic(T, record.epoch, Replica(target, address))]
    assert not bench.sent(source, StopTopic)
    bench.send(source, TopicCopied(T, record.epoch, target))
    (stop,) = bench.sent(source, StopTopic)
    assert stop.replicas == [follower, target]
    assert record.log.replicas == replicas
    bench.send(source, TopicStopped(T, record.epoch, TopicState(7, 1)))
    assert (record.home, record.log.replicas, record.log.least) == (target, (follower, target), 7)
    assert not bench.sent(source, ReleaseTopic)
    bench.send(target, TopicOpened(T, record.epoch))
    assert bench.sent(source, ReleaseTopic)[-1].drop_log == record.created


def test_move_to_a_follower_keeps_the_replicas_and_the_source_log() -> None:
    bench = LogBench(B1, B2, B3)
    record = bench.kept(2, 2)
    assert record.log is not None and record.home is not None
    source, replicas = record.home, record.log.replicas
    target = next(broker for broker in replicas if broker != source)
    bench.order(target)
    assert record.move is not None
    bench.send(target, TopicPrepared(T, record.move.epoch))
    bench.send(source, TopicCopied(T, record.epoch, target))
    bench.send(source, TopicStopped(T, record.epoch, TopicState(7, 1)))
    bench.send(target, TopicOpened(T, record.epoch))
    assert (record.home, record.log.replicas) == (target, replicas)
    assert bench.sent(source, ReleaseTopic)[-1].drop_log is None


def test_dead_follower_is_replaced_by_a_move_to_another_broker() -> None:
    bench = LogBench(B1, B2, B3)
    record = bench.kept(2, 2)
    assert record.log is not None and record.home is not None
    source = record.home
    follower = next(broker for broker in record.log.replicas if broker != source)
    spare = next(broker for broker in (B1, B2, B3) if broker not in record.log.replicas)
    bench.live.remove(follower)
    bench.pass_time(bench.core.rules.dead_s + 2.0)
    assert record.move is not None
    assert (record.move.target, record.move.replicas) == (spare, (source, spare))


def test_restarted_coordinator_knows_replicas_and_elects_again() -> None:
    bench = LogBench(B1, B2, B3)
    record = bench.kept(3, 2)
    assert record.log is not None
    stored = bench.store.load()
    assert [(row.topic, row.replicas, row.quorum) for row in stored.topic_logs] == [(T, record.log.replicas, 2)]
    bench.lose_home(record)
    assert bench.store.load().topics[0].home is None


def test_deleted_topic_makes_every_replica_drop_its_log() -> None:
    bench = LogBench(B1, B2, B3)
    record = bench.kept(3, 2)
    assert bench.ask(lambda ask: TopicDeleted(ask, T)) is True
    for broker in (B1, B2, B3):
        (release,) = bench.sent(broker, ReleaseTopic)
        assert (release.deleted, release.drop_log) == (True, record.created)
    assert bench.store.load().topic_logs == ()
