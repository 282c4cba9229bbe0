"""The ePulsar experiments on small settings: claims follow from the data, rows do not depend on scheduling."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from tocsin.broker.topics import client_coordinates
from tocsin.coords.coordinate import DIMENSIONS, Coordinate
from tocsin.experiments import epulsar_monitoring, epulsar_uav, runner
from tocsin.experiments.epulsar_placement import PERMUTATIONS_PER_TASK
from tocsin.model.ids import TopicName
from tocsin.sim.topics import uav
from tocsin.sim.topics.reporting_home import ReportingHome

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


def test_monitoring_saves_in_large_groups_and_not_in_pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epulsar_monitoring, "TOPICS", (5, 10))
    experiment = runner.find("epulsar-monitoring")
    table = runner.run_here(experiment, experiment.settings(1))
    claims = claims_of("epulsar-monitoring", table, tmp_path)
    assert claims["saving-with-8-clients"]["ours"] == pytest.approx(1.95, rel=0.02)
    assert claims["metrics"]["saving_factor_128_clients"] > 20.0
    assert claims["saving-at-every-size"]["holds"] is False, "with two clients the centroids are the clients"
    assert claims["independent-of-clients"]["holds"] is True


def test_list_of_clients_in_a_topic_report_fails_monitoring_claims(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The experiment measures what the broker sends: here a broker that names every client."""
    monkeypatch.setattr(client_coordinates, "NAMED", 1_000)
    monkeypatch.setattr(epulsar_monitoring, "TOPICS", (2, 4))
    experiment = runner.find("epulsar-monitoring")
    claims = claims_of("epulsar-monitoring", runner.run_here(experiment, experiment.settings(1)), tmp_path)
    assert claims["independent-of-clients"]["holds"] is False
    assert claims["independent-of-clients"]["ours"] > 2.0


def test_naive_report_has_every_clients_coordinate() -> None:
    topic = TopicName("t")
    home = ReportingHome(epulsar_monitoring.HOME, [topic])
    for number in range(6):
        coordinate = Coordinate((0.01 * number, *[0.0] * (DIMENSIONS - 1)), 0.005, 0.0, 0.1)
        home.attach(topic, f"user-{number}", coordinate, sends=number < 2)
    home.run_period()
    report = home.reports[topic]
    assert (report.senders, report.receivers) == (2, 4)
    senders, receivers = home.believed(topic)
    assert [round(at.vector[0], 2) for at in (*senders, *receivers)] == [0.0, 0.01, 0.02, 0.03, 0.04, 0.05]


def test_migration_claims_follow_from_the_data(tmp_path: Path) -> None:
    """With migrations that slow each other down, the downtime at the shortest WAN is just above half of Pulsar's."""
    experiment = runner.find("epulsar-migration")
    table = runner.run_here(experiment, experiment.settings(1))
    claims = claims_of("epulsar-migration", table, tmp_path)
    assert {id for id, claim in claims.items() if id != "metrics" and not claim["holds"]} == {"downtime-at-most-half"}
    assert 0.5 < claims["downtime-at-most-half"]["ours"] < 0.55
    better = table.to_pandas()
    better.loc[better.workflow == "coordinated", "downtime_ms"] *= 0.9
    assert claims_of("epulsar-migration", pa.Table.from_pandas(better), tmp_path)["downtime-at-most-half"]["holds"]
    worse = table.to_pandas()
    worse[["downtime_ms", "per_topic_ms"]] = 100.0
    broken = claims_of("epulsar-migration", pa.Table.from_pandas(worse), tmp_path)
    assert not any(claim["holds"] for id, claim in broken.items() if id != "metrics"), broken


SHORT = {"epulsar-uav": {"duration_s": "30"}, "epulsar-mmog": {"duration_s": "30", "bounds_ms": "90,100"}}


@pytest.fixture(scope="module", params=SHORT)
def short_run(request: pytest.FixtureRequest) -> tuple[str, pa.Table]:
    experiment = runner.find(request.param)
    return request.param, runner.run_here(experiment, experiment.settings(1, **SHORT[request.param]))


