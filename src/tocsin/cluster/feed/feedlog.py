"""One durable append-only log per dataset: what publishers were promised lies here until Spark has taken it over.

A log is a directory of segments, each named by the position of its first byte, plus a file `end`. A position is an
absolute byte offset over the whole log and never goes back, whatever is trimmed. `append` only buffers; `sync` writes
and fsyncs what was buffered by then, so many requests share one fsync. `end` is published after the fsync: a reader in
another process that follows it never sees a record that a power cut could take away again.

Not in here: what a record is, what a duplicate is (`gateway.py`), threads. One process writes; any number read, each
with its own `FeedLogReader`. `append` may be called while another thread runs `sync`. Standard library only.
"""

from __future__ import annotations

import fcntl
import os
import struct
import threading
from collections.abc import Mapping
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

from tocsin.cluster.feed.frames import (
    HEADER,
    FeedLogCorrupt,
    FeedLogError,
    FeedLogInUse,
    FeedLogTrimmed,
    FeedLogWriteFailed,
    Frame,
    decode_frame,
    encode_frame,
    frame_length,
)

__all__ = [
    "FeedLog",
    "FeedLogCorrupt",
    "FeedLogError",
    "FeedLogInUse",
    "FeedLogReader",
    "FeedLogTrimmed",
    "FeedLogWriteFailed",
    "Frame",
]

DEFAULT_SEGMENT_BYTES = 64 << 20
"""What `trim` gives back at a time, and what recovery reads at most."""
_END = struct.Struct("<Q")
_SUFFIX = ".log"
_IOV_MAX = 1024
"""Pieces one pwritev takes on Linux."""
_Buffered: TypeAlias = tuple[int, int, tuple[bytes, bytes]]
"""(position, following position, pieces) of a frame that no sync has written yet."""


def _segment_path(directory: Path, first: int) -> Path:
    return directory / f"{first:020d}{_SUFFIX}"


def _segment_starts(directory: Path) -> list[int]:
    """First positions of the segments, in order."""
    return sorted(int(name[: -len(_SUFFIX)]) for name in os.listdir(directory) if name.endswith(_SUFFIX))  # noqa: PTH208


def _published_end(directory: Path) -> int | None:
    try:
        raw = (directory / "end").read_bytes()
    except FileNotFoundError:
        return None
    return int(_END.unpack(raw)[0]) if len(raw) == _END.size else None


class FeedLogReader:
    """Reads the durable part of a log that this or another process writes. Keeps one file open; not thread-safe."""

    def __init__(self, directory: Path | str) -> None:
        self.directory = Path(directory)
        self._first = -1
        self._fd = -1

    @property
    def end(self) -> int:
        """Everything before this position is durable; 0 for a log nobody has opened yet."""
        return _published_end(self.directory) or 0

    @property
    def start(self) -> int:
        """The first position that has not been trimmed."""
        try:
            starts = _segment_starts(self.directory)
        except FileNotFoundError:
            return 0
        return starts[0] if starts else 0

    def read(self, start: int, limit_bytes: int, end: int | None = None) -> tuple[list[Frame], int]:
        """Frames from `start` on, about `limit_bytes` of them and at least one if there is one; and where to go on.

        `end` (default: the durable end now) is a frame boundary to stop at: between two positions the answer is always
        the same, which is what a replay needs.
        """
        durable_end = self.end
        stop = durable_end if end is None else min(end, durable_end)
        frames: list[Frame] = []
        position = start
        while position < stop and position - start < limit_bytes:
            found = self._read_segment(position, stop, limit_bytes - (position - start), bool(frames))
            if not found:
                break
            frames += found
            position = found[-1].next_position
        return frames, position

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd, self._first = -1, -1

    def _read_segment(self, position: int, stop: int, limit_bytes: int, have_some: bool) -> list[Frame]:
        """Frames of the one segment that holds `position`."""
        segment_end = self._seek(position)
        stop = min(stop, segment_end)
        raw = self._pread(position, min(stop - position, max(limit_bytes, HEADER.size)))
        first_length = frame_length(memoryview(raw), 0)
        if first_length is not None and first_length > len(raw):
            if have_some:
                return []
            raw = self._pread(position, min(stop - position, first_length))
        view = memoryview(raw)
        frames: list[Frame] = []
        offset = 0
        while position + offset < stop:
            length = frame_length(view, offset)
            if frames and (offset + HEADER.size > len(view) or (length is not None and offset + length > len(view))):
                break  # the limit, not the log, cut this frame: it comes with the next call
            frame = decode_frame(view, offset, position + offset)
            if isinstance(frame, str):
                raise FeedLogCorrupt(str(_segment_path(self.directory, self._first)), position + offset, frame)
            frames.append(frame)
            offset = frame.next_position - position
        return frames

    def _seek(self, position: int) -> int:
        """Open the segment that holds `position`; where that segment ends."""
        size = os.fstat(self._fd).st_size if self._fd >= 0 else 0
        if self._fd >= 0 and self._first <= position < self._first + size:
            return self._first + size
        self.close()
        starts = _segment_starts(self.directory)
        if not starts or position < starts[0]:
            raise FeedLogTrimmed(position, starts[0] if starts else position)
        first = max(start for start in starts if start <= position)
        path = _segment_path(self.directory, first)
        try:
            self._fd = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            raise FeedLogTrimmed(position, self.start) from None
        self._first = first
        segment_end = first + os.fstat(self._fd).st_size
        if position >= segment_end:
            self.close()
            raise FeedLogCorrupt(str(path), segment_end, "durable bytes are missing here")
        return segment_end

    def _pread(self, position: int, length: int) -> bytes:
        chunks: list[bytes] = []
        offset = position - self._first
        while length > 0:
            chunk = os.pread(self._fd, length, offset)
            if not chunk:
                break
            chunks.append(chunk)
            offset += len(chunk)
            length -= len(chunk)
        return b"".join(chunks)


