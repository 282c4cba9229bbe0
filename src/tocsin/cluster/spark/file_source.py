"""Stored files for Spark where Hadoop has no client for the data root: a source in Python that yields Arrow batches.

PySpark's wheel has no client for S3. Arrow has one, and its batches pass to the JVM without becoming Python objects.
Spark plans the read with the schema that the caller names, so the caller names the columns that it needs. Filters that
Spark pushes down choose row groups by their statistics; Spark applies every filter again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from tocsin.cluster.store.s3_place import S3
from tocsin.cluster.store.storage import Storage

BATCH_ROWS = 65_536
"""Rows of a batch: fewer cost more calls, more need more memory in the JVM."""
LEAST_PART_BYTES = 4 << 20
LARGEST_PART_BYTES = 64 << 20
"""A task reads at least and at most about so many bytes of files; only row groups are divided between tasks."""

_registered: WeakKeyDictionary[SparkSession, set[str]] = WeakKeyDictionary()


class SizedPath(NamedTuple):
    path: str
    bytes: int


class FilePart(NamedTuple):
    """The row groups [groups * number / of, groups * (number + 1) / of) of a file."""

    path: str
    number: int = 0
    of: int = 1


def read_with_arrow(
    session: SparkSession, storage: Storage, schema: str | StructType, files: Sequence[SizedPath]
) -> DataFrame:
    """Rows of these files with these columns. Starts no job."""
    reader = registered(session, StoredFileSource).read.format(StoredFileSource.name()).schema(schema)
    reader = reader.option("root", storage.root).option("s3", json.dumps(storage.s3)).option("files", json.dumps(files))
    return reader.option("tasks", session.sparkContext.defaultParallelism).load()


def registered(session: SparkSession, source: type[DataSource]) -> SparkSession:
    """The session, which knows the source."""
    names = _registered.setdefault(session, set())
    if source.name() not in names:
        session.dataSource.register(source)
        names.add(source.name())
    return session


class StoredFileSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "tocsin_files"

    def reader(self, schema: StructType) -> StoredFileReader:
        options = self.options
        storage = Storage(options["root"], S3(*json.loads(options["s3"])))
        files = [SizedPath(*file) for file in json.loads(options["files"])]
        return StoredFileReader(storage, planned(files, int(options["tasks"])), schema)


class FileParts(InputPartition):
    def __init__(self, value: Sequence[FilePart]) -> None:
        super().__init__(value)


class StoredFileReader(DataSourceReader):
    def __init__(self, storage: Storage, parts: Sequence[Sequence[FilePart]], schema: StructType) -> None:
        self._storage = storage
        self._parts = parts
        self._schema: pa.Schema = to_arrow_schema(schema, timezone="UTC")
        self._filters: list[Filter] = []

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        simple = [filter_ for filter_ in filters if isinstance(filter_, _COMPARED)]
        self._filters = [filter_ for filter_ in simple if len(filter_.attribute) == 1]
        return filters

    def partitions(self) -> Sequence[InputPartition]:
        return [FileParts(parts) for parts in self._parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        for part in partition.value:
            yield from self._rows(part)

    def _rows(self, part: FilePart) -> Iterator[pa.RecordBatch]:
        with self._storage.open(part.path) as stream:
            file = pq.ParquetFile(stream, pre_buffer=True)
            count = file.num_row_groups
            own = range(count * part.number // part.of, count * (part.number + 1) // part.of)
            groups = [group for group in own if may_match(file.metadata.row_group(group), self._filters)]
            if not groups:
                return
            present = set(file.schema_arrow.names)
            columns = [name for name in self._schema.names if name in present]
            for batch in file.iter_batches(BATCH_ROWS, row_groups=groups, columns=columns, use_threads=False):
                yield _fitted(batch, self._schema)


def planned(files: Sequence[SizedPath], tasks: int) -> list[list[FilePart]]:
    """What each task reads: parts of large files, and small files together."""
    total_bytes = sum(file.bytes for file in files)
    part_bytes = max(LEAST_PART_BYTES, min(LARGEST_PART_BYTES, -(-total_bytes // max(1, tasks))))
    planned: list[list[FilePart]] = []
    open_bytes = part_bytes
    for file in files:
        of = max(1, -(-file.bytes // part_bytes))
        if of == 1 and open_bytes + file.bytes <= part_bytes:
            planned[-1].append(FilePart(file.path))
            open_bytes += file.bytes
            continue
        planned += [[FilePart(file.path, number, of)] for number in range(of)]
        open_bytes = file.bytes if of == 1 else part_bytes
    return planned


_COMPARED = (EqualTo, GreaterThan, GreaterThanOrEqual, In, LessThan, LessThanOrEqual)


def may_match(row_group: Any, filters: Sequence[Any]) -> bool:
    """False if the statistics of a row group show that no row passes one of these filters.

    Only numbers without a fraction and texts are compared: Spark and Arrow order them in the same way.
    """
    if not filters:
        return True
    ends = {}
    for index in range(row_group.num_columns):
        column = row_group.column(index)
        statistics = column.statistics
        if statistics is not None and statistics.has_min_max:
            ends[column.path_in_schema] = (statistics.min, statistics.max)
    return not any(
        _is_outside(filter_, *ends[filter_.attribute[0]]) for filter_ in filters if filter_.attribute[0] in ends
    )


def _is_outside(filter_: Any, low: object, high: object) -> bool:
    values = filter_.value if isinstance(filter_, In) else (filter_.value,)
    kind = type(low)
    if kind not in (int, str) or any(type(value) is not kind for value in values):
        return False
    match filter_:
        case EqualTo() | In():
            return not any(low <= value <= high for value in values)
        case GreaterThan():
            return bool(high <= values[0])
        case GreaterThanOrEqual():
            return bool(high < values[0])
        case LessThan():
            return bool(low >= values[0])
        case LessThanOrEqual():
            return bool(low > values[0])
    return False


def _fitted(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The columns that Spark expects: NULL for a column that the file lacks."""
    if batch.schema.equals(schema):
        return batch
    present = set(batch.schema.names)
    columns = []
    for field in schema:
        if field.name not in present:
            columns.append(pa.nulls(batch.num_rows, field.type))
            continue
        column = batch[field.name]
        columns.append(column if column.type.equals(field.type) else column.cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)
