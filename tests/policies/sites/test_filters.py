"""The publisher's token bucket and the slow subscriber's queue."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tocsin.model.rate_limit import RateLimit
from tocsin.policies.sites.filters import UsefulQueue


def admitted(limit: RateLimit, times_s: list[float]) -> int:
    count = 0
    for at_s in times_s:
        allowed, limit = limit.admit(at_s)
        count += allowed
    return count


def test_bucket_admits_its_rate_and_no_more() -> None:
    times = [n / 100 for n in range(1_000)]
    assert admitted(RateLimit.of(10.0, 0.0), times) == pytest.approx(109, abs=1), "ten at once, then ten a second"


def test_rate_zero_stops_and_infinite_rate_does_not_limit() -> None:
    times = [n / 10 for n in range(100)]
    assert admitted(RateLimit.of(0.0, 0.0), times) == 0
    assert admitted(RateLimit(), times) == 100
    with pytest.raises(ValueError, match="at least 0"):
        RateLimit.of(math.nan, 0.0)


def test_rate_below_one_admits_a_message_in_the_end() -> None:
    assert admitted(RateLimit.of(0.1, 0.0), [float(n) for n in range(101)]) == 11


def test_clock_that_steps_back_adds_no_tokens() -> None:
    _, limit = RateLimit.of(1.0, 10.0).admit(10.0)
    allowed, limit = limit.admit(0.0)
    assert not allowed
    allowed, _ = limit.admit(10.5)
    assert not allowed, "half a token since 10 s"
    assert limit.admit(11.0)[0]


def test_changed_limit_grants_no_burst() -> None:
    limit = RateLimit.of(2.0, 0.0)
    for _ in range(2):
        _, limit = limit.admit(0.0)
    assert limit.limited_to(1_000.0, 0.0).admit(0.0)[0] is False
    assert RateLimit.of(1_000.0, 0.0).limited_to(2.0, 0.0).tokens == 2.0
    assert limit.limited_to(math.inf, 0.0).admit(0.0)[0]


@settings(max_examples=100)
@given(
    st.floats(0.0, 50.0),
    st.lists(st.floats(0.0, 3.0), max_size=200),
)
def test_no_window_admits_more_than_its_rate_and_one_burst(rate: float, gaps: list[float]) -> None:
    limit, at_s, passed = RateLimit.of(rate, 0.0), 0.0, []
    for gap in gaps:
        at_s += gap
        allowed, limit = limit.admit(at_s)
        if allowed:
            passed.append(at_s)
    for first in range(len(passed)):
        for last in range(first, len(passed)):
            assert last - first + 1 <= limit.burst + rate * (passed[last] - passed[first]) + 1e-6


def test_least_useful_message_is_dropped_and_the_rest_stays_in_order() -> None:
    queue: UsefulQueue[str] = UsefulQueue(room_bytes=30)
    for name, utility in (("a", 0.5), ("b", 0.1), ("c", 0.9)):
        assert queue.put(name, utility, 10) == []
    assert queue.put("d", 0.6, 10) == ["b"]
    assert queue.put("e", 0.2, 10) == ["e"], "the new message is the least useful"
    assert queue.put("f", 0.9, 15) == ["a", "d"], "as many as necessary"
    assert [queue.take() for _ in range(3)] == ["c", "f", None]
    assert queue.dropped == 4


def test_oldest_of_equals_and_oversized_messages_are_dropped() -> None:
    queue: UsefulQueue[str] = UsefulQueue(room_bytes=20)
    queue.put("old", 0.5, 10)
    queue.put("new", 0.5, 10)
    assert queue.put("newest", 0.5, 10) == ["old"]
    assert queue.put("huge", 1.0, 21) == ["huge"]
    with pytest.raises(ValueError, match="at least one byte"):
        UsefulQueue(0)


@settings(max_examples=100)
@given(st.lists(st.one_of(st.none(), st.tuples(st.floats(0, 1), st.integers(1, 40))), max_size=120))
def test_queue_is_bounded_and_ordered_and_drops_the_least_useful(
    puts: list[tuple[float, int] | None],
) -> None:
    queue: UsefulQueue[tuple[int, float]] = UsefulQueue(room_bytes=100)
    inside: dict[int, float] = {}
    for number, put in enumerate(puts):
        if put is None:
            taken = queue.take()
            assert (taken is None) == (not inside)
            if taken is not None:
                assert taken[0] == min(inside)
                del inside[taken[0]]
            continue
        inside[number] = put[0]
        for dropped, utility in queue.put((number, put[0]), *put):
            assert utility == min(inside.values())
            del inside[dropped]
        assert queue.used_bytes <= 100
        assert len(queue) == len(inside)
