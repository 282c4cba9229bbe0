"""A home with followers and a follower with a home, one message at a time: what counts, and what is refused."""

from __future__ import annotations

import pytest

from tests.broker.topics.home_bench import HomeBench, T
from tocsin.broker.topics import effects, events
from tocsin.broker.topics.events import StreamId
from tocsin.model.ids import BrokerId
from tocsin.sim.network.topic_disk import MemoryLog
from tocsin.wire import topic as wire
from tocsin.wire import topic_link
from tocsin.wire.topic_log import (
    Append,
    Began,
    Begin,
    FromFollower,
    FromHome,
    LogPlan,
    NotStored,
    Piece,
    Replica,
    Stored,
    common_point,
)

B2, B3 = BrokerId("b2"), BrokerId("b3")
HOME = StreamId(1)


class LogBench(HomeBench):
    """Carries out the effects on logs at once, unless `slow`; then `store` carries out the next one."""

    def __init__(self, **limits: int) -> None:
        self.log = MemoryLog()
        self.slow = False
        self.waiting: list[effects.LogEffect] = []
        self.sent: list[tuple[BrokerId, FromHome]] = []
        self.answers: list[FromFollower] = []
        super().__init__(**limits)

    def carry_out(self, effect: effects.Effect) -> None:
        match effect:
            case effects.LogEffect():
                self.waiting.append(effect)
            case effects.SendToReplica(broker, message):
                self.sent.append((broker, message))
            case effects.AnswerHome(_, answer):
                self.answers.append(answer)

    def do(self, event: events.Event) -> None:
        super().do(event)
        while self.waiting and not self.slow:
            self.store()

    def store(self) -> None:
        """Carry out the next effect on the log."""
        effect = self.waiting.pop(0)
        key, log = (effect.topic, effect.created), self.log
        match effect:
            case effects.OpenLog():
                publishers = list(log.publishers.items())
                self.do(events.LogOpened(*key, log.promised, list(log.epochs), log.start, log.end, publishers))
            case effects.AppendToLog(piece=piece):
                log.append(piece)
                self.do(events.LogStored(*key, log.epochs[-1][0], log.end, log.start))
            case effects.AdoptEpoch(epoch=epoch, cut=cut):
                log.adopt(epoch, cut)
                self.do(events.LogAdopted(*key, epoch, log.end))
            case effects.ReadLog(reader=reader, after=after, upto=upto):
                self.do(events.LogRead(*key, reader, log.read(after, upto, 100), log.start))

    def open(self, quorum: int = 2, epoch: int = 5, replicas: tuple[str, ...] = ("b1", "b2", "b3")) -> None:
        plan = LogPlan(1, [Replica(BrokerId(name), f"ws://{name}") for name in replicas], quorum, 1 << 30)
        self.hear(topic_link.OpenTopic(topic_link.OwnedTopic(T, epoch, None, plan)))

    def answer(self, broker: BrokerId, message: FromFollower) -> None:
        self.do(events.ReplicaAnswered(broker, message))

    def follow(self, broker: BrokerId, epoch: int = 5, end: int = 0) -> None:
        """Let a follower connect, and store everything it has been sent."""
        self.do(events.ReplicaConnected(broker))
        self.answer(broker, Began(T, epoch, end))
        self.answer(broker, Stored(T, epoch, epoch, end))

    def opened(self) -> bool:
        return topic_link.TopicOpened(T, 5) in self.reports


def test_home_opens_when_a_quorum_has_begun_its_epoch() -> None:
    bench = LogBench()
    bench.open()
    assert not bench.opened()
    bench.do(events.ReplicaConnected(B2))
    assert isinstance(bench.sent[-1][1], Begin)
    bench.answer(B2, Began(T, 5, 0))
    assert bench.sent[-1] == (B2, Append(T, 5, Piece(5, 1, []), 1))
    assert not bench.opened()
    bench.answer(B2, Stored(T, 5, 5, 0))
    assert bench.opened()


def test_follower_that_stores_earlier_epochs_does_not_count() -> None:
    """A message of an earlier epoch on a quorum of disks is not safe before the home's own epoch has begun there."""
    bench = LogBench()
    bench.log.append(Piece(2, 1, [(9, 1, b"a")]))
    bench.open()
    bench.do(events.ReplicaConnected(B2))
    bench.answer(B2, Began(T, 5, 0))
    assert bench.sent[-1] == (B2, Append(T, 5, Piece(5, 2, []), 1))
    bench.answer(B2, Stored(T, 5, 2, 1))
    assert not bench.opened()
    bench.answer(B2, Stored(T, 5, 5, 1))
    assert bench.opened()


