"""`tocsin bench edge`: both engines give one answer, and the edge node is not the slower one."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from tocsin.benchmarks import edge
from tocsin.cli.main import make_app

pytest.importorskip("bytewax")


def test_both_engines_give_the_answer_of_plain_python() -> None:
    rows, batches = edge.make_readings(5_000)
    expected: edge.Answer = {}
    for at, meter, kwh in rows:
        if kwh > edge.LEAST_KWH:
            key = (meter, int(at.timestamp()) // edge.WINDOW_S * edge.WINDOW_S)
            total, count = expected.get(key, (0.0, 0))
            expected[key] = (total + kwh, count + 1)
    assert edge.through_edge_node(batches) == expected
    assert edge.through_bytewax(rows) == expected


def test_a_wrong_answer_is_never_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, batches = edge.make_readings(1_000)
    monkeypatch.setattr(edge, "through_bytewax", lambda rows: {})
    with pytest.raises(RuntimeError, match="windows differ"):
        edge.measure(rows, batches)


def test_the_command_prints_one_json_object_and_the_edge_node_is_at_least_as_fast() -> None:
    done = CliRunner().invoke(make_app(), ["bench", "edge", "--readings", "40000", "--repeat", "1", "--json"])
    assert done.exit_code == 0, done.output
    answer = json.loads(done.stdout.splitlines()[-1])
    assert answer["ratio"] == pytest.approx(answer["tuples_per_cpu_s"] / answer["bytewax_tuples_per_cpu_s"], rel=0.01)
    assert answer["ratio"] >= 1.0
