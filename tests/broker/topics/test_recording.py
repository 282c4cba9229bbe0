"""A home that records messages into a dataset, with a data cluster that answers one request at a time."""

from __future__ import annotations

import pytest

from tests.broker.topics.home_bench import HomeBench, T
from tests.broker.topics.test_replication import LogBench
from tocsin.broker.topics import effects, events
from tocsin.broker.topics.events import ConnectionId, StreamId
from tocsin.model.ids import BrokerId, DatasetName
from tocsin.wire import topic as wire
from tocsin.wire import topic_link
from tocsin.wire.topic_envelope import MessageProperties, wrapped
from tocsin.wire.topic_log import LogPlan, Piece, Replica

PLAN = topic_link.RecordPlan(DatasetName("Readings"), "r1", 1)


class DataCluster:
    """Stores batches as the data cluster does: by cursor, or by key."""

    def __init__(self) -> None:
        self.cursor = 0
        self.keys: set[str] = set()
        self.stored: list[bytes] = []
        self.poison: bytes | None = None
        """A batch with this message is refused as a whole."""

    def answer(self, request: effects.StoreRecords | effects.AskRecorded) -> events.Event:
        number = request.recorder
        if isinstance(request, effects.AskRecorded):
            return events.RecordedUpto(number, self.cursor)
        data = [message for _, message in request.messages]
        if request.after is not None and request.after != self.cursor:
            return events.RecordedUpto(number, self.cursor)
        if self.poison in data:
            return events.RecordsRefused(number, "too large")
        if request.key is None or request.key not in self.keys:
            self.stored += data
            self.cursor = request.upto or self.cursor
            self.keys |= {request.key} - {None}  # type: ignore[arg-type]
        return events.RecordsStored(number)


class RecordingBench(LogBench):
    def __init__(self, cluster: DataCluster | None = None, **limits: int) -> None:
        self.requests: list[effects.StoreRecords | effects.AskRecorded] = []
        self.cluster = cluster or DataCluster()
        super().__init__(**limits)

    def carry_out(self, effect: effects.Effect) -> None:
        if isinstance(effect, effects.StoreRecords | effects.AskRecorded):
            self.requests.append(effect)
        else:
            super().carry_out(effect)

    def own(self, epoch: int = 1, state: topic_link.TopicState | None = None) -> None:
        self.hear(topic_link.OpenTopic(topic_link.OwnedTopic(T, epoch, state, None, PLAN)))

    def own_log(self, epoch: int = 1) -> None:
        plan = LogPlan(1, [Replica(BrokerId("b1"), "ws://b1")], 1, 1 << 30)
        self.hear(topic_link.OpenTopic(topic_link.OwnedTopic(T, epoch, None, plan, PLAN)))

    def answer(self) -> None:  # type: ignore[override]
        """Let the data cluster answer the oldest request."""
        self.do(self.cluster.answer(self.requests.pop(0)))

    def fail(self) -> None:
        """The oldest request gets no answer in time."""
        self.do(events.RecordsFailed(self.requests.pop(0).recorder, "timed out"))

    def settle(self) -> None:
        """Let time pass until everything is recorded."""
        for _ in range(100):
            self.pass_time(0.1)
            self.renew()
            while self.requests:
                self.answer()

    def send(self, sender: ConnectionId, number: int, *messages: bytes) -> None:
        self.publish(sender, number, *messages)

    @property
    def figures(self) -> tuple[int, int, int]:
        figures = self.core.recording.figures
        return figures.recorded, figures.refused, figures.missed


def numbered(first: int, last: int) -> list[bytes]:
    return [str(number).encode() for number in range(first, last + 1)]


def test_volatile_messages_are_collected_into_one_request() -> None:
    bench = RecordingBench()
    bench.own()
    sender = bench.sender()
    bench.pass_time(0.1)
    bench.send(sender, 1, *numbered(1, 3))
    bench.pass_time(0.1)
    (request,) = bench.requests
    assert isinstance(request, effects.StoreRecords)
    assert request.messages == [("1-1", b"1"), ("1-2", b"2"), ("1-3", b"3")]
    assert (request.after, request.upto, request.key) == (None, None, "r1:1-1:1-3")
    bench.settle()
    assert bench.cluster.stored == numbered(1, 3)


