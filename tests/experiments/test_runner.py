"""The runner: finding experiments, order of rows, and the files that it writes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from matplotlib.figure import Figure
from typer.testing import CliRunner

from tocsin.cli.main import make_app
from tocsin.experiments import figures, report, runner


@dataclass(frozen=True)
class Squares:
    """A tiny experiment: the squares of the run numbers, claimed to stay below 10."""

    name: str = "squares"
    title: str = "Squares"
    default_runs: int = 3

    def settings(self, runs: int, **options: str) -> Sequence[dict[str, Any]]:
        return [{"seed": number, "power": int(options.get("power", 2))} for number in range(runs)]

    def run(self, setting: Any) -> list[dict[str, Any]]:
        value = setting["seed"] ** setting["power"]
        return [{"seed": setting["seed"], "value": value}, {"seed": setting["seed"], "odd": bool(value % 2)}]

    def report(self, table: pa.Table, out: Path) -> report.ExperimentReport:
        largest = max(value for value in table["value"].to_pylist() if value is not None)
        files = figures.draw(out, "squares", _draw)
        claims = [report.below("small", "[nowhere]", "below 10", largest, 10.0, "units", decided_by=report.NO_CHOICE)]
        return report.ExperimentReport(
            {"largest": largest, "undefined": float("nan")}, claims, files, "Some **words**."
        )


def _draw(figure: Figure) -> None:
    axes = figure.add_subplot()
    axes.plot([1, 2], [1, 4], label="squares")
    figures.seed_line(axes, 3.0, "the document says 3")
    figures.legend_below(figure, axes)


def test_rows_with_different_keys_make_table_with_nulls() -> None:
    table = runner.run_here(Squares(), Squares().settings(2))
    assert table.column_names == ["seed", "value", "odd"]
    assert table.to_pylist()[1] == {"seed": 0, "value": None, "odd": False}


def test_run_writes_and_lists_table_figures_and_page(tmp_path: Path) -> None:
    experiment = Squares()
    table = runner.run_here(experiment, experiment.settings(3))
    answer = runner.finish(experiment, 3, table, tmp_path / "deep" / "folder")
    assert [Path(path).name for path in answer["files"]] == [
        "squares.parquet",
        "squares.png",
        "squares.svg",
        "squares.md",
    ]
    assert all(Path(path).stat().st_size > 0 for path in answer["files"])
    assert pq.read_table(answer["files"][0]).equals(table)
    page = Path(answer["files"][-1]).read_text(encoding="utf-8")
    assert "| small | [nowhere] | below 10 | – | 4 | – | – | yes | none |" in page
    assert "![squares](squares.png)" in page
    assert answer["metrics"] == {"largest": 4, "undefined": None}
    assert json.loads(json.dumps(answer)) == answer


def test_failed_claim_is_reported_with_the_difference(tmp_path: Path) -> None:
    experiment = Squares()
    table = runner.run_here(experiment, experiment.settings(3, power="4"))
    (claim,) = runner.finish(experiment, 3, table, tmp_path)["claims"]
    assert claim["holds"] is False
    assert claim["differs"] == "measured 16 units, expected less than 10 units"
    assert "**no**: measured 16 units" in (tmp_path / "squares.md").read_text(encoding="utf-8")


def test_same_figure_is_written_with_same_bytes(tmp_path: Path) -> None:
    first = [path.read_bytes() for path in figures.draw(tmp_path, "one", _draw)]
    again = [path.read_bytes() for path in figures.draw(tmp_path, "one", _draw)]
    assert first == again


def test_unknown_experiment_is_refused_with_list_of_names() -> None:
    for name in ("no-such", "runner", "../etc", ""):
        with pytest.raises(runner.UnknownExperiment, match="there are:"):
            runner.find(name)
    answer = CliRunner().invoke(make_app(), ["experiment", "no-such"])
    assert answer.exit_code == 2
    assert "no-such" in answer.stderr


def test_every_experiment_is_found_by_its_name() -> None:
    for name in runner.names():
        experiment = runner.find(name)
        assert experiment.name == name
        assert runner.find(name.replace("-", "_")) is experiment
        assert experiment.default_runs >= 1
        assert experiment.title
