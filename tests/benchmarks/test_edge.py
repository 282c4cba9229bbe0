"""`tocsin bench edge`: all engines compute the same windows, and the edge node keeps its bars."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from tocsin.benchmarks import edge
from tocsin.benchmarks.shared.window_engines import LEAST_KWH, WINDOW_S, Windows, make_readings
from tocsin.cli.main import make_app

pytest.importorskip("bytewax")


def test_all_engines_compute_the_windows_of_plain_python() -> None:
    rows, batches = make_readings(9_000)
    expected: Windows = {}
    for at, meter, kwh in rows:
        if kwh > LEAST_KWH:
            key = (meter, int(at.timestamp()) // WINDOW_S * WINDOW_S)
            total, count = expected.get(key, (0.0, 0))
            expected[key] = (total + kwh, count + 1)
    for name, engine in edge.engines_for(rows, batches).items():
        assert engine() == expected, name


def test_differing_or_missing_windows_are_not_correct() -> None:
    window = {("meter", 0): (1.0, 1)}
    assert edge.run_round({"one": lambda: window, "other": lambda: dict(window)}, 0)[2]
    other = {("meter", 0): (1.5, 1)}
    assert not edge.run_round({"one": lambda: window, "other": lambda: other}, 1)[2]
    assert not edge.run_round({"one": lambda: window, "other": dict}, 0)[2]
    assert not edge.run_round({"one": dict, "other": dict}, 0)[2]


def test_every_round_starts_with_another_engine() -> None:
    order: list[str] = []

    def engine(name: str) -> dict[tuple[str, int], tuple[float, int]]:
        order.append(name)
        return {("meter", 0): (1.0, 1)}

    engines = {name: lambda name=name: engine(name) for name in "abc"}
    for number in range(3):
        edge.run_round(engines, number)
    assert "".join(order) == "abcbcacab"


def test_command_prints_ratios_and_edge_node_keeps_its_bars() -> None:
    done = CliRunner().invoke(make_app(), ["bench", "edge", "--readings", "100000", "--repeat", "3", "--json"])
    assert done.exit_code == 0, done.output
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures["correct"] is True
    assert set(edge.RATIOS) <= set(figures)
    assert {"bytewax", "duckdb", "pyarrow"} <= set(figures["versions"])
    assert figures["ratio_bytewax_rows"] >= 1.0
    assert figures["ratio_arrow"] >= 0.25, "half of the bar of `bench check`: other tests run at the same time"
