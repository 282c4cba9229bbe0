"""Small executions pass through the driver, but only as many bytes as fit there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.cluster.emergency import NORTH, declare
from tests.conftest import ClusterAt, publish, results_of
from tocsin.cluster.engine import DataCluster
from tocsin.cluster.spark import execution
from tocsin.cluster.spark.execution import ExecutionSize
from tocsin.cluster.spark.writing import (
    CATALOG_BYTES,
    FewResults,
    write_few_results,
    write_few_results_of_several,
    write_results,
)
from tocsin.cluster.sql.result_columns import BYTES, OFFSET, SUBSCRIPTION
from tocsin.cluster.store.filewriting import from_ipc
from tocsin.cluster.store.sizes import json_sizes, widest_row
from tocsin.cluster.store.storage import Storage

NOTES = """CREATE STREAM DATASET Notes (id INT, text STRING) KEY (id);
CREATE CONTINUOUS CHANNEL AllNotes (least INT) AS SELECT r.id, r.text FROM NEW Notes r WHERE r.id >= :least;"""


def test_execution_with_few_wide_results_is_not_small() -> None:
    assert ExecutionSize(1_000, 50, results=500, result_bytes=200).is_small
    assert not ExecutionSize(10_000, 99, results=9_000, result_bytes=20_000).is_small
    assert ExecutionSize(10_000, 99, results=0, result_bytes=20_000).most_rows * 20_000 <= execution.SMALL_BYTES
    assert ExecutionSize(1, 1, results=0, result_bytes=1 << 40).most_rows >= 2


def test_wide_results_are_written_by_more_tasks() -> None:
    assert ExecutionSize(10_000, 9, results=90_000, result_bytes=200).result_tasks(cores=2) == 1
    assert ExecutionSize(10_000, 9, results=90_000, result_bytes=20_000).result_tasks(cores=2) == 8


def test_widest_row_counts_the_longest_texts_of_one_row() -> None:
    rows = pa.table({"n": pa.array([1, 2], pa.int64()), "a": ["x" * 100, "x"], "b": ["", "y" * 40], "c": [None, True]})
    assert widest_row(rows) == 8 + 100 + 1
    assert widest_row(rows.slice(0, 0)) == 9
    assert widest_row(rows.slice(1).to_batches()[0]) == 8 + 41 + 1


def test_widest_row_counts_values_inside_lists_structs_and_maps() -> None:
    shelters = [[{"name": "abc", "beds": 1}], [], [{"name": "q", "beds": 2}, {"name": None, "beds": None}], None]
    counts = pa.array([[("k", 1)], None, [("kk", 2), ("z", 3)], []], pa.map_(pa.string(), pa.int64()))
    rows = pa.table({"shelters": pa.array(shelters), "counts": counts})
    widths = [8 + 11 + 8 + 9, 8 + 8, 8 + 17 + 8 + 19, 8 + 8]
    assert [widest_row(rows.slice(place, 1)) for place in range(4)] == widths
    assert widest_row(rows) == widest_row(pa.concat_tables([rows, rows.slice(0, 0), rows])) == max(widths)


def test_results_of_several_channels_are_stored_as_those_of_single_ones(tmp_path: Path) -> None:
    def rows(texts: list[str | None], kind: str = "a") -> pa.Table:
        numbers = pa.array([7 - place % 3 for place in range(len(texts))], pa.int64())
        return pa.table({SUBSCRIPTION: numbers, "text": pa.array(texts, pa.string()), kind: [1.5] * len(texts)})

    storage = Storage(str(tmp_path))
    tables = [
        rows(["x", None, "é" * 90, "y"]),
        rows([]),
        rows(["z"] * 5, kind="b"),
        rows(["w" * 50]),
        rows(["v" * CATALOG_BYTES, "u"]),
    ]
    several = [FewResults(table, "results/C-1/w-", 5 + place) for place, table in enumerate(tables)]
    for few, written in zip(several, write_few_results_of_several(several, storage), strict=True):
        single = write_few_results(few.results, storage, few.prefix, few.execution)
        assert written.summary.equals(single.summary) and written.results == few.results.num_rows
        alike = [replace(file, path="", content=None) for file in written.files]
        assert alike == [replace(file, path="", content=None) for file in single.files]
        assert [table.to_pylist() for table in written.short_cuts.values()] == [
            table.to_pylist() for table in single.short_cuts.values()
        ]
        for file in written.files:
            [stored] = written.short_cuts.values()
            content = pq.read_table(tmp_path / file.path) if file.content is None else from_ipc(file.content)
            assert content.equals(stored) and written.widest == widest_row(stored)
            assert stored[BYTES].to_pylist() == json_sizes(stored.drop_columns([SUBSCRIPTION, OFFSET, BYTES])).tolist()


@pytest.mark.spark
@pytest.mark.parametrize("restarted", [False, True], ids=["from memory", "from files"])
def test_results_too_large_for_the_driver_are_written_by_executors(
    cluster: DataCluster, cluster_at: ClusterAt, monkeypatch: pytest.MonkeyPatch, restarted: bool
) -> None:
    declare(cluster, NOTES)
    cluster.subscribe("AllNotes", [{"least": -number} for number in range(20)], NORTH)
    publish(cluster, "Notes", [{"id": number, "text": "z" * 1_000} for number in range(5)])
    current = cluster_at() if restarted else cluster
    written: list[int] = []

    def executors(*arguments: Any) -> Any:
        results = write_results(*arguments)
        written.append(sum(file.rows for file in results.files))
        return results

    def driver(frame: Any, *arguments: Any) -> Any:
        assert arguments[-1] <= 10, "each task stops at 10 kB"
        return write_few_results(frame, *arguments)

    monkeypatch.setattr(execution, "SMALL_BYTES", 10_000)
    monkeypatch.setattr(execution, "write_results", executors)
    monkeypatch.setattr(execution, "write_few_results", driver)
    current.execute("AllNotes")
    assert written == [100]
    assert all(sorted(row["id"] for row in rows) == list(range(5)) for rows in results_of(current, "AllNotes").values())
