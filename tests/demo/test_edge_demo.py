"""The report of `tocsin edge-demo`: problems as sentences, and refused settings. The run itself needs Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tocsin.cli.main import make_app
from tocsin.demo.edge_demo import problems, sentences

REPORT: dict[str, Any] = {
    "nodes": 7, "meters": 2_000, "seconds": 90.0, "readings": 150_000, "expected": 800, "received": 800, "lost": 0,
    "repeated": 0, "wrong": 0, "late_rows": 0, "examples": [], "alerts": 12, "alerts_s_p50": 2.5, "alerts_s_p95": 4.0,
    "generations": 9, "operators_moved": 6, "highest_load_pct": 81.0, "bytes_up_share": 0.04, "drained": True,
    "errors": [],
}  # fmt: skip


def test_good_run_has_no_problem_and_says_what_arrived() -> None:
    assert problems(REPORT) == []
    text = "\n".join(sentences(REPORT))
    assert "800 of 800 results" in text and "12 alerts" in text and "4.0 %" in text


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"lost": 1}, "lost 1"),
        ({"wrong": 2}, "wrong 2"),
        ({"alerts": 0}, "no alert"),
        ({"errors": ["broken"]}, "broken"),
    ],
)
def test_each_failure_is_a_problem(change: dict[str, Any], word: str) -> None:
    [problem] = problems(REPORT | change)
    assert word in problem


def test_tree_of_another_size_is_refused(tmp_path: Path) -> None:
    result = CliRunner().invoke(make_app(), ["edge-demo", "--nodes", "9", "--out", str(tmp_path), "--json"])
    assert result.exit_code == 1
    assert "7 or 15" in json.loads(result.stdout.splitlines()[-1])["error"]["message"]
