"""The one writer of a dataset: it stores micro-batches and commits them to the catalog.

A micro-batch is written by executors and then committed together with the position it was read from. Spark may run a
micro-batch again after a crash; the writer leaves out records that the catalog has already, so no record enters twice.

A small batch of the gateway's log is stored in another thread: while its file is written and committed, Spark reads the
next batch, and continuous channels already match the records (`visible`). So Spark's checkpoint may be a batch ahead of
the catalog. The checkpoint is scratch: a query always starts at the catalog's position.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import reduce
from operator import or_
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, NumericType

from tocsin.cluster.catalog import Catalog, FeedProgress, NewFile, dataset_owner
from tocsin.cluster.feed.columntypes import LineReader
from tocsin.cluster.feed.feedlog_reader import LogFrame
from tocsin.cluster.spark.feed_checkpoint import FeedCheckpoint
from tocsin.cluster.spark.frames import latest_per_key, stored_frame
from tocsin.cluster.spark.writing import WrittenRecords, write_records, write_records_here
from tocsin.cluster.sql.result_columns import NEXT, SEQUENCE, VERSION
from tocsin.cluster.store.recent_tables import RecentTables
from tocsin.cluster.store.storage import Storage
from tocsin.cluster.store.writes import Write, Writes
from tocsin.model.entities import Dataset, DatasetKind
from tocsin.model.schema import Schema

SMALL_BATCH_BYTES = 1 << 20
"""A batch with at most this much of the feed log is small: the driver writes its file, without a Spark job."""
RECENT_BYTES = 32 << 20
"""Bytes of small batches that each dataset keeps in memory for executions."""
UNREAD = "_tocsin_unread"
"""A column of a JSON source.

