"""Load: moving averages, and the load report [BAD §4]."""

from __future__ import annotations

import math

import pytest

from tests.broker.simulated import FIRE, A, subscribed
from tocsin.broker.load import WINDOW_S, Rate
from tocsin.broker.message_encoding import Encoding


def test_rate_is_a_moving_average_in_bytes_per_second() -> None:
    rate = Rate()
    for second in range(600):
        rate.add(1_000.0, float(second))
    assert rate.now(600.0) == pytest.approx(1_000.0, rel=0.02)
    assert rate.now(599.0 + WINDOW_S) == pytest.approx(rate.value_per_s / math.e, rel=1e-6)


def test_rate_is_reported_only_after_a_change() -> None:
    rate = Rate()
    rate.add(60_000.0, 600.0)
    assert rate.take_changed(600.0) is not None and rate.take_changed(600.5) is None
    assert rate.take_changed(10_000.0) == 0.0 and rate.take_changed(10_001.0) is None


def test_load_report_counts_shared_results_once_in_and_twice_out() -> None:
    """Two subscribers share one backend subscription [BAD §4, eq. 1, 4]."""
    network = subscribed("ann", "bob")
    core = network.brokers[A]
    network.cluster.execute({"fire": 4})
    network.settle()
    report = core._reports.load_report()
    assert report.rates[FIRE] == pytest.approx(report.in_bytes_per_s)
    assert core.state.load.notifications == 8
    assert core.state.load.out_bytes == 2 * len(core.state.backends[FIRE].batches[0].encoded(Encoding.JSON))
