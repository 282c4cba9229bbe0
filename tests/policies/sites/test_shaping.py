"""The shaper: its rate over time, its order, and changes of the rate while items wait."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tocsin.policies.sites.shaping import BURST_S, Shaper


def test_shaper_without_a_rate_passes_every_item_at_once() -> None:
    shaper: Shaper[str] = Shaper()
    assert shaper.offer("a", 1e9, 0.0) == ["a"]
    assert shaper.next_s() is None
    assert shaper.queued_cost == 0.0


def test_items_wait_until_the_debt_of_earlier_ones_is_paid() -> None:
    shaper: Shaper[str] = Shaper(1_000.0, now_s=10.0)
    assert shaper.offer("large", 1_050.0, 10.0) == ["large"], "a burst of 50 bytes, and a debt of 1,000"
    assert shaper.offer("small", 1.0, 10.0) == []
    assert (len(shaper), shaper.queued_cost) == (1, 1.0)
    assert shaper.next_s() == pytest.approx(11.0)
    assert shaper.release(10.99) == []
    assert shaper.release(11.0) == ["small"]


def test_rate_of_zero_holds_items_until_it_rises() -> None:
    shaper: Shaper[str] = Shaper(0.0)
    assert shaper.offer("a", 1.0, 0.0) == []
    assert shaper.next_s() is None
    assert shaper.set_rate(10.0, 5.0) == ["a"]
    assert shaper.set_rate(math.inf, 5.0) == []


def test_lower_rate_takes_effect_at_once_and_loses_nothing() -> None:
    shaper: Shaper[int] = Shaper(1_000.0)
    sent = [item for number in range(200) for item in shaper.offer(number, 10.0, 0.0)]
    sent += shaper.set_rate(100.0, 0.5)
    during = [item for tenth in range(6, 26) for item in shaper.release(tenth / 10)]
    assert len(during) == pytest.approx(20, abs=1), "two seconds at ten items a second"
    sent += during + shaper.set_rate(math.inf, 2.5)
    assert sent == list(range(200))


def test_negative_rate_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 0"):
        Shaper(-1.0)
    with pytest.raises(ValueError, match="at least 0"):
        Shaper[str]().set_rate(math.nan, 0.0)


@settings(max_examples=200)
@given(
    st.floats(1.0, 1e6),
    st.lists(st.tuples(st.floats(0.0, 0.3), st.floats(0.0, 5_000.0)), min_size=1, max_size=60),
)
def test_sent_cost_never_exceeds_rate_and_one_item(rate_per_s: float, offers: list[tuple[float, float]]) -> None:
    shaper: Shaper[float] = Shaper(rate_per_s)
    now_s, sent, order = 0.0, 0.0, []
    for wait_s, cost in offers:
        now_s += wait_s
        left = shaper.offer(cost, cost, now_s)
        order += left
        sent += sum(left)
        assert sent <= rate_per_s * (now_s + BURST_S) + max(cost for _, cost in offers) + 1e-3
    while (next_s := shaper.next_s()) is not None:
        left = shaper.release(next_s)
        assert left, "the shaper promised an item at that time"
        order += left
    assert order == [cost for _, cost in offers]
    assert len(shaper) == 0
    assert shaper.queued_cost == 0.0


def test_backlogged_shaper_sends_exactly_at_its_rate() -> None:
    shaper: Shaper[int] = Shaper(1_000.0)
    sent = [item for number in range(5_000) for item in shaper.offer(number, 1.0, 0.0)]
    for millisecond in range(1, 3_001):
        sent += shaper.release(millisecond / 1_000)
    assert len(sent) == pytest.approx(3_000 + 50, abs=1)
