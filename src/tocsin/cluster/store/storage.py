"""The data root: a URI under which files are written once, read and deleted. A folder by default.

The root may be on any file system that Arrow opens (file, hdfs, s3, gs). The driver uses a `Storage`, and executors get
a pickled copy. Paths are relative to the root. No file is ever changed in place, and a file counts only when the
catalog names it.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
from pyarrow import fs

from tocsin.wire.errors import Code, TocsinError


class Storage:
    def __init__(self, root: str) -> None:
        self.root = root if len(urlsplit(root).scheme) > 1 else Path(root).absolute().as_uri()

    def __reduce__(self) -> tuple[type[Storage], tuple[str]]:
        return Storage, (self.root,)

    @cached_property
    def _opened(self) -> tuple[Any, str]:
        filesystem, base = fs.FileSystem.from_uri(self.root)
        return filesystem, base.rstrip("/")

    @property
    def local(self) -> Path | None:
        """The root's folder on this machine; None if the root is elsewhere."""
        return Path(self._opened[1]) if isinstance(self._opened[0], fs.LocalFileSystem) else None

    def uri(self, path: str) -> str:
        """The URI under which Spark reads a path."""
        return f"{self.root.rstrip('/')}/{path}"

    @contextmanager
    def create(self, path: str) -> Iterator[pa.NativeFile]:
        """Create a file. When the block ends, the file is on disk, not just in the page cache."""
        filesystem, base = self._opened
        full = f"{base}/{path}"
        filesystem.create_dir(full.rpartition("/")[0], recursive=True)
        with filesystem.open_output_stream(full) as stream:
            yield stream
        if self.local is not None:
            _fsync(full)
            _fsync(full.rpartition("/")[0])

    def open(self, path: str) -> pa.NativeFile:
        filesystem, base = self._opened
        return filesystem.open_input_file(f"{base}/{path}")

    def delete(self, path: str) -> None:
        """Delete a file. A missing file is no error: after a crash, a deletion is repeated."""
        filesystem, base = self._opened
        try:
            filesystem.delete_file(f"{base}/{path}")
        except FileNotFoundError:
            return

    def missing(self, paths: Sequence[str]) -> list[str]:
        """Those of `paths` that do not exist."""
        filesystem, base = self._opened
        found = filesystem.get_file_info([f"{base}/{path}" for path in paths])
        return [path for path, info in zip(paths, found, strict=True) if info.type != fs.FileType.File]

    def list(self, folder: str) -> list[str]:
        """The paths of all files below `folder`."""
        filesystem, base = self._opened
        entries = filesystem.get_file_info(fs.FileSelector(f"{base}/{folder}", recursive=True, allow_not_found=True))
        return [info.path.removeprefix(base).lstrip("/") for info in entries if info.type == fs.FileType.File]

    def make_folder(self, folder: str) -> None:
        filesystem, base = self._opened
        filesystem.create_dir(f"{base}/{folder}", recursive=True)


def lock_root(state_folder: Path) -> int:
    """Lock a data root for this process. Return a descriptor that holds the lock until it is closed.

    Two processes on one root would both count versions and executions on their own.
    """
    path = state_folder / "lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise TocsinError(
            Code.NOT_READY, f"another process has this data root open ({path}); stop it first or choose another root"
        ) from None
    return descriptor


def _fsync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
