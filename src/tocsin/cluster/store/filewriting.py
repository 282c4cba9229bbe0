"""Writes one Parquet file from Arrow batches, and reports it in one row.

Runs inside Spark's Python workers, so it imports nothing heavy: no Spark, no database. `cluster.spark.writing` sends
this module there. `prefix` is the beginning of the file's path: a folder and a write intent. A task keeps at most
`SHORT_CUT_BYTES` of its results in memory.
"""

from __future__ import annotations

import io
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tocsin.cluster.sql.result_columns import BYTES, NEXT, OFFSET, SUBSCRIPTION, VERSION
from tocsin.cluster.store.sizes import json_sizes, widest_row
from tocsin.cluster.store.storage import Storage
from tocsin.model.cursor import execution_of, offset_of

ROW_GROUP_ROWS = 16_384
"""Rows in a row group: few enough that a pull of a few subscriptions skips most of a large file."""
SHORT_CUT_BYTES = 1 << 20
"""The report of a task carries its results as well if they are at most this large."""

SUMMARY = pa.schema([("subscription", pa.int64()), ("results", pa.int64()), ("bytes", pa.int64())])
BatchWriter = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def records_writer(storage: Storage, prefix: str) -> BatchWriter:
    """Write a dataset's records; the report has the feed log position after the last one."""

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        position: int | None = None
        with _ParquetFile(storage, prefix) as file:
            for batch in batches:
                if not batch.num_rows:
                    continue
                file.cover(batch[VERSION])
                if NEXT in batch.schema.names:
                    position = max(position or 0, pc.max(batch[NEXT]).as_py())
                    batch = batch.drop_columns([NEXT])
                file.add(batch)
        yield from file.report(position=position)

    return write


def copy_writer(storage: Storage, prefix: str, ordered_by: str) -> BatchWriter:
    """Write stored rows again, unchanged. The column `ordered_by` gives the versions or executions of the file."""

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with _ParquetFile(storage, prefix) as file:
            for batch in batches:
                if batch.num_rows:
                    file.cover(batch[ordered_by])
                    file.add(batch)
        if ordered_by == OFFSET:
            file.first, file.last = execution_of(file.first), execution_of(file.last)
        yield from file.report()

    return write


def results_writer(storage: Storage, prefix: str, execution: int) -> BatchWriter:
    """Write an execution's results, sorted by subscription; the report has a summary and perhaps the rows."""

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        counted = ResultCounter()
        kept: list[pa.RecordBatch] | None = []
        with _ParquetFile(storage, prefix) as file:
            for batch in batches:
                if not batch.num_rows:
                    continue
                stored = counted.numbered(batch, execution)
                file.add(stored)
                if kept is not None:
                    kept.append(stored)
                    if sum(part.nbytes for part in kept) > SHORT_CUT_BYTES:
                        kept = None
        if not file.rows:
            return
        file.first, file.last = execution, execution_of(offset_of(execution) + counted.longest)
        body = to_ipc(pa.Table.from_batches(kept)) if kept else None
        yield from file.report(summary=to_ipc(counted.table()), body=body)

    return write


def with_names(writer: BatchWriter, names: list[str]) -> BatchWriter:
    """Give the columns of each batch these names before `writer` gets it."""

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from writer(batch.rename_columns(names) for batch in batches)

    return write