def test_properties_of_an_mqtt_message_are_not_recorded() -> None:
    bench = RecordingBench()
    bench.own()
    message = wrapped(b'{"n": 1}', MessageProperties(qos=1))
    assert message is not None
    bench.send(bench.sender(), 1, message)
    bench.settle()
    assert bench.cluster.stored == [b'{"n": 1}']


def test_topic_without_a_dataset_records_nothing() -> None:
    bench = RecordingBench()
    bench.hear(topic_link.OpenTopic(topic_link.OwnedTopic(T, 1)))
    bench.send(bench.sender(), 1, b"x")
    bench.settle()
    assert bench.cluster.stored == []


def test_failed_volatile_batch_is_repeated_with_the_same_key() -> None:
    bench = RecordingBench()
    bench.own()
    sender = bench.sender()
    bench.send(sender, 1, b"1")
    bench.pass_time(0.2)
    (first,) = bench.requests
    bench.cluster.answer(first)  # stored, and the answer is lost
    bench.fail()
    bench.send(sender, 2, b"2")
    bench.settle()
    assert bench.cluster.stored == [b"1", b"2"]


def test_volatile_topic_keeps_a_bounded_part_while_the_data_cluster_is_away() -> None:
    bench = RecordingBench(topic_unrecorded_bytes=10)
    bench.own()
    sender = bench.sender()
    bench.send(sender, 1, b"first")
    bench.pass_time(0.2)
    bench.send(sender, 2, b"aaaaa", b"bbbbb", b"ccccc", b"ddddd")
    assert bench.figures[2] == 2
    bench.settle()
    assert bench.cluster.stored == [b"first", b"ccccc", b"ddddd"]


def test_former_home_of_a_volatile_topic_sends_what_it_accepted() -> None:
    bench = RecordingBench()
    bench.own()
    bench.send(bench.sender(), 1, b"1")
    bench.pass_time(0.2)
    bench.fail()
    bench.hear(topic_link.ReleaseTopic(T, 1))
    bench.settle()
    assert bench.cluster.stored == [b"1"]
    for _ in range(700):
        bench.pass_time(0.1)
    assert bench.requests == []


def test_both_homes_of_a_direct_hand_over_record_what_they_accepted() -> None:
    cluster = DataCluster()
    source, target = RecordingBench(cluster), RecordingBench(cluster)
    source.own()
    sender = source.sender()
    source.send(sender, 1, b"1")
    target.hear(topic_link.PrepareTopic(T, 2, record=PLAN))
    target.send(target.sender(number=2), 2, b"2")
    target.settle()
    assert cluster.stored == [], "the target is not the home yet"
    source.hear(topic_link.StopTopic(T, 1, BrokerId("b2"), "ws://b2", target_epoch=2, wait_s=3.0))
    source.do(events.ReplicaConnected(BrokerId("b2")))
    source.ask(sender, wire.Ready(1))
    [(_, handed)] = source.sent
    target.do(events.HomeMessageReceived(StreamId(1), handed))
    source.hear(topic_link.ReleaseTopic(T, 1))
    for bench in (target, source):
        bench.settle()
    assert sorted(cluster.stored) == [b"1", b"2"]
    assert target.core.recording.figures.breaks == 0


def test_former_home_gives_up_after_a_minute_and_counts() -> None:
    bench = RecordingBench()
    bench.own()
    bench.send(bench.sender(), 1, b"1")
    bench.hear(topic_link.ReleaseTopic(T, 1))
    for _ in range(700):
        bench.pass_time(0.1)
        if bench.requests:
            bench.fail()
    assert (bench.figures, bench.requests) == ((0, 0, 1), [])


