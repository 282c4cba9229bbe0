"""The queue of a slow receiver: bounded, in order, the least useful messages dropped first."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tocsin.broker.topics.useful_queue import OVERHEAD_BYTES, QueuedMessage, UsefulQueue


def message(sequence: int, size_bytes: int) -> QueuedMessage:
    return QueuedMessage(sequence, 1, (7, sequence, bytes(size_bytes - OVERHEAD_BYTES)))


def fill(*utilities: float, size_bytes: int = 100) -> UsefulQueue:
    queue = UsefulQueue()
    for sequence, utility in enumerate(utilities, 1):
        queue.put(message(sequence, size_bytes), utility)
    return queue


def taken(queue: UsefulQueue) -> list[int]:
    return [queued.sequence for queued in queue.take(1 << 30)]


def test_least_useful_messages_are_dropped_and_the_rest_stays_in_order() -> None:
    queue = fill(0.5, 0.1, 0.9, 0.2, 0.6)
    queue.shrink(300)
    assert queue.used_bytes == 300
    assert taken(queue) == [1, 3, 5]
    assert (len(queue), queue.used_bytes) == (0, 0)


def test_oldest_of_equally_useful_messages_is_dropped() -> None:
    queue = fill(0.5, 0.5, 0.5)
    queue.shrink(200)
    assert taken(queue) == [2, 3]


def test_one_message_stays_whatever_its_size() -> None:
    queue = fill(0.9, 0.1)
    queue.shrink(10)
    assert taken(queue) == [1]
    queue.shrink(0)
    assert taken(queue) == []


def test_expired_messages_are_dropped_whatever_their_utility() -> None:
    queue = fill(1.0, 0.0, 1.0, 0.0)
    queue.expire(2)
    assert taken(queue) == [3, 4]


def test_piece_ends_with_the_message_that_reaches_the_limit() -> None:
    queue = fill(0.3, 0.1, 0.2)
    assert [queued.sequence for queued in queue.take(101)] == [1, 2]
    assert [queued.sequence for queued in queue.take(1)] == [3]


@settings(max_examples=200)
@given(st.integers(1, 8), st.lists(st.one_of(st.none(), st.integers(0, 20)), max_size=80))
def test_queue_delivers_at_least_the_utility_of_dropping_the_oldest(room: int, steps: list[int | None]) -> None:
    """`None` sends the first message; a number is a new message with that many twentieths of utility."""
    useful, oldest = UsefulQueue(), list[int]()
    utilities: dict[int, int] = {}
    sent: dict[str, list[int]] = {"useful": [], "oldest": []}
    for sequence, utility in enumerate([*steps, *[None] * room], 1):
        if utility is None:
            sent["useful"] += [queued.sequence for queued in useful.take(1)]
            sent["oldest"] += [oldest.pop(0)] if oldest else []
            continue
        utilities[sequence] = utility
        useful.put(message(sequence, 100), utility / 20)
        useful.shrink(room * 100)
        oldest = [*oldest, sequence][-room:]
        assert useful.used_bytes <= room * 100
    assert sent["useful"] == sorted(sent["useful"])
    assert len(useful) == len(oldest) == 0
    totals = {name: sum(utilities[sequence] for sequence in sequences) for name, sequences in sent.items()}
    assert totals["useful"] >= totals["oldest"]
