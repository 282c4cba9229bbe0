"""Write intents: every job that writes files under the data root opens one, and commits its files through it.

The intent keeps the orphan sweep away from files that wait for their commit. Before the commit, `Write.check` looks for
each file: a file that is gone must not be named by the catalog, because every later read of its dataset would fail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from tocsin.cluster.catalog import Catalog, NewFile, WriteId, in_catalog
from tocsin.cluster.store.readers import Readers
from tocsin.cluster.store.storage import Storage
from tocsin.wire.errors import Code, TocsinError


@dataclass(slots=True)
class Write:
    id: WriteId
    storage: Storage
    committed: bool = False
    """Set by the job when the catalog has committed its files, and with them deleted the intent."""

    def prefix(self, folder: str) -> str:
        """The beginning of the paths of files that this job writes into `folder`."""
        return f"{folder}/{self.id}-"

    def check(self, files: Sequence[NewFile]) -> None:
        """Raise if a file that is to be committed does not exist."""
        paths = [file.path for file in files if not in_catalog(file.path)]
        if missing := self.storage.missing(paths):
            raise TocsinError(Code.NOT_READY, f"{missing[0]} disappeared before its commit; it is written again")


class Writes:
    """Thread-safe."""

    def __init__(self, catalog: Catalog, storage: Storage, readers: Readers, now_s: Callable[[], float]) -> None:
        self._catalog = catalog
        self._readers = readers
        self._storage = storage
        self._now_s = now_s

    @contextmanager
    def begin(self, owner: str) -> Iterator[Write]:
        """Open an intent for files of `owner`. It ends with the block, unless the commit has deleted it.

        The files that the job reads inside the block are not deleted before its end.
        """
        write = Write(self._catalog.writes.begin(owner, self._now_s()), self._storage)
        try:
            with self._readers.reading():
                yield write
        finally:
            if not write.committed:
                with suppress(Exception):  # the next start deletes the intent
                    self._catalog.writes.end(write.id)

    @contextmanager
    def begin_many(self, owners: Sequence[str]) -> Iterator[list[Write]]:
        """Open an intent for files of each of these owners, in one transaction: see `begin`."""
        writes = [Write(write, self._storage) for write in self._catalog.writes.begin_many(owners, self._now_s())]
        try:
            with self._readers.reading():
                yield writes
        finally:
            if open_writes := [write.id for write in writes if not write.committed]:
                with suppress(Exception):  # the next start deletes the intents
                    self._catalog.writes.end_many(open_writes)


def write_of(path: str) -> WriteId:
    """The intent under which a file was written."""
    return WriteId(path.rpartition("/")[2].partition("-")[0])
