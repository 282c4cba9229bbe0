"""Writes and merges files with Spark. Each executor task reports its file in one row; only that row reaches the driver.

A task writes under a unique name, and its file counts only if the driver commits the row it returned. So the files of
retried and speculative tasks, and of processes that died, are never read. `prefix` is the beginning of the path of each
file: a folder and a write intent.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StructField, StructType

from tocsin.cluster.catalog import NewFile, StoredFile, catalog_path
from tocsin.cluster.spark.frames import latest_per_key, read_parquet, stored_frame
from tocsin.cluster.sql.result_columns import BYTES, OFFSET, SEQUENCE, SUBSCRIPTION, VERSION
from tocsin.cluster.store.filewriting import (
    SUMMARY,
    BatchWriter,
    ResultCounter,
    copy_writer,
    from_ipc,
    records_writer,
    result_sizes,
    results_writer,
    to_ipc,
    with_names,
)
from tocsin.cluster.store.merging import TARGET_BYTES
from tocsin.cluster.store.sizes import row_widths
from tocsin.cluster.store.storage import Storage
from tocsin.model.cursor import execution_of, offset_of
from tocsin.model.entities import Dataset, DatasetKind

CATALOG_BYTES = 32 << 10
"""The catalog stores the results of an execution itself if they are at most this large in memory.

A file of its own would cost such an execution more than all the rest: a Parquet writer, two fsyncs, and a deletion.
"""

_REPORT = (
    "path STRING, rows BIGINT, bytes BIGINT, first BIGINT, last BIGINT, widest BIGINT, position BIGINT, "
    "summary BINARY, body BINARY"
)


@dataclass(frozen=True, slots=True)
class WrittenRecords:
    files: list[NewFile]
    position: int | None
    """The position in the feed log after these records; None for records of a feed."""


@dataclass(frozen=True, slots=True)
class WrittenResults:
    files: list[NewFile]
    summary: pa.Table
    """subscription, results, bytes: one row for each subscription with results."""
    short_cuts: Mapping[str, pa.Table]
    """The rows of small files by path, equal to those in the files."""

    @property
    def results(self) -> int:
        return sum(file.rows for file in self.files)

    @property
    def widest(self) -> int | None:
        """Bytes of the widest result; None if there are no results."""
        return max((file.widest or 0 for file in self.files), default=None)


def write_records(frame: DataFrame, storage: Storage, prefix: str) -> WrittenRecords:
    """Write a dataset's records; `frame` has the dataset's columns, VERSION, SEQUENCE and perhaps NEXT."""
    reports = frame.mapInArrow(records_writer(storage, prefix), _REPORT).collect()
    positions = [row.position for row in reports if row.position is not None]
    return WrittenRecords([_new_file(row.asDict()) for row in reports], max(positions, default=None))


def write_records_here(records: pa.Table, storage: Storage, prefix: str) -> list[NewFile]:
    """Write a few records that are in memory: the driver writes the file itself."""
    reports = [row for batch in records_writer(storage, prefix)(records.to_batches()) for row in batch.to_pylist()]
    return [_new_file(report) for report in reports]


def write_results(frame: DataFrame, storage: Storage, prefix: str, execution: int, tasks: int) -> WrittenResults:
    """Write an execution's results; `frame` has SUBSCRIPTION first and then the channel's own columns.

    All results of a subscription go to one task, which numbers and sorts them.
    """
    together = frame.repartition(tasks, SUBSCRIPTION).sortWithinPartitions(SUBSCRIPTION)
    return _written_results(_map(together, results_writer(storage, prefix, execution)))


def write_few_results(results: pa.Table, storage: Storage, prefix: str, execution: int) -> WrittenResults:
    """Write the results of a small execution in the driver.

    Without a shuffle and a Python worker, writing takes about half as long. Writing is most of a continuous channel's
    delay. Very few results go into no file at all: the commit stores them in the catalog.
    """
    (written,) = write_few_results_of_several([FewResults(results, prefix, execution)], storage)
    return written


@dataclass(frozen=True, slots=True)
class FewResults:
    """The results of a small execution before they are written."""

    results: pa.Table
    prefix: str
    execution: int


def write_few_results_of_several(executions: Sequence[FewResults], storage: Storage) -> list[WrittenResults]:
    """Write the results of small executions of several channels: see `write_few_results`.

    Arrow's calls cost more than their work on few rows, so results with the same columns are measured together.
    """
    ordered = [few.results.sort_by(SUBSCRIPTION) for few in executions]
    alike: dict[pa.Schema, list[int]] = {}
    for place, rows in enumerate(ordered):
        if rows.num_rows and rows.nbytes <= CATALOG_BYTES:
            alike.setdefault(rows.schema, []).append(place)
    written: dict[int, WrittenResults] = {}
    for places in alike.values():
        batches = [ordered[place].combine_chunks().to_batches()[0] for place in places]
        together = pa.concat_batches(batches)
        sizes, widths = result_sizes(together), row_widths(together) + _OWN_WIDTH
        start = 0
        for place, batch in zip(places, batches, strict=True):
            part = slice(start, start := start + batch.num_rows)
            written[place] = _in_catalog(batch, executions[place], sizes[part], int(widths[part].max()))
    return [
        written.get(place) or _in_file(rows, few, storage)
        for place, (rows, few) in enumerate(zip(ordered, executions, strict=True))
    ]


def _in_file(ordered: pa.Table, few: FewResults, storage: Storage) -> WrittenResults:
    rows = results_writer(storage, few.prefix, few.execution)(ordered.to_batches())
    return _written_results([row for batch in rows for row in batch.to_pylist()])


_OWN_WIDTH = 16
"""The bytes of a result's offset and size."""


