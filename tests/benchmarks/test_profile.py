"""`bench profile`: when a step passes, what it costs per message, and a short run."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from tocsin.benchmarks.profile import Step, fitted, measure, rounded_down, threshold, verdict

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


def test_fit_finds_base_slope_and_where_the_line_ends() -> None:
    steps = [replace(STEP, out_per_s=rate, cpu=0.05 + 4e-6 * rate) for rate in (1e3, 1e4, 1e5)]
    expected = {"base_cpu": 0.05, "cpu_us_per_message": 4.0, "line_ends_per_s": 200_000.0}
    assert fitted(steps, cpu=0.85) == pytest.approx(expected)
    assert fitted(steps[:2], cpu=0.85)["base_cpu"] is None
    assert fitted([replace(step, cpu=0.1) for step in steps], cpu=0.85)["line_ends_per_s"] is None


def knee(subscribers: int, output_per_s: int, limited_by: str) -> dict[str, Any]:
    return {"subscribers": subscribers, "output_per_s": output_per_s, "limited_by": limited_by, "line_ends_per_s": 2e5}


def test_threshold_is_the_lowest_knee_that_the_broker_set() -> None:
    rows = [knee(1, 30_000, "input"), knee(10, 155_000, "cpu"), knee(100, 170_000, "latency")]
    assert threshold(rows) == {"topic_output_per_s": 150_000, "extrapolated": False}
    assert threshold([rows[0], knee(100, 115_000, "load")]) == {"topic_output_per_s": 200_000, "extrapolated": True}


def test_threshold_is_rounded_down_to_two_digits() -> None:
    assert [rounded_down(rate) for rate in (123_456.0, 9_999.0, 7.9)] == [120_000, 9_900, 7]


def test_short_run_measures_a_broker_until_a_limit() -> None:
    figures = asyncio.run(measure([1, 10], seconds=0.1, payload=64, latency_s=5.0, cpu=0.05))
    assert {knee["subscribers"] for knee in figures["knees"]} == {1, 10}
    assert all(knee["limited_by"] for knee in figures["knees"])
