"""A cache of small datasets as channels see them, for example the positions of people, or the shelters.

An execution that reads such a dataset needs neither a file scan nor a window over all its versions. Files never change,
so a table is right as long as the catalog names the same files.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from tocsin.cluster.catalog import StoredFile
from tocsin.cluster.sql.result_columns import VERSION
from tocsin.cluster.store.merging import concatenated, latest_per_key, read_files
from tocsin.cluster.store.storage import Storage
from tocsin.model.entities import Dataset, DatasetKind

SMALL_TABLE_ROWS = 20_000
SMALL_TABLE_BYTES = 4 << 20
"""The largest size of the files. Spark reads datasets above one of the bounds, on all cores."""
CACHED_BYTES = 16 << 20
"""The largest table in memory that may grow by further files when all files together are above the bounds.

Files of a KEYED dataset keep the replaced records until they are merged. If 400 people move every second, their records
reach the bound of rows within a minute, though the table has 400 rows.
"""


@dataclass(frozen=True, slots=True)
class _CachedTable:
    paths: frozenset[str]
    rows: pa.Table
    """All columns, Tocsin's own included."""
    shown: pa.Table
    """The columns that channels see. Equal files give the same object."""


class SmallTables:
    """Thread-safe. Caches one table for each small dataset that was read."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._tables: dict[str, _CachedTable] = {}
        self._lock = threading.Lock()

    def table(
        self, dataset: Dataset, files: Sequence[StoredFile], after: int | None = None, upto: int | None = None
    ) -> pa.Table | None:
        """The dataset in `files`, or its versions (after, upto] alone. None if Spark must read it."""
        if not files or not (_are_small(files) or self._grows_little(dataset, files)):
            with self._lock:
                self._tables.pop(dataset.name, None)
            return None
        if upto is not None and any(file.last > upto for file in files):
            return None  # a record above `upto` may hide one that belongs here
        with self._lock:
            cached = self._tables.get(dataset.name)
            paths = frozenset(file.path for file in files)
            if cached is None or cached.paths != paths or cached.shown.column_names != list(dataset.schema.names):
                cached = self._merged(dataset, files, paths, cached)
                self._tables[dataset.name] = cached
        if after is None:
            return cached.shown
        return cached.rows.filter(pc.greater(cached.rows[VERSION], after)).select(cached.shown.column_names)

    def _grows_little(self, dataset: Dataset, files: Sequence[StoredFile]) -> bool:
        """True if the cached table and the files that it does not have yet are small together."""
        with self._lock:
            cached = self._tables.get(dataset.name)
        if cached is None or not cached.paths <= {file.path for file in files} or cached.rows.nbytes > CACHED_BYTES:
            return False
        return _are_small([file for file in files if file.path not in cached.paths], cached.rows.num_rows)

    def _merged(
        self, dataset: Dataset, files: Sequence[StoredFile], paths: frozenset[str], cached: _CachedTable | None
    ) -> _CachedTable:
        """The table of `files`: the cached rows and the new files, or all files after a merge."""
        cached_paths = cached.paths if cached is not None and cached.paths < paths else frozenset[str]()
        rows = read_files(self._storage, [file for file in files if file.path not in cached_paths])
        if cached is not None and cached_paths:
            rows = concatenated([cached.rows, rows])
        if dataset.kind is DatasetKind.KEYED:
            rows = latest_per_key(rows, dataset)
        rows = rows.combine_chunks()
        return _CachedTable(paths, rows, rows.select(list(dataset.schema.names)))


def _are_small(files: Sequence[StoredFile], more_rows: int = 0) -> bool:
    rows = more_rows + sum(file.rows for file in files)
    return rows <= SMALL_TABLE_ROWS and sum(file.bytes for file in files) <= SMALL_TABLE_BYTES
