"""The level of traffic: averages follow a rise late, the brokers' counters do not."""

from __future__ import annotations

import math

import pytest

from tests.coordinator.bench import B1, Bench, crowded
from tocsin.coordinator.traffic_level import TrafficLevel
from tocsin.model.ids import SubscriptionId
from tocsin.model.rate import MovingAverage
from tocsin.wire import link as wire

REPORT_S = 5.0
NAMES = ("ada", "bob", "eve", "joe")


class Reporter:
    """Reports for B1 as a broker does: averages of 60 s and exact totals, each subscription with one receiver."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._averages = {SubscriptionId(name): MovingAverage(began_s=-math.inf) for name in NAMES}
        for average in self._averages.values():
            average.value_per_s, average.at_s = 10.0, bench.now_s
        self._bytes, self._catch_up_bytes = 1.0, 0

    def report(self, rate_per_s: float, *, catch_up_bytes: int = 0, surge: bool = False) -> None:
        self._bench.wait(REPORT_S, B1)
        self._catch_up_bytes += catch_up_bytes
        now_s, amount = self._bench.now_s, rate_per_s * REPORT_S
        for average in self._averages.values():
            average.add(amount, now_s)
            self._bytes += amount
        rates = {name: average.now(now_s) for name, average in self._averages.items()}
        fetched, delivered = int(self._bytes), int(self._bytes) + self._catch_up_bytes
        report = wire.LoadReport(0.0, 0.0, rates, in_bytes=fetched, out_bytes=delivered, surge=surge)
        report.catch_up_bytes = self._catch_up_bytes
        self._bench.send(B1, report)

    def modelled(self) -> float:
        return self._bench.core.modelled_loads(self._bench.now_s)[B1]


def reporter() -> Reporter:
    made = Reporter(crowded())
    for _ in range(20):
        made.report(10.0)
    return made


def test_steady_traffic_leaves_the_modelled_load_alone() -> None:
    assert reporter().modelled() == pytest.approx(80.0, rel=0.06)


def test_modelled_load_follows_a_rise_within_half_a_minute() -> None:
    made = reporter()
    for _ in range(7):
        made.report(15.0)
    late = 80.0 + 40.0 * -math.expm1(-35.0 / 60.0)
    assert late < 98.0, "the averages alone are a fifth too low"
    assert made.modelled() == pytest.approx(120.0, rel=0.1)


def test_modelled_load_follows_a_fall_within_half_a_minute() -> None:
    made = reporter()
    for _ in range(7):
        made.report(6.0)
    assert made.modelled() == pytest.approx(48.0, rel=0.12)


def test_bytes_that_catch_up_do_not_raise_the_level() -> None:
    made = reporter()
    for _ in range(4):
        made.report(10.0, catch_up_bytes=5_000)
    assert made.modelled() == pytest.approx(80.0, rel=0.06)


def test_report_of_a_surge_restarts_the_level() -> None:
    made = reporter()
    for _ in range(3):
        made.report(18.0)
    assert made._bench.core.loads.level.factor > 1.1
    made.report(18.0, surge=True)
    assert made._bench.core.loads.level.factor == 1.0


def test_broker_without_totals_does_not_change_the_level() -> None:
    bench = crowded()
    for _ in range(5):
        bench.wait(REPORT_S, B1)
        bench.send(B1, wire.LoadReport(0.0, 0.0, {SubscriptionId("ada"): 10.0}))
    assert bench.core.loads.level.factor == 1.0


def test_restarted_broker_does_not_change_the_level() -> None:
    made = reporter()
    before = made._bench.core.loads.level.factor
    made._bench.wait(REPORT_S, B1)
    made._bench.send(B1, wire.LoadReport(0.0, 0.0, {}, in_bytes=10, out_bytes=10))
    assert made._bench.core.loads.level.factor == before


def test_level_stays_within_its_range() -> None:
    level = TrafficLevel()
    level.compare(1.0, 1_000.0, 0.0, 30.0)
    assert level.factor == 2.0
    level.compare(1e9, 0.0, 10.0, 30.0)
    assert level.factor == 0.5
