"""Reads stored results of some backend subscriptions, each from its cursor on.

Each file is sorted by subscription, so the reader skips row groups by their statistics. The latest executions are also
in memory, up to a bound; the files have the same rows. The catalog itself stores very small files, as Arrow bytes.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tocsin.cluster.catalog import Catalog, StoredFile, in_catalog, results_owner
from tocsin.cluster.sql.result_columns import BYTES, OFFSET, SUBSCRIPTION
from tocsin.cluster.store.filewriting import from_ipc
from tocsin.cluster.store.readers import Readers
from tocsin.cluster.store.recent_tables import RecentTables
from tocsin.cluster.store.storage import Storage
from tocsin.model.cursor import ROW_BITS, execution_of
from tocsin.model.ids import ChannelName
from tocsin.wire.errors import Code, TocsinError

RECENT_BYTES = 64 << 20
"""Bytes of the latest results kept in memory, over all channels."""
LATEST = 64
"""The most executions of a channel that a pull takes from memory without reading the catalog."""


@dataclass(frozen=True, slots=True)
class _Latest:
    """An execution whose rows were kept in memory."""

    epoch: int
    first: int
    """The number of the execution."""
    paths: tuple[str, ...]


class ResultStore:
    """Thread-safe."""

    def __init__(self, catalog: Catalog, storage: Storage, readers: Readers, recent_bytes: int = RECENT_BYTES) -> None:
        self._catalog = catalog
        self._readers = readers
        self._storage = storage
        self._recent: RecentTables[str] = RecentTables(recent_bytes)
        self._latest: dict[ChannelName, deque[_Latest]] = {}
        """The latest executions of each channel whose rows were all kept in memory, without a gap up to the last."""
        self._lock = threading.Lock()

    def remember(self, channel: ChannelName, epoch: int, execution: int, files: Mapping[str, pa.Table | None]) -> None:
        """Keep the rows of a new execution in memory: brokers pull them at once.

        `files` are its files and their rows, None for a file that is too large. Called in the order of executions.
        """
        with self._lock:
            tables = {path: rows for path, rows in files.items() if rows is not None}
            for path, rows in tables.items():
                self._recent.add(path, rows)
            latest = self._latest.setdefault(channel, deque(maxlen=LATEST))
            if len(tables) < len(files) or (latest and latest[-1].epoch != epoch):
                latest.clear()
            if len(tables) == len(files):
                latest.append(_Latest(epoch, execution, tuple(tables)))

    def forget_latest(self, channel: ChannelName) -> None:
        """Read from the catalog which results a channel has: some have passed their retention, or it was replaced."""
        with self._lock:
            self._latest.pop(channel, None)

    def latest(self, channel: ChannelName, epoch: int, first: int) -> list[pa.Table] | None:
        """The results of the executions from `first` on if all of them are in memory, oldest first; else None."""
        with self._lock:
            latest = self._latest.get(channel)
            if not latest or latest[-1].epoch != epoch:
                return None
            wanted: list[list[pa.Table]] = []
            for execution in reversed(latest):
                tables = [self._recent.get(path) for path in execution.paths]
                if any(table is None for table in tables):
                    return None
                wanted.append(tables)
                if execution.first <= first:
                    return [table for tables in reversed(wanted) for table in tables]
            return None

    def kept_from(self, channel: ChannelName) -> int | None:
        """The first execution whose results are still stored; None if there is none."""
        earliest = self._catalog.executions.page(channel=channel, limit=1)
        return earliest[0].execution if earliest else None

    def read(
        self,
        channel: ChannelName,
        epoch: int,
        after: Mapping[int, int],
        upto: int | None = None,
        kept_from: int | None = None,
    ) -> Iterator[pa.Table]:
        """Results of each subscription `number` from offset `after[number]` on, below `upto`.

        Yields tables of at most a row group; rows of one subscription come in the order of their offsets. Raises if
        the first stored execution is no longer `kept_from`, because the caller found the gaps with `kept_from`.
        """
        if after:
            with self._readers.reading():
                yield from self._read(channel, epoch, after, upto, kept_from)

    def _read(
        self, channel: ChannelName, epoch: int, after: Mapping[int, int], upto: int | None, kept_from: int | None
    ) -> Iterator[pa.Table]:
        numbers, cursors = _sorted(after)
        first = execution_of(int(cursors.min())) - 1
        last = None if upto is None else execution_of(upto - 1)
        files = self._catalog.files.of(results_owner(channel, epoch), first, last)
        if kept_from is not None and self.kept_from(channel) != kept_from:
            raise TocsinError(
                Code.NOT_READY, f"results of {channel} passed their retention just now; request them again"
            )
        for file in files:
            for rows in self._rows(file, numbers):
                selected = _select(rows, numbers, cursors, upto)
                if selected.num_rows:
                    yield selected

    def subscriptions(self, channel: ChannelName, epoch: int) -> set[int]:
        """The numbers of the subscriptions that have stored results."""
        with self._readers.reading():
            files = self._catalog.files.of(results_owner(channel, epoch))
            columns = (self._table(file, [SUBSCRIPTION])[SUBSCRIPTION] for file in files)
            return {number for column in columns for number in pc.unique(column).to_pylist()}

    def summaries(self, channel: ChannelName, epoch: int, executions: Sequence[int]) -> dict[int, pa.Table]:
        """For each execution, a table of (subscription, results, bytes), counted from the stored results."""
        with self._readers.reading():
            return self._summaries(channel, epoch, executions)

    def _summaries(self, channel: ChannelName, epoch: int, executions: Sequence[int]) -> dict[int, pa.Table]:
        low, high = min(executions), max(executions)
        parts = []
        for file in self._catalog.files.of(results_owner(channel, epoch), low - 1, None):
            if file.first <= high:
                rows = self._table(file, [SUBSCRIPTION, OFFSET, BYTES])
                # More than 2**20 results for one subscription also use the next number; they belong to this execution.
                begun = np.searchsorted(executions, rows[OFFSET].to_numpy() >> ROW_BITS, side="right") - 1
                parts.append(rows.append_column("begun", pa.array(begun)))
        if not parts:
            return {}
        counted = (
            pa.concat_tables(parts)
            .group_by(["begun", SUBSCRIPTION])
            .aggregate([(OFFSET, "count"), (BYTES, "sum")])
            .rename_columns(["begun", "subscription", "results", "bytes"])
        )
        return {
            execution: counted.filter(pc.equal(counted["begun"], index)).drop_columns(["begun"])
            for index, execution in enumerate(executions)
        }

    def select(self, tables: Sequence[pa.Table], after: Mapping[int, int], upto: int | None) -> Iterator[pa.Table]:
        """The rows of these tables that `read` would give."""
        numbers, cursors = _sorted(after)
        for rows in tables:
            selected = _select(rows, numbers, cursors, upto)
            if selected.num_rows:
                yield selected

    def _rows(self, file: StoredFile, numbers: npt.NDArray[np.int64]) -> Iterator[pa.Table]:
        in_memory = self._in_memory(file)
        if in_memory is not None:
            yield in_memory
            return
        with self._storage.open(file.path) as stream:
            parquet = pq.ParquetFile(stream)
            for index in range(parquet.num_row_groups):
                statistics = parquet.metadata.row_group(index).column(0).statistics
                if statistics is None or _overlaps(numbers, statistics.min, statistics.max):
                    yield parquet.read_row_group(index)

    def _table(self, file: StoredFile, columns: list[str]) -> pa.Table:
        in_memory = self._in_memory(file)
        if in_memory is not None:
            return in_memory.select(columns)
        with self._storage.open(file.path) as stream:
            return pq.read_table(stream, columns=columns)

    def _in_memory(self, file: StoredFile) -> pa.Table | None:
        """The rows of a file, if they are in memory or in the catalog."""
        with self._lock:
            recent = self._recent.get(file.path)
        if recent is None and in_catalog(file.path):
            content = self._catalog.files.contents([file.path]).get(file.path)
            if content is None:  # the process that writes has merged it since this one read the list of files
                raise TocsinError(Code.NOT_READY, "these results were merged just now; request them again")
            return from_ipc(content)
        return recent


def _sorted(after: Mapping[int, int]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The subscription numbers in order, and the cursor of each."""
    numbers = np.fromiter(after.keys(), np.int64)
    order = np.argsort(numbers)
    return numbers[order], np.fromiter(after.values(), np.int64)[order]


def _overlaps(numbers: npt.NDArray[np.int64], low: int, high: int) -> bool:
    return bool(np.searchsorted(numbers, low) < np.searchsorted(numbers, high, side="right"))


def _select(
    rows: pa.Table, numbers: npt.NDArray[np.int64], cursors: npt.NDArray[np.int64], upto: int | None
) -> pa.Table:
    owners = rows[SUBSCRIPTION].to_numpy()
    offsets = rows[OFFSET].to_numpy()
    places = np.minimum(np.searchsorted(numbers, owners), len(numbers) - 1)
    mask = (numbers[places] == owners) & (offsets >= cursors[places])
    if upto is not None:
        mask &= offsets < upto
    return rows.filter(pa.array(mask))
