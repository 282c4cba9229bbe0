"""The data root: a place under which files are written once, read and deleted. A folder by default.

The root may be a folder, a shared mount, a bucket of object storage (`s3://bucket/prefix`), or any other file system
that Arrow and Spark both open (hdfs, gs). The driver uses a `Storage`, and executors get a pickled copy. Paths are
relative to the root. No file is ever changed in place or renamed, and a file counts only when the catalog names it.
docs/storage.md has the guarantees that a root must give.

Arrow opens every file for this process. Spark reads files by `uri` where Hadoop has a client for the root
(`cluster.spark.frames`).
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
from pyarrow import fs

from tocsin.cluster.store.object_storage import ObjectStorage
from tocsin.cluster.store.s3_place import S3, is_object_storage
from tocsin.wire.errors import Code, TocsinError

_LOOKS = 8
"""Requests to object storage at the same time, when several files are looked for or deleted."""


class Storage:
    def __init__(self, root: str, s3: S3 = S3()) -> None:
        self.root = root if len(urlsplit(root).scheme) > 1 else Path(root).absolute().as_uri()
        self.s3 = s3

    def __reduce__(self) -> tuple[type[Storage], tuple[str, S3]]:
        return Storage, (self.root, self.s3)

    @cached_property
    def _objects(self) -> ObjectStorage | None:
        return ObjectStorage(self.root, self.s3) if is_object_storage(self.root) else None

    @cached_property
    def _opened(self) -> tuple[Any, str]:
        if self._objects is not None:
            return self._objects.filesystem, self._objects.base
        filesystem, base = fs.FileSystem.from_uri(self.root)
        return filesystem, base.rstrip("/")

    @property
    def local(self) -> Path | None:
        """The root's folder on this machine; None if the root is elsewhere."""
        return Path(self._opened[1]) if isinstance(self._opened[0], fs.LocalFileSystem) else None

    @property
    def has_folders(self) -> bool:
        """False for object storage: a path needs no folder above it."""
        return not is_object_storage(self.root)

    @property
    def scheme(self) -> str:
        """The scheme under which Hadoop knows the root."""
        return "s3a" if is_object_storage(self.root) else urlsplit(self.root).scheme

    def uri(self, path: str) -> str:
        """The URI under which Spark reads a path, if Hadoop has a client for `scheme`."""
        return f"{self.scheme}:{self.root.partition(':')[2].rstrip('/')}/{path}"

    @contextmanager
    def create(self, path: str) -> Iterator[pa.NativeFile]:
        """Create a file. When the block ends, the file is durable and complete.

        A local file is on disk then, not just in the page cache. Object storage shows an object only when it is whole.
        """
        filesystem, base = self._opened
        full = f"{base}/{path}"
        if self.has_folders:
            filesystem.create_dir(full.rpartition("/")[0], recursive=True)
        with filesystem.open_output_stream(full) as stream:
            yield stream
        if self.local is not None:
            _fsync(full)
            _fsync(full.rpartition("/")[0])

    def write(self, path: str, pieces: Sequence[bytes]) -> None:
        """Create a file from bytes that are in memory."""
        with self.create(path) as stream:
            for piece in pieces:
                stream.write(piece)

    def open(self, path: str) -> pa.NativeFile:
        if self._objects is not None:
            return self._objects.open(path)
        filesystem, base = self._opened
        return filesystem.open_input_file(f"{base}/{path}")

    def read(self, path: str) -> pa.Buffer:
        """The whole content of a file."""
        with self.open(path) as file:
            return file.read_buffer()

    def delete(self, path: str) -> None:
        """Delete a file. A missing file is no error: after a crash, a deletion is repeated."""
        if self._objects is not None:
            self._objects.delete(path)
            return
        filesystem, base = self._opened
        try:
            filesystem.delete_file(f"{base}/{path}")
        except FileNotFoundError:
            return

    def delete_all(self, paths: Sequence[str]) -> None:
        """Delete files. A shared log leaves many objects, and each answer takes milliseconds."""
        if self.has_folders or len(paths) < 2:
            for path in paths:
                self.delete(path)
            return
        with ThreadPoolExecutor(min(_LOOKS, len(paths)), "delete") as pool:
            for _ in pool.map(self.delete, paths):  # raises the first error
                pass

    def missing(self, paths: Sequence[str]) -> list[str]:
        """Those of `paths` that do not exist."""
        if self.has_folders or len(paths) < 2:
            return self._missing(paths)
        with ThreadPoolExecutor(min(_LOOKS, len(paths)), "look") as pool:  # each answer takes milliseconds
            return [path for lacking in pool.map(lambda path: self._missing([path]), paths) for path in lacking]

    def _missing(self, paths: Sequence[str]) -> list[str]:
        filesystem, base = self._opened
        found = filesystem.get_file_info([f"{base}/{path}" for path in paths])
        return [path for path, info in zip(paths, found, strict=True) if info.type != fs.FileType.File]

    def list(self, folder: str) -> list[str]:
        """The paths of all files below `folder`."""
        filesystem, base = self._opened
        entries = filesystem.get_file_info(fs.FileSelector(f"{base}/{folder}", recursive=True, allow_not_found=True))
        return [info.path.removeprefix(base).lstrip("/") for info in entries if info.type == fs.FileType.File]

    def check(self) -> None:
        """Raise with advice if the root cannot be reached."""
        try:
            self.list("empty")
        except OSError as error:
            raise TocsinError(Code.NOT_READY, f"the data root {self.root} does not answer: {error}") from error


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
