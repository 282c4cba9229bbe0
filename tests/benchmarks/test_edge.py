"""`tocsin bench edge`: both engines compute the same windows, and the edge node is at least as fast as bytewax."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from tocsin.benchmarks import edge
from tocsin.cli.main import make_app

pytest.importorskip("bytewax")


def test_both_engines_compute_the_windows_of_plain_python() -> None:
    rows, batches = edge.make_readings(5_000)
    expected: edge.Windows = {}
    for at, meter, kwh in rows:
        if kwh > edge.LEAST_KWH:
            key = (meter, int(at.timestamp()) // edge.WINDOW_S * edge.WINDOW_S)
            total, count = expected.get(key, (0.0, 0))
            expected[key] = (total + kwh, count + 1)
    assert edge.through_edge_node(batches) == expected
    assert edge.through_bytewax(rows) == expected


def test_differing_windows_raise_instead_of_giving_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, batches = edge.make_readings(1_000)
    monkeypatch.setattr(edge, "through_bytewax", lambda rows: {})
    with pytest.raises(RuntimeError, match="windows differ"):
        edge.measure(rows, batches)


def test_command_prints_json_and_edge_node_is_at_least_as_fast() -> None:
    done = CliRunner().invoke(make_app(), ["bench", "edge", "--readings", "40000", "--repeat", "1", "--json"])
    assert done.exit_code == 0, done.output
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures["ratio"] == pytest.approx(
        figures["tuples_per_cpu_s"] / figures["bytewax_tuples_per_cpu_s"], rel=0.01
    )
    assert figures["ratio"] >= 1.0
