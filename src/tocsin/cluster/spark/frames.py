"""Datasets as Spark DataFrames: chosen files, an interval of versions, the latest record of each key."""

from __future__ import annotations

import shutil
import tempfile
from atexit import register
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from tocsin.cluster.catalog import NewFile, StoredFile
from tocsin.cluster.spark.file_source import SizedPath, read_with_arrow
from tocsin.cluster.sql.result_columns import SEQUENCE, VERSION
from tocsin.cluster.store.storage import Storage
from tocsin.model.entities import Dataset, DatasetKind

Frame = DataFrame
"""The type of a DataFrame, for modules that must not import pyspark."""
_clients: dict[str, bool] = {}
"""Scheme → whether Spark reads it. The class path of this process does not change."""


def stored_frame(
    session: SparkSession,
    storage: Storage,
    dataset: Dataset,
    files: Sequence[StoredFile],
    columns: Sequence[str] | None = None,
) -> DataFrame:
    """All rows of `files` with Tocsin's own columns, or with these columns of the dataset alone."""
    schema = f"{dataset.schema.ddl()}, {VERSION} BIGINT, {SEQUENCE} BIGINT"
    if columns is not None:
        schema = ", ".join(f"`{name}` {dataset.schema.type_of(name)}" for name in columns)
    return read_parquet(session, storage, schema, files)


def read_parquet(
    session: SparkSession, storage: Storage, schema: str | StructType, files: Sequence[NewFile]
) -> DataFrame:
    """Read files with a given schema, which starts no job. Without files it is an empty scan."""
    reader = session.read.schema(schema)
    if not files:
        return reader.parquet(_empty_folder().as_uri())
    if not has_client(session, storage.scheme):
        return read_with_arrow(session, storage, schema, [SizedPath(file.path, file.bytes) for file in files])
    if storage.scheme == "s3a":
        reader = reader.options(**_s3a_options(storage))
    return reader.parquet(*(storage.uri(file.path) for file in files))


def has_client(session: SparkSession, scheme: str) -> bool:
    """True if Spark itself reads files of this scheme: Hadoop has a class for it on the class path."""
    if scheme not in _clients:
        _clients[scheme] = scheme == "file" or _has_hadoop_class(session, scheme)
    return _clients[scheme]


def _has_hadoop_class(session: SparkSession, scheme: str) -> bool:
    try:
        jvm: Any = session._jvm
        conf = session._jsparkSession.sessionState().newHadoopConf()
        jvm.org.apache.hadoop.fs.FileSystem.getFileSystemClass(scheme, conf)
    except Exception:  # no class, or a class that another one lacks; Spark Connect shows no JVM
        return False
    return True


def _s3a_options(storage: Storage) -> dict[str, str]:
    options = {} if storage.s3.region is None else {"fs.s3a.endpoint.region": storage.s3.region}
    if storage.s3.endpoint is not None:
        secure = "false" if storage.s3.endpoint.startswith("http://") else "true"
        options |= {"fs.s3a.endpoint": storage.s3.endpoint, "fs.s3a.connection.ssl.enabled": secure}
        options |= {"fs.s3a.path.style.access": "true"}
    return options


@lru_cache(maxsize=1)
def _empty_folder() -> Path:
    """A folder without files. An empty dataset reads it, so that its plan is like any other.

    Only the driver lists it, so it is on this machine, whatever the root is.
    """
    folder = Path(tempfile.mkdtemp(prefix="tocsin-empty-"))
    register(shutil.rmtree, folder, ignore_errors=True)
    return folder


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
