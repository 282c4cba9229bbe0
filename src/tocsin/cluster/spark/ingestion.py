"""Structured Streaming queries that fill datasets: large backlogs of a gateway's log, and every declared feed.

`cluster.spark.dataset_writer` stores their micro-batches. This module also reads the files of STATIC datasets.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from tocsin.cluster.spark.dataset_writer import UNREAD, DatasetWriter
from tocsin.cluster.spark.errors import SPARK_ERRORS, first_line
from tocsin.cluster.spark.feed_checkpoint import FeedCheckpoint
from tocsin.cluster.spark.source import FeedLogSource
from tocsin.model.entities import Dataset, Feed
from tocsin.model.schema import Column, Schema, canonical_type, is_name
from tocsin.wire.errors import Code, TocsinError

CHECKPOINT_FILES = "spark.sql.streaming.checkpointFileManagerClass"
SCRATCH_FILES = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
"""How Spark writes checkpoints, which are scratch here. Its default starts processes for permissions and links, which
takes 0.1 s of every micro-batch; this class starts fewer. Both replace files by renaming them."""
FORMATS_WITH_SCHEMA = frozenset({"csv", "json", "parquet", "orc", "avro"})
"""File formats that are read with the dataset's columns; other sources have their own columns."""
_starting = threading.Lock()
"""Held while a query starts, because a query copies the session's settings when it starts."""


class Ingestion:
    """A streaming query that fills a dataset."""

    def __init__(self, query: StreamingQuery, storer: DatasetWriter | None = None) -> None:
        """`storer` stores small batches in its own thread, while the query goes on."""
        self._query = query
        self._storer = storer

    def catch_up(self) -> None:
        """Return when every record that the source had at the call is in the dataset."""
        self._query.processAllAvailable()
        if self._storer is not None:
            self._storer.settle()

    def failure(self) -> str | None:
        """The first line of the error that stopped the query; None if it runs or was stopped on purpose."""
        error = self._error()
        return None if error is None else first_line(error)

    def check(self) -> None:
        """Raise the error that stopped the query, if there is one."""
        error = self._error()
        if error is not None:
            raise error

    def _error(self) -> Exception | None:
        error: Exception | None = self._query.exception()
        if error is None and self._storer is not None:
            error = self._storer.storing_error()
        return error

    def stop(self) -> None:
        self._query.stop()


class FailedStart:
    """Stands for a query that could not be started."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def catch_up(self) -> None:
        raise TocsinError(Code.NOT_READY, self._reason)

    def failure(self) -> str:
        return self._reason

    def stop(self) -> None:
        return


def stream_log(session: SparkSession, writer: DatasetWriter, log: Path, scratch: Path) -> Ingestion:
    """Start a query over the feed log from the writer's position on. `scratch` is a local folder for its checkpoint."""
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
    return _start(session, stream, writer)


def open_feed(session: SparkSession, dataset: Dataset, feed: Feed) -> DataFrame:
    """A feed's source, not started. Raises if Spark does not know the format or misses an option."""
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


def start_feed(session: SparkSession, writer: DatasetWriter, feed: Feed, checkpoint: FeedCheckpoint) -> Ingestion:
    """Start a feed's query after the last micro-batch that its checkpoint has."""
    writer.read_progress()
    source = open_feed(session, writer.dataset, feed)
    stream = (
        source.writeStream.queryName(f"feed-{feed.name}")
        .option("checkpointLocation", checkpoint.folder.absolute().as_uri())
        .foreachBatch(lambda batch, number: writer.add_feed_batch(checkpoint, number, batch))
    )
    try:
        return _start(session, stream)
    except SPARK_ERRORS as error:
        raise TocsinError(Code.BAD_SQL, f"feed {feed.name}: {first_line(error)}") from error


def _start(session: SparkSession, stream: DataStreamWriter, storer: DatasetWriter | None = None) -> Ingestion:
    with _starting:
        session.conf.set(CHECKPOINT_FILES, SCRATCH_FILES)
        try:
            return Ingestion(stream.start(), storer)
        finally:
            session.conf.unset(CHECKPOINT_FILES)


def read_static(session: SparkSession, path: str, format: str, columns: Schema) -> DataFrame:
    """The file of a STATIC dataset, with its declared columns or, if there are none, with the file's own."""
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
    """The declared columns in the order of a CSV file's header: Spark applies a schema by position.

    A column of the file that was not declared gets a reserved name and is not read.
    """
    declared = {column.name.lower(): column for column in columns.columns}
    names = [name.strip().lower() for name in header]
    missing = [column.name for column in columns.columns if column.name.lower() not in names]
    if missing:
        has = ", ".join(header) or "none"
        raise TocsinError(Code.BAD_SQL, f"{path} has no column {', '.join(missing)} (it has: {has})")
    return Schema(tuple(declared.get(name, Column(f"_tocsin_{place}", "STRING")) for place, name in enumerate(names)))


def columns_of(frame: DataFrame) -> Schema:
    """Convert a frame's columns to a dataset's schema. Raises if a dataset may not have such a type or name."""
    columns = []
    for field in frame.schema.fields:
        spelled = field.dataType.simpleString()
        kind = canonical_type(spelled)
        if kind is None or not is_name(field.name):
            raise TocsinError(Code.BAD_SQL, f"column {field.name} ({spelled}): declare the columns and types to use")
        columns.append(Column(field.name, kind))
    return Schema(tuple(columns))
