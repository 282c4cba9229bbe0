"""Merging a few small files where we are: what Spark would do, without the price of its jobs.

A merge of dozens of files of some kilobytes takes Spark about a second of both cores, which running channels then miss;
here it takes some milliseconds. Only for inputs that are small together; the rest is `cluster.spark.compaction`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tocsin.cluster.catalog import NewFile, StoredFile
from tocsin.cluster.store.columns import OFFSET, SEQUENCE, SUBSCRIPTION, VERSION
from tocsin.cluster.store.filewriting import copy_writer
from tocsin.cluster.store.storage import Storage
from tocsin.model.entities import Dataset, DatasetKind

SMALL_MERGE_BYTES = 8 << 20
"""Of compressed input, together."""


def is_small(files: Sequence[StoredFile]) -> bool:
    return sum(file.bytes for file in files) <= SMALL_MERGE_BYTES


def merge_records_here(storage: Storage, dataset: Dataset, files: Sequence[StoredFile]) -> list[NewFile]:
    rows = read_files(storage, files)
    if dataset.kind is DatasetKind.KEYED:
        rows = latest_per_key(rows, dataset)
    ordered = rows.sort_by([(VERSION, "ascending"), (SEQUENCE, "ascending")])
    return _write(storage, f"datasets/{dataset.name}", ordered, VERSION)


def merge_results_here(storage: Storage, folder: str, files: Sequence[StoredFile]) -> list[NewFile]:
    ordered = read_files(storage, files).sort_by([(SUBSCRIPTION, "ascending"), (OFFSET, "ascending")])
    return _write(storage, folder, ordered, OFFSET)


def latest_per_key(rows: pa.Table, dataset: Dataset) -> pa.Table:
    """As `cluster.spark.frames.latest_per_key`: last by event order, then by arrival; NULL is earliest."""
    order = [(VERSION, "ascending"), (SEQUENCE, "ascending")]
    sortable = rows
    if dataset.order_by is not None:
        known = pc.is_valid(rows[dataset.order_by]).cast(pa.int8())
        sortable = rows.append_column("_tocsin_known", known)
        order = [("_tocsin_known", "ascending"), (dataset.order_by, "ascending"), *order]
    ranks = pc.sort_indices(sortable, sort_keys=order).to_numpy()
    arrival = np.empty(len(ranks), np.int64)
    arrival[ranks] = np.arange(len(ranks))
    keyed = rows.select(list(dataset.key)).append_column("_tocsin_rank", pa.array(arrival))
    last = keyed.group_by(list(dataset.key)).aggregate([("_tocsin_rank", "max")])["_tocsin_rank_max"].to_numpy()
    return rows.take(pa.array(ranks[np.sort(last)]))


def read_files(storage: Storage, files: Sequence[StoredFile]) -> pa.Table:
    """All rows of at least one file, with Tocsin's own columns."""
    tables = []
    for file in files:
        with storage.open(file.path) as stream:
            tables.append(pq.read_table(stream))
    return concatenated(tables)


def concatenated(tables: Sequence[pa.Table]) -> pa.Table:
    """Files that Spark wrote say of some columns that they are never NULL, ours do not: that is no difference."""
    return pa.concat_tables(tables, promote_options="default")


def _write(storage: Storage, folder: str, rows: pa.Table, ordered_by: str) -> list[NewFile]:
    reports = [
        row for batch in copy_writer(storage, folder, ordered_by)(rows.to_batches()) for row in batch.to_pylist()
    ]
    return [NewFile(row["path"], row["rows"], row["bytes"], row["first"], row["last"]) for row in reports]
