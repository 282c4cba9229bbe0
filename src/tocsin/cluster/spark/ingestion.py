"""Structured Streaming moves records into datasets: one query for the gateway's log, one for each declared feed.

A micro-batch is written by executors and then committed to the catalog together with the place it was read from. Spark
may run a micro-batch again after a crash; what the catalog says it already has is left out, so nothing enters twice.

A small batch of the gateway's log is stored beside Spark, not under it: while its file is written and committed, Spark
goes on to the next batch and continuous channels already match its records (`visible`). So Spark's checkpoint may be a
batch ahead of the catalog, and is scratch: the query always begins where the catalog says that the dataset stands.
"""

from __future__ import annotations

import shutil
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import reduce
from operator import or_
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import ArrayType, NumericType

from tocsin.cluster.catalog import Catalog, NewFile, dataset_owner
from tocsin.cluster.feed.columntypes import LineReader
from tocsin.cluster.spark.errors import SPARK_ERRORS, first_line
from tocsin.cluster.spark.frames import latest_per_key, stored_frame
from tocsin.cluster.spark.source import FeedLogSource
from tocsin.cluster.spark.writing import Written, write_records, write_records_here
from tocsin.cluster.store.columns import NEXT, SEQUENCE, VERSION
from tocsin.cluster.store.storage import Storage
from tocsin.model.entities import Dataset, DatasetKind, Feed
from tocsin.model.ids import FeedName
from tocsin.model.schema import Column, Schema, canonical_type, is_name
from tocsin.wire.errors import Code, TocsinError

SMALL_BATCH_BYTES = 1 << 20
"""What is at most this much of the feed log takes the short way into its dataset."""
RECENT_BYTES = 16 << 20
"""How much of what came in by the short way each dataset keeps in memory for executions."""
CHECKPOINT_FILES = "spark.sql.streaming.checkpointFileManagerClass"
SCRATCH_FILES = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
"""How Spark writes its notes on a batch. Its default asks the system for permissions and links by starting processes,
which takes 0.1 s of every micro-batch; this one starts fewer. Both replace files by renaming them."""
FORMATS_WITH_SCHEMA = frozenset({"csv", "json", "parquet", "orc", "avro"})
"""File formats read with the dataset's own columns; other sources bring theirs."""
UNREAD = "_tocsin_unread"
"""The text of a JSON record when Spark could not read it as declared; of a `value`, always."""
_starting = threading.Lock()
"""A query takes the session's settings with it when it starts, and keeps them."""


class Mark(NamedTuple):
    """A moment in a writer's life."""

    version: int
    """Committed by then."""
    forgotten: int
    """Versions that had been visible and could not be stored."""


