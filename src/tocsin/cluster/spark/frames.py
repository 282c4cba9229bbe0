"""Datasets as Spark DataFrames: chosen files, an interval of versions, the latest record of each key."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from tocsin.cluster.catalog import StoredFile
from tocsin.cluster.sql.result_columns import SEQUENCE, VERSION
from tocsin.cluster.store.storage import Storage
from tocsin.model.entities import Dataset, DatasetKind

Frame = DataFrame
"""The type of a DataFrame, for modules that must not import pyspark."""

EMPTY_FOLDER = "empty"
"""A folder without files under the root. An empty dataset reads it, so that its plan is like any other."""


def stored_frame(session: SparkSession, storage: Storage, dataset: Dataset, files: Sequence[StoredFile]) -> DataFrame:
    """All rows of `files` with Tocsin's own columns."""
    schema = f"{dataset.schema.ddl()}, {VERSION} BIGINT, {SEQUENCE} BIGINT"
    return read_parquet(session, storage, schema, [file.path for file in files])


def read_parquet(session: SparkSession, storage: Storage, schema: str | StructType, paths: Sequence[str]) -> DataFrame:
    """Read files with a given schema, which starts no job. Without paths it is an empty scan."""
    return session.read.schema(schema).parquet(*(storage.uri(path) for path in paths or (EMPTY_FOLDER,)))


def dataset_frame(
    session: SparkSession,
    storage: Storage,
    dataset: Dataset,
    files: Sequence[StoredFile],
    *,
    after: int | None = None,
    upto: int | None = None,
    ordered: bool = False,
) -> DataFrame:
    """The dataset as a channel sees it: all of `files`, or the NEW records of the half-open interval (after, upto].

    With `ordered`, the records are in the order of their arrival.
    """
    rows = stored_frame(session, storage, dataset, files)
    if upto is not None:
        rows = rows.where(F.col(VERSION) <= upto)
    if dataset.kind is DatasetKind.KEYED:
        rows = latest_per_key(rows, dataset)
    if after is not None:
        rows = rows.where(F.col(VERSION) > after)
    if ordered:
        rows = rows.orderBy(VERSION, SEQUENCE)
    return rows.select(*dataset.schema.names)


def latest_per_key(rows: DataFrame, dataset: Dataset) -> DataFrame:
    """The last record of each key by the dataset's event order, then by arrival; NULL is earliest."""
    newest_first: list[Column] = [F.col(VERSION).desc(), F.col(SEQUENCE).desc()]
    if dataset.order_by is not None:
        newest_first.insert(0, F.col(dataset.order_by).desc_nulls_last())
    ranked = Window.partitionBy(*dataset.key).orderBy(*newest_first)
    return rows.withColumn("_tocsin_rank", F.row_number().over(ranked)).where("_tocsin_rank = 1").drop("_tocsin_rank")
