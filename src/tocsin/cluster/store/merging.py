"""Merging stored files: many small executions must not leave many small files.

`files_to_merge` chooses without touching a file. It is size-tiered: neighbouring files of about the same size are
merged once there are enough of them, so each row is rewritten a logarithmic number of times. Small inputs are merged
here, in this process: for dozens of files of some kilobytes, Spark would take about a second of both cores, this code
takes some milliseconds. `cluster.spark.writing` merges larger inputs. Old files stay readable until they are deleted as
garbage.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tocsin.cluster.catalog import NewFile, StoredFile, in_catalog
from tocsin.cluster.sql.result_columns import OFFSET, SEQUENCE, SUBSCRIPTION, VERSION
from tocsin.cluster.store.filewriting import copy_writer, from_ipc
from tocsin.cluster.store.storage import Storage
from tocsin.model.entities import Dataset, DatasetKind

FAN_IN = 32
"""Neighbouring files of one tier are merged if they are at least this many."""
SMALLEST_TIER_BYTES = 256 << 10
TARGET_BYTES = 64 << 20
"""A file this large is not merged, except in KEYED datasets, where merging also drops superseded records."""
MOST_INPUTS = 64
"""The most files in one merge."""
SMALL_MERGE_BYTES = 8 << 20
"""The most bytes of compressed files that are merged in this process."""


def files_to_merge(
    files: Sequence[StoredFile], *, keyed: bool = False, span_s: float = math.inf, fan_in: int = FAN_IN
) -> list[StoredFile]:
    """The next run of neighbouring files to merge; an empty list if no run is long enough.

    `span_s` is the longest time between the first and the last of them: retention drops whole files, so a longer span
    would keep rows long past their retention.
    """
    ordered = sorted(files, key=lambda file: (file.first, file.id))
    largest_bytes = math.inf if keyed else TARGET_BYTES
    for tier in range(max((_tier(file) for file in ordered), default=-1) + 1):
        for run in _runs(ordered, tier, span_s, largest_bytes):
            if len(run) >= fan_in:
                return run
    return []


def _tier(file: StoredFile) -> int:
    return max(0, math.ceil(math.log(max(1, file.bytes) / SMALLEST_TIER_BYTES, FAN_IN)))


def _runs(ordered: Sequence[StoredFile], tier: int, span_s: float, largest_bytes: float) -> list[list[StoredFile]]:
    """Runs of neighbouring files up to `tier`. A larger file ends a run: merging across it would change the order."""
    runs: list[list[StoredFile]] = [[]]
    for file in ordered:
        run = runs[-1]
        small = _tier(file) <= tier and file.bytes < largest_bytes
        if small and len(run) < MOST_INPUTS and (not run or file.at_s - run[0].at_s <= span_s):
            run.append(file)
        else:
            runs.append([file] if small else [])
    return runs


def is_small(files: Sequence[StoredFile]) -> bool:
    return sum(file.bytes for file in files) <= SMALL_MERGE_BYTES


def merge_records_here(storage: Storage, dataset: Dataset, files: Sequence[StoredFile], prefix: str) -> list[NewFile]:
    rows = read_files(storage, files)
    if dataset.kind is DatasetKind.KEYED:
        rows = latest_per_key(rows, dataset)
    ordered = rows.sort_by([(VERSION, "ascending"), (SEQUENCE, "ascending")])
    return _write(storage, prefix, ordered, VERSION)


def merge_results_here(
    storage: Storage, contents: Mapping[str, bytes], files: Sequence[StoredFile], prefix: str
) -> list[NewFile]:
    """Merge results. `contents` are the bytes of the files that the catalog stores."""
    rows = read_files(storage, files, contents)
    ordered = rows.sort_by([(SUBSCRIPTION, "ascending"), (OFFSET, "ascending")])
    return _write(storage, prefix, ordered, OFFSET)


def latest_per_key(rows: pa.Table, dataset: Dataset) -> pa.Table:
    """The last record of each key by event order, then by arrival; NULL is earliest.

    The same as `cluster.spark.frames.latest_per_key`.
    """
    order = [(VERSION, "ascending"), (SEQUENCE, "ascending")]
    sortable = rows
    if dataset.order_by is not None:
        has_value = pc.is_valid(rows[dataset.order_by]).cast(pa.int8())
        sortable = rows.append_column("_tocsin_known", has_value)
        order = [("_tocsin_known", "ascending"), (dataset.order_by, "ascending"), *order]
    ranks = pc.sort_indices(sortable, sort_keys=order).to_numpy()
    arrival = np.empty(len(ranks), np.int64)
    arrival[ranks] = np.arange(len(ranks))
    keyed = rows.select(list(dataset.key)).append_column("_tocsin_rank", pa.array(arrival))
    last = keyed.group_by(list(dataset.key)).aggregate([("_tocsin_rank", "max")])["_tocsin_rank_max"].to_numpy()
    return rows.take(pa.array(ranks[np.sort(last)]))


def read_files(storage: Storage, files: Sequence[StoredFile], contents: Mapping[str, bytes] | None = None) -> pa.Table:
    """All rows of these files, with Tocsin's own columns. `files` is not empty.

    `contents` are the bytes of the files that the catalog stores.
    """
    tables = []
    for file in files:
        if in_catalog(file.path):
            tables.append(from_ipc((contents or {})[file.path]))
            continue
        with storage.open(file.path) as stream:
            tables.append(pq.read_table(stream))
    return concatenated(tables)


def concatenated(tables: Sequence[pa.Table]) -> pa.Table:
    """One table of all rows. Files of Spark declare some columns as never NULL, those of this module do not."""
    return pa.concat_tables(tables, promote_options="default")


def _write(storage: Storage, prefix: str, rows: pa.Table, ordered_by: str) -> list[NewFile]:
    reports = [
        row for batch in copy_writer(storage, prefix, ordered_by)(rows.to_batches()) for row in batch.to_pylist()
    ]
    names = ("path", "rows", "bytes", "first", "last")
    return [NewFile(*(row[name] for name in names), widest=row["widest"]) for row in reports]
