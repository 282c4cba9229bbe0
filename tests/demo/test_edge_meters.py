"""Simulated meters: rates, exact values, and the reference over their readings."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from tests.demo.test_edge_scenarios import in_duckdb
from tocsin.demo.edge_demo import USER_S
from tocsin.demo.edge_meters import DECLARATION, SCHEMA, MeterGroup, Place
from tocsin.demo.edge_queries import figure_3
from tocsin.demo.edge_reference import averages
from tocsin.demo.edge_tree import named_tree
from tocsin.demo.edge_utility import MEANS
from tocsin.demo.settings import application_file
from tocsin.experiments.edge_rows import compare
from tocsin.model.edge import EdgeNodeId

SECOND = 1_000_000
START_US = 1_795_000_000 * SECOND


def group(meters: int = 20, rate_per_s: float = 1.0) -> MeterGroup:
    return MeterGroup("g", Place("neighbourhood-1", "district-1"), meters, rate_per_s, START_US, seed=3, high_each=10)


def test_each_meter_reads_once_per_interval_and_nothing_twice() -> None:
    meters = group()
    turns = [meters.readings(START_US + turn * SECOND // 4) for turn in range(1, 41)]
    table = pa.Table.from_batches([batch for batch in turns if batch is not None], SCHEMA)
    counts = table.group_by("meter").aggregate([("ts", "count")])
    assert counts.num_rows == 20 and set(counts.column("ts_count").to_pylist()) == {10}
    times = table.column("ts").cast(pa.int64()).to_pylist()
    assert times == sorted(times)
    assert times[0] >= START_US and times[-1] < START_US + 10 * SECOND


def test_changed_rate_changes_the_number_of_readings() -> None:
    meters = group()
    meters.readings(START_US + 10 * SECOND)
    meters.change_rate(4.0)
    batch = meters.readings(START_US + 20 * SECOND)
    assert batch is not None and 20 * 36 <= batch.num_rows <= 20 * 41


def test_values_are_exact_fractions_and_some_users_are_suspicious() -> None:
    batch = group().readings(START_US + 20 * SECOND)
    assert batch is not None
    scaled = pc.multiply(batch.column("kwh"), 1024.0)
    assert pc.all(pc.equal(scaled, pc.floor(scaled))).as_py()
    means = pa.Table.from_batches([batch]).group_by("meter").aggregate([("kwh", "mean")])
    assert pc.sum(pc.greater(means.column("kwh_mean"), 2.0)).as_py() == 2


def test_averages_are_those_of_duckdb_bit_for_bit() -> None:
    batch = group(meters=200).readings(START_US + 35 * SECOND)
    assert batch is not None
    table = pa.Table.from_batches([batch])
    references = in_duckdb(figure_3(USER_S), {"Readings": table})
    for query in figure_3(USER_S):
        rows = averages(table, query, MEANS[query.name]).to_pylist()
        found = compare(query, rows, references[query.name], START_US + 3_600 * SECOND)
        assert found.expected > 0 and (found.lost, found.repeated, found.wrong) == (0, 0, 0), found


def test_example_file_has_the_queries_that_the_demo_compares() -> None:
    text = application_file(Path("examples", "edge", "meters.sql")).read_text(encoding="utf-8")
    statements = [_normal(statement) for statement in _without_comments(text).split(";") if statement.strip()]
    assert statements[0] == _normal(DECLARATION.rstrip(";"))
    expected = [_normal(query.statement("500 MILLISECONDS").rstrip(";")) for query in figure_3(USER_S)]
    assert statements[1:] == expected


def _without_comments(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not line.startswith("--"))


def _normal(statement: str) -> str:
    return " ".join(statement.split())


def test_trees_are_named_by_their_levels() -> None:
    tree = named_tree(7)
    assert tree.root == "city" and tree.parents[EdgeNodeId("neighbourhood-3")] == "district-2"
    assert named_tree(15).parents[EdgeNodeId("neighbourhood-8")] == "district-4"
