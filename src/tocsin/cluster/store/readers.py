"""Readers of files: a dropped file is deleted only after every job that may read it has ended.

A merge or a retention drops files while executions and pulls still read them. `Readers` counts the jobs; `Garbage`
deletes the dropped files. Neither looks at the wall clock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tocsin.cluster.catalog import Catalog, in_catalog
from tocsin.cluster.store.storage import Storage


class Readers:
    """Thread-safe. Numbers the moments at which jobs begin to read."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._moment = 0
        self._reading: set[int] = set()

    @contextmanager
    def reading(self) -> Iterator[None]:
        """A job that lists files in the catalog and then reads them, all inside this block."""
        with self._lock:
            self._moment += 1
            moment = self._moment
            self._reading.add(moment)
        try:
            yield
        finally:
            with self._lock:
                self._reading.discard(moment)

    def now(self) -> int:
        """A number above that of every job that has begun."""
        with self._lock:
            self._moment += 1
            return self._moment

    def oldest(self) -> int:
        """The number of the longest running job; a number above all others if none runs."""
        with self._lock:
            return min(self._reading, default=self._moment + 1)


@dataclass(frozen=True, slots=True)
class _Dropped:
    moment: int
    """Jobs that begin after this moment do not find the file in the catalog."""
    since_s: float


class Garbage:
    """Deletes dropped files. Called by one thread."""

    def __init__(
        self, catalog: Catalog, storage: Storage, readers: Readers, after_s: float, clock_s: Callable[[], float]
    ) -> None:
        """A file stays at least `after_s` on `clock_s`, a clock without steps."""
        self._catalog = catalog
        self._storage = storage
        self._readers = readers
        self._after_s = after_s
        self._clock_s = clock_s
        self._dropped: dict[str, _Dropped] = {}

    def collect(self) -> int:
        """Delete the files that no job can read any more; return how many. A crash only repeats a deletion."""
        paths = self._catalog.files.garbage()
        seen = _Dropped(self._readers.now(), self._clock_s())
        self._dropped = {path: self._dropped.get(path, seen) for path in paths}
        oldest = self._readers.oldest()
        due = [
            path
            for path, dropped in self._dropped.items()
            # Only jobs that `Readers` counts read what the catalog stores.
            if (in_catalog(path) or seen.since_s - dropped.since_s >= self._after_s) and dropped.moment < oldest
        ]
        self._storage.delete_all([path for path in due if not in_catalog(path)])
        self._catalog.files.forget_garbage(due)
        return len(due)