class DatasetWriter:
    """The only one that adds to a dataset, whatever feeds it: versions follow each other without a gap."""

    def __init__(
        self,
        dataset: Dataset,
        catalog: Catalog,
        storage: Storage,
        version: int,
        position: int,
        *,
        now_s: Callable[[], float],
        backlog_bytes: Callable[[], int],
        committed: Callable[[int, int | None], None],
        arriving: Callable[[], None],
        let_match: Callable[[int], None],
    ) -> None:
        """`committed` is told of each new version, `arriving` that one can be seen which is not committed yet.
        `let_match` returns when the next micro-batch may begin after the one that brought a version."""
        self.dataset = dataset
        self._catalog = catalog
        self._storage = storage
        self._lock = threading.Lock()
        self._now_s = now_s
        self._backlog_bytes = backlog_bytes
        self._committed = committed
        self._arriving = arriving
        self._let_match = let_match
        self._beside = ThreadPoolExecutor(1, f"store-{dataset.name}")
        self._storing: Future[None] | None = None
        """The last small batch. Once it has failed nothing may follow it: the query ends and begins anew."""
        self._folder = f"datasets/{dataset.name}"
        self._lines = LineReader(dataset.schema)
        self._recent: OrderedDict[int, pa.Table] = OrderedDict()
        self._remembering = threading.Condition()  # an execution must not wait for a micro-batch under way
        self._visible = version
        self._forgotten = 0
        self.version = version
        self.position = position
        self.has_feeds = False
        """Besides the gateway. The gateway knows the keys it has seen; with another way in, Spark must compare."""

    def add_frames(self, batch: DataFrame) -> None:
        """A micro-batch of the feed log: rows of position, next and JSON lines."""
        if not self.has_feeds and self._backlog_bytes() <= SMALL_BATCH_BYTES:
            frames = batch.collect()
            self.settle()
            # Repeats are left out here, not in the plan: planning a filter takes longer than collecting the rows.
            fresh_here = [frame for frame in frames if frame.position >= self.position]
            if fresh_here:
                version = self.version + 1
                self._storing = self._beside.submit(self._add_small, fresh_here)
                self._let_match(version)
            return
        self.settle()
        with self._lock:
            fresh = batch.where(F.col("position") >= self.position)
            if self.has_feeds:
                # Duplicates are dropped here, so what was written does not say how far the batch went.
                position = batch.agg(F.max("next")).collect()[0][0]
                if position is not None and position > self.position:  # a batch may be answers alone
                    written = self._write(self._unseen(self._parsed(fresh)))
                    self._commit(written.files, position=position)
                return
            written = self._write(self._parsed(fresh))
            if written.files:
                self._commit(written.files, position=written.position)

    def begin(self) -> None:
        """A query starts, from `position` on: what became of the last batch of the one before is no longer of interest,
        once it is decided."""
        storing, self._storing = self._storing, None
        if storing is not None:
            storing.exception()
        with self._lock:
            # The last commit may have failed for us alone, on the way back from the catalog.
            version, position = self._catalog.stands(self.dataset.name)
            if version > self.version:
                self._moved_on(version, position)

    def settle(self) -> None:
        """Return when what was handed over is in the dataset; raise what kept it out."""
        storing = self._storing
        if storing is not None:
            storing.result()

    def trouble(self) -> Exception | None:
        """What kept the last batch out of the dataset. Nothing follows it before `begin`."""
        storing = self._storing
        error = storing.exception() if storing is not None and storing.done() else None
        return error if isinstance(error, Exception) else None

    def close(self) -> None:
        self._beside.shutdown()

    def _add_small(self, frames: list[Row]) -> None:
        """A job on executors would cost more than the work: write the file here, and keep the rows for executions."""
        with self._lock:
            records = self._lines.read("\n".join(frame.lines for frame in frames).encode())
            version = self.version + 1
            self._remember(version, records)
            try:
                sequences = [frame.position + line for frame in frames for line in range(frame.lines.count("\n") + 1)]
                versions = pa.repeat(pa.scalar(version, pa.int64()), len(sequences))
                stored = records.append_column(VERSION, versions)
                stored = stored.append_column(SEQUENCE, pa.array(sequences, pa.int64()))
                files = write_records_here(stored, self._storage, self._folder)
                self._commit(files, position=max(frame.next for frame in frames))
            except BaseException:
                self._forget(version)
                raise

    def _remember(self, version: int, records: pa.Table) -> None:
        with self._remembering:
            self._recent[version] = records
            self._visible = version
            while sum(table.nbytes for table in self._recent.values()) > RECENT_BYTES:
                self._recent.popitem(last=False)
        self._arriving()

    def _forget(self, version: int) -> None:
        """It could not be stored: whoever has seen it throws away what came of it."""
        with self._remembering:
            self._recent.pop(version, None)
            self._visible = self.version
            self._forgotten += 1
            self._remembering.notify_all()

    @property
    def visible(self) -> int:
        """The last version whose records are known, committed or about to be."""
        return max(self.version, self._visible)

    def mark(self) -> Mark:
        """To be taken before what is visible is looked at."""
        with self._remembering:
            return Mark(self.version, self._forgotten)

    def wait_stored(self, version: int, mark: Mark, timeout_s: float = 120.0) -> bool:
        """Whether a version that was visible after `mark` is in the dataset now: that one, and not another that was
        given its number after it had failed."""
        if version <= mark.version:
            return True
        with self._remembering:
            self._remembering.wait_for(lambda: self.version >= version or self._forgotten != mark.forgotten, timeout_s)
            return self.version >= version and self._forgotten == mark.forgotten

    def recent(self, after: int, upto: int) -> pa.Table | None:
        """The records of versions (after, upto], if all of them came in small batches and are still in memory."""
        with self._remembering:
            tables = [self._recent.get(version) for version in range(after + 1, upto + 1)]
        known = [table for table in tables if table is not None]
        return pa.concat_tables(known) if known and len(known) == len(tables) else None

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

    def add_feed_batch(self, feed: FeedName, batch_number: int, batch: DataFrame) -> None:
        """A micro-batch of a declared feed. Spark numbers them and repeats a number only for the same records."""
        with self._lock:
            if batch_number <= next(stored.batch for stored in self._catalog.feeds() if stored.feed.name == feed):
                return
            records = self._fitted(batch).select(
                *self.dataset.schema.names, self._version_column(), F.monotonically_increasing_id().alias(SEQUENCE)
            )
            for name in self.dataset.key:
                records = records.where(F.col(name).isNotNull())
            written = self._write(self._unseen(records))
            self._commit(written.files, feed=feed, batch=batch_number)

    def replace_all(self, frame: DataFrame, columns: Schema) -> list[NewFile]:
        """The files of a STATIC dataset's new content; the caller commits them."""
        records = frame.select(*columns.names, self._version_column(), F.monotonically_increasing_id().alias(SEQUENCE))
        return self._write(records).files

    def _version_column(self) -> SparkColumn:
        return F.lit(self.version + 1).cast("bigint").alias(VERSION)

    def _write(self, records: DataFrame) -> Written:
        return write_records(records, self._storage, self._folder)

    def _commit(
        self,
        files: list[NewFile],
        *,
        position: int | None = None,
        feed: FeedName | None = None,
        batch: int | None = None,
    ) -> None:
        version = self.version + 1
        self._catalog.commit_records(
            self.dataset.name, version, files, self._now_s(), position=position, feed=feed, batch=batch
        )
        self._moved_on(version, position)

    def _moved_on(self, version: int, position: int | None) -> None:
        with self._remembering:
            self.version = version
            self.position = self.position if position is None else position
            self._remembering.notify_all()
        self._committed(version, position)

    def _unseen(self, records: DataFrame) -> DataFrame:
        """STREAM with a key: each key once, whichever way it came in before."""
        if self.dataset.kind is not DatasetKind.STREAM or not self.dataset.key:
            return records
        files = self._catalog.files(dataset_owner(self.dataset.name))
        stored = stored_frame(records.sparkSession, self._storage, self.dataset, files).select(*self.dataset.key)
        same = [records[name].eqNullSafe(stored[name]) for name in self.dataset.key]
        first = latest_per_key(records.withColumn(SEQUENCE, -F.col(SEQUENCE)), self.dataset)
        return first.withColumn(SEQUENCE, -F.col(SEQUENCE)).join(stored, same, "left_anti")

    def _fitted(self, batch: DataFrame) -> DataFrame:
        """A source's columns as the dataset's: by name, or parsed from JSON when all it has is a `value`."""
        have = {name.lower(): name for name in batch.columns}
        wanted = self.dataset.schema
        if "value" in have and wanted.type_of("value") is None:
            text = F.col(have["value"]).cast("string")
            record = F.from_json(text, wanted.ddl()).alias("record")
            batch = batch.select(record, F.coalesce(text, F.lit("")).alias(UNREAD)).select("record.*", UNREAD)
            have = {name.lower(): name for name in batch.columns}
        if UNREAD in have:
            # Of what is no JSON Spark makes a record of NULLs, as of an object that has none of our columns.
            is_record = F.col(UNREAD).isNull() | F.json_object_keys(UNREAD).isNotNull()
            batch = batch.where(reduce(or_, (F.col(name).isNotNull() for name in wanted.names), is_record))
        fitting = [_fitting(batch, have.get(each.name.lower()), each.type).alias(each.name) for each in wanted.columns]
        return batch.select(*fitting)