class FeedLog:
    """The writing side. Opening it recovers: a torn tail is cut, `end` is set right."""

    def __init__(self, directory: Path | str, segment_bytes: int = DEFAULT_SEGMENT_BYTES) -> None:
        self.directory = Path(directory)
        self.segment_bytes = segment_bytes
        self.directory.mkdir(parents=True, exist_ok=True)
        self._buffer_lock = threading.Lock()
        """Guards the buffer and the tail; held for microseconds."""
        self._file_lock = threading.Lock()
        """Guards the files; held for a whole sync."""
        self._buffer: list[_Buffered] = []
        self._must_cut = False
        self._lock_fd = os.open(self.directory / "writer", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock_fd)
            raise FeedLogInUse(f"{self.directory}: another process writes this log") from None
        self._end_fd = os.open(self.directory / "end", os.O_RDWR | os.O_CREAT, 0o644)
        self._fd = -1
        self._reader = FeedLogReader(self.directory)
        try:
            self._durable_end = self.recover()
        except BaseException:
            self.close()
            raise
        self._tail = self._durable_end

    @property
    def durable_end(self) -> int:
        return self._durable_end

    @property
    def tail(self) -> int:
        """Where the next frame goes: the durable end plus what is buffered."""
        return self._tail

    @property
    def start(self) -> int:
        return self._reader.start

    def recover(self) -> int:
        """Cut what a crash left unfinished, after the last frame that is whole; the durable end.

        Called by the constructor. Damage before the published end is no torn tail: it raises `FeedLogCorrupt`.
        """
        starts = _segment_starts(self.directory)
        published = _published_end(self.directory) or 0
        for first, following in pairwise(starts):
            path = _segment_path(self.directory, first)
            if first + path.stat().st_size != following:
                raise FeedLogCorrupt(str(path), first + path.stat().st_size, f"the next segment starts at {following}")
        self._first = starts[-1] if starts else 0
        path = _segment_path(self.directory, self._first)
        good_end, reason = _scan(path, self._first) if starts else (0, "all segments are missing")
        if good_end < published:
            raise FeedLogCorrupt(str(path), good_end, reason)
        self._open_segment(self._first)
        os.ftruncate(self._fd, good_end - self._first)
        # The process that wrote these frames may have died before its fsync: they count as durable from here on.
        os.fsync(self._fd)
        self._fsync_directory()
        self._publish(good_end)
        os.fsync(self._end_fd)
        return good_end

    def append(self, payload: bytes, count: int, meta: Mapping[str, Any]) -> int:
        """Buffer a frame of `count` JSON lines; the position after it.

        The frame is durable once `durable_end` has reached that position, after a `sync`.
        """
        with self._buffer_lock:
            position = self._tail
            pieces = encode_frame(position, payload, count, meta)
            self._tail = position + sum(map(len, pieces))
            self._buffer.append((position, self._tail, pieces))
            return self._tail

    def sync(self, upto: int | None = None) -> int:
        """Make everything appended before this call (or before position `upto`) durable; the new durable end.

        On failure nothing of it is stored: every frame that is not durable yet is dropped, those appended while the
        sync ran included (their positions follow lost ones), and `FeedLogWriteFailed` says so.
        """
        with self._file_lock:
            with self._buffer_lock:
                stop = self._tail if upto is None else upto
                frames = [frame for frame in self._buffer if frame[0] < stop]
                self._buffer = self._buffer[len(frames) :]
            if not frames:
                return self._durable_end
            try:
                self._write(frames)
            except BaseException as error:
                self.drop_buffered()
                self._must_cut = True
                with suppress(OSError):
                    self._cut()
                if not isinstance(error, OSError):
                    raise
                raise FeedLogWriteFailed(f"{self.directory}: {error.strerror or error}; nothing was stored") from error
            return self._durable_end

    def drop_buffered(self) -> None:
        """Forget every frame that no sync has taken up yet."""
        with self._buffer_lock:
            self._buffer = []
            self._tail = self._durable_end

    def read(self, start: int, limit_bytes: int, end: int | None = None) -> tuple[list[Frame], int]:
        """As `FeedLogReader.read`, for the writing process; not to be called from two threads at once."""
        return self._reader.read(start, limit_bytes, end)

    def trim(self, before: int) -> int:
        """Delete the whole segments that end at or before `before`; the log's new start. The last segment stays."""
        with self._file_lock:
            starts = _segment_starts(self.directory)
            for first, following in pairwise(starts):
                if following > before:
                    break
                _segment_path(self.directory, first).unlink(missing_ok=True)
            return self.start

    def close(self) -> None:
        """Close the files. What was appended and not synced is not stored."""
        self._reader.close()
        for fd in (self._fd, self._end_fd, self._lock_fd):
            if fd >= 0:
                os.close(fd)
        self._fd = self._end_fd = self._lock_fd = -1

    def _write(self, frames: list[_Buffered]) -> None:
        if self._must_cut:
            self._cut()
        pending: list[bytes] = []
        begin = self._durable_end
        for position, following, pieces in frames:
            if position > self._first and following - self._first > self.segment_bytes:
                self._write_durably(begin, pending)
                # The full segment is durable before its successor exists, so only the last one can have a torn tail.
                self._open_segment(position)
                self._fsync_directory()
                pending, begin = [], position
            pending += pieces
        self._write_durably(begin, pending)
        end = frames[-1][1]
        self._publish(end)
        self._durable_end = end

    def _write_durably(self, position: int, pieces: list[bytes]) -> None:
        offset = position - self._first
        for batch in (pieces[start : start + _IOV_MAX] for start in range(0, len(pieces), _IOV_MAX)):
            written = os.pwritev(self._fd, batch, offset)
            rest = memoryview(b"".join(batch))[written:] if written < sum(map(len, batch)) else memoryview(b"")
            offset += written
            while rest:
                written = os.pwrite(self._fd, rest, offset)
                rest, offset = rest[written:], offset + written
        os.fdatasync(self._fd)

    def _cut(self) -> None:
        """Back to the durable end: no byte of a failed sync may be taken for a stored record after a crash."""
        starts = _segment_starts(self.directory)
        first = max(start for start in starts if start <= self._durable_end)
        # The last one first: a process that dies in between must leave no hole, which would be damage to the next.
        for later in reversed(starts[starts.index(first) + 1 :]):
            _segment_path(self.directory, later).unlink()
        self._open_segment(first)
        os.ftruncate(self._fd, self._durable_end - first)
        os.fsync(self._fd)
        self._fsync_directory()
        self._must_cut = False

    def _open_segment(self, first: int) -> None:
        fd = os.open(_segment_path(self.directory, first), os.O_RDWR | os.O_CREAT, 0o644)
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._first = fd, first

    def _publish(self, end: int) -> None:
        os.pwrite(self._end_fd, _END.pack(end), 0)

    def _fsync_directory(self) -> None:
        fd = os.open(self.directory, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def _scan(path: Path, first: int) -> tuple[int, str]:
    """The position after the last whole frame of a segment, and what is wrong there ("" at the end of the file)."""
    view = memoryview(path.read_bytes())
    offset = 0
    while offset < len(view):
        frame = decode_frame(view, offset, first + offset)
        if isinstance(frame, str):
            return first + offset, frame
        offset = frame.next_position - first
    return first + offset, "durable bytes are missing here"
