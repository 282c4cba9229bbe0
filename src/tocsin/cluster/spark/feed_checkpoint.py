"""The checkpoint of a feed's streaming query. The catalog has the truth; the folder is scratch.

Spark keeps in its checkpoint which part of a source it has read: offsets, and for some sources further files, such as
the list of files that a file source has seen. A lost checkpoint, or one that does not fit the catalog, would lose or
repeat records. So the files of the checkpoint are stored in the catalog, in the transaction that stores the records of
a micro-batch, and the folder is written again from the catalog before each start of the query.

The layout is Spark's: `metadata`, `offsets/N`, `commits/N`, and the files of the source below `sources/`. A source that
keeps a log writes `N` or, every few entries, `N.compact` with all entries up to N.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from tocsin.cluster.catalog import FeedProgress
from tocsin.cluster.store.storage import Storage
from tocsin.model.ids import FeedName
from tocsin.wire.errors import Code, TocsinError

_COMMITTED = b'v1\n{"nextBatchWatermarkMs":0}'
_LOG_ENTRY = re.compile(r"(\d+)(\.compact)?")


class FeedCheckpoint:
    """Driven by one streaming query at a time. Not thread-safe."""

    def __init__(self, folder: Path, progress: FeedProgress) -> None:
        self.folder = folder
        self.feed = progress.feed
        self.batch = progress.batch
        """The last micro-batch that the catalog has; -1 before the first."""
        self._stored = set(progress.added)

    @classmethod
    def rebuild(cls, folder: Path, progress: FeedProgress) -> FeedCheckpoint:
        """Write the folder anew. Spark goes on after the last micro-batch that the catalog has."""
        shutil.rmtree(folder, ignore_errors=True)
        files = dict(progress.added)
        files |= {path.replace("offsets/", "commits/"): _COMMITTED for path in files if path.startswith("offsets/")}
        for path, content in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content)
        return cls(folder, progress)

    def progress(self, batch: int) -> FeedProgress:
        """The changes to store with the records of a micro-batch."""
        if batch <= self.batch:
            raise TocsinError(Code.INTERNAL, f"feed {self.feed}: Spark repeats batch {batch}, which is stored already")
        present = {path.relative_to(self.folder).as_posix() for path in self.folder.rglob("*") if path.is_file()}
        current = {path for path in present if _is_state(path) and not path.startswith("offsets/")}
        current |= {f"offsets/{number}" for number in (batch - 1, batch) if number >= 0}
        current -= _replaced(current)
        added = {path: (self.folder / path).read_bytes() for path in current - self._stored}
        dropped = _replaced(present | self._stored) | _old_offsets(self._stored, batch)
        return FeedProgress(self.feed, batch, added, dropped)

    def committed(self, progress: FeedProgress) -> None:
        """Note that the catalog has stored this progress."""
        self.batch = progress.batch
        self._stored = (self._stored | set(progress.added)) - set(progress.dropped)


def progress_of_old_checkpoint(storage: Storage, folder: str, feed: FeedName, batch: int) -> FeedProgress:
    """The progress that Spark's checkpoint under the data root has, for a catalog without progress of its own.

    Entries of a source's log after `batch` do no harm: the next micro-batch reads them.
    """
    present = {path.removeprefix(f"{folder}/"): path for path in storage.list(folder)}
    needed = {f"offsets/{number}" for number in (batch - 1, batch) if number >= 0}
    if missing := needed - present.keys():
        raise TocsinError(
            Code.NOT_READY,
            f"feed {feed}: its checkpoint {folder} lacks {sorted(missing)[0]}, so the records that it has read are not "
            "known; restore the checkpoint, or drop the feed and create it again to read its source from the beginning",
        )
    paths = {path for path in present if _is_state(path) and not path.startswith("offsets/")} | needed
    return FeedProgress(feed, batch, _read(storage, {path: present[path] for path in paths - _replaced(paths)}))


def _read(storage: Storage, paths: Mapping[str, str]) -> dict[str, bytes]:
    contents = {}
    for name, path in paths.items():
        with storage.open(path) as file:
            contents[name] = file.read()
    return contents


def _is_state(path: str) -> bool:
    """Whether a file of the checkpoint is Spark's state, not a checksum, a temporary file or a commit."""
    folder, _, name = path.rpartition("/")
    return not name.startswith(".") and not name.endswith(".tmp") and folder != "commits"


def _replaced(paths: Iterable[str]) -> set[str]:
    """The entries of source logs that a later compact entry contains."""
    entries = [
        (folder, int(match[1]), match[2] is not None, path)
        for path in paths
        for folder, _, name in [path.rpartition("/")]
        if folder.startswith("sources/") and (match := _LOG_ENTRY.fullmatch(name))
    ]
    compact: dict[str, int] = {}
    for folder, number, is_compact, _ in entries:
        if is_compact:
            compact[folder] = max(number, compact.get(folder, -1))
    return {path for folder, number, _, path in entries if number < compact.get(folder, -1)}


def _old_offsets(paths: Iterable[str], batch: int) -> set[str]:
    """The offsets that Spark needs no more once `batch` is stored: it reads those of the last two micro-batches."""
    return {path for path in paths if path.startswith("offsets/") and int(path.rpartition("/")[2]) < batch - 1}
