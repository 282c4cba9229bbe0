"""`bench profile`: when a step passes, what it costs per message, and a short run."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tocsin.benchmarks.profile import Step, fitted, measure, rounded_down, verdict

STEP = Step(10, 1_000.0, 10_000.0, 0.5, 0.001, 0.005, 0.0)


@pytest.mark.parametrize(
    ("step", "problem"),
    [
        (STEP, None),
        (None, "loss"),
        (replace(STEP, cpu=0.9), "cpu"),
        (replace(STEP, p99_s=0.03), "latency"),
        (replace(STEP, p99_s=0.03, late_p99_s=0.02), "load"),
    ],
)
def test_step_passes_below_both_limits_only(step: Step | None, problem: str | None) -> None:
    assert verdict(step, latency_s=0.02, cpu=0.85) == problem


def test_fit_finds_base_and_slopes() -> None:
    rates = [(1, 1_000.0), (1, 9_000.0), (10, 1_000.0), (100, 200.0), (100, 1_000.0)]
    steps = [
        replace(STEP, in_per_s=rate, out_per_s=count * rate, cpu=0.02 + 20e-6 * rate + 3e-6 * count * rate)
        for count, rate in rates
    ]
    assert fitted(steps) == pytest.approx(
        {"base_cpu": 0.02, "cpu_us_per_message_in": 20.0, "cpu_us_per_message_out": 3.0}
    )
    assert fitted(steps[:2])["base_cpu"] is None


def test_threshold_is_rounded_down_to_two_digits() -> None:
    assert [rounded_down(rate) for rate in (123_456.0, 9_999.0, 7.9)] == [120_000, 9_900, 7]


def test_short_run_measures_a_broker_until_a_limit() -> None:
    figures = asyncio.run(measure([1, 10], seconds=0.1, payload=64, latency_s=5.0, cpu=0.05))
    assert {knee["subscribers"] for knee in figures["knees"]} == {1, 10}
    assert all(knee["limited_by"] for knee in figures["knees"])
