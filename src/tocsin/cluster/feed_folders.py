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
from pathlib import Path

from tocsin.cluster.catalog import Catalog
from tocsin.database.lease import Lease
from tocsin.segments.files import fsync_directory, segment_path, segment_starts
from tocsin.wire.errors import Code, TocsinError

_DATABASE = ".db"
_MANIFEST = "manifest.json"
_ATTEMPTS = 3
"""The former leader may change a file while it is copied, if it is not stopped."""


class FeedFolders:
    def __init__(self, catalog: Catalog, state: Path, lease: Lease) -> None:
        self._catalog = catalog
        self._folder = state / "feeds"
        self._lease = lease

    def open(self, dataset: str, generation: int) -> Path:
        """The folder of an existing feed for this process. Continues the feed of a leader that may still run."""
        present = self.path(dataset, generation)
        if self._lease.is_clean or not present.exists():
            return present
        own = self._folder / f"{dataset}-{generation}.{self._lease.epoch}"
        continue_feed(present, own)
        self._catalog.set_fact(_fact(dataset, generation), own.name)
        shutil.rmtree(present, ignore_errors=True)
        return own

    def path(self, dataset: str, generation: int) -> Path:
        return self._folder / (self._catalog.fact(_fact(dataset, generation)) or f"{dataset}-{generation}")

    def delete(self, dataset: str, generation: int) -> None:
        shutil.rmtree(self.path(dataset, generation), ignore_errors=True)


def continue_feed(former: Path, own: Path) -> None:
    """Make `own` a feed with everything that `former` has on disk. `former` may change meanwhile and is not changed."""
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
    fsync_directory(own)


def _copy_database(former: Path, own: Path) -> None:
    """Copy a database with its write-ahead log, as a crash would leave them. Without locks: a stopped process could
    hold them, and another machine would not see them."""
    for _ in range(_ATTEMPTS):
        for suffix in ("", "-wal"):
            source = former.with_name(former.name + suffix)
            if source.exists():
                _copy(source, own.with_name(own.name + suffix))
        with closing(sqlite3.connect(own)) as copied, suppress(sqlite3.DatabaseError):
            if copied.execute("PRAGMA quick_check").fetchone() == ("ok",):
                return
    raise TocsinError(Code.NOT_READY, f"{former} changes while it is copied, or is damaged; try again")


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
