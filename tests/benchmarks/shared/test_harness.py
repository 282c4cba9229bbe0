"""The command of a benchmark prints its figures and fails when they are incorrect."""

from __future__ import annotations

import json
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from tocsin.benchmarks.shared.harness import MISSING, command


def example(size: Annotated[int, typer.Option(min=1)] = 3) -> dict[str, Any]:
    return {"size": size, "rate_per_s": 1234.5, "correct": size < 10}


@pytest.mark.parametrize(("size", "exit_code"), [("7", 0), ("12", 1)])
def test_command_prints_json_and_exits_with_1_if_incorrect(size: str, exit_code: int) -> None:
    app = typer.Typer()
    command(example)(app)
    done = CliRunner().invoke(app, ["--size", size, "--json"])
    assert done.exit_code == exit_code
    figures = json.loads(done.stdout)
    assert figures.pop("machine")["cores"] >= 1
    assert figures == {"size": int(size), "rate_per_s": 1234.5, "correct": exit_code == 0}


def test_command_without_json_prints_a_line_for_each_figure() -> None:
    app = typer.Typer()
    command(example)(app)
    done = CliRunner().invoke(app, [])
    machine, *lines = (line.split() for line in done.stdout.splitlines())
    assert machine[0] == "machine"
    assert lines == [
        ["size", "3"],
        ["rate_per_s", "1,234"],
        ["correct", "True"],
    ]


def test_command_without_a_needed_package_names_it_in_one_sentence() -> None:
    app = typer.Typer()
    command(example, needs=("json", "no_such_package"))(app)
    done = CliRunner().invoke(app, ["--json"])
    assert (done.exit_code, done.stdout) == (MISSING, "")
    assert done.stderr == ("tocsin bench example: not installed: no_such_package; run `pip install no_such_package`\n")
