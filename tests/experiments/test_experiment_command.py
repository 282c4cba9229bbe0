"""`tocsin experiment` and `tocsin bench partition` from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from tocsin.cli.main import make_app
from tocsin.experiments import runner


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


@pytest.mark.spark
def test_json_output_and_table_agree_with_run_without_spark(tmp_path: Path) -> None:
    answer = CliRunner().invoke(make_app(), ["experiment", "epulsar-monitoring", "--out", str(tmp_path), "--json"])
    assert answer.exit_code == 0, answer.stderr
    output = json.loads(answer.stdout.splitlines()[-1])
    assert set(output) == {"experiment", "runs", "metrics", "claims", "files"}
    assert all({"id", "source", "seed_document", "ours", "holds"} <= set(claim) for claim in output["claims"])
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
