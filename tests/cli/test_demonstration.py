"""The frame of the demos: exit codes, the remark on problems, and the end of all processes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

from tocsin.cli.demonstration import Demonstration, demonstrate


class Demo:
    def __init__(self, report: dict[str, Any] | Exception) -> None:
        self.report = report
        self.stopped = 0
        self.folder: Path | None = None

    async def run(self) -> dict[str, Any]:
        if isinstance(self.report, Exception):
            raise self.report
        return self.report

    async def stop(self) -> None:
        self.stopped += 1

    def make(self, folder: Path) -> Demonstration:
        assert folder.is_dir()
        self.folder = folder
        return Demonstration(self.run, self.stop, lambda: "the page", Path("out"), advice=" Try less.")


def lost(report: dict[str, Any]) -> list[str]:
    return [f"{report['lost']} results are lost"] if report["lost"] else []


def exit_code(make: Callable[[Path], Demonstration]) -> int:
    with pytest.raises(typer.Exit) as ended:
        demonstrate(make, lost, Path("out"), as_json=True, remark=", the seed is 7")
    return ended.value.exit_code


def test_demo_without_problems_ends_and_leaves_no_folder() -> None:
    demo = Demo({"lost": 0})
    demonstrate(demo.make, lost, Path("out"), as_json=False)
    assert demo.stopped == 1 and demo.folder is not None and not demo.folder.exists()


def test_problems_are_named_with_the_place_of_the_logs(capsys: pytest.CaptureFixture[str]) -> None:
    demo = Demo({"lost": 3})
    assert exit_code(demo.make) == 1 and demo.stopped == 1
    notes = capsys.readouterr().err
    assert "3 results are lost" in notes and "the logs are in out, the seed is 7" in notes


def test_error_ends_the_demo_with_its_reason_and_advice(capsys: pytest.CaptureFixture[str]) -> None:
    demo = Demo(TimeoutError("the broker did not start"))
    assert exit_code(demo.make) == 1 and demo.stopped == 1
    assert "the broker did not start" in capsys.readouterr().out


def test_wrong_option_is_a_bad_request(capsys: pytest.CaptureFixture[str]) -> None:
    def make(folder: Path) -> Demonstration:
        raise ValueError("a tree has 7 or 15 nodes, not 8")

    assert exit_code(make) == 1
    assert '"code":"bad_request"' in capsys.readouterr().out
