"""Writes the feed log of one dataset: a durable, append-only log of the records that publishers have sent.

`append` only buffers. `sync` writes and fsyncs the buffered frames, so that many requests share one fsync. After the
fsync it publishes the new end in the file `end`. A reader in another process that follows `end` therefore never sees a
record that a power failure could remove. Spark reads the log and takes the records over; then `trim` deletes segments.

`feedlog_reader.py` describes the files. This module has no threads and knows neither records nor duplicates:
`gateway.py` does. One process writes. `append` may be called while another thread runs `sync`. Only the standard
library and `tocsin.segments` are imported.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

from tocsin.cluster.feed.feedlog_reader import (
    END,
    FeedLogCorrupt,
    FeedLogInUse,
    FeedLogReader,
    FeedLogWriteFailed,
    LogFrame,
    NewFrame,
    decode_frame,
    published_end,
)
from tocsin.segments.files import fsync_directory, segment_path, segment_starts, write_durably

DEFAULT_SEGMENT_BYTES = 64 << 20
"""`trim` frees this much at a time, and recovery reads at most this much."""


class FeedLog:
    """The writing side. The constructor recovers: it cuts off an incomplete last frame and corrects `end`."""

    def __init__(self, directory: Path | str, segment_bytes: int = DEFAULT_SEGMENT_BYTES) -> None:
        self.directory = Path(directory)
        self.segment_bytes = segment_bytes
        self.directory.mkdir(parents=True, exist_ok=True)
        self._buffer_lock = threading.Lock()
        """Guards the buffer and the tail. Held for microseconds."""
        self._file_lock = threading.Lock()
        """Guards the files. Held for a whole sync."""
        self._buffer: list[NewFrame] = []
        """The frames that no sync has written yet."""
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
        """The position of the next frame: the durable end plus the buffered bytes."""
        return self._tail

    @property
    def start(self) -> int:
        return self._reader.start

    def recover(self) -> int:
        """Cut the log after its last complete frame, and return that position: the durable end.

        The constructor calls this. Damage before the published end is not the trace of a crash: it raises
        `FeedLogCorrupt`.
        """
        starts = segment_starts(self.directory)
        published = published_end(self.directory) or 0
        for first, following in pairwise(starts):
            path = segment_path(self.directory, first)
            if first + path.stat().st_size != following:
                raise FeedLogCorrupt(str(path), first + path.stat().st_size, f"the next segment starts at {following}")
        self._first = starts[-1] if starts else 0
        path = segment_path(self.directory, self._first)
        good_end, reason = _scan(path, self._first) if starts else (0, "all segments are missing")
        if good_end < published:
            raise FeedLogCorrupt(str(path), good_end, reason)
        self._open_segment(self._first)
        os.ftruncate(self._fd, good_end - self._first)
        # The process that wrote these frames may have died before its fsync. From here on they count as durable.
        os.fsync(self._fd)
        self._fsync_directory()
        self._publish(good_end)
        os.fsync(self._end_fd)
        return good_end

    def append(self, payload: bytes, count: int, meta: Mapping[str, Any]) -> int:
        """Buffer a frame of `count` JSON lines and return the position after it.

        The frame is durable once a `sync` has moved `durable_end` to that position.
        """
        with self._buffer_lock:
            frame = NewFrame.of(self._tail, payload, count, meta)
            self._tail = frame.next_position
            self._buffer.append(frame)
            return self._tail

    def sync(self, upto: int | None = None) -> int:
        """Make the frames appended before this call (or before `upto`) durable, and return the new durable end.

        On failure it stores none of them and raises `FeedLogWriteFailed`. It drops every frame that is not durable,
        also those appended while the sync ran, because their positions follow lost ones.
        """
        with self._file_lock:
            with self._buffer_lock:
                stop = self._tail if upto is None else upto
                frames = [frame for frame in self._buffer if frame.position < stop]
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
        """Drop every frame that no sync has started to write."""
        with self._buffer_lock:
            self._buffer = []
            self._tail = self._durable_end

    def read(self, start: int, limit_bytes: int, end: int | None = None) -> tuple[list[LogFrame], int]:
        """Like `FeedLogReader.read`, for the writing process. Not thread-safe."""
        return self._reader.read(start, limit_bytes, end)

    def trim(self, before: int) -> int:
        """Delete the segments that end at or before `before`, never the last one. Returns the log's new start."""
        with self._file_lock:
            starts = segment_starts(self.directory)
            for first, following in pairwise(starts):
                if following > before:
                    break
                segment_path(self.directory, first).unlink(missing_ok=True)
                # One at a time: after a power failure, a later segment must not be missing before an earlier one.
                self._fsync_directory()
            return self.start

    def close(self) -> None:
        """Close the files. Frames that are appended and not synced are not stored."""
        self._reader.close()
        for fd in (self._fd, self._end_fd, self._lock_fd):
            if fd >= 0:
                os.close(fd)
        self._fd = self._end_fd = self._lock_fd = -1

    def _write(self, frames: list[NewFrame]) -> None:
        if self._must_cut:
            self._cut()
        pending: list[bytes] = []
        begin = self._durable_end
        for frame in frames:
            if frame.position > self._first and frame.next_position - self._first > self.segment_bytes:
                self._write_durably(begin, pending)
                # The full segment is durable before the next one exists: only the last can have an incomplete frame.
                self._open_segment(frame.position)
                self._fsync_directory()
                pending, begin = [], frame.position
            pending += frame.pieces()
        self._write_durably(begin, pending)
        end = frames[-1].next_position
        self._publish(end)
        self._durable_end = end

    def _write_durably(self, position: int, pieces: list[bytes]) -> None:
        write_durably(self._fd, position - self._first, pieces)

    def _cut(self) -> None:
        """Cut the files to the durable end: after a crash, no byte of a failed sync may pass for a stored record."""
        starts = segment_starts(self.directory)
        first = max(start for start in starts if start <= self._durable_end)
        # Delete the last segment first. If the process dies in between, a gap would look like damage to the next one.
        for later in reversed(starts[starts.index(first) + 1 :]):
            segment_path(self.directory, later).unlink()
            self._fsync_directory()
        self._open_segment(first)
        os.ftruncate(self._fd, self._durable_end - first)
        os.fsync(self._fd)
        self._fsync_directory()
        self._must_cut = False

    def _open_segment(self, first: int) -> None:
        fd = os.open(segment_path(self.directory, first), os.O_RDWR | os.O_CREAT, 0o644)
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._first = fd, first

    def _publish(self, end: int) -> None:
        os.pwrite(self._end_fd, END.pack(end), 0)

    def _fsync_directory(self) -> None:
        fsync_directory(self.directory)


def _scan(path: Path, first: int) -> tuple[int, str]:
    """(position after the last complete frame of a segment, the reason why no frame follows)."""
    view = memoryview(path.read_bytes())
    offset = 0
    while offset < len(view):
        frame = decode_frame(view, offset, first + offset)
        if isinstance(frame, str):
            return first + offset, frame
        offset = frame.next_position - first
    return first + offset, "durable bytes are missing here"
