"""Merging the files that `cluster.compaction` chose. Old files stay readable until they are collected as garbage."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StructField, StructType

from tocsin.cluster.catalog import NewFile, StoredFile
from tocsin.cluster.spark.frames import latest_per_key, read_parquet, stored_frame
from tocsin.cluster.spark.writing import rewrite
from tocsin.cluster.store.columns import BYTES, OFFSET, SEQUENCE, SUBSCRIPTION, VERSION
from tocsin.cluster.store.compaction import TARGET_BYTES
from tocsin.cluster.store.storage import Storage
from tocsin.model.entities import Dataset, DatasetKind


def merge_records(
    session: SparkSession, storage: Storage, dataset: Dataset, files: Sequence[StoredFile]
) -> list[NewFile]:
    rows = stored_frame(session, storage, dataset, files)
    if dataset.kind is DatasetKind.KEYED:
        rows = latest_per_key(rows, dataset)
    merged = rows.coalesce(_parts(files)).sortWithinPartitions(VERSION, SEQUENCE)
    return rewrite(merged, storage, f"datasets/{dataset.name}", VERSION)


def merge_results(
    session: SparkSession, storage: Storage, folder: str, columns: StructType, files: Sequence[StoredFile]
) -> list[NewFile]:
    own = [StructField(name, LongType()) for name in (SUBSCRIPTION, OFFSET, BYTES)]
    schema = StructType([*own, *columns.fields])
    rows = read_parquet(session, storage, schema, [file.path for file in files])
    parts = _parts(files)
    together = rows.coalesce(1) if parts == 1 else rows.repartition(parts, SUBSCRIPTION)
    return rewrite(together.sortWithinPartitions(SUBSCRIPTION, OFFSET), storage, folder, OFFSET)


def _parts(files: Sequence[StoredFile]) -> int:
    return max(1, round(sum(file.bytes for file in files) / TARGET_BYTES))
