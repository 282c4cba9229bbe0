"""One direction of a delayed connection: due times, order, parts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tocsin.runtime.stack.delayed_bytes import DelayedBytes


def test_chunk_is_due_after_its_delay() -> None:
    line = DelayedBytes()
    assert line.add(b"a", 1.0, 0.5) == 1.5
    assert line.due(1.4) is None and line.next_due_s == 1.5
    assert line.due(1.5) == (1.5, b"a")


def test_shorter_delay_does_not_overtake_earlier_chunks() -> None:
    line = DelayedBytes()
    line.add(b"a", 1.0, 0.5)
    assert line.add(b"b", 1.1, 0.1) == 1.5, "the chunk waits for the earlier one"
    assert line.add(b"c", 1.6, 0.1) == 1.6 + 0.1


def test_chunk_that_was_sent_in_part_keeps_its_due_time() -> None:
    line = DelayedBytes()
    line.add(b"abc", 1.0, 0.5)
    line.sent(2)
    assert line.due(2.0) == (1.5, b"c") and line.waiting_bytes == 1
    line.sent(1)
    assert line.due(2.0) is None and line.next_due_s is None and line.waiting_bytes == 0


def test_first_chunk_waits_for_the_handshake() -> None:
    line = DelayedBytes(not_before_s=3.0)
    assert line.add(b"a", 1.0, 0.5) == 3.0


@given(st.lists(st.tuples(st.binary(max_size=9), st.floats(0, 1), st.floats(0, 1)), max_size=30))
def test_bytes_arrive_complete_in_order_and_never_early(steps: list[tuple[bytes, float, float]]) -> None:
    line, now_s, received, earliest = DelayedBytes(), 0.0, b"", []
    for data, pause_s, delay_s in steps:
        now_s += pause_s
        line.add(data, now_s, delay_s)
        earliest.append(now_s + delay_s)
    for due_s in earliest:
        found = line.due(now_s + 2.0)
        assert found is not None and found[0] >= due_s
        received += found[1]
        line.sent(len(found[1]))
    assert received == b"".join(data for data, _, _ in steps)
