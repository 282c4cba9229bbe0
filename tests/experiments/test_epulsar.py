"""The ePulsar experiments on small settings: claims follow from the data, rows do not depend on scheduling."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from tocsin.experiments import epulsar_uav, runner
from tocsin.experiments.epulsar_placement import PERMUTATIONS_PER_TASK
from tocsin.sim.topics import uav

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
    close = {"mmog-close-to-all-pairs", "mmog-far-below-hashing", "hashing-violates", "hashing-worst-case-is-worse"}
    assert all(claims[id]["holds"] for id in close | {"uav-no-violations", "uav-worst-below-bound"}), claims
    worse = placed.to_pandas()
    ours = worse.policy == "partition"
    worse.loc[ours & (worse.scenario == "uav"), "violations"] = 0.5
    worse.loc[ours & (worse.scenario == "uav"), "worst_ms"] = 41.0
    worse.loc[ours & (worse.scenario == "mmog"), "worst_ms"] = 500.0
    broken = claims_of("epulsar-placement", pa.Table.from_pandas(worse), tmp_path)
    latencies = {"hashing-worst-case-is-worse", "mmog-worst-case-like-all-pairs", "uav-worst-below-bound"}
    for id in latencies | {"uav-no-violations"}:
        assert broken[id]["holds"] is False
        assert broken[id]["differs"]


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
    claims = claims_of("epulsar-placement", table, tmp_path)
    assert claims["metrics"]["mmog_violations_percent_consistent-hash"] == 0.0
    assert claims["hashing-violates"]["holds"] is False
    assert claims["mmog-far-below-hashing"]["holds"] is None


def test_monitoring_saves_in_groups_of_eight_and_not_in_pairs(tmp_path: Path) -> None:
    experiment = runner.find("epulsar-monitoring")
    table = runner.run_here(experiment, experiment.settings(1))
    claims = claims_of("epulsar-monitoring", table, tmp_path)
    assert claims["saving-with-8-clients"]["holds"] is True
    assert claims["saving-at-every-size"]["ours"] == 1.0
    assert claims["metrics"]["bytes_per_topic"] == 239.0
    worse = table.to_pandas()
    worse.loc[worse.policy == "partition", "bytes_per_topic"] *= 2
    broken = claims_of("epulsar-monitoring", pa.Table.from_pandas(worse), tmp_path)
    assert broken["saving-with-8-clients"]["holds"] is False


def test_migration_claims_hold_and_can_fail(tmp_path: Path) -> None:
    experiment = runner.find("epulsar-migration")
    table = runner.run_here(experiment, experiment.settings(1))
    claims = claims_of("epulsar-migration", table, tmp_path)
    assert all(claim["holds"] for id, claim in claims.items() if id != "metrics"), claims
    worse = table.to_pandas()
    worse[["downtime_ms", "per_topic_ms"]] = 100.0
    broken = claims_of("epulsar-migration", pa.Table.from_pandas(worse), tmp_path)
    assert not any(claim["holds"] for id, claim in broken.items() if id != "metrics"), broken


@pytest.mark.parametrize("name", ["epulsar-uav", "epulsar-mmog"])
def test_end_to_end_experiment_reports_a_short_run(name: str, tmp_path: Path) -> None:
    experiment = runner.find(name)
    table = runner.run_here(experiment, experiment.settings(1, duration_s="40"))
    claims = claims_of(name, table, tmp_path)
    for id in ("nothing-lost", "no-back-and-forth", "transients-end"):
        assert claims[id]["holds"], claims[id]
    assert claims["below-bound-mostly"]["ours"] < 0.15, "the first five seconds, at a home that hashing chose"
    worse = table.to_pandas()
    worse.loc[worse.kind == "topic", "share_above"] = [0.11] + [0.0] * (int((worse.kind == "topic").sum()) - 1)
    worse.loc[worse.kind == "transient", "duration_s"] = 10.5
    worse.loc[worse.kind == "run", "lost"] = 1
    broken = claims_of(name, pa.Table.from_pandas(worse), tmp_path)
    for id in ("nothing-lost", "below-bound-mostly", "transients-end"):
        assert broken[id]["holds"] is False, id


def test_transient_without_zone_change_fails_its_claim() -> None:
    name = uav.topic_names(0)[0]
    zone = {"kind": "zone", "run": 0, "topic": name, "at_s": 50.0}
    late = {"kind": "transient", "run": 0, "topic": name}
    share = epulsar_uav.share_at_zone_changes
    assert share(pd.DataFrame([zone, {**late, "at_s": 50.1}])) == 1.0
    assert share(pd.DataFrame([zone, {**late, "at_s": 50.1}, {**late, "at_s": 70.0}])) == 0.5
    assert share(pd.DataFrame([zone, {**late, "at_s": 0.1}])) is None, "topics start at a home chosen by hashing"


def test_coordinates_report_works_without_the_measured_matrix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOCSIN_SHARED_DATA", str(tmp_path))
    experiment = runner.find("epulsar-coordinates")
    settings = experiment.settings(1, nodes_at_most="8")
    assert [setting["world"] for setting in settings] == ["star"]
    claims = claims_of("epulsar-coordinates", runner.run_here(experiment, settings), tmp_path)
    assert claims["metrics"]["planetlab_median_relative_error"] is None
    assert claims["planetlab-median"]["holds"] is None
    assert "was not found" in claims["planetlab-median"]["differs"]
    assert "was not found" in (tmp_path / "epulsar-coordinates.md").read_text(encoding="utf-8")
