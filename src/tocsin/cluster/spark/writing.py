"""Executors write files, and report what they wrote in one row each: nothing else returns to the driver.

A task writes under a name of its own and its file counts only if the driver commits the row it returned, so retried and
speculative tasks, and processes that died, leave files nobody reads. `write` is one Spark job however much it writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from tocsin.cluster.catalog import NewFile
from tocsin.cluster.store.columns import SUBSCRIPTION
from tocsin.cluster.store.filewriting import (
    SUMMARY,
    BatchWriter,
    copy_writer,
    from_ipc,
    records_writer,
    results_writer,
    with_names,
)
from tocsin.cluster.store.storage import Storage

_REPORT = (
    "path STRING, rows BIGINT, bytes BIGINT, first BIGINT, last BIGINT, position BIGINT, summary BINARY, body BINARY"
)


@dataclass(frozen=True, slots=True)
class Written:
    files: list[NewFile]
    position: int | None
    """Records from the gateway: the feed log is covered up to here."""


@dataclass(frozen=True, slots=True)
class WrittenResults:
    files: list[NewFile]
    summary: pa.Table
    """subscription, results, bytes: one row per subscription that has any."""
    short_cuts: Mapping[str, pa.Table]
    """The rows of small files by path, as they were stored; the files are the truth."""


def write_records(frame: DataFrame, storage: Storage, folder: str) -> Written:
    """Store a dataset's records; `frame` has the dataset's columns, VERSION, SEQUENCE and perhaps NEXT."""
    reports = frame.mapInArrow(records_writer(storage, folder), _REPORT).collect()
    known = [row.position for row in reports if row.position is not None]
    return Written([_new_file(row.asDict()) for row in reports], max(known, default=None))


def write_records_here(records: pa.Table, storage: Storage, folder: str) -> list[NewFile]:
    """The same for a few records that are in memory: the driver writes the file itself."""
    reports = [row for batch in records_writer(storage, folder)(records.to_batches()) for row in batch.to_pylist()]
    return [_new_file(report) for report in reports]


def write_results(frame: DataFrame, storage: Storage, folder: str, execution: int, tasks: int) -> WrittenResults:
    """Store an execution's results; `frame` has SUBSCRIPTION first and then the channel's own columns.

    All results of a subscription go to one task, sorted: its rows are numbered there, and a reader finds them together.
    """
    together = frame.repartition(tasks, SUBSCRIPTION).sortWithinPartitions(SUBSCRIPTION)
    return _written_results(_map(together, results_writer(storage, folder, execution)))


def write_few_results(frame: DataFrame, storage: Storage, folder: str, execution: int) -> WrittenResults:
    """The same for an execution that is known to be small: its results come here and are written here.

    Without a shuffle and a Python worker it takes about half as long, which is most of a continuous channel's delay.
    """
    found = frame.toArrow().sort_by(SUBSCRIPTION)
    write = results_writer(storage, folder, execution)
    return _written_results([row for batch in write(found.to_batches()) for row in batch.to_pylist()])


def _written_results(reports: list[dict[str, Any]]) -> WrittenResults:
    summaries = [from_ipc(report["summary"]) for report in reports]
    return WrittenResults(
        [_new_file(report) for report in reports],
        pa.concat_tables(summaries) if summaries else SUMMARY.empty_table(),
        {report["path"]: from_ipc(report["body"]) for report in reports if report["body"] is not None},
    )


def rewrite(frame: DataFrame, storage: Storage, folder: str, ordered_by: str) -> list[NewFile]:
    """Store rows again as they are, for compaction; `ordered_by` is VERSION or OFFSET."""
    return [_new_file(report) for report in _map(frame, copy_writer(storage, folder, ordered_by))]


def _map(frame: DataFrame, writer: BatchWriter) -> list[dict[str, Any]]:
    """The reports of `writer` on executors. `mapInArrow` looks columns up by name and takes `a.b` for a part of `a`:
    on the way there they are numbered."""
    numbered = frame.toDF(*(f"c{number}" for number in range(len(frame.columns))))
    return [row.asDict() for row in numbered.mapInArrow(with_names(writer, frame.columns), _REPORT).collect()]


def _new_file(report: dict[str, Any]) -> NewFile:
    return NewFile(report["path"], report["rows"], report["bytes"], report["first"], report["last"])
