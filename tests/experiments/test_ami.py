"""`ami` and `ami-scale`: quality bounds on seeded worlds, claims computed from the table, files of the figures."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tocsin.experiments import ami, ami_pairs, ami_scale, runner
from tocsin.sim.edge.tree import EdgeLog


def log_of(*samples: list[float]) -> EdgeLog:
    return EdgeLog(times_s=[2.0 * row for row in range(len(samples))], memory_pct=list(samples))


def test_measures_of_a_pair_of_runs_by_hand() -> None:
    without = log_of([50, 50], [70, 50], [70, 65], [70, 50])
    with_ = log_of([50, 50], [60, 60], [70, 65], [61, 59])
    measures = ami_pairs.compare(without, with_)
    assert measures["overloaded_node_s_without"] == 2 * (1 + 2 + 1)
    assert measures["overloaded_node_s_with"] == 2 * (0 + 2 + 1)
    assert measures["either_s"] == 6.0
    assert measures["fewer_pct"] == 25.0, "one of four samples"
    assert measures["fewer_while_any_pct"] == pytest.approx(100 / 3), "one of the three samples with overload"
    assert measures["more_while_any_pct"] == 0.0
    assert measures["steadier_pct"] == 50.0
    assert measures["excess_without"] == 2 * (10 + 15 + 10)


@pytest.fixture(scope="module")
def two_runs() -> pa.Table:
    return runner.run_here(ami.EXPERIMENT, ami.EXPERIMENT.settings(2, sensitivity="no"))


def test_ami_confirms_the_claims_and_writes_its_figures(two_runs: pa.Table, tmp_path: Path) -> None:
    answer = runner.finish(ami.EXPERIMENT, 2, two_runs, tmp_path)
    claims = {claim["id"]: claim for claim in answer["claims"]}
    assert {id for id, claim in claims.items() if not claim["holds"]} <= {
        "lower-standard-deviation",
        "literal-overload-in-total",
    }
    whole, part = claims["fewer-overloaded-nodes"], claims["fewer-overloaded-nodes-while-any"]
    assert whole["ours"] < part["ours"] and whole["seed_value"] == part["seed_value"]
    for id in ("nearest-overload-in-total", "nearest-fewer-overloaded-nodes"):
        assert claims[id]["within_factor"] and "nearness" in claims[id]["decided_by"]
    assert claims["literal-overload-in-total"]["ours"] < claims["listings-nearest-overload-in-total"]["ours"]
    assert claims["overload-in-total"]["within_factor"] is False, "the thesis gains far less"
    assert "unit" in claims["overload-in-total"]["decided_by"]
    assert answer["metrics"]["overload_reduction_pct"] > 60
    assert {Path(path).name for path in answer["files"]} >= {"ami.parquet", "ami-figure-15.png", "ami-figure-16.svg"}


def test_a_claim_of_ami_fails_when_the_runs_do_not_support_it(two_runs: pa.Table, tmp_path: Path) -> None:
    """With the two sides swapped, and every node steadier without, no claim may hold."""
    names = [
        re.sub("with(out)?", lambda side: "with" if side[1] else "without", name) for name in two_runs.column_names
    ]
    swapped = {"fewer_while_any_pct": "more_while_any_pct", "more_while_any_pct": "fewer_while_any_pct"}
    rows = two_runs.rename_columns([swapped.get(name, name) for name in names]).to_pandas()
    rows["steadier_pct"], rows["fewer_pct"], rows["operators_twice"] = 99.0, 10.0, 1
    rows["mean_with"] += 0.05
    report = ami.EXPERIMENT.report(pa.Table.from_pandas(rows), tmp_path)
    assert {claim.id for claim in report.claims if claim.holds is not False} == set()


def test_ami_without_overload_is_not_judged(two_runs: pa.Table, tmp_path: Path) -> None:
    rows = two_runs.to_pandas()
    rows[["overloaded_node_s_without", "overloaded_node_s_with"]] = 0.0
    rows[["fewer_while_any_pct", "mean_spell_without_s", "mean_spell_with_s"]] = None
    claims = {claim.id: claim for claim in ami.EXPERIMENT.report(pa.Table.from_pandas(rows), tmp_path).claims}
    judged = {"fewer-overloaded-nodes", "lower-standard-deviation", "same-workload", "one-node-per-operator"}
    judged |= {f"{variant}-fewer-overloaded-nodes" for variant in ("nearest", "listings-nearest", "literal")}
    for id in claims.keys() - judged:
        assert claims[id].holds is None
        assert claims[id].differs == "no node was overloaded"


def test_sweep_covers_the_details_missing_in_the_thesis() -> None:
    settings = ami.EXPERIMENT.settings(15)
    assert sum(setting["variant"] == "base" for setting in settings) == 15
    units = {*ami.UNITS_PCT, *ami.NEAR_UNITS_PCT, ami.NEAREST_UNIT_PCT}
    assert {setting["unit_pct"] for setting in settings} == units
    assert {setting["mean_load_pct"] for setting in settings} == set(ami.STARTS_PCT)
    with pytest.raises(ValueError, match="no option"):
        ami.EXPERIMENT.settings(1, colour="red")


def test_ami_scale_reports_messages_and_times_for_each_size(tmp_path: Path) -> None:
    experiment = ami_scale.EXPERIMENT
    table = runner.run_here(experiment, experiment.settings(1, nodes="15,31"))
    assert table["operators"].to_pylist() == [606, 293]
    answer = runner.finish(experiment, 1, table, tmp_path)
    assert np.isfinite(answer["metrics"]["messages_a_node_and_minute_31_nodes"])
    assert answer["metrics"]["leave_p50_with_s_31_nodes"] < answer["metrics"]["leave_p50_without_s_31_nodes"]
    rows = table.to_pandas()
    rows.loc[rows.nodes == 31, ["messages_a_node_and_minute", "leave_p50_with_s"]] *= 10
    rows["overload_reduction_pct"] = 26.0
    broken = experiment.report(pa.Table.from_pandas(rows), tmp_path).claims
    assert [claim.holds for claim in broken] == [False, False, False]


def test_ami_scale_with_one_size_judges_no_growth(tmp_path: Path) -> None:
    experiment = ami_scale.EXPERIMENT
    table = runner.run_here(experiment, experiment.settings(1, nodes="15"))
    claims = {claim.id: claim for claim in experiment.report(table, tmp_path).claims}
    assert claims["messages-per-node"].holds is None and claims["time-to-leave-overload"].holds is None
    assert claims["overload-in-total"].holds is not None
