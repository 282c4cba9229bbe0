"""A relation of a Spark plan whose rows can be replaced after the plan was made.

It is an RDD with one partition, which holds the rows as Arrow bytes. Spark sends the partition to the task when a job
starts, so a job that starts later reads later rows. `cluster.spark.reused_plan` drives it.

Many channels read the same tables, so they share the bytes: a large table is in the JVM once, not once a channel.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import pyarrow as pa
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import _check_arrow_table_timestamps_localize, from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from tocsin.cluster.store.recent_tables import COLUMN_BYTES

KEPT_BYTES = 256 << 10
"""A relation keeps a table of at most this size between two jobs."""
SHARED_BYTES = 64 << 20
"""Bytes of larger tables that stay in the JVM for the next job that reads them."""
SHARED_SMALL_BYTES = 2 << 20
"""Bytes of smaller ones, besides those that relations keep: many channels read the same NEW records."""

Java = Any
"""An object in the JVM."""


class SharedTables:
    """The tables that relations have read last, as lists of Arrow batches in the JVM. Thread-safe."""

    def __init__(self, most_bytes: int = SHARED_BYTES) -> None:
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._batches: OrderedDict[int, tuple[pa.Table, Java, int]] = OrderedDict()
        """By the table's identity. The entry keeps the table alive, so that no other table gets the same one."""
        self.size_bytes = 0

    def get(self, table: pa.Table) -> Java | None:
        with self._lock:
            kept = self._batches.get(id(table))
            if kept is None:
                return None
            self._batches.move_to_end(id(table))
            return kept[1]

    def add(self, table: pa.Table, batches: Java, size_bytes: int) -> None:
        with self._lock:
            if id(table) not in self._batches:
                self._batches[id(table)] = table, batches, size_bytes
                self.size_bytes += size_bytes
            while self.size_bytes > self._most_bytes:
                self.size_bytes -= self._batches.popitem(last=False)[1][2]


_shared: WeakKeyDictionary[SparkContext, tuple[SharedTables, SharedTables]] = WeakKeyDictionary()
_sharing = threading.Lock()


def shared_tables(context: SparkContext, *, small: bool = False) -> SharedTables:
    """The large tables of all relations, or with `small` those that relations keep too."""
    with _sharing:
        large_and_small = _shared.setdefault(context, (SharedTables(), SharedTables(SHARED_SMALL_BYTES)))
        return large_and_small[small]


@dataclass(slots=True)
class ReplaceableRelation:
    frame: DataFrame
    _columns: pa.Schema
    """The columns of the tables that fit."""
    _schema: StructType
    _arrow: pa.Schema
    """The columns as Spark reads them."""
    _partition: Java
    _no_batches: Java
    """Scala's empty list."""
    _tables: SharedTables
    _small_tables: SharedTables
    _table: pa.Table | None = None
    """The present rows; None if there are none, or if they are not kept."""

    @classmethod
    def like(cls, session: SparkSession, table: pa.Table, assumed_bytes: int) -> ReplaceableRelation:
        """A relation with the columns of this table and no rows. The planner takes it for `assumed_bytes` large."""
        schema = from_arrow_schema(table.schema)
        arrow = to_arrow_schema(schema, timezone="UTC")
        frame, plan = _frame_of(session, [_bytes(arrow.empty_table())], schema, assumed_bytes, is_one_partition=True)
        partition = plan.rdd().dependencies().head().rdd().partitions()[0]
        large, small = (shared_tables(session.sparkContext, small=small) for small in (False, True))
        return cls(frame, table.schema, schema, arrow, partition, _no_batches(session), large, small)

    def fits(self, table: pa.Table) -> bool:
        return bool(table.schema.equals(self._columns))

    def replace(self, table: pa.Table) -> None:
        """Let jobs that start from now on read this table."""
        if table is not self._table:
            shared = self._shared_by(table).get(table)
            self._set(self._sent(table) if shared is None else shared)
            self._table = table

    def release(self) -> None:
        """Drop a large table after the job that has read it. Small tables stay for the next job."""
        if self._table is not None and self._table.nbytes > KEPT_BYTES:
            self._set(self._no_batches)
            self._table = None

    def _sent(self, table: pa.Table) -> Java:
        """The table as a list of Arrow batches in the JVM."""
        data = _bytes(_as_spark_reads(table, self._schema, self._arrow))
        batches = self._no_batches.prepended(data)
        # A small table needs far more memory than its bytes.
        more_bytes = COLUMN_BYTES * table.num_columns if table.nbytes <= KEPT_BYTES else 0
        self._shared_by(table).add(table, batches, len(data) + more_bytes)
        return batches

    def _shared_by(self, table: pa.Table) -> SharedTables:
        return self._tables if table.nbytes > KEPT_BYTES else self._small_tables

    def _set(self, batches: Java) -> None:
        getattr(self._partition, "values_$eq")(batches)