def with_moves(table: pa.Table, moves: int, occasions: int) -> pd.DataFrame:
    """The table as if so many topics had moved after the start, for every loop and bound."""
    rows = table.to_pandas()
    rows.loc[rows.kind == "run", "occasions"] = occasions
    rows = rows[rows.kind != "move"]
    keys = rows.loc[rows.kind == "run", ["run", "loop", "bound_ms"]].to_dict("records")
    move = {"kind": "move", "topic": "t", "at_s": 100.0, "returned": False, "followed": False}
    return pd.concat([rows, pd.DataFrame([{**key, **move} for key in keys for _ in range(moves)])], ignore_index=True)


def test_short_run_reports_both_loops_and_voids_claims_without_moves(
    short_run: tuple[str, pa.Table], tmp_path: Path
) -> None:
    name, table = short_run
    claims = claims_of(name, table, tmp_path)
    judged = claims.pop("nothing-lost")
    assert judged["holds"] is True, judged
    metrics = claims.pop("metrics")
    for loop in ("paper", "tocsin"):
        assert any(key.startswith(loop) and key.endswith("share_late") for key in metrics)
        assert any(key.startswith(loop) and key.endswith("longest_transient_s") for key in metrics)
    about_moves = [claim for id, claim in claims.items() if not id.startswith("transients-at-zone")]
    assert about_moves
    assert all(claim["holds"] is None and "void" in claim["differs"] for claim in about_moves)
    assert "## Status" in (tmp_path / f"{name}.md").read_text(encoding="utf-8")


def test_one_move_in_twenty_occasions_is_required(short_run: tuple[str, pa.Table], tmp_path: Path) -> None:
    name, table = short_run
    at = "tocsin-loop" if name == "epulsar-uav" else "tocsin-loop-100-ms"
    few = claims_of(name, pa.Table.from_pandas(with_moves(table, 4, 100)), tmp_path)
    assert few[f"transients-end-{at}"]["holds"] is None
    enough = claims_of(name, pa.Table.from_pandas(with_moves(table, 5, 100)), tmp_path)
    assert enough[f"transients-end-{at}"]["holds"] is True
    assert enough[f"no-back-and-forth-{at}"]["holds"] is True


def test_claims_about_moving_topics_can_fail(short_run: tuple[str, pa.Table], tmp_path: Path) -> None:
    name, table = short_run
    at = "tocsin-loop" if name == "epulsar-uav" else "tocsin-loop-100-ms"
    worse = with_moves(table, 5, 100)
    worse.loc[worse.kind == "topic", "share_above"] = 0.11
    worse.loc[worse.kind == "transient", "duration_s"] = 10.5
    worse.loc[worse.kind == "move", "returned"] = True
    worse.loc[worse.kind == "run", "lost"] = 1
    broken = claims_of(name, pa.Table.from_pandas(worse), tmp_path)
    for id in (f"below-bound-mostly-{at}", f"transients-end-{at}", f"no-back-and-forth-{at}", "nothing-lost"):
        assert broken[id]["holds"] is False, id


def test_mistake_that_goes_unnoticed_voids_nothing_lost(short_run: tuple[str, pa.Table], tmp_path: Path) -> None:
    name, table = short_run
    blind = table.to_pandas()
    blind.loc[blind.mistake == "empty-hand-over", ["lost", "repeated", "out_of_order"]] = 0
    claim = claims_of(name, pa.Table.from_pandas(blind), tmp_path)["nothing-lost"]
    assert claim["holds"] is None
    assert "empty-hand-over" in claim["differs"]


def test_seed_and_rate_of_a_live_run_can_be_chosen() -> None:
    for name in SHORT:
        settings = runner.find(name).settings(2, seed="7", rate_share="0.1", loops="paper")
        kept = [setting for setting in settings if setting["mistake"] is None]
        assert {setting["seed"] for setting in kept} == {7, 8}
        assert {(setting["loop"], setting["rate_share"]) for setting in kept} == {("paper", 0.1)}
        with pytest.raises(ValueError, match="loops are paper, tocsin"):
            runner.find(name).settings(1, loops="ours")


def test_transient_without_zone_change_fails_its_claim() -> None:
    name = uav.topic_names(0)[0]
    zone = {"kind": "zone", "run": 0, "topic": name, "at_s": 150.0}
    late = {"kind": "transient", "run": 0, "topic": name}
    share = epulsar_uav.share_at_zone_changes
    assert share(pd.DataFrame([zone, {**late, "at_s": 150.1}])) == 1.0
    assert share(pd.DataFrame([zone, {**late, "at_s": 150.1}, {**late, "at_s": 170.0}])) == 0.5
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
