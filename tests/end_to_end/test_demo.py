"""A short run of the demo city with its own processes: no result is lost, and the report is written."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tocsin.benchmarks.shared.city_deliveries import CityDeliveries
from tocsin.benchmarks.shared.city_watch import CityWatch, watched_day
from tocsin.benchmarks.shared.usage import SPARK, cores_between
from tocsin.cluster.spark.session import require_java
from tocsin.demo import figures, report
from tocsin.demo.run import DemoOutcome, DemoRun
from tocsin.demo.settings import DemoSettings, application_file
from tocsin.demo.testbed import rows_of
from tocsin.wire.errors import TocsinError

pytestmark = [pytest.mark.spark, pytest.mark.slow]

KEPT = ("EmergenciesOfType", "EmergenciesAtLocation", "EmergenciesOfTypeWithShelterNearMe", "SevereNearMe")
"""Spark needs seconds for the first execution of each channel; four channels are enough for a short run."""


@pytest.mark.timeout(600)
def test_short_demo_run_loses_no_result_and_writes_a_report(tmp_path: Path) -> None:
    try:
        require_java()
    except TocsinError as error:
        pytest.skip(error.message)
    out, messages = tmp_path / "out", list[str]()
    settings = DemoSettings(
        application_file(), out, subscribers=12, brokers=2, minutes=0.4, speed=10.0, channels=KEPT, warm_ups=1
    )

    async def day() -> None:
        run = DemoRun(settings, tmp_path, messages.append)
        try:
            await run.start()
            outcome, watch, deliveries = await watched_day(run, tmp_path / "data")
        finally:
            await run.stop()
        numbers = report.numbers(outcome)
        assert report.problems(numbers) == [], (numbers, messages)
        assert numbers["delivered"] == numbers["expected"] > 0 and numbers["recomputed"]["expected"] > 0
        assert numbers["frontend_subscriptions"] >= numbers["backend_subscriptions"] > 5
        assert numbers["published"] > 400 and {channel["name"] for channel in numbers["channels"]} == set(KEPT)
        batch = numbers["recomputed_batch"]["channels"]
        assert batch.keys() == set(KEPT) and all(compared["expected"] > 0 for compared in batch.values())
        people = numbers["people"]
        assert people["logouts"] >= 3 and people["logins"] == 12 + people["logouts"] and people["unsubscribes"] > 0
        assert people["updates"] > 12 and people["updates_failed"] == 0
        assert "lost 0" in report.markdown(numbers, outcome.periods, figures.draw(outcome, out))
        check_watch(outcome, watch, deliveries)
        assert {row["kind"] for row in rows_of(outcome, {})} >= {"run", "sample", "broker"}

    asyncio.run(day())
    assert messages[1].startswith("dashboard: http://127.0.0.1:") and "#token=" in messages[1]
    assert {path.name for path in out.glob("*.png")} == {
        "demo-load.png",
        "demo-cov.png",
        "demo-migrations.png",
        "demo-latency.png",
    }
    kinds = set(pq.read_table(out / "trace.parquet", columns=["kind"])["kind"].to_pylist())
    assert {"street", "broker", "sample", "balance", "join", "position", "event", "place"} <= kinds


def check_watch(outcome: DemoOutcome, watch: CityWatch, deliveries: CityDeliveries) -> None:
    """The watch of `tocsin bench city` saw every process, and the stages of a delivery add up to its latency."""
    day = (outcome.began_s, outcome.began_s + outcome.day_took_s)
    assert cores_between(watch.usage, *day).keys() == {"broker-1", "broker-2", "coordinator", "cluster", SPARK}
    quantiles, breakdown = deliveries.quantiles(day), deliveries.breakdown(day)
    for kind in ("continuous", "repetitive"):
        stages = breakdown[kind]
        assert 0 < stages["deliveries"] <= quantiles[f"{kind}_deliveries"]
        assert all(stages[f"{name}_s"] > 0.0 for name in ("ingest", "execution", "pull", "delivery")), stages
        assert 0.0 < quantiles[f"{kind}_p50_s"] <= quantiles[f"{kind}_p95_s"]