def test_message_is_acknowledged_and_delivered_when_a_quorum_has_stored_it() -> None:
    bench = LogBench()
    bench.open()
    bench.follow(B2)
    sender, receiver = bench.sender(), bench.receiver()
    bench.take(sender)
    bench.take(receiver)
    bench.publish(sender, 1, b"x")
    assert bench.sent[-1] == (B2, Append(T, 5, bench.sent[-1][1].piece, 1))  # type: ignore[union-attr]
    assert bench.take(sender) == bench.take(receiver) == []
    bench.answer(B2, Stored(T, 5, 5, 1))
    assert bench.take(sender) == [wire.Acknowledged(1, 1)]
    assert bench.data(receiver) == [b"x"]


def test_message_on_followers_alone_waits_for_the_home_with_quorum_of_all() -> None:
    bench = LogBench()
    bench.open(quorum=3)
    bench.follow(B2)
    bench.follow(B3)
    sender = bench.sender()
    bench.slow = True
    bench.publish(sender, 1, b"x")
    bench.take(sender)
    bench.answer(B2, Stored(T, 5, 5, 1))
    bench.answer(B3, Stored(T, 5, 5, 1))
    assert bench.take(sender) == []
    bench.store()
    assert bench.take(sender) == [wire.Acknowledged(1, 1)]


def test_sender_that_attaches_again_keeps_messages_that_are_not_committed() -> None:
    bench = LogBench()
    bench.open()
    bench.follow(B2)
    sender = bench.sender()
    bench.publish(sender, 1, b"x")
    again = bench.sender()
    assert bench.last(again) == wire.SenderAttached(2, 1, 1)
    bench.publish(again, 1, b"x")
    bench.answer(B2, Stored(T, 5, 5, 1))
    assert bench.take(again) == [wire.Acknowledged(1, 1)]
    assert bench.log.end == 1


def test_home_refuses_messages_while_too_many_wait_for_replicas() -> None:
    bench = LogBench(topic_uncommitted_bytes=100)
    bench.open()
    bench.follow(B2)
    sender = bench.sender()
    bench.take(sender)
    bench.publish(sender, 1, b"x" * 200)
    bench.publish(sender, 2, b"y")
    refused = bench.last(sender)
    assert isinstance(refused, wire.NotAccepted)
    assert (refused.number, refused.code) == (2, "backlogged")


def test_home_with_a_shorter_log_than_known_refuses() -> None:
    bench = LogBench()
    plan = LogPlan(1, [Replica(BrokerId("b1"), "ws://b1")], 1, 1 << 30, None, 7)
    bench.hear(topic_link.OpenTopic(topic_link.OwnedTopic(T, 5, None, plan)))
    refused = bench.reports[-1]
    assert isinstance(refused, topic_link.TopicRefused)
    assert "was its disk replaced" in refused.message


def test_home_opens_an_epoch_once() -> None:
    bench = LogBench()
    bench.log.append(Piece(5, 1, []))
    bench.open()
    assert isinstance(bench.reports[-1], topic_link.TopicRefused)


def test_failed_disk_of_the_home_gives_the_topic_up() -> None:
    bench = LogBench()
    bench.open(quorum=1, replicas=("b1",))
    sender = bench.sender()
    bench.slow = True
    bench.publish(sender, 1, b"x")
    bench.waiting.clear()
    bench.take(sender)
    bench.do(events.LogFailed(T, 1, "No space left on device"))
    assert topic_link.TopicRefused(T, 5, "No space left on device") in bench.reports
    ended = bench.last(sender)
    assert isinstance(ended, wire.Ended)
    assert ended.message == "No space left on device"


# -- the follower ------------------------------------------------------------------------------------------------------


def copied(bench: LogBench) -> bool:
    return topic_link.TopicCopied(T, 5, B3) in bench.reports


COPY = topic_link.CopyTopic(T, 5, Replica(B3, "ws://b3"))


def test_target_that_is_always_a_message_behind_counts_as_copied() -> None:
    bench = LogBench()
    bench.open(replicas=("b1", "b2"))
    bench.follow(B2)
    bench.hear(COPY)
    bench.do(events.ReplicaConnected(B3))
    bench.answer(B3, Began(T, 5, 0))
    assert not copied(bench)
    sender = bench.sender()
    for number in (1, 2):
        bench.publish(sender, number, b"a")
        bench.answer(B2, Stored(T, 5, 5, number))
        assert not copied(bench), "the present epoch has not begun at the target"
    bench.publish(sender, 3, b"a")
    bench.answer(B2, Stored(T, 5, 5, 3))
    bench.answer(B3, Stored(T, 5, 5, 2))
    assert copied(bench)


