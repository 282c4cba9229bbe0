"""`tocsin experiment` and `tocsin bench partition` from the command line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from tests.experiments.test_bad_testbed_live import rows
from tocsin.cli.main import make_app
from tocsin.demo import testbed
from tocsin.experiments import bad_testbed_live, runner
from tocsin.experiments.report import NO_CHOICE, ExperimentReport, as_json, at_most


def test_command_without_name_lists_experiments() -> None:
    answer = CliRunner().invoke(make_app(), ["experiment", "--json"])
    listed = {entry["name"]: entry for entry in json.loads(answer.stdout)}
    assert listed["epulsar-placement"]["runs"] == 1000
    assert "epulsar-uav" in CliRunner().invoke(make_app(), ["experiment"]).stdout


def test_option_without_value_is_refused_before_the_run(tmp_path: Path) -> None:
    answer = CliRunner().invoke(
        make_app(), ["experiment", "epulsar-monitoring", "--set", "nonsense", "--out", str(tmp_path / "out")]
    )
    assert answer.exit_code == 2
    assert "not KEY=VALUE" in answer.stderr
    assert not (tmp_path / "out").exists()


@dataclass(frozen=True)
class OneClaim:
    """An experiment whose only claim is that the measured value is at most 1."""

    measured: float | None
    name: str = "one-claim"
    title: str = "One claim"
    default_runs: int = 1

    def settings(self, runs: int, **options: str) -> list[dict[str, Any]]:
        return [{"seed": 0}]

    def run(self, setting: Mapping[str, Any]) -> list[dict[str, Any]]:
        return [{"value": self.measured}]

    def report(self, table: pa.Table, out: Path) -> ExperimentReport:
        value = table["value"][0].as_py()
        return ExperimentReport({}, [at_most("low", "[p]", "at most 1", value, 1.0, decided_by=NO_CHOICE)])


@pytest.mark.parametrize(("measured", "exit_code", "holds"), [(0.5, 0, True), (2.0, 0, False), (None, 3, None)])
@pytest.mark.parametrize("form", [["--json"], []])
def test_exit_code_tells_whether_every_claim_was_judged(
    measured: float | None,
    exit_code: int,
    holds: bool | None,
    form: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    experiment = OneClaim(measured)

    def run(chosen: OneClaim, *_: object) -> dict[str, Any]:
        return runner.finish(chosen, 1, runner.run_here(chosen, chosen.settings(1)), tmp_path)

    monkeypatch.setattr(runner, "find", lambda name: experiment)
    monkeypatch.setattr(runner, "run_experiment", run)
    answer = CliRunner().invoke(make_app(), ["experiment", "one-claim", *form])
    assert answer.exit_code == exit_code, answer.stderr
    assert ("not judged: low" in answer.stderr) is (holds is None)
    if form:
        assert json.loads(answer.stdout.splitlines()[-1])["claims"][0]["holds"] is holds


@pytest.mark.parametrize(("lost", "exit_code"), [(0, 3), (2, 1)])
def test_live_exit_code_tells_wrong_deliveries_from_unjudged_claims(
    lost: int, exit_code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both reports have claims that were not judged. Lost notifications count more."""

    def run_live(*_: object) -> dict[str, Any]:
        made = pd.DataFrame(rows(lost=lost))
        claims = [as_json(claim) for claim in bad_testbed_live.claims(made)]
        metrics = bad_testbed_live.wrong_counts(made)
        return {"experiment": "bad-testbed", "runs": 1, "metrics": metrics, "claims": claims, "files": []}

    monkeypatch.setattr(testbed, "run_live", run_live)
    answer = CliRunner().invoke(make_app(), ["experiment", "bad-testbed", "--live", "--out", str(tmp_path), "--json"])
    assert answer.exit_code == exit_code, answer.stderr
    assert ("lost or wrong" in answer.stderr) is bool(lost)
    assert json.loads(answer.stdout.splitlines()[-1])["metrics"]["lost"] == 5 * lost


@pytest.mark.spark
def test_json_output_and_table_agree_with_run_without_spark(tmp_path: Path) -> None:
    answer = CliRunner().invoke(make_app(), ["experiment", "epulsar-monitoring", "--out", str(tmp_path), "--json"])
    assert answer.exit_code == 0, answer.stderr
    output = json.loads(answer.stdout.splitlines()[-1])
    assert set(output) == {"experiment", "runs", "metrics", "claims", "inputs", "files"}
    fields = {"id", "source", "seed_document", "ours", "holds", "differs", "decided_by"}
    fields |= {"seed_value", "at_least_as_good", "within_factor", "interval_95", "effect_size"}
    assert all(set(claim) == fields for claim in output["claims"])
    assert all(Path(path).is_file() for path in output["files"])
    experiment = runner.find("epulsar-monitoring")
    without_spark = runner.run_here(experiment, experiment.settings(experiment.default_runs))
    assert pq.read_table(tmp_path / "epulsar-monitoring.parquet").equals(without_spark)


def test_partition_benchmark_prints_median_of_checked_plans() -> None:
    answer = CliRunner().invoke(
        make_app(), ["bench", "partition", "--topics", "300", "--brokers", "20", "--repeats", "2", "--json"]
    )
    assert answer.exit_code == 0, answer.stderr
    output = json.loads(answer.stdout.splitlines()[-1])
    assert output["plan_s_p50"] > 0
    assert output["moves"] + output["unmet"] >= 300
