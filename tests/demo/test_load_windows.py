"""Predicted and measured loads over windows, on samples made by hand."""

from __future__ import annotations

from collections import Counter

import pytest

from tocsin.demo.load_windows import load_windows, measured_loads
from tocsin.demo.samples import Activity, BrokerSample, DemoSample, Samples


def sample(
    at_s: float, *, moved: int = 0, modelled: float = 100.0, hand_overs: int = 0, changes: int = 0
) -> DemoSample:
    """One broker that reported its load at the last multiple of five seconds."""
    broker = BrokerSample(modelled, moved, moved // 10, at_s - at_s % 5, hand_overs, changes)
    return DemoSample(at_s, {"a": 0.0}, {"a": 1}, 0.0, 0.0, hand_overs, {"a": broker})


def test_measured_load_divides_bytes_by_the_time_between_reports() -> None:
    start, end = sample(7.0, moved=1_000), sample(21.0, moved=4_000)
    assert measured_loads(start, end) == {"a": 200.0}, "5 to 20 s"
    assert measured_loads(start, end, catch_up=False) == {"a": 180.0}, "a tenth brought sessions up to date"


def test_broker_without_a_new_report_or_after_a_restart_is_left_out() -> None:
    assert measured_loads(sample(6.0, moved=10), sample(9.0, moved=10)) == {}
    assert measured_loads(sample(6.0, moved=1_000), sample(20.0, moved=10)) == {}


def test_windows_compare_the_model_with_the_bytes_inside() -> None:
    samples = [sample(float(at), moved=at * 50, modelled=100.0 + at) for at in range(0, 41, 5)]
    windows = load_windows(samples, 10.0, 20.0)
    assert [window.at_s for window in windows] == [10.0, 15.0, 20.0], "a window must end before the samples do"
    assert [window.forecast_bytes_per_s for window in windows] == [110.0, 115.0, 120.0]
    assert [window.modelled_bytes_per_s for window in windows] == [120.0, 125.0, 130.0]
    assert [window.measured_bytes_per_s for window in windows] == [50.0, 50.0, 50.0]
    assert [window.live_bytes_per_s for window in windows] == pytest.approx([45.0, 45.0, 45.0])


def test_windows_say_whether_they_contain_or_follow_a_migration_or_a_login() -> None:
    moved = {25: 1, 30: 1, 35: 1, 40: 1, 45: 1, 50: 1, 55: 1, 60: 1}
    samples = [
        sample(float(at), moved=at, hand_overs=moved.get(at, 0), changes=int(at >= 40)) for at in range(0, 61, 5)
    ]
    windows = {window.at_s: window for window in load_windows(samples, 0.0, 10.0)}
    assert [at_s for at_s, window in windows.items() if window.migrations] == [15.0, 20.0]
    assert [at_s for at_s, window in windows.items() if window.follows_migration] == [25.0, 30.0]
    assert [at_s for at_s, window in windows.items() if window.session_changes] == [30.0, 35.0]


def test_samples_keep_counters_and_rounds_with_moves() -> None:
    broker = {
        "broker": "a", "load_bytes_per_s": 5.0, "subscribers": 2, "notifications_per_s": 1.0,
        "modelled_bytes_per_s": 7.0, "fetched_bytes": 10, "delivered_bytes": 20, "catch_up_bytes": 6,
        "reported_at_s": 3.0,
    }  # fmt: skip
    unknown = broker | {"broker": "b", "modelled_bytes_per_s": None, "reported_at_s": None}
    last = {"policy": "ldm", "taken": 2, "cov_before": 0.5, "cov_after": 0.1, "maximum_after": 9.0, "note": ""}
    status = {"brokers": [broker, unknown], "cov": 0.5, "balance": {"alpha": 0.15, "last_round": last}}
    samples = Samples()
    activity = Activity(1, Counter(a=1, b=1), Counter(a=4))
    made = [samples.add(float(at), status, activity) for at in range(2)][-1]
    assert made.brokers == {"a": BrokerSample(7.0, 30, 6, 3.0, 1, 4)} and made.hand_overs == 1
    assert [round.maximum_after_bytes_per_s for round in samples.rounds] == [pytest.approx(9.0)]
    assert samples.balance["alpha"] == 0.15
