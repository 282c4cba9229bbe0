"""Relations whose rows are replaced: later jobs read later rows, and large tables are in the JVM once."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tocsin.cluster.spark.replaceable_relation import (
    KEPT_BYTES,
    ReplaceableRelation,
    SharedTables,
    memory_frame,
    shared_tables,
)


def numbers(first: int, count: int) -> pa.Table:
    return pa.table({"n": pa.array(range(first, first + count), pa.int64())})


def test_shared_tables_drop_those_that_were_not_read_longest() -> None:
    tables, shared = [numbers(0, 1) for _ in range(3)], SharedTables(most_bytes=20)
    for table, name in zip(tables[:2], "ab", strict=True):
        shared.add(table, name, 10)
    assert shared.get(tables[0]) == "a"
    shared.add(tables[2], "c", 10)
    assert [shared.get(table) for table in tables] == ["a", None, "c"]
    assert shared.size_bytes == 20
    shared.add(tables[2], "again", 10)
    assert shared.get(tables[2]) == "c" and shared.size_bytes == 20


@pytest.mark.spark
def test_later_job_reads_later_rows(spark: SparkSession) -> None:
    relation = ReplaceableRelation.like(spark, numbers(0, 0), 100)
    rows = relation.frame._jdf.queryExecution().toRdd()
    assert rows.count() == 0
    for count in (3, 0, 7):
        relation.replace(numbers(0, count))
        assert rows.count() == count


@pytest.mark.spark
def test_large_table_is_shared_and_not_kept(spark: SparkSession) -> None:
    large, small = numbers(0, KEPT_BYTES // 8 + 1), numbers(0, 5)
    one, other = (ReplaceableRelation.like(spark, small, 100) for _ in range(2))
    for relation in (one, other):
        relation.replace(large)
        assert relation.frame._jdf.queryExecution().toRdd().count() == large.num_rows
        relation.release()
        assert relation.frame._jdf.queryExecution().toRdd().count() == 0
    shared = shared_tables(spark.sparkContext)
    batches = shared.get(large)
    assert batches is not None and shared.get(small) is None
    one.replace(large)
    assert shared.get(large) is batches, "sent once"
    one.replace(small)
    one.release()
    assert one.frame._jdf.queryExecution().toRdd().count() == 5


@pytest.mark.spark
@pytest.mark.parametrize("count", [0, 1, 7])
def test_memory_frame_has_the_rows_and_a_known_size(spark: SparkSession, count: int) -> None:
    moments = pa.array([1_000_000 * number for number in range(count)], pa.timestamp("us", tz="UTC"))
    table = numbers(5, count).append_column("at", moments)
    frame = memory_frame(spark, table)
    assert frame.toArrow().sort_by("n").to_pylist() == spark.createDataFrame(table).toArrow().to_pylist()
    assert frame.rdd.getNumPartitions() == max(1, min(count, spark.sparkContext.defaultParallelism))
    size_bytes = frame._jdf.queryExecution().optimizedPlan().stats().sizeInBytes()
    assert size_bytes == max(1, table.nbytes)