It has the record's text if Spark could not read the record. For a source with only a `value` column it always has the
text.
"""


class FrameRow(NamedTuple):
    """A frame of the feed log that has records."""

    position: int
    next: int
    """The position of the following frame."""
    lines: str
    """The records, one JSON object a line."""

    @classmethod
    def of(cls, frame: LogFrame) -> FrameRow:
        return cls(frame.position, frame.next_position, frame.payload.decode())


class Mark(NamedTuple):
    """The state of a writer at one moment."""

    version: int
    """The last committed version."""
    failed: int
    """How many visible versions could not be stored."""


class DatasetWriter:
    """Adds records to one dataset, from the gateway and from feeds. Its versions follow each other without a gap."""

    def __init__(
        self,
        dataset: Dataset,
        catalog: Catalog,
        storage: Storage,
        writes: Writes,
        version: int,
        position: int,
        *,
        retention_s: Callable[[], float],
        backlog_bytes: Callable[[], int],
        committed: Callable[[int, int | None], None],
        arriving: Callable[[], None],
        wait_matched: Callable[[int], None],
    ) -> None:
        """The writer calls `committed` with each new version and its position in the feed log (None for feeds), and
        `arriving` when a version is visible but not committed yet. `wait_matched` returns when Spark may start the
        next micro-batch after that version."""
        self.dataset = dataset
        self._catalog = catalog
        self._storage = storage
        self._writes = writes
        self._lock = threading.Lock()
        self._retention_s = retention_s
        self._backlog_bytes = backlog_bytes
        self._committed = committed
        self._arriving = arriving
        self._wait_matched = wait_matched
        self._storer = ThreadPoolExecutor(1, f"store-{dataset.name}")
        self._storing: Future[None] | None = None
        """The last small batch. If it failed, no batch may follow it: the query ends and must be restarted."""
        self._folder = f"datasets/{dataset.name}"
        self._lines = LineReader(dataset.schema)
        self._recent: RecentTables[int] = RecentTables(RECENT_BYTES)
        self._visibility = threading.Condition()  # not `_lock`: an execution must not wait for a micro-batch
        self._visible = version
        self._failed = 0
        self.version = version
        self.position = position
        self.has_feeds = False
        """True if a feed fills the dataset too. Then Spark compares keys, because the gateway knows only its own."""

    def add_frames(self, batch: DataFrame) -> None:
        """Add a micro-batch of the feed log: rows of position, next position and JSON lines."""
        if self.takes_small_batch:
            self.add_small_batch([FrameRow(*row) for row in batch.collect()])
            return
        self.settle()
        with self._lock:
            fresh = batch.where(F.col("position") >= self.position)
            if self.has_feeds:
                # Duplicates are dropped here, so the written records do not show where the batch ends in the log.
                position = batch.agg(F.max("next")).collect()[0][0]
                if position is not None and position > self.position:  # a batch may hold only answers to requests
                    with self._begin_write() as write:
                        written = self._write(self._unseen(self._parsed(fresh)), write)
                        self._commit(written.files, write, position=position)
                return
            with self._begin_write() as write:
                written = self._write(self._parsed(fresh), write)
                if written.files:
                    self._commit(written.files, write, position=written.position)

    @property
    def takes_small_batch(self) -> bool:
        """True if the driver stores the next batch: the backlog is small, and only the gateway fills the dataset."""
        return not self.has_feeds and self._backlog_bytes() <= SMALL_BATCH_BYTES

    def add_small_batch(self, frames: Sequence[FrameRow]) -> None:
        """Store frames of the feed log in another thread. Returns when continuous channels have matched them."""
        self.settle()
        # Repeats are removed here, not in the plan: planning a filter takes longer than collecting the rows.
        new_frames = [frame for frame in frames if frame.position >= self.position]
        if new_frames:
            version = self.version + 1
            self._storing = self._storer.submit(self._add_small, new_frames)
            self._wait_matched(version)

    def begin(self) -> None:
        """Prepare for a new query from `position` on: wait until the last batch is stored or has failed."""
        storing, self._storing = self._storing, None
        if storing is not None:
            storing.exception()
        self.read_progress()

    def read_progress(self) -> None:
        """Read version and position from the catalog: a commit may have succeeded although its answer was lost."""
        with self._lock:
            version, position = self._catalog.datasets.progress(self.dataset.name)
            if version > self.version:
                self._advance(version, position)

    def settle(self) -> None:
        """Return when the last small batch is in the dataset; raise the error that kept it out."""
        storing = self._storing
        if storing is not None:
            storing.result()

    def storing_error(self) -> Exception | None:
        """The error that kept the last small batch out of the dataset. No batch follows it before `begin`."""
        storing = self._storing
        error = storing.exception() if storing is not None and storing.done() else None
        return error if isinstance(error, Exception) else None

    def close(self) -> None:
        self._storer.shutdown()

    def _add_small(self, frames: Sequence[FrameRow]) -> None:
        """Write a small batch in the driver and keep its rows for executions: a Spark job would cost more."""
        with self._lock:
            records = self._lines.read("\n".join(frame.lines for frame in frames).encode())
            version = self.version + 1
            self._remember(version, records)
            try:
                sequences = [frame.position + line for frame in frames for line in range(frame.lines.count("\n") + 1)]
                versions = pa.repeat(pa.scalar(version, pa.int64()), len(sequences))
                stored = records.append_column(VERSION, versions)
                stored = stored.append_column(SEQUENCE, pa.array(sequences, pa.int64()))
                with self._begin_write() as write:
                    files = write_records_here(stored, self._storage, write.prefix(self._folder))
                    self._commit(files, write, position=max(frame.next for frame in frames))
            except BaseException:
                self._forget(version)
                raise

    def _remember(self, version: int, records: pa.Table) -> None:
        with self._visibility:
            self._recent.add(version, records)
            self._visible = version
        self._arriving()

    def _forget(self, version: int) -> None:
        """Withdraw a version that could not be stored: an execution that has matched it discards its results."""
        with self._visibility:
            self._recent.remove(version)
            self._visible = self.version
            self._failed += 1
            self._visibility.notify_all()

    @property
    def visible(self) -> int:
        """The last version whose records can be read, committed or not."""
        return max(self.version, self._visible)

    def mark(self) -> Mark:
        """The current state of the writer, for `wait_stored`. Call this before reading `visible`."""
        with self._visibility:
            return Mark(self.version, self._failed)

    def wait_stored(self, version: int, mark: Mark, timeout_s: float = 120.0) -> bool:
        """Wait until a version that was visible after `mark` is stored; return False if it failed or on timeout.

        The number of a failed version is used again. The count of failures distinguishes the two versions.
        """
        if version <= mark.version:
            return True
        with self._visibility:
            self._visibility.wait_for(lambda: self.version >= version or self._failed != mark.failed, timeout_s)
            return self.version >= version and self._failed == mark.failed

    def recent(self, after: int, upto: int) -> pa.Table | None:
        """The records of versions (after, upto] if all of them are in memory, else None.

        Only small batches are kept in memory.
        """
        with self._visibility:
            tables = [self._recent.get(version) for version in range(after + 1, upto + 1)]
        in_memory = [table for table in tables if table is not None]
        is_complete = in_memory and len(in_memory) == len(tables)
        return pa.concat_tables(in_memory).combine_chunks() if is_complete else None

    def has_recent(self, after: int, upto: int) -> bool:
        """True if `recent` returns the records of these versions."""
        with self._visibility:
            return upto > after and all(self._recent.get(version) is not None for version in range(after + 1, upto + 1))

    def _parsed(self, frames: DataFrame) -> DataFrame:
        lines = frames.select(
            "position", F.col("next").alias(NEXT), F.posexplode(F.split("lines", "\n")).alias("line_number", "line")
        )
        return lines.select(
            F.from_json("line", self.dataset.schema.ddl()).alias("record"),
            # A line has at least one byte, so position plus line number stays below the next frame's position.
            (F.col("position") + F.col("line_number")).alias(SEQUENCE),
            NEXT,
        ).select("record.*", self._version_column(), SEQUENCE, NEXT)

    def add_feed_batch(self, checkpoint: FeedCheckpoint, batch_number: int, batch: DataFrame) -> None:
        """Add a micro-batch of a feed, together with the source's offsets after it."""
        with self._lock:
            progress = checkpoint.progress(batch_number)
            records = _fitted(batch, self.dataset.schema).select(
                *self.dataset.schema.names, self._version_column(), F.monotonically_increasing_id().alias(SEQUENCE)
            )
            for name in self.dataset.key:
                records = records.where(F.col(name).isNotNull())
            with self._begin_write() as write:
                written = self._write(self._unseen(records), write)
                self._commit(written.files, write, progress=progress)
            checkpoint.committed(progress)

    def replace_all(self, frame: DataFrame, columns: Schema, write: Write) -> list[NewFile]:
        """Write the new content of a STATIC dataset. The caller commits the files."""
        records = frame.select(*columns.names, self._version_column(), F.monotonically_increasing_id().alias(SEQUENCE))
        return self._write(records, write).files

    def _version_column(self) -> SparkColumn:
        return F.lit(self.version + 1).cast("bigint").alias(VERSION)

    def _begin_write(self) -> AbstractContextManager[Write]:
        return self._writes.begin(dataset_owner(self.dataset.name))

    def _write(self, records: DataFrame, write: Write) -> WrittenRecords:
        return write_records(records, self._storage, write.prefix(self._folder))

    def _commit(
        self,
        files: list[NewFile],
        write: Write,
        *,
        position: int | None = None,
        progress: FeedProgress | None = None,
    ) -> None:
        version = self.version + 1
        write.check(files)
        self._catalog.datasets.commit_records(
            self.dataset.name, version, files, self._retention_s(), position=position, progress=progress, write=write.id
        )
        write.committed = True
        self._advance(version, position)

    def _advance(self, version: int, position: int | None) -> None:
        with self._visibility:
            self.version = version
            self.position = self.position if position is None else position
            self._visibility.notify_all()
        self._committed(version, position)

    def _unseen(self, records: DataFrame) -> DataFrame:
        """The first record of each key that the dataset does not have yet. Only for a STREAM dataset with a key."""
        if self.dataset.kind is not DatasetKind.STREAM or not self.dataset.key:
            return records
        files = self._catalog.files.of(dataset_owner(self.dataset.name))
        stored = stored_frame(records.sparkSession, self._storage, self.dataset, files, self.dataset.key)
        same = [records[name].eqNullSafe(stored[name]) for name in self.dataset.key]
        first = latest_per_key(records.withColumn(SEQUENCE, -F.col(SEQUENCE)), self.dataset)
        return first.withColumn(SEQUENCE, -F.col(SEQUENCE)).join(stored, same, "left_anti")


