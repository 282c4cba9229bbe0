"""The token bucket of a publisher."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tocsin.model.rate_limit import RateLimit


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
