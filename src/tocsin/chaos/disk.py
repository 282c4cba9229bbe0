"""Faults of the disk from outside the process: a disk that takes nothing more, and writes that a crash tore apart."""

from __future__ import annotations

import resource
from pathlib import Path

_TORN_WAL_BYTES = 1_000
"""Bytes of a torn write at the end of a SQLite log: less than a page."""


def refuse_writes(pid: int) -> None:
    """Let the kernel refuse every write of a process to a file, as on a full disk. SQLite and Arrow fail as well.

    Linux refuses writes beyond the limit of a file's size with EFBIG. Memory, sockets and child processes are not
    affected.
    """
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))


def allow_writes(pid: int) -> None:
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def tear_last_writes(root: Path) -> int:
    """Leave what a crash in the middle of a write leaves: half of a frame after the end of each feed log, and part of
    a page after the end of the catalog's log. Returns the number of torn files.

    Call it while the process is down.
    """
    torn = 0
    for log in sorted(root.glob("state/feeds/*/log")):
        segments = sorted(log.glob("[0-9]*"))
        torn += bool(segments) and _append_half(segments[-1])
    wal = root / "state" / "catalog.sqlite-wal"
    if wal.exists() and wal.stat().st_size:
        with wal.open("ab") as file:
            file.write(b"\x5a" * _TORN_WAL_BYTES)
        torn += 1
    return torn


def _append_half(segment: Path) -> bool:
    """Append the first half of the segment's own bytes, up to a few kilobytes: it begins like a real frame."""
    content = segment.read_bytes()[:8192]
    if len(content) < 2:
        return False
    with segment.open("ab") as file:
        file.write(content[: len(content) // 2])
    return True