def test_copy_that_is_ordered_before_the_log_is_open_begins_later() -> None:
    bench = LogBench()
    bench.slow = True
    bench.open(replicas=("b1", "b2"))
    bench.hear(COPY)
    bench.slow = False
    while bench.waiting:
        bench.store()
    bench.follow(B2)
    bench.follow(B3)
    assert copied(bench)


def following() -> LogBench:
    bench = LogBench()
    bench.hear(topic_link.FollowTopic(T, 1))
    return bench


def begin(bench: LogBench, epoch: int, end: int = 0, epochs: list[tuple[int, int]] | None = None) -> None:
    message = Begin(T, 1, epoch, 1, end, epochs or [(epoch, 1)])
    bench.do(events.HomeMessageReceived(HOME, message))


def test_follower_answers_for_what_is_on_its_disk_only() -> None:
    bench = following()
    begin(bench, 5)
    assert bench.answers == [Began(T, 5, 0)]
    bench.slow = True
    bench.do(events.HomeMessageReceived(HOME, Append(T, 5, Piece(5, 1, [(9, 1, b"a")]), 1)))
    assert len(bench.answers) == 1
    bench.store()
    assert bench.answers[-1] == Stored(T, 5, 5, 1)


def test_broker_that_is_not_named_does_not_follow() -> None:
    bench = LogBench()
    begin(bench, 5)
    assert isinstance(bench.answers[-1], NotStored)


def test_fenced_follower_refuses_homes_of_earlier_epochs() -> None:
    bench = following()
    begin(bench, 5)
    bench.hear(topic_link.FenceTopic(T, 1, 8))
    assert bench.reports[-1] == topic_link.TopicFenced(T, 8, 0, 0)
    bench.do(events.HomeMessageReceived(HOME, Append(T, 5, Piece(5, 1, [(9, 1, b"a")]), 1)))
    assert isinstance(bench.answers[-1], NotStored)
    begin(bench, 7)
    assert isinstance(bench.answers[-1], NotStored)
    assert bench.log.end == 0
    assert bench.log.promised == 8


def test_fence_waits_for_the_disk_and_counts_what_was_under_way() -> None:
    bench = following()
    begin(bench, 5)
    bench.slow = True
    bench.do(events.HomeMessageReceived(HOME, Append(T, 5, Piece(5, 1, [(9, 1, b"a")]), 1)))
    bench.hear(topic_link.FenceTopic(T, 1, 8))
    fenced = [report for report in bench.reports if isinstance(report, topic_link.TopicFenced)]
    assert not fenced
    while bench.waiting:
        bench.store()
    assert bench.reports[-1] == topic_link.TopicFenced(T, 8, 5, 1)


def test_follower_cuts_off_what_the_home_does_not_have() -> None:
    bench = following()
    bench.log.append(Piece(2, 1, [(9, 1, b"a"), (9, 2, b"b")]))
    bench.log.append(Piece(3, 3, [(9, 3, b"never committed")]))
    begin(bench, 5, end=2, epochs=[(2, 1), (5, 3)])
    assert bench.answers == [Began(T, 5, 2, 2)]
    assert (bench.log.end, bench.log.epochs) == (2, [(2, 1)])


@pytest.mark.parametrize(
    ("mine", "end", "homes", "home_end", "common"),
    [
        ([], 0, [(1, 1)], 5, (0, 0)),
        ([(1, 1)], 3, [(1, 1)], 5, (1, 3)),
        ([(1, 1)], 7, [(1, 1), (4, 6)], 9, (1, 5)),
        ([(1, 1), (3, 6)], 8, [(1, 1), (4, 6)], 9, (1, 5)),
        ([(1, 1), (3, 4)], 8, [(1, 1), (4, 6)], 9, (1, 3)),
        ([(1, 1), (4, 6)], 9, [(1, 1), (4, 6), (6, 8)], 12, (4, 7)),
        ([(2, 1)], 4, [(3, 1)], 4, (0, 0)),
    ],
)
def test_logs_are_equal_up_to_their_highest_common_epoch(
    mine: list[tuple[int, int]], end: int, homes: list[tuple[int, int]], home_end: int, common: tuple[int, int]
) -> None:
    assert common_point(mine, end, homes, home_end) == common
