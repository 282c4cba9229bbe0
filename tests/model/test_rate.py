"""Moving averages: youth, merging measurements, surges."""

from __future__ import annotations

import math

import pytest

from tocsin.model.rate import WINDOW_S, MovingAverage, is_surge, merged_rate


def fed(rate: MovingAverage, until_s: float, bytes_per_s: float, every_s: float = 1.0) -> MovingAverage:
    at_s = rate.began_s + every_s
    while at_s <= until_s:
        rate.add(bytes_per_s * every_s, at_s)
        at_s += every_s
    return rate


def test_average_approaches_the_rate_and_decays() -> None:
    rate = fed(MovingAverage(), 600.0, 1_000.0)
    assert rate.now(600.0) == pytest.approx(1_000.0, rel=0.02)
    assert rate.now(600.0 + WINDOW_S) == pytest.approx(rate.value_per_s / math.e, rel=1e-6)


@pytest.mark.parametrize("age_s", [20.0, 40.0, 60.0, 200.0])
def test_young_average_estimates_the_true_rate(age_s: float) -> None:
    rate = fed(MovingAverage(began_s=1_000.0), 1_000.0 + age_s, 1_086.0)
    assert rate.estimate(1_000.0 + age_s) == pytest.approx(1_086.0, rel=0.03)


def test_first_result_of_a_very_young_average_is_not_blown_up() -> None:
    rate = MovingAverage(began_s=0.0)
    rate.add(600.0, 0.5)
    assert rate.estimate(0.5) <= 4 * 600.0 / WINDOW_S


def test_new_holder_continues_the_rate_of_the_former_one() -> None:
    """A second holder must not drop λ: 1,086 bytes/s had become 167."""
    former = fed(MovingAverage(), 300.0, 1_086.0).now(300.0)
    follower = MovingAverage(began_s=300.0)
    for second in range(301, 401):
        follower.add(1_086.0, float(second))
        rate = merged_rate(follower.now(second), follower.share(second), former)
        assert rate == pytest.approx(1_086.0, rel=0.03), second


def test_rate_without_a_former_one_is_unknown_at_first() -> None:
    rate = MovingAverage(began_s=0.0)
    assert math.isnan(merged_rate(rate.now(5.0), rate.share(5.0), None))
    assert merged_rate(rate.now(60.0), rate.share(60.0), None) == 0.0, "measured, and quiet"


def test_average_is_reported_only_after_a_change() -> None:
    rate = MovingAverage(began_s=0.0)
    assert rate.take_changed(0.0) == (0.0, 0.0), "the first report tells the coordinator that it is measured here"
    rate.add(60_000.0, 600.0)
    assert rate.take_changed(600.0) is not None and rate.take_changed(600.5) is None
    assert rate.take_changed(10_000.0) == (0.0, 1.0) and rate.take_changed(10_001.0) is None


def test_restarted_average_counts_the_announced_bytes_once() -> None:
    rate = fed(MovingAverage(), 300.0, 100.0, every_s=10.0)
    rate.restart(2_000.0, 20_000.0, 310.0)
    assert rate.estimate(310.0) == pytest.approx(2_000.0, rel=0.01), "before they arrive"
    rate.add(15_000.0, 310.0)
    rate.add(5_000.0, 310.0)
    assert rate.estimate(310.0) == pytest.approx(2_000.0, rel=0.01), "and when they have arrived"
    rate.add(6_000.0, 310.0)
    assert rate.now(310.0) > 2_050.0, "what follows counts"


@pytest.mark.parametrize("period_s", [5.0, 30.0, 120.0, 600.0])
def test_usual_rate_is_the_mean_whatever_the_period(period_s: float) -> None:
    rate = MovingAverage(began_s=0.0)
    for number in range(1, 200):
        rate.add(7.0 * period_s, number * period_s)
    for waited_s in (0.0, period_s, 10 * period_s):
        assert rate.usual(period_s, 199 * period_s + waited_s) == pytest.approx(7.0, rel=0.02)


def test_surge_needs_a_multiple_and_a_share_of_the_load() -> None:
    assert is_surge(2_000.0, 100.0, 1_000.0)
    assert not is_surge(250.0, 100.0, 100.0), "less than three times the average"
    assert not is_surge(2_000.0, 100.0, 10_000.0), "small beside the broker's load"
