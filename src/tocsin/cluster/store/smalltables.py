"""Datasets small enough to be held in memory, merged as channels see them: where people are, which shelters exist.

An execution that reads such a dataset needs neither a file scan nor a window over all its versions. The catalog says
which files count; they never change, so a table is right as long as it was made of the same ones.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from tocsin.cluster.catalog import StoredFile
from tocsin.cluster.store.columns import VERSION
from tocsin.cluster.store.mergehere import concatenated, latest_per_key, read_files
from tocsin.cluster.store.storage import Storage
from tocsin.model.entities import Dataset, DatasetKind

SMALL_TABLE_ROWS = 20_000
SMALL_TABLE_BYTES = 4 << 20
"""Of files. What is above either is left to Spark, which reads it on all cores."""


@dataclass(frozen=True, slots=True)
class _Held:
    paths: frozenset[str]
    rows: pa.Table
    """With Tocsin's own columns."""
    shown: pa.Table
    """As channels see it: one object for as long as the files stay the same."""


class SmallTables:
    """Thread-safe. Holds one table per dataset that was asked for and is small."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._held: dict[str, _Held] = {}
        self._lock = threading.Lock()

    def table(
        self, dataset: Dataset, files: Sequence[StoredFile], after: int | None = None, upto: int | None = None
    ) -> pa.Table | None:
        """What `files` say of the dataset, or of its versions (after, upto] alone; None if that is not small."""
        if not files or not _are_small(files):
            with self._lock:
                self._held.pop(dataset.name, None)
            return None
        if upto is not None and any(file.last > upto for file in files):
            return None  # a record that came since may hide one that belongs here
        with self._lock:
            held = self._held.get(dataset.name)
            paths = frozenset(file.path for file in files)
            if held is None or held.paths != paths or held.shown.column_names != list(dataset.schema.names):
                held = self._merged(dataset, files, paths, held)
                self._held[dataset.name] = held
        if after is None:
            return held.shown
        return held.rows.filter(pc.greater(held.rows[VERSION], after)).select(held.shown.column_names)

    def _merged(
        self, dataset: Dataset, files: Sequence[StoredFile], paths: frozenset[str], held: _Held | None
    ) -> _Held:
        """From what is held already and the files that came since, or from all of them after a merge."""
        known = held.paths if held is not None and held.paths < paths else frozenset[str]()
        rows = read_files(self._storage, [file for file in files if file.path not in known])
        if held is not None and known:
            rows = concatenated([held.rows, rows])
        if dataset.kind is DatasetKind.KEYED:
            rows = latest_per_key(rows, dataset)
        rows = rows.combine_chunks()
        return _Held(paths, rows, rows.select(list(dataset.schema.names)))


def _are_small(files: Sequence[StoredFile]) -> bool:
    return (
        sum(file.rows for file in files) <= SMALL_TABLE_ROWS and sum(file.bytes for file in files) <= SMALL_TABLE_BYTES
    )