def test_new_home_of_a_volatile_topic_counts_the_break() -> None:
    bench = RecordingBench()
    bench.own(epoch=4)
    assert bench.core.recording.figures.breaks == 1
    moved = RecordingBench()
    moved.own(epoch=4, state=topic_link.TopicState(9, 1))
    created = RecordingBench()
    created.own(epoch=1)
    assert moved.core.recording.figures.breaks == created.core.recording.figures.breaks == 0


def test_persistent_topic_is_recorded_from_its_log_behind_the_cursor() -> None:
    bench = RecordingBench()
    bench.log.append(Piece(1, 1, [(9, number, data) for number, data in enumerate(numbered(1, 5), 1)]))
    bench.cluster.cursor = 3
    bench.own_log(epoch=2)
    bench.settle()
    assert (bench.cluster.stored, bench.cluster.cursor) == (numbered(4, 5), 5)
    bench.send(bench.sender(), 1, b"6")
    bench.settle()
    assert (bench.cluster.stored, bench.cluster.cursor) == (numbered(4, 6), 6)


def test_persistent_topic_asks_for_the_cursor_after_a_lost_answer() -> None:
    bench = RecordingBench()
    bench.own_log()
    sender = bench.sender()
    bench.settle()
    bench.send(sender, 1, b"1")
    bench.pass_time(0.2)
    bench.cluster.answer(bench.requests[0])
    bench.fail()
    bench.send(sender, 2, b"2")
    bench.settle()
    assert bench.cluster.stored == [b"1", b"2"]


def test_two_homes_of_a_persistent_topic_record_each_message_once() -> None:
    """The former home does not know yet that it is none, and its request arrives late."""
    cluster = DataCluster()
    old, new = RecordingBench(cluster), RecordingBench(cluster)
    old.own_log()
    old.settle()
    old.send(old.sender(), 1, *numbered(1, 3))
    old.pass_time(0.2)
    assert len(old.requests) == 1
    new.log = old.log
    new.own_log(epoch=2)
    new.settle()
    old.answer()
    old.settle()
    assert cluster.stored == numbered(1, 3)


def test_persistent_topic_waits_for_the_data_cluster_and_loses_nothing() -> None:
    bench = RecordingBench(topic_unrecorded_bytes=1, topic_record_bytes=50)
    bench.own_log()
    sender = bench.sender()
    for number in range(1, 101):
        bench.send(sender, number, str(number).encode())
        bench.pass_time(0.1)
        bench.renew()
        if bench.requests:
            bench.fail()
    bench.settle()
    assert bench.cluster.stored == numbered(1, 100)
    assert bench.figures[2] == 0


def test_retention_that_outruns_the_recording_is_counted() -> None:
    bench = RecordingBench()
    bench.log.append(Piece(1, 1, [(9, number, data) for number, data in enumerate(numbered(1, 5), 1)]))
    bench.log.trim(4)
    bench.own_log(epoch=2)
    bench.settle()
    assert bench.cluster.cursor == 5
    assert bench.figures[2] == bench.log.start - 1


@pytest.mark.parametrize("is_persistent", [False, True])
def test_message_that_the_data_cluster_cannot_take_is_left_out(is_persistent: bool) -> None:
    bench = RecordingBench()
    bench.cluster.poison = b"7"
    bench.own_log() if is_persistent else bench.own()
    sender = bench.sender()
    bench.send(sender, 1, *numbered(1, 20))
    bench.settle()
    bench.send(sender, 21, b"21")
    bench.settle()
    assert bench.cluster.stored == [data for data in numbered(1, 21) if data != b"7"]
    assert bench.figures[1] == 1


def test_stopping_broker_sends_what_volatile_topics_have() -> None:
    bench: HomeBench = RecordingBench()
    assert isinstance(bench, RecordingBench)
    bench.own()
    sender = bench.sender()
    bench.pass_time(0.05)
    bench.send(sender, 1, b"1")
    bench.do(events.StopRequested())
    assert [type(request) for request in bench.requests] == [effects.StoreRecords]
