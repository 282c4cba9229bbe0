"""A short run of the demo city with its own processes: no result is lost, and the report is written."""

from __future__ import annotations

import asyncio
import re
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tocsin.cluster.spark.session import require_java
from tocsin.demo import figures, report
from tocsin.demo.run import DemoRun
from tocsin.demo.settings import DemoSettings
from tocsin.demo.testbed import rows_of
from tocsin.sim.city.subscriptions import CHANNELS
from tocsin.wire.errors import TocsinError

pytestmark = [pytest.mark.spark, pytest.mark.slow]

KEPT = ("EmergenciesOfType", "EmergenciesAtLocation", "SevereNearMe")
"""Spark needs seconds for the first execution of each channel; three channels are enough for a short run."""
EXAMPLE = Path(__file__).parents[2] / "examples" / "emergency"


def shortened_application(folder: Path) -> Path:
    """The emergency application with only the channels in KEPT."""
    shutil.copy(EXAMPLE / "shelters.csv", folder)
    statements = (EXAMPLE / "emergency.sql").read_text(encoding="utf-8").split(";")
    named = [(re.search(r"^CREATE \w+ CHANNEL (\w+)", statement, re.MULTILINE), statement) for statement in statements]
    application = folder / "emergency.sql"
    text = ";".join(statement for channel, statement in named if channel is None or channel[1] in KEPT)
    application.write_text(text, encoding="utf-8")
    return application


@pytest.mark.timeout(600)
def test_short_demo_run_loses_no_result_and_writes_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for channel in CHANNELS.keys() - set(KEPT):
        monkeypatch.delitem(CHANNELS, channel)
    try:
        require_java()
    except TocsinError as error:
        pytest.skip(error.message)
    out, messages = tmp_path / "out", list[str]()
    settings = DemoSettings(shortened_application(tmp_path), out, subscribers=10, brokers=2, minutes=0.25, speed=10.0)

    async def day() -> None:
        run = DemoRun(settings, tmp_path, messages.append)
        try:
            await run.start()
            outcome = await run.run_day()
        finally:
            await run.stop()
        numbers = report.numbers(outcome)
        assert not report.failed(numbers), (numbers, messages)
        assert numbers["delivered"] == numbers["expected"] > 0 and numbers["recomputed"]["expected"] > 0
        assert numbers["frontend_subscriptions"] >= numbers["backend_subscriptions"] > 5
        assert numbers["published"] > 400 and {channel["name"] for channel in numbers["channels"]} == set(KEPT)
        assert "lost 0" in report.markdown(numbers, outcome.periods, figures.draw(outcome, out))
        assert {row["kind"] for row in rows_of(outcome, {})} == {"run", "sample", "broker"}

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
