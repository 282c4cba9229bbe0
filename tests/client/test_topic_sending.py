"""What a client publishes to one topic: numbers, resending and refusals."""

from __future__ import annotations

from tocsin.client.topic_events import Settle
from tocsin.client.topic_sending import SenderState
from tocsin.model.ids import TopicName
from tocsin.wire import topic as wire

T = TopicName("a/b")


def sender(*messages: bytes) -> SenderState:
    state = SenderState(T)
    state.queued.extend(enumerate(messages, 101))
    return state


def frames(state: SenderState, now_s: float = 0.0, message_bytes: int = 100, frame_bytes: int = 10_000) -> list[object]:
    return list(state.batches(5, message_bytes, frame_bytes, now_s))


def test_queued_messages_travel_in_one_frame_with_consecutive_numbers() -> None:
    state = sender(b"a", b"b", b"c")
    assert frames(state) == [wire.Publish(5, 1, [b"a", b"b", b"c"])]
    assert frames(state) == []
    assert list(state.acknowledged(2)) == [Settle(101), Settle(102)]
    assert state.first_number == 3


def test_frames_respect_the_limit_of_the_home() -> None:
    state = sender(*(bytes([number]) * 50 for number in range(5)))
    assert [frame.number for frame in frames(state, frame_bytes=300) if isinstance(frame, wire.Publish)] == [1, 3, 5]


def test_too_large_message_takes_no_number() -> None:
    state = sender(b"a", b"x" * 200, b"b")
    settled, frame = frames(state)
    assert isinstance(settled, Settle)
    assert (settled.ticket, settled.code) == (102, "too_large")
    assert frame == wire.Publish(5, 1, [b"a", b"b"])


def test_new_home_gets_everything_that_was_not_acknowledged() -> None:
    state = sender(b"a", b"b", b"c")
    frames(state)
    list(state.acknowledged(1))
    assert list(state.attached(2)) == []
    assert frames(state) == [wire.Publish(5, 2, [b"b", b"c"])]


def test_home_that_knows_more_numbers_settles_them_at_the_attach() -> None:
    state = sender(b"a", b"b", b"c")
    frames(state)
    assert list(state.attached(3)) == [Settle(101), Settle(102)]
    assert frames(state) == [wire.Publish(5, 3, [b"c"])]


def test_refusal_that_allows_a_retry_pauses_and_resends_from_there() -> None:
    state = sender(b"a", b"b", b"c")
    frames(state)
    assert list(state.refused(wire.NotAccepted(5, 2, "backlogged", "slow down", 1.0), 10.0)) == []
    assert frames(state, 10.5) == []
    assert frames(state, 11.0) == [wire.Publish(5, 2, [b"b", b"c"])]


def test_message_dropped_by_a_home_is_skipped_at_the_next_home() -> None:
    state = sender(b"a", b"b", b"c")
    frames(state)
    (settled,) = state.refused(wire.NotAccepted(5, 2, "too_large", "no"), 0.0)
    assert (settled.ticket, settled.code) == (102, "too_large")
    state.restart()
    assert frames(state) == [wire.Publish(5, 1, [b"a"])]
    list(state.acknowledged(1))
    assert state.must_attach
    state.restart()
    assert state.first_number == 3
    assert frames(state) == [wire.Publish(5, 3, [b"c"])]


def test_home_that_dropped_a_message_goes_on_with_the_next_one() -> None:
    state = sender(b"a")
    frames(state)
    list(state.refused(wire.NotAccepted(5, 1, "limited", "no"), 0.0))
    assert not state.must_attach
    state.queued.append((102, b"b"))
    assert frames(state) == [wire.Publish(5, 2, [b"b"])]
    assert list(state.acknowledged(2)) == [Settle(102)]


def test_failure_settles_every_message() -> None:
    state = sender(b"a", b"b")
    frames(state)
    state.queued.append((103, b"c"))
    assert [settle.ticket for settle in state.fail_all("forbidden", "no")] == [101, 102, 103]
    assert state.idle
