"""`tocsin bench surge` on a small, quick network: a real surge gets a real answer."""

from __future__ import annotations

import asyncio

import pytest

from tocsin.benchmarks import surge

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def test_surge_on_real_processes_is_answered_within_seconds() -> None:
    # The averages are six times as fast as by default, so the usual traffic may be shorter.
    measured = asyncio.run(
        surge.measure(
            45,
            usual_s=16.0,
            surge_s=45.0,
            factor=20,
            period_s=2,
            broker={"rate-window-s": "10"},
            coordinator={"report-s": "1"},
        )
    )
    assert measured["correct"], measured
    # 15 s is the promise on a machine of one's own (docs/benchmarks.md); here other tests run at the same time.
    assert measured["answer_s"] is not None and measured["answer_s"] <= 45.0, measured
    assert measured["moves"] > 0
    assert measured["maximum_after_bytes_per_s"] < measured["maximum_before_bytes_per_s"]
