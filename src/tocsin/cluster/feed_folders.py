"""The folder of each dataset's feed, and how a new leader continues the feed of a leader that may still run.

The former leader may have been stopped in the middle of a write and go on at any time. So the new leader does not write
into its folder: it copies what can still change (the last segment of the log, the small databases) into a folder of its
own, links what never changes, and stores the name of that folder in the catalog, which the former leader cannot do any
more. Positions in the log stay the same.

No acknowledged record is lost: the former leader acknowledges only while its lease holds, after its fsync. So the bytes
of each acknowledged record were on disk before this process took the lease, and the copy has them.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from contextlib import closing, suppress
from itertools import pairwise
from pathlib import Path

from tocsin.cluster.catalog import Catalog
from tocsin.database.lease import Lease
from tocsin.segments.files import fsync_directory, segment_path, segment_starts
from tocsin.wire.errors import Code, TocsinError

_DATABASE = ".db"
_MANIFEST = "manifest.json"
_ATTEMPTS = 10
"""The former leader may change a file while it is copied, if it is not stopped."""
_WAL_HEADER_BYTES = 32
"""The first bytes of SQLite's write-ahead log. They change when a checkpoint lets it begin again."""


class FeedFolders:
    def __init__(self, catalog: Catalog, state: Path, lease: Lease) -> None:
        self._catalog = catalog
        self._folder = state / "feeds"
        self._lease = lease

    def open(self, dataset: str, generation: int) -> Path:
        """The folder of a feed for this process. Continues the feed of a leader that may still run."""
        name, opened = self._stored(dataset, generation)
        present = self._folder / name
        if not present.exists():
            if opened:
                raise TocsinError(
                    Code.NOT_FOUND,
                    f"{present} is missing: the feed log of {dataset} with acknowledged records is not here. Set "
                    "`state` to the folder that the former leader used; standbys on other machines need the same",
                )
            present.mkdir(parents=True)
        elif not self._lease.follows(opened):
            return self._continue(present, dataset, generation)
        if self._lease.renews and opened != self._lease.epoch:
            self._store(dataset, generation, present.name)
        return present

    def _continue(self, present: Path, dataset: str, generation: int) -> Path:
        own = self._folder / f"{dataset}-{generation}.{self._lease.epoch}"
        continue_feed(present, own)
        self._store(dataset, generation, own.name)
        shutil.rmtree(present, ignore_errors=True)
        return own

    def path(self, dataset: str, generation: int) -> Path:
        return self._folder / self._stored(dataset, generation)[0]

    def _stored(self, dataset: str, generation: int) -> tuple[str, int]:
        """(name of the folder, epoch of the last leader that opened it; 0 if that is not known)."""
        name, _, epoch = (self._catalog.fact(_fact(dataset, generation)) or "").partition(" ")
        return name or f"{dataset}-{generation}", int(epoch or 0)

    def _store(self, dataset: str, generation: int, name: str) -> None:
        self._catalog.set_fact(_fact(dataset, generation), f"{name} {self._lease.epoch}")

    def delete(self, dataset: str, generation: int) -> None:
        shutil.rmtree(self.path(dataset, generation), ignore_errors=True)


def continue_feed(former: Path, own: Path) -> None:
    """Make `own` a feed with everything that `former` has on disk. `former` may change meanwhile and is not changed."""
    for _ in range(_ATTEMPTS):
        with suppress(FileNotFoundError):  # upkeep of the former leader may delete a segment meanwhile
            _copy_feed(former, own)
            if _is_without_gaps(own / "log"):
                return
    raise _changing(former)


def _is_without_gaps(log: Path) -> bool:
    """False if the former leader deleted segments after earlier ones were linked."""
    starts = segment_starts(log)
    return all(first + segment_path(log, first).stat().st_size == later for first, later in pairwise(starts))


def _copy_feed(former: Path, own: Path) -> None:
    shutil.rmtree(own, ignore_errors=True)
    (own / "log").mkdir(parents=True)
    # Segments that the former leader may delete are linked first. The end of the log is copied last: keys and
    # answers must not cover more than the log has.
    for first in segment_starts(former / "log")[:-1]:
        _link(segment_path(former / "log", first), segment_path(own / "log", first))
    for path in former.glob(f"*{_DATABASE}"):
        _copy_database(path, own / path.name)
    if (former / "keys").exists():
        _take_keys(former / "keys", own / "keys")
    if (former / "ingested").exists():
        _copy(former / "ingested", own / "ingested")
    if (former / "log" / "end").exists():
        _copy(former / "log" / "end", own / "log" / "end")
    for first in segment_starts(former / "log"):
        if not segment_path(own / "log", first).exists():
            _copy(segment_path(former / "log", first), segment_path(own / "log", first))
    for folder in (own / "log", own, own.parent):
        fsync_directory(folder)


def _take_keys(former: Path, own: Path) -> None:
    """Link the runs of keys, which never change, and copy the list of them. A merge may replace runs meanwhile."""
    own.mkdir()
    manifest, named = own / _MANIFEST, [""]
    for _ in range(_ATTEMPTS):
        for path in former.glob("*.keys"):
            if not (own / path.name).exists():
                _link(path, own / path.name)
        if not (former / _MANIFEST).exists():
            break
        _copy(former / _MANIFEST, manifest)
        named = json.loads(manifest.read_bytes())["runs"]
        if all((own / name).exists() for name in named):
            break
    else:
        raise _changing(former)
    fsync_directory(own)


def _copy_database(former: Path, own: Path) -> None:
    """Copy a database with its write-ahead log, as a crash would leave them. Without locks: a stopped process could
    hold them, and another machine would not see them."""
    for _ in range(_ATTEMPTS):
        before = _checkpoint_of(former)
        for suffix in ("", "-wal"):
            source, copy = (path.with_name(path.name + suffix) for path in (former, own))
            copy.unlink(missing_ok=True)
            if source.exists():
                _copy(source, copy)
        if _checkpoint_of(former) != before:  # pages moved from a file that was not copied yet to one that was
            continue
        with closing(sqlite3.connect(own)) as copied, suppress(sqlite3.DatabaseError):
            if copied.execute("PRAGMA quick_check").fetchone() == ("ok",):
                return
    raise _changing(former)


def _checkpoint_of(database: Path) -> tuple[int, int, bytes]:
    """Another value after each checkpoint: only then the file changes, and only then its log begins again."""
    found, log = database.stat(), database.with_name(database.name + "-wal")
    begin = b""
    with suppress(FileNotFoundError), log.open("rb") as file:
        begin = file.read(_WAL_HEADER_BYTES)
    return found.st_mtime_ns, found.st_size, begin


def _changing(former: Path) -> TocsinError:
    return TocsinError(Code.NOT_READY, f"{former} changes while it is copied, or is damaged; try again")


def _link(former: Path, own: Path) -> None:
    """Link a file that may be deleted meanwhile."""
    with suppress(FileNotFoundError):
        try:
            os.link(former, own)
        except OSError:  # a file system without links
            _copy(former, own)


def _copy(former: Path, own: Path) -> None:
    shutil.copyfile(former, own)
    with own.open("rb") as copied:
        os.fsync(copied.fileno())


def _fact(dataset: str, generation: int) -> str:
    return f"feed folder {dataset} {generation}"