def _in_catalog(ordered: pa.RecordBatch, few: FewResults, sizes: np.ndarray, widest: int) -> WrittenResults:
    """Results that the commit stores in the catalog."""
    counted, execution = ResultCounter(), few.execution
    stored = pa.Table.from_batches([counted.numbered(ordered, execution, sizes)])
    content = to_ipc(stored)
    path = catalog_path(f"{few.prefix}{uuid.uuid4().hex}.arrow")
    last = execution_of(offset_of(execution) + counted.longest)
    file = NewFile(path, stored.num_rows, len(content), execution, last, widest=widest, content=content)
    return WrittenResults([file], counted.table(), {path: stored})


def first_of_each_task(frame: DataFrame, most_rows: int) -> DataFrame:
    """The frame with at most so many rows of each task. `DataFrame.limit` would add a shuffle."""
    session = frame.sparkSession
    literal, integer, local_limit, dataset = _java_classes(session._jvm)
    plan = local_limit(literal(most_rows, integer), frame._jdf.logicalPlan())
    return DataFrame(dataset.ofRows(session._jsparkSession, plan), session)


@lru_cache(maxsize=1)
def _java_classes(jvm: Any) -> tuple[Any, Any, Any, Any]:
    """(Literal, IntegerType, LocalLimit, Dataset). Finding a class takes a call for each part of its name."""
    sql = jvm.org.apache.spark.sql
    catalyst = sql.catalyst
    integer = sql.types.DataTypes.IntegerType
    return catalyst.expressions.Literal, integer, catalyst.plans.logical.LocalLimit, sql.classic.Dataset


def _written_results(reports: list[dict[str, Any]]) -> WrittenResults:
    summaries = [from_ipc(report["summary"]) for report in reports]
    return WrittenResults(
        [_new_file(report) for report in reports],
        pa.concat_tables(summaries) if summaries else SUMMARY.empty_table(),
        {report["path"]: from_ipc(report["body"]) for report in reports if report["body"] is not None},
    )


def merge_records(
    session: SparkSession, storage: Storage, dataset: Dataset, files: Sequence[StoredFile], prefix: str
) -> list[NewFile]:
    """Merge files of a dataset; of a KEYED one, only the latest record of each key is kept."""
    rows = stored_frame(session, storage, dataset, files)
    if dataset.kind is DatasetKind.KEYED:
        rows = latest_per_key(rows, dataset)
    merged = rows.coalesce(_parts(files)).sortWithinPartitions(VERSION, SEQUENCE)
    return _rewrite(merged, storage, prefix, VERSION)


def merge_results(
    session: SparkSession, storage: Storage, columns: StructType, files: Sequence[NewFile], prefix: str
) -> list[NewFile]:
    """Merge files of results; `columns` are the channel's own."""
    own = [StructField(name, LongType()) for name in (SUBSCRIPTION, OFFSET, BYTES)]
    schema = StructType([*own, *columns.fields])
    rows = read_parquet(session, storage, schema, files)
    parts = _parts(files)
    together = rows.coalesce(1) if parts == 1 else rows.repartition(parts, SUBSCRIPTION)
    return _rewrite(together.sortWithinPartitions(SUBSCRIPTION, OFFSET), storage, prefix, OFFSET)


def _parts(files: Sequence[NewFile]) -> int:
    return max(1, round(sum(file.bytes for file in files) / TARGET_BYTES))


def _rewrite(frame: DataFrame, storage: Storage, prefix: str, ordered_by: str) -> list[NewFile]:
    """Write stored rows again, unchanged; `ordered_by` is VERSION or OFFSET."""
    return [_new_file(report) for report in _map(frame, copy_writer(storage, prefix, ordered_by))]


def _map(frame: DataFrame, writer: BatchWriter) -> list[dict[str, Any]]:
    """Run `writer` on executors and return its reports.

    `mapInArrow` finds columns by name and takes `a.b` for a part of `a`, so columns travel under numbered names.
    """
    numbered = frame.toDF(*(f"c{number}" for number in range(len(frame.columns))))
    return [row.asDict() for row in numbered.mapInArrow(with_names(writer, frame.columns), _REPORT).collect()]


def _new_file(report: dict[str, Any]) -> NewFile:
    names = ("path", "rows", "bytes", "first", "last")
    return NewFile(*(report[name] for name in names), widest=report["widest"])
