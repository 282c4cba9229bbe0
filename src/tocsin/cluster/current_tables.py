"""The current rows of large KEYED datasets in memory, up to a bound of bytes (docs/decisions/0014).

A table is read from the dataset's files when an execution first asks for it, in another thread. That execution waits a
few seconds for it, because reading the files with Spark takes longer. From then on, the executions that ask for it add
the records that were stored since, from memory. A table with many replaced rows is made anew, again in another thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import pyarrow as pa
import pyarrow.compute as pc

from tocsin.cluster.catalog import Catalog, dataset_owner
from tocsin.cluster.feed.columntypes import arrow_schema
from tocsin.cluster.live import EngineContext, LiveDataset
from tocsin.cluster.spark.dataset_writer import DatasetWriter
from tocsin.cluster.sql.result_columns import SEQUENCE, VERSION
from tocsin.cluster.store.current_rows import CurrentRows, can_hold
from tocsin.cluster.store.merging import latest_per_key, read_files
from tocsin.cluster.store.readers import Readers
from tocsin.cluster.store.storage import Storage
from tocsin.model.entities import Dataset

BYTES_OF_FILES = 5
"""A table in memory with its indexes takes about as many times the bytes of its compressed files."""
WAIT_S = 10.0
"""How long an execution waits for a table that is being read for the first time."""
MOST_ATTEMPTS = 3
"""Attempts to read a dataset that failed. Its files may be unreadable, which executions report."""


def in_thread(work: Callable[[], None]) -> None:
    threading.Thread(target=work, name="current-rows", daemon=True).start()


def at_once(work: Callable[[], None]) -> None:
    work()


@dataclass(slots=True)
class _Entry:
    dataset: Dataset
    lock: threading.Lock = field(default_factory=threading.Lock)
    rows: CurrentRows | None = None
    next: CurrentRows | None = None
    """A table that another thread has finished: it replaces `rows`."""
    is_making: bool = False
    made: threading.Event = field(default_factory=threading.Event)
    """Set when the first attempt to read the dataset has ended."""
    has_waited: bool = False
    attempts: int = 0
    is_too_large: bool = False

    def take_next(self) -> CurrentRows | None:
        """The rows, or those that another thread has finished since."""
        finished, self.next = self.next, None
        if finished is not None:
            self.rows = finished
        return self.rows


class CurrentTables:
    """Thread-safe. One execution at a time uses a table."""

    def __init__(
        self,
        catalog: Catalog,
        storage: Storage,
        readers: Readers,
        most_bytes: int,
        start: Callable[[Callable[[], None]], None] = in_thread,
    ) -> None:
        """`most_bytes` is the bound for all tables together. `start` runs a long piece of work, in another thread."""
        self._catalog = catalog
        self._storage = storage
        self._readers = readers
        self._most_bytes = most_bytes
        self._start = start
        self._lock = threading.Lock()
        self._entries: WeakKeyDictionary[DatasetWriter, _Entry] = WeakKeyDictionary()
        """By the writer: a dataset that is dropped, and perhaps declared again, has another one."""

    @classmethod
    def of(cls, context: EngineContext) -> CurrentTables:
        settings = context.settings
        start = in_thread if settings.narrowing.in_background else at_once
        return cls(context.catalog, context.storage, context.readers, settings.keyed_memory_mib << 20, start)

    @contextmanager
    def rows(self, live: LiveDataset) -> Iterator[CurrentRows | None]:
        """The rows of a dataset as the catalog shows them; None if they are not in memory, or not yet.

        Only the caller uses the rows inside the block.
        """
        entry = self._entry(live)
        with entry.lock:
            yield self._current(live, entry)

    def _entry(self, live: LiveDataset) -> _Entry:
        with self._lock:
            entry = self._entries.get(live.writer)
            if entry is None:
                entry = self._entries[live.writer] = _Entry(live.dataset)
            return entry

    def _current(self, live: LiveDataset, entry: _Entry) -> CurrentRows | None:
        rows = entry.take_next()
        if rows is None:
            if entry.is_too_large or entry.attempts >= MOST_ATTEMPTS or not _can_hold(entry.dataset):
                return None
            self._make(entry, lambda: self._read(entry))
            if not entry.has_waited:
                entry.made.wait(WAIT_S)
                entry.has_waited = True
            rows = entry.take_next()
            if rows is None:
                return None
        self._advance(rows, live)
        if rows.size_bytes + self._others_bytes(entry) > self._most_bytes:
            entry.rows, entry.is_too_large = None, True
            return None
        if rows.needs_compacting and not entry.is_making:
            snapshot, version, coders = rows.snapshot(), rows.version, rows.coders
            self._make(entry, lambda: CurrentRows(entry.dataset, snapshot(), version, coders))
        return rows

    def _others_bytes(self, entry: _Entry) -> int:
        with self._lock:
            others = [other.rows for other in self._entries.values() if other is not entry]
        return sum(rows.size_bytes for rows in others if rows is not None)

    def _make(self, entry: _Entry, make: Callable[[], CurrentRows | None]) -> None:
        """Make a table with `start`, unless one is being made."""
        if entry.is_making:
            return
        entry.is_making = True

        def work() -> None:
            try:
                entry.next = make()
            except Exception:  # executions read the same files with Spark and report what is wrong with them
                entry.attempts += 1
            finally:
                entry.is_making = False
                entry.made.set()

        self._start(work)

    def _read(self, entry: _Entry) -> CurrentRows | None:
        """The table of all files, at the last version that they have."""
        with self._readers.reading():
            files = self._catalog.files.of(dataset_owner(entry.dataset.name))
            if sum(file.bytes for file in files) * BYTES_OF_FILES > self._most_bytes:
                entry.is_too_large = True
                return None
            schema = arrow_schema(entry.dataset.schema)
            if not files:
                return CurrentRows(entry.dataset, schema.empty_table(), 0)
            latest = latest_per_key(read_files(self._storage, files), entry.dataset)
        version = max(file.last for file in files)
        return CurrentRows(entry.dataset, _shown(latest, schema), version)

    def _advance(self, rows: CurrentRows, live: LiveDataset) -> None:
        """Add the records that were committed since."""
        version = live.writer.version
        if version <= rows.version:
            return
        recent = live.writer.recent(rows.version, version)
        if recent is not None:
            rows.advance(recent.select(rows.schema.names).cast(rows.schema), version)
            return
        files = self._catalog.files.of(dataset_owner(live.name), rows.version)
        if files:
            stored = read_files(self._storage, files)
            later = stored.filter(pc.greater(stored[VERSION], rows.version))
            ordered = later.sort_by([(VERSION, "ascending"), (SEQUENCE, "ascending")])
            rows.advance(_shown(ordered, rows.schema), max(file.last for file in files))


def _can_hold(dataset: Dataset) -> bool:
    return can_hold(dataset, arrow_schema(dataset.schema))


def _shown(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """The columns that channels see, as the gateway's records have them: files of Spark spell some types otherwise."""
    return rows.select(schema.names).cast(schema)