def _fitting(batch: DataFrame, name: str | None, kind: str) -> SparkColumn:
    """A source's column as a dataset's type, NULL if it has none. So is a number that the type cannot hold: outside
    ANSI, a plain cast makes a negative INT of 3000000000. What else does not fit is NULL by a plain cast."""
    if name is None:
        return F.lit(None).cast(kind)
    have = batch.schema[name].dataType
    while isinstance(have, ArrayType):
        have = have.elementType
    return F.col(name).try_cast(kind) if isinstance(have, NumericType) else F.col(name).cast(kind)


class Ingestion:
    """A streaming query that fills a dataset."""

    def __init__(self, query: StreamingQuery, beside: DatasetWriter | None = None) -> None:
        """`beside` stores what the query hands over, while the query goes on."""
        self._query = query
        self._beside = beside

    def catch_up(self) -> None:
        """Return when everything that was there at the call has entered the dataset."""
        self._query.processAllAvailable()
        if self._beside is not None:
            self._beside.settle()

    def failure(self) -> str | None:
        """Why it stopped by itself, if it did."""
        error: Exception | None = self._query.exception()
        if error is None and self._beside is not None:
            error = self._beside.trouble()
        return None if error is None else str(error).partition("\n")[0]

    def stop(self) -> None:
        self._query.stop()


