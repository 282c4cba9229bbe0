"""The small files beside the segments of a topic's log: `end` and `promise`."""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path

from tocsin.segments.files import fsync_directory

_END = struct.Struct("<QQI")
"""Segment, offset, CRC-32 of both."""
_PROMISE = "promise"


class PublishedEnd:
    """`end`: the segment and offset up to which everything was fsynced. It is written after each fsync and not fsynced
    itself: after a power failure it may name an earlier place, never a later one."""

    def __init__(self, directory: Path) -> None:
        self._fd = os.open(directory / "end", os.O_RDWR | os.O_CREAT, 0o644)

    def offset_in(self, first: int) -> int:
        """The published offset in this segment; 0 if none is known."""
        raw = os.pread(self._fd, _END.size, 0)
        segment, offset, crc = _END.unpack(raw) if len(raw) == _END.size else (0, 0, 0)
        return int(offset) if segment == first and crc == _crc(segment, offset) else 0

    def publish(self, segment: int, offset: int) -> None:
        os.pwrite(self._fd, _END.pack(segment, offset, _crc(segment, offset)), 0)

    def clear(self) -> None:
        """Name no place, durably, before the segment that it names is replaced."""
        os.pwrite(self._fd, _END.pack(0, 0, 0), 0)
        os.fsync(self._fd)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1


def _crc(segment: int, offset: int) -> int:
    return zlib.crc32(struct.pack("<QQ", segment, offset))


def read_promise(directory: Path) -> int:
    """The epoch that this broker has promised to follow; 0 if there is none."""
    try:
        return int((directory / _PROMISE).read_bytes())
    except FileNotFoundError:
        return 0


def store_promise(directory: Path, epoch: int) -> None:
    new = directory / f"{_PROMISE}.new"
    with new.open("wb") as file:
        file.write(b"%d" % epoch)
        file.flush()
        os.fsync(file.fileno())
    new.rename(directory / _PROMISE)
    fsync_directory(directory)
