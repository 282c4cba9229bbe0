"""`tocsin bench live` at a toy size: people move, subscribe and unsubscribe, and the results are DuckDB's."""

from __future__ import annotations

import asyncio

import pytest

from tocsin.benchmarks import live

# Without the shared session, the benchmark would make one that all later tests get.
pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.usefixtures("spark")]


def test_results_of_people_that_stay_are_correct_while_others_move(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "QUIET_S", 2.0)
    rates = live.Rates(records_per_s=20, moves_per_s=100, changes_per_s=20, seconds=2.0, warm_up_s=1.0)
    measured = asyncio.run(live.measure(1_000, rates))
    assert measured["correct"] and measured["results"] > 100
    assert measured["moved"] > 100 and measured["changed"] > 10
    assert 0.0 < measured["publish_to_result_s_p50"] <= measured["publish_to_result_s_p95"]
