"""A small form of `tocsin experiment ami-live` on real processes: seven nodes, transfers, and nodes that die.

DuckDB computes the reference here, so that no Spark starts. Its AVG divides the same exact sum by the same count.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from tocsin.demo.edge_scenarios import Calibration, run_live
from tocsin.experiments.edge_rows import EdgeSelect

_WINDOW = re.compile(r"WINDOW\(ts, '(\d+ \w+)'\)")


def in_duckdb(queries: Sequence[EdgeSelect], readings: Mapping[str, pa.Table]) -> dict[str, pa.Table]:
    """The same SELECT, with DuckDB's name for a window."""
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        for stream, table in readings.items():
            connection.register(stream, table)
        return {query.name: connection.sql(translated(query.select)).to_arrow_table() for query in queries}


def translated(select: str) -> str:
    match = _WINDOW.search(select)
    assert match is not None
    bucket = f"time_bucket(INTERVAL '{match[1]}', ts)"
    return _WINDOW.sub(bucket, select).replace("window.start", bucket)


SMALL = {
    "scenarios": "faults", "meters": "200", "user_s": "4", "calm_s": "5", "transfers": "2", "items": "2000",
    "kills": "2", "down_s": "0", "settle_s": "1",
}  # fmt: skip


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run_live(SMALL, tmp_path_factory.mktemp("ami-live"), print, in_duckdb)


def test_rows_are_exact_after_transfers_and_deaths(report: dict[str, Any]) -> None:
    claims = {claim["id"]: claim for claim in report["claims"]}
    for name in ("rows-equal", "nothing-late", "transfers-done", "next-generation", "duty-taken-over"):
        assert claims[name]["holds"], claims[name]
    assert report["metrics"]["faults.expected"] > 100


def test_page_lists_each_fault_with_its_recovery(report: dict[str, Any]) -> None:
    page = next(Path(path) for path in report["files"] if path.endswith(".md")).read_text(encoding="utf-8")
    assert page.count("| killed |") == 2 and page.count("| silent |") == 1


@pytest.mark.parametrize("options", [{"scenarios": "flood"}, {"speed": "2"}, {"meters": "many"}])
def test_unknown_scenario_option_or_value_is_refused(tmp_path: Path, options: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"ami-live|scenarios|many"):
        run_live(options, tmp_path, print)


def test_factor_of_the_burst_follows_from_the_load_at_two_rates() -> None:
    """A load of 10 % whatever the rate, and 5 % more for each multiple of the rate."""
    calibration = Calibration(calm_pct=15.0, factor=3.0, higher_pct=25.0)
    assert calibration.factor_for(125.0) == pytest.approx(23.0)
    assert calibration.factor_for(15.0) == pytest.approx(1.0)


def test_disturbed_calibration_does_not_make_the_burst_endless() -> None:
    assert Calibration(calm_pct=20.0, factor=3.0, higher_pct=19.0).factor_for(120.0) == pytest.approx(21.0)
