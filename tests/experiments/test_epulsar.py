"""The ePulsar experiments on small settings: claims follow from the data, rows do not depend on scheduling."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tocsin.experiments import runner
from tocsin.experiments.epulsar_placement import PERMUTATIONS_PER_TASK

ALL = [f"epulsar-{name}" for name in ("coordinates", "placement", "monitoring", "migration", "uav", "mmog")]


def claims_of(name: str, table: pa.Table, out: Path) -> dict[str, Any]:
    answer = runner.finish(runner.find(name), 1, table, out)
    assert {Path(path).suffix for path in answer["files"]} == {".parquet", ".png", ".svg", ".md"}
    json.dumps(answer, allow_nan=False)
    return {claim["id"]: claim for claim in answer["claims"]} | {"metrics": answer["metrics"]}


def test_all_six_experiments_exist() -> None:
    assert set(ALL) <= set(runner.names())


def test_settings_are_plain_and_have_their_own_seeds() -> None:
    for name in ALL:
        settings = runner.find(name).settings(3)
        assert len({setting["seed"] for setting in settings}) > 1 or len(settings) == 1
        assert json.loads(json.dumps(settings))


@pytest.fixture(scope="module")
def placed() -> pa.Table:
    experiment = runner.find("epulsar-placement")
    return runner.run_here(experiment, experiment.settings(2))


def test_placement_claims_hold_and_are_computed_from_the_table(placed: pa.Table, tmp_path: Path) -> None:
    claims = claims_of("epulsar-placement", placed, tmp_path)
    assert all(claim["holds"] for id, claim in claims.items() if id != "metrics"), claims
    worse = placed.to_pandas()
    worse.loc[(worse.policy == "partition") & (worse.scenario == "uav"), "violations"] = 0.5
    broken = claims_of("epulsar-placement", pa.Table.from_pandas(worse), tmp_path)
    assert not broken["uav-no-violations"]["holds"]
    assert broken["uav-no-violations"]["differs"]


def test_permutation_does_not_depend_on_its_task(placed: pa.Table) -> None:
    experiment = runner.find("epulsar-placement")
    assert PERMUTATIONS_PER_TASK > 2
    (setting,) = experiment.settings(2)
    alone = experiment.run({**setting, "first": 1, "count": 1})
    assert alone == [row for row in placed.to_pylist() if row["permutation"] == 1]


def test_no_pair_violates_with_half_a_ping_per_direction(tmp_path: Path) -> None:
    """The other reading of the paper's latencies, as in the note of the report."""
    experiment = runner.find("epulsar-placement")
    table = runner.run_here(experiment, experiment.settings(1, delay_per_ping="0.5"))
    metrics = claims_of("epulsar-placement", table, tmp_path)["metrics"]
    assert metrics["mmog_violations_percent_consistent-hash"] == 0.0


def test_monitoring_claims_hold(tmp_path: Path) -> None:
    experiment = runner.find("epulsar-monitoring")
    claims = claims_of("epulsar-monitoring", runner.run_here(experiment, experiment.settings(1)), tmp_path)
    assert all(claim["holds"] for id, claim in claims.items() if id != "metrics"), claims
    assert claims["metrics"]["bytes_per_topic"] == 239.0


def test_migration_claims_hold(tmp_path: Path) -> None:
    experiment = runner.find("epulsar-migration")
    claims = claims_of("epulsar-migration", runner.run_here(experiment, experiment.settings(1)), tmp_path)
    assert all(claim["holds"] for id, claim in claims.items() if id != "metrics"), claims


@pytest.mark.parametrize("name", ["epulsar-uav", "epulsar-mmog"])
def test_end_to_end_experiment_reports_a_short_run(name: str, tmp_path: Path) -> None:
    experiment = runner.find(name)
    claims = claims_of(name, runner.run_here(experiment, experiment.settings(1, duration_s="40")), tmp_path)
    assert claims["nothing-lost"]["holds"]
    assert claims["no-back-and-forth"]["holds"]


def test_coordinates_report_works_without_the_measured_matrix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOCSIN_SHARED_DATA", str(tmp_path))
    experiment = runner.find("epulsar-coordinates")
    settings = experiment.settings(1, nodes_at_most="8")
    assert [setting["world"] for setting in settings] == ["star"]
    claims = claims_of("epulsar-coordinates", runner.run_here(experiment, settings), tmp_path)
    assert claims["metrics"]["planetlab_median_relative_error"] is None
    assert "was not found" in (tmp_path / "epulsar-coordinates.md").read_text(encoding="utf-8")
