"""A short day of the emergency city on processes of its own: nothing is lost, and the report is there."""

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
"""Each channel takes Spark seconds before it has run for the first time; three are enough for a short day."""
EXAMPLE = Path(__file__).parents[2] / "examples" / "emergency"


def shortened(folder: Path) -> Path:
    """The emergency city with the channels that are kept."""
    shutil.copy(EXAMPLE / "shelters.csv", folder)
    statements = (EXAMPLE / "emergency.sql").read_text(encoding="utf-8").split(";")
    named = [(re.search(r"^CREATE \w+ CHANNEL (\w+)", statement, re.MULTILINE), statement) for statement in statements]
    application = folder / "emergency.sql"
    text = ";".join(statement for channel, statement in named if channel is None or channel[1] in KEPT)
    application.write_text(text, encoding="utf-8")
    return application


@pytest.mark.timeout(600)
def test_a_short_day_in_the_city_loses_nothing_and_leaves_a_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for channel in CHANNELS.keys() - set(KEPT):
        monkeypatch.delitem(CHANNELS, channel)
    try:
        require_java()
    except TocsinError as error:
        pytest.skip(error.message)
    out, told = tmp_path / "out", list[str]()
    settings = DemoSettings(shortened(tmp_path), out, subscribers=10, brokers=2, minutes=0.25, speed=10.0)

    async def day() -> None:
        run = DemoRun(settings, tmp_path, told.append)
        try:
            await run.start()
            outcome = await run.run_day()
        finally:
            await run.stop()
        said = report.numbers(outcome)
        assert not report.failed(said), (said, told)
        assert said["delivered"] == said["expected"] > 0 and said["recomputed"]["expected"] > 0
        assert said["frontend_subscriptions"] >= said["backend_subscriptions"] > 5
        assert said["published"] > 400 and {one["name"] for one in said["channels"]} == set(KEPT)
        assert "lost 0" in report.markdown(said, outcome.periods, figures.draw(outcome, out))
        assert {row["kind"] for row in rows_of(outcome, {})} == {"run", "sample", "broker"}

    asyncio.run(day())
    assert told[1].startswith("dashboard: http://127.0.0.1:") and "#token=" in told[1]
    assert {path.name for path in out.glob("*.png")} == {
        "demo-load.png", "demo-cov.png", "demo-migrations.png", "demo-latency.png",
    }  # fmt: skip
    kinds = set(pq.read_table(out / "trace.parquet", columns=["kind"])["kind"].to_pylist())
    assert {"street", "broker", "sample", "balance", "join", "position", "event", "place"} <= kinds