class _ParquetFile:
    """A Parquet file that is created with its first batch."""

    def __init__(self, storage: Storage, prefix: str) -> None:
        self._storage = storage
        self._path = f"{prefix}{uuid.uuid4().hex}.parquet"
        self._closing = ExitStack()
        self._stream: pa.NativeFile | None = None
        self._writer: pq.ParquetWriter | None = None
        self.rows = 0
        self.bytes = 0
        self.first = 0
        self.last = 0
        self.widest = 0

    def __enter__(self) -> _ParquetFile:
        return self

    def __exit__(self, *failure: object) -> None:
        with self._closing:
            if self._writer is not None and self._stream is not None and failure[0] is None:
                self._writer.close()
                self.bytes = self._stream.tell()

    def add(self, batch: pa.RecordBatch) -> None:
        if self._writer is None:
            self._stream = self._closing.enter_context(self._storage.create(self._path))
            self._writer = pq.ParquetWriter(self._stream, batch.schema, compression="zstd")
        self._writer.write_batch(batch, row_group_size=ROW_GROUP_ROWS)
        self.rows += batch.num_rows
        self.widest = max(self.widest, widest_row(batch))

    def cover(self, versions: pa.Array) -> None:
        """Extend the range of versions in the file; called before the batch is added."""
        ends = pc.min_max(versions).as_py()
        self.first = min(self.first, ends["min"]) if self.rows else ends["min"]
        self.last = max(self.last, ends["max"])

    def report(
        self, position: int | None = None, summary: bytes | None = None, body: bytes | None = None
    ) -> Iterator[pa.RecordBatch]:
        if self._writer is not None:
            row = (self._path, self.rows, self.bytes, self.first, self.last, self.widest, position, summary, body)
            yield pa.record_batch([[value] for value in row], schema=_REPORT)


_COUNTS = ("rows", "bytes", "first", "last", "widest", "position")
_REPORT = pa.schema(
    [("path", pa.string()), *((name, pa.int64()) for name in _COUNTS), ("summary", pa.binary()), ("body", pa.binary())]
)


class ResultCounter:
    """Numbers the rows of each subscription and sums up their sizes, over batches sorted by subscription."""

    def __init__(self) -> None:
        self._numbers: list[np.ndarray] = []
        self._results: list[np.ndarray] = []
        self._bytes: list[np.ndarray] = []
        self._open: int | None = None
        self._open_rows = 0
        self.longest = 0

    def numbered(self, batch: pa.RecordBatch, execution: int, sizes: np.ndarray | None = None) -> pa.RecordBatch:
        """The results as they are stored: with their offsets and sizes. `batch` has rows.

        `sizes` are the sizes if the caller has measured them.
        """
        if sizes is None:
            sizes = result_sizes(batch)
        rows = self.count(batch[SUBSCRIPTION].to_numpy(), sizes)
        return pa.RecordBatch.from_arrays(
            [batch[SUBSCRIPTION], pa.array(offset_of(execution) + rows), pa.array(sizes), *batch.columns[1:]],
            names=[SUBSCRIPTION, OFFSET, BYTES, *batch.schema.names[1:]],
        )

    def count(self, numbers: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        starts = np.flatnonzero(np.r_[True, numbers[1:] != numbers[:-1]])
        lengths = np.diff(np.r_[starts, len(numbers)])
        carried = np.zeros(len(starts), dtype=np.int64)
        if self._open == numbers[0]:  # the previous batch ended inside this subscription
            carried[0] = self._open_rows
        rows: np.ndarray = np.arange(len(numbers)) - np.repeat(starts - carried, lengths)
        self._numbers.append(numbers[starts])
        self._results.append(lengths)
        self._bytes.append(np.add.reduceat(sizes, starts))
        self._open, self._open_rows = int(numbers[-1]), int(carried[-1] + lengths[-1])
        self.longest = max(self.longest, int(rows.max()))
        return rows

    def table(self) -> pa.Table:
        numbers, results, sizes = (np.concatenate(column) for column in (self._numbers, self._results, self._bytes))
        # A subscription that lies in several batches has an entry of each, one after the other.
        starts = np.flatnonzero(np.r_[True, numbers[1:] != numbers[:-1]])
        columns = [numbers[starts], np.add.reduceat(results, starts), np.add.reduceat(sizes, starts)]
        return pa.table(columns, schema=SUMMARY)


def result_sizes(batch: pa.RecordBatch) -> np.ndarray:
    """The size of each result as JSON, without the column of the subscription."""
    return json_sizes(batch.drop_columns([SUBSCRIPTION]))


def to_ipc(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def from_ipc(data: bytes | bytearray) -> pa.Table:
    return pa.ipc.open_stream(pa.py_buffer(data)).read_all()
