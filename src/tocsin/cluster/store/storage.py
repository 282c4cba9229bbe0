"""The data root: a URI under which files are written once, read and deleted. A folder by default.

Any file system that Arrow opens (file, hdfs, s3, gs). Used by the driver and, pickled, by executors. Paths are relative
to the root. Nothing is ever changed in place, and a file counts only once the catalog names it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
from pyarrow import fs


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
        """The folder, when the root is one on this machine."""
        return Path(self._opened[1]) if isinstance(self._opened[0], fs.LocalFileSystem) else None

    def uri(self, path: str) -> str:
        """As Spark reads it."""
        return f"{self.root.rstrip('/')}/{path}"

    @contextmanager
    def create(self, path: str) -> Iterator[pa.NativeFile]:
        """A new file; when the block ends it is on disk, not just in the page cache."""
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
        """Deleting what is already gone is no error: a crash may repeat it."""
        filesystem, base = self._opened
        try:
            filesystem.delete_file(f"{base}/{path}")
        except FileNotFoundError:
            return

    def list(self, folder: str) -> list[tuple[str, float]]:
        """Every file below `folder` with its modification time in seconds."""
        filesystem, base = self._opened
        found = filesystem.get_file_info(fs.FileSelector(f"{base}/{folder}", recursive=True, allow_not_found=True))
        return [
            (info.path.removeprefix(base).lstrip("/"), info.mtime.timestamp() if info.mtime else 0.0)
            for info in found
            if info.type == fs.FileType.File
        ]

    def make_folder(self, folder: str) -> None:
        filesystem, base = self._opened
        filesystem.create_dir(f"{base}/{folder}", recursive=True)


def _fsync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
