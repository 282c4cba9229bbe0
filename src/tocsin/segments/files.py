"""The files of an append-only log: segments named after their first position, and writes that survive a power failure.

The feed log of the data cluster, the logs of persistent topics and the entry logs of edge nodes use it. What a position
is, and the frames inside a segment, are theirs. Spark's Python workers load this module, so it imports the standard
library alone.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

SUFFIX = ".log"
_IOV_MAX = 1024
"""The most pieces that one pwritev accepts on Linux."""


def segment_path(directory: Path, first: int) -> Path:
    return directory / f"{first:020d}{SUFFIX}"


def segment_starts(directory: Path) -> list[int]:
    """The first position of each segment, in order."""
    return sorted(int(name[: -len(SUFFIX)]) for name in os.listdir(directory) if name.endswith(SUFFIX))  # noqa: PTH208


def write_durably(fd: int, offset: int, pieces: Sequence[bytes]) -> None:
    """Write the pieces at `offset` and fsync them."""
    for batch in (pieces[start : start + _IOV_MAX] for start in range(0, len(pieces), _IOV_MAX)):
        written = os.pwritev(fd, batch, offset)
        unwritten = memoryview(b"".join(batch))[written:] if written < sum(map(len, batch)) else memoryview(b"")
        offset += written
        while unwritten:
            written = os.pwrite(fd, unwritten, offset)
            unwritten, offset = unwritten[written:], offset + written
    os.fdatasync(fd)


def fsync_directory(directory: Path) -> None:
    """Make the creation, renaming and deletion of files durable."""
    fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