def memory_frame(session: SparkSession, table: pa.Table) -> DataFrame:
    """A frame of rows in memory, in a part for each core. The planner knows its size.

    `createDataFrame` puts the rows themselves into the plan: the optimiser evaluates parts of the query over them, in
    one thread, and each task carries them as Java objects.
    """
    schema = from_arrow_schema(table.schema)
    rows = _as_spark_reads(table, schema, to_arrow_schema(schema, timezone="UTC"))
    part_rows = max(1, -(-rows.num_rows // session.sparkContext.defaultParallelism))
    parts = [_bytes(rows.slice(start, part_rows)) for start in range(0, max(1, rows.num_rows), part_rows)]
    return _frame_of(session, parts, schema, max(1, table.nbytes), is_one_partition=False)[0]


def _frame_of(
    session: SparkSession, parts: list[bytes], schema: StructType, size_bytes: int, *, is_one_partition: bool
) -> tuple[DataFrame, Java]:
    """(the frame, the plan whose RDD holds the rows) of Arrow batches. The planner takes it for `size_bytes` large."""
    jvm: Any = session.sparkContext._jvm
    batches = _no_batches(session)
    for part in reversed(parts):
        batches = batches.prepended(part)
    settings = {
        "spark.sql.execution.arrow.localRelationThreshold": "0",  # an RDD instead of a table inside the plan
        "spark.sql.defaultSizeInBytes": str(size_bytes),
    }
    with changed_settings(session, settings):
        loaded = jvm.PythonSQLUtils.toDataFrame(batches.iterator(), schema.json(), session._jsparkSession)
        plan = loaded.queryExecution().logical()
        statistics = plan.stats()  # the plan keeps them only until Spark copies it, so they become a field of it
    fields = [getattr(plan, f"copy$default${place}")() for place in range(1, 7)]
    if is_one_partition:
        fields[2] = _singleton(jvm.org.apache.spark.sql.catalyst.plans.physical, "SinglePartition")
    others = list(elements(plan.otherCopyArgs()))
    others[1] = jvm.scala.Some(statistics)
    sized = plan.copy(*fields, *others)
    return DataFrame(jvm.org.apache.spark.sql.classic.Dataset.ofRows(session._jsparkSession, sized), session), plan


def _no_batches(session: SparkSession) -> Java:
    """Scala's empty list."""
    jvm: Any = session.sparkContext._jvm
    return _singleton(jvm.scala.collection.immutable, "Nil")


def _as_spark_reads(table: pa.Table, schema: StructType, arrow: pa.Schema) -> pa.Table:
    return _check_arrow_table_timestamps_localize(table, schema, True, "UTC").cast(arrow)


def elements(sequence: Java) -> Iterator[Java]:
    """The elements of a Scala sequence."""
    for index in range(sequence.size()):
        yield sequence.apply(index)


@contextmanager
def changed_settings(session: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """A block in which the session has these settings."""
    before = {name: session.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        session.conf.set(name, value)
    try:
        yield
    finally:
        for name, earlier in before.items():
            if earlier is None:
                session.conf.unset(name)
            else:
                session.conf.set(name, earlier)


def _bytes(table: pa.Table) -> bytes:
    """The rows as one Arrow record batch, without its schema."""
    batch = table.combine_chunks().to_batches()
    empty = pa.RecordBatch.from_pylist([], schema=table.schema)
    data: bytes = (batch[0] if batch else empty).serialize().to_pybytes()
    return data


def _singleton(package: Java, name: str) -> Java:
    """A Scala object."""
    return getattr(getattr(package, f"{name}$"), "MODULE$")
