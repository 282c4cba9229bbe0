"""Slow receivers that rate messages: the least useful are skipped, a gap reports them, and order is kept."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.broker.topics.home_bench import HomeBench, T
from tests.broker.topics.test_relaying import EdgeBench
from tests.broker.topics.test_replication import LogBench
from tocsin.broker.topics import effects, events
from tocsin.broker.topics.events import ConnectionId
from tocsin.broker.topics.useful_queue import OVERHEAD_BYTES
from tocsin.model.topic import publisher_id
from tocsin.wire import topic as wire

GOOD, POOR = publisher_id("good", 7), publisher_id("poor", 7)
SIZE = 100
"""Bytes of a message, with its overhead in the queue."""


class SlowBench(HomeBench):
    """Two publishers; `slow` rates the first one 1.0 and the second one 0.1."""

    def __init__(self, room: int = 1_000, *, tolerates_s: float | None = None, may_skip: bool = True, **limits: int):
        super().__init__(T, topic_queue_bytes=room * SIZE, **limits)
        self.good, self.poor = self.sender(user="good"), self.sender(user="poor")
        self.numbers = {self.good: 0, self.poor: 0}
        self.slow = self.receiver()
        for sender in (self.good, self.poor):
            self.send(sender)
        at = self.core.state.topics[T].at
        self.ask(self.slow, wire.Feedback(at, {GOOD: 1.0, POOR: 0.1}, may_skip, tolerates_s))
        self.take(self.slow)

    def send(self, sender: ConnectionId, times: int = 1) -> None:
        for _ in range(times):
            self.numbers[sender] += 1
            self.publish(sender, self.numbers[sender], bytes(SIZE - OVERHEAD_BYTES))

    def block(self) -> None:
        self.do(events.ConnectionBlocked(self.slow))

    def drain(self) -> list[tuple[str, int, int]]:
        """Drain the connection once; what the receiver gets: (publisher or gap, first, last)."""
        self.do(events.ConnectionDrained(self.slow))
        return self.pieces()

    def pieces(self) -> list[tuple[str, int, int]]:
        got: list[tuple[str, int, int]] = []
        for message in self.take(self.slow):
            if isinstance(message, wire.Gap):
                got.append(("gap", message.first, message.last))
            elif isinstance(message, wire.Messages):
                for sequence, (publisher, _, _) in enumerate(message.messages, message.sequence):
                    got.append(("good" if publisher == GOOD else "poor", sequence, sequence))
        return got


def test_slow_receiver_skips_messages_of_the_publisher_that_it_rates_lowest() -> None:
    bench = SlowBench(room=3)
    bench.block()
    for sender in (bench.poor, bench.good, bench.poor, bench.good, bench.poor, bench.good):
        bench.send(sender)
    assert bench.drain() == [
        ("gap", 3, 3),
        ("good", 4, 4),
        ("gap", 5, 5),
        ("good", 6, 6),
        ("gap", 7, 7),
        ("good", 8, 8),
    ]
    assert bench.core.state.missed == 3
    bench.send(bench.poor)
    assert bench.pieces() == [("poor", 9, 9)], "the receiver is live again, and skips nothing"


def test_gap_covers_skipped_messages_behind_the_last_one_that_was_sent() -> None:
    bench = SlowBench(room=2)
    bench.block()
    bench.send(bench.good, 2)
    bench.send(bench.poor, 2)
    assert bench.drain() == [("good", 3, 3), ("good", 4, 4), ("gap", 5, 6)]


def test_useful_messages_are_kept_although_the_topic_forgets_them() -> None:
    bench = SlowBench(room=3, topic_recent_bytes=3 * SIZE)
    bench.block()
    bench.send(bench.good, 2)
    bench.pass_time(0.1)
    bench.send(bench.poor, 20)
    bench.pass_time(0.1)
    assert bench.drain() == [("good", 3, 3), ("good", 4, 4), ("gap", 5, 23), ("poor", 24, 24)]


def test_receiver_that_does_not_permit_skipping_gets_everything_that_is_kept() -> None:
    bench = SlowBench(room=1, may_skip=False)
    bench.block()
    bench.send(bench.poor, 5)
    assert [name for name, *_ in bench.drain()] == ["poor"] * 5


def test_receiver_that_keeps_up_or_resumes_skips_nothing() -> None:
    bench = SlowBench(room=1)
    bench.send(bench.poor, 5)
    assert [name for name, *_ in bench.pieces()] == ["poor"] * 5
    bench.ask(bench.slow, wire.AttachReceiver(9, T, (1, 2)))
    assert [name for name, *_ in bench.pieces()] == ["poor"] * 5


def test_messages_past_the_tolerated_delay_are_skipped_first() -> None:
    bench = SlowBench(tolerates_s=1.0)
    bench.block()
    bench.send(bench.good, 2)
    bench.pass_time(0.1)
    for _ in range(12):
        bench.pass_time(0.1)
    bench.send(bench.poor)
    assert bench.drain() == [("gap", 3, 4), ("poor", 5, 5)]


def test_queue_holds_no_more_than_the_connection_takes_within_the_delay() -> None:
    """Ten messages arrive and two leave in each tenth of a second: of five with use, the receiver gets two in time."""
    bench = SlowBench(tolerates_s=0.5)
    bench.core.state.piece_bytes = 2 * SIZE
    bench.block()
    for _ in range(20):
        for _ in range(5):
            bench.send(bench.poor)
            bench.send(bench.good)
        bench.pass_time(0.1)
        bench.drain()
    got = []
    for _ in range(20):
        for _ in range(5):
            bench.send(bench.poor)
            bench.send(bench.good)
        bench.pass_time(0.1)
        got += [name for name, *_ in bench.drain()]
    assert got.count("good") >= 35
    assert got.count("poor") == 0


def test_queues_of_all_receivers_together_hold_no_more_than_recent_messages_may() -> None:
    bench = SlowBench(room=100, topic_recent_bytes=120 * SIZE)
    bench.block()
    others = [bench.receiver() for _ in range(3)]
    bench.send(bench.good)
    for other in others:
        bench.ask(other, wire.Feedback(bench.core.state.topics[T].at, {GOOD: 1.0}, True))
        bench.do(events.ConnectionBlocked(other))
    bench.take(others[0])
    bench.send(bench.good, 100)
    bench.pass_time(0.1)
    bench.do(events.ConnectionDrained(others[0]))
    got = [message for message in bench.take(others[0]) if isinstance(message, wire.Messages)]
    assert sum(len(message.messages) for message in got) == 30


def test_slow_receiver_that_is_lost_or_detaches_leaves_nothing_behind() -> None:
    bench = SlowBench()
    slow = bench.core._delivery.slow
    bench.block()
    assert len(slow) == 1
    bench.ask(bench.slow, wire.Detach(5, bench.core.state.topics[T].at))
    assert len(slow) == 0
    other = SlowBench()
    other.block()
    other.do(events.ConnectionLost(other.slow))
    other.pass_time(0.1)
    assert len(other.core._delivery.slow) == 0


Step = st.sampled_from(["good", "poor", "poor", "block", "drain", "tick"])


@settings(max_examples=150, deadline=None)
@given(
    st.lists(Step, max_size=120),
    st.integers(1, 10),
    st.integers(3, 40),
    st.one_of(st.none(), st.floats(0.1, 2.0)),
    st.integers(1, 5),
)
def test_each_message_is_delivered_once_in_order_or_covered_by_one_gap(
    steps: list[str], room: int, recent: int, tolerates_s: float | None, piece: int
) -> None:
    bench = SlowBench(room, tolerates_s=tolerates_s, topic_recent_bytes=recent * SIZE)
    bench.core.state.piece_bytes = piece * SIZE
    got: list[tuple[str, int, int]] = []
    for step in steps:
        match step:
            case "good":
                bench.send(bench.good)
            case "poor":
                bench.send(bench.poor)
            case "block":
                bench.block()
            case "drain":
                bench.do(events.ConnectionDrained(bench.slow))
            case "tick":
                bench.pass_time(0.1)
        got += bench.pieces()
    for _ in range(200):
        got += bench.drain()
    last = 2
    for _name, first, upto in got:
        assert first == last + 1, "no hole, no repeat"
        assert upto >= first
        last = upto
    assert last == bench.core.state.topics[T].sequence
    assert not bench.core.state.topics[T].lagging
    assert len(bench.core._delivery.slow) == 0


def test_feedback_without_the_permission_ends_skipping() -> None:
    bench = SlowBench(room=1)
    bench.ask(bench.slow, wire.Feedback(bench.core.state.topics[T].at, {GOOD: 1.0}))
    bench.block()
    bench.send(bench.poor, 5)
    assert [name for name, *_ in bench.drain()] == ["poor"] * 5


class PersistentBench(LogBench):
    """A persistent topic of one replica, and a receiver whose client permits skipping nevertheless."""

    def __init__(self, **limits: int) -> None:
        super().__init__(**limits)
        self.open(quorum=1, replicas=("b1",))
        self.publisher, self.reader = self.sender(), self.receiver()
        self.publish(self.publisher, 1, b"rated")
        at, poor = self.core.state.topics[T].at, publisher_id("ann", 7)
        self.ask(self.reader, wire.Feedback(at, {poor: 0.0}, True, 0.1))
        assert self.core.rating.rejected == 0


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(["send", "send", "block", "drain", "tick"]), max_size=60), st.integers(1, 40))
def test_slow_receiver_of_a_persistent_topic_gets_every_message(steps: list[str], recent: int) -> None:
    bench = PersistentBench(topic_queue_bytes=SIZE, topic_recent_bytes=recent * SIZE)
    number = 1
    for step in [*steps, *["drain"] * 100]:
        match step:
            case "send":
                number += 1
                bench.publish(bench.publisher, number, bytes(SIZE))
            case "block":
                bench.do(events.ConnectionBlocked(bench.reader))
            case "drain":
                bench.do(events.ConnectionDrained(bench.reader))
            case "tick":
                bench.pass_time(0.5)
    assert len(bench.data(bench.reader)) == number, "no gap, nothing skipped"


def test_slow_receiver_at_an_edge_skips_what_the_edge_does_not_keep() -> None:
    """The receiver gets a gap and fetches nothing from the home: what it skipped was of least use."""
    bench = EdgeBench(topic_queue_bytes=2 * SIZE, topic_recent_bytes=4 * SIZE)
    receiver = bench.relay(b"rated")
    ratings = {9: 0.2, 8: 0.9}
    bench.do(events.RelayReceived(T, 1, 2, [(8, 1, b"rated")]))
    bench.ask(receiver, wire.Feedback(bench.core.relaying.topics[T].at, ratings, True))
    bench.take(receiver)
    bench.do(events.ConnectionBlocked(receiver))
    bench.do(events.RelayReceived(T, 1, 3, [(8, 2, bytes(SIZE - OVERHEAD_BYTES))]))
    for first in range(4, 24):
        bench.pass_time(0.1)
        bench.pass_on(first, bytes(SIZE - OVERHEAD_BYTES))
    bench.do(events.ConnectionDrained(receiver))
    bench.pass_time(0.1)
    got = [message for message in bench.take(receiver) if not isinstance(message, wire.Beat)]
    assert [type(message).__name__ for message in got] == ["Messages", "Gap", "Messages"]
    assert isinstance(got[1], wire.Gap) and (got[1].first, got[1].last) == (4, 22)
    assert bench.taken(effects.FetchOlder) == []
    bench.pass_on(24, b"live again")
    assert bench.data(receiver) == [b"live again"]