def start_gateway(session: SparkSession, writer: DatasetWriter, log: Path, scratch: Path) -> Ingestion:
    """From the writer's position on; `scratch` is a folder on this machine for what Spark notes along the way."""
    writer.begin()
    shutil.rmtree(scratch, ignore_errors=True)
    session.dataSource.register(FeedLogSource)
    source = session.readStream.format(FeedLogSource.name()).option("directory", str(log))
    stream = (
        source.option("start", str(writer.position))
        .load()
        .writeStream.queryName(f"gateway-{writer.dataset.name}")
        .option("checkpointLocation", scratch.absolute().as_uri())
        .foreachBatch(lambda batch, _: writer.add_frames(batch))
    )
    with _starting:
        session.conf.set(CHECKPOINT_FILES, SCRATCH_FILES)
        try:
            return Ingestion(stream.start(), writer)
        finally:
            session.conf.unset(CHECKPOINT_FILES)


def open_feed(session: SparkSession, dataset: Dataset, feed: Feed) -> DataFrame:
    """A feed's source, not yet running; raises when Spark does not know the format or misses an option."""
    reader = session.readStream.format(feed.format).options(**feed.options)
    if feed.format.lower() in FORMATS_WITH_SCHEMA:
        columns = dataset.schema.ddl()
        if feed.format.lower() == "json" and "columnnameofcorruptrecord" not in {key.lower() for key in feed.options}:
            reader = reader.option("columnNameOfCorruptRecord", UNREAD)
            columns = f"{columns}, {UNREAD} STRING"
        reader = reader.schema(columns)
    try:
        return reader.load()
    except SPARK_ERRORS as error:
        raise TocsinError(Code.BAD_SQL, f"feed {feed.name}: {first_line(error)}") from error


def start_feed(session: SparkSession, writer: DatasetWriter, feed: Feed, checkpoint: str) -> Ingestion:
    source = open_feed(session, writer.dataset, feed)
    stream = (
        source.writeStream.queryName(f"feed-{feed.name}")
        .option("checkpointLocation", checkpoint)
        .foreachBatch(lambda batch, number: writer.add_feed_batch(feed.name, number, batch))
    )
    try:
        with _starting:
            return Ingestion(stream.start())
    except SPARK_ERRORS as error:
        raise TocsinError(Code.BAD_SQL, f"feed {feed.name}: {first_line(error)}") from error


def read_static(session: SparkSession, path: str, format: str, columns: Schema) -> DataFrame:
    """The file of a STATIC dataset; without declared columns, as the file itself says they are."""
    reader = session.read.format(format)
    if format == "csv":
        reader = reader.option("header", True)
    try:
        if columns.columns and format == "csv":
            in_file = _in_order_of(columns, reader.load(path).columns, path)
            return reader.schema(in_file.ddl()).load(path).select(*columns.names)
        if columns.columns:
            return reader.schema(columns.ddl()).load(path)
        return reader.options(inferSchema=True).load(path)
    except SPARK_ERRORS as error:
        raise TocsinError(Code.BAD_SQL, f"cannot read {path}: {first_line(error)}") from error


def _in_order_of(columns: Schema, header: Sequence[str], path: str) -> Schema:
    """A CSV file's columns by its header: Spark gives a schema to such a file by position, whatever the header says.

    What was declared has its declared name and type; the rest has a name of ours, and nobody reads it.
    """
    declared = {column.name.lower(): column for column in columns.columns}
    names = [name.strip().lower() for name in header]
    missing = [column.name for column in columns.columns if column.name.lower() not in names]
    if missing:
        has = ", ".join(header) or "none"
        raise TocsinError(Code.BAD_SQL, f"{path} has no column {', '.join(missing)} (it has: {has})")
    return Schema(tuple(declared.get(name, Column(f"_tocsin_{place}", "STRING")) for place, name in enumerate(names)))


def columns_of(frame: DataFrame) -> Schema:
    """A frame's columns as a dataset's, or raise: a file may bring types or names that are none of ours."""
    columns = []
    for field in frame.schema.fields:
        spelled = field.dataType.simpleString()
        kind = canonical_type(spelled)
        if kind is None or not is_name(field.name):
            raise TocsinError(Code.BAD_SQL, f"column {field.name} ({spelled}): declare the columns and types to use")
        columns.append(Column(field.name, kind))
    return Schema(tuple(columns))
