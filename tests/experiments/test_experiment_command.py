"""`tocsin experiment` and `tocsin bench partition` from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from tocsin.cli.main import make_app
from tocsin.experiments import runner


def test_without_a_name_the_command_lists_what_there_is() -> None:
    answer = CliRunner().invoke(make_app(), ["experiment", "--json"])
    listed = {one["name"]: one for one in json.loads(answer.stdout)}
    assert listed["epulsar-placement"]["runs"] == 1000
    assert "epulsar-uav" in CliRunner().invoke(make_app(), ["experiment"]).stdout


def test_an_option_that_is_no_pair_is_refused_before_anything_runs(tmp_path: Path) -> None:
    answer = CliRunner().invoke(
        make_app(), ["experiment", "epulsar-monitoring", "--set", "nonsense", "--out", str(tmp_path / "out")]
    )
    assert answer.exit_code == 2
    assert "not KEY=VALUE" in answer.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.spark
def test_the_last_line_is_one_object_and_the_table_is_the_one_made_without_spark(tmp_path: Path) -> None:
    answer = CliRunner().invoke(make_app(), ["experiment", "epulsar-monitoring", "--out", str(tmp_path), "--json"])
    assert answer.exit_code == 0, answer.stderr
    said = json.loads(answer.stdout.splitlines()[-1])
    assert set(said) == {"experiment", "runs", "metrics", "claims", "files"}
    assert all({"id", "source", "seed_document", "ours", "holds"} <= set(claim) for claim in said["claims"])
    assert all(Path(path).is_file() for path in said["files"])
    experiment = runner.find("epulsar-monitoring")
    without_spark = runner.run_here(experiment, experiment.settings(experiment.default_runs))
    assert pq.read_table(tmp_path / "epulsar-monitoring.parquet").equals(without_spark)


def test_the_partition_benchmark_checks_its_plan_and_prints_the_median() -> None:
    answer = CliRunner().invoke(
        make_app(), ["bench", "partition", "--topics", "300", "--brokers", "20", "--repeats", "2", "--json"]
    )
    assert answer.exit_code == 0, answer.stderr
    said = json.loads(answer.stdout.splitlines()[-1])
    assert said["plan_s_p50"] > 0
    assert said["moves"] + said["unmet"] >= 300