def _fitted(batch: DataFrame, schema: Schema) -> DataFrame:
    """Convert a source's columns to the dataset's: by name, or parsed from JSON if the source has only a `value`."""
    present = {name.lower(): name for name in batch.columns}
    if "value" in present and schema.type_of("value") is None:
        text = F.col(present["value"]).cast("string")
        record = F.from_json(text, schema.ddl()).alias("record")
        batch = batch.select(record, F.coalesce(text, F.lit("")).alias(UNREAD)).select("record.*", UNREAD)
        present = {name.lower(): name for name in batch.columns}
    if UNREAD in present:
        # Spark makes a record of NULLs from text that is no JSON, and also from an object without our columns.
        is_record = F.col(UNREAD).isNull() | F.json_object_keys(UNREAD).isNotNull()
        batch = batch.where(reduce(or_, (F.col(name).isNotNull() for name in schema.names), is_record))
    return batch.select(
        *(_cast(batch, present.get(column.name.lower()), column.type).alias(column.name) for column in schema.columns)
    )


def _cast(batch: DataFrame, name: str | None, kind: str) -> SparkColumn:
    """Convert a source's column to a dataset's type. NULL if the source lacks the column or a value does not fit.

    Numbers need `try_cast`: outside ANSI mode, a plain cast makes a negative INT of 3000000000.
    """
    if name is None:
        return F.lit(None).cast(kind)
    source_type = batch.schema[name].dataType
    while isinstance(source_type, ArrayType):
        source_type = source_type.elementType
    return F.col(name).try_cast(kind) if isinstance(source_type, NumericType) else F.col(name).cast(kind)
