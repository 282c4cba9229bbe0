"""Reads a feed log: the format of its frames, its files, and `FeedLogReader`.

A log is a directory of segments, each named after the position of its first byte, and a file `end`. A position is an
absolute byte offset over the whole log; trimming does not change it. A segment is a sequence of frames. A frame is one
batch of accepted records:

    header  length, CRC-32, record count, meta length        four little-endian 32-bit numbers
    meta    a JSON object: when it was accepted, idempotency key and answer
    payload canonical JSON lines joined by newlines          `length` counts meta and payload

The CRC also covers the frame's position in the log. So bytes that an earlier use of the file left behind cannot be
mistaken for a frame at their position, and neither can a file of zeros.

`feedlog.py` writes the log. Any number of processes may read it, each with its own `FeedLogReader`. Only the standard
library and `tocsin.segments` are imported, because Spark's Python workers load this module.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

from tocsin.segments.files import segment_path, segment_starts

HEADER = struct.Struct("<IIII")
_COVERED = struct.Struct("<QIII")
"""Position, length, record count and meta length, as the CRC covers them."""
END = struct.Struct("<Q")
"""The content of the file `end`."""
MAX_FRAME_BYTES = 1 << 30
"""Longer than any request that the gateway accepts: a greater length is damage."""
_encode_meta = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class FeedLogError(Exception):
    """Root of the exceptions of a feed log.

    FeedLogError
    ├── FeedLogCorrupt      durable bytes differ from those written; damage is never skipped silently
    ├── FeedLogTrimmed      `trim` has deleted the requested position
    ├── FeedLogInUse        another process writes this log
    └── FeedLogWriteFailed  a sync failed (disk full, I/O error); its frames are not stored
    """


class FeedLogCorrupt(FeedLogError):
    def __init__(self, file: str, position: int, reason: str) -> None:
        super().__init__(
            f"{file}: damaged at position {position}: {reason}. Records up to there are intact. Restore the file from "
            f"a copy; or, to discard what follows, move later segments away, cut this file to the bytes before that "
            f"position, delete the file `end` beside it and start again."
        )
        self.file = file
        self.position = position
        self.reason = reason


class FeedLogTrimmed(FeedLogError):
    def __init__(self, position: int, start: int) -> None:
        super().__init__(f"position {position} was trimmed; the log now starts at {start}")
        self.position = position
        self.start = start


class FeedLogInUse(FeedLogError):
    pass


class FeedLogWriteFailed(FeedLogError):
    pass


@dataclass(frozen=True, slots=True)
class LogFrame:
    position: int
    next_position: int
    """Where the following frame starts: [position, next_position) is half-open."""
    count: int
    meta: Mapping[str, Any]
    payload: bytes

    def lines(self) -> list[bytes]:
        """The records, one JSON object each. Splits only at newlines: a record may contain U+2028 and the like."""
        return self.payload.split(b"\n") if self.count else []


class NewFrame(NamedTuple):
    """A frame that is not written yet. `pieces` computes the checksum, which takes longer than all the rest."""

    position: int
    next_position: int
    records: int
    meta_json: bytes
    payload: bytes

    @classmethod
    def of(cls, position: int, payload: bytes, count: int, meta: Mapping[str, Any]) -> Self:
        meta_json = _encode_meta(meta).encode()
        length = len(meta_json) + len(payload)
        if length > MAX_FRAME_BYTES:
            raise ValueError(f"a frame holds at most {MAX_FRAME_BYTES} bytes, not {length}")
        return cls(position, position + HEADER.size + length, count, meta_json, payload)

    def pieces(self) -> tuple[bytes, bytes]:
        """(header and meta, payload): two pieces, so that the payload is not copied."""
        length = len(self.meta_json) + len(self.payload)
        crc = _crc(self.position, length, self.records, self.meta_json, self.payload)
        return HEADER.pack(length, crc, self.records, len(self.meta_json)) + self.meta_json, self.payload


def frame_length(view: memoryview, offset: int) -> int | None:
    """Length of the frame at `offset` with its header; None if the header is incomplete or has impossible lengths."""
    if offset + HEADER.size > len(view):
        return None
    length, _, _, meta_length = HEADER.unpack_from(view, offset)
    return None if length > MAX_FRAME_BYTES or meta_length > length else HEADER.size + int(length)


def decode_frame(view: memoryview, offset: int, position: int) -> LogFrame | str:
    """The frame at `offset` of `view`, which is `position` of the log; or the reason why there is none."""
    total = frame_length(view, offset)
    if total is None:
        return "no frame header"
    if offset + total > len(view):
        return "the frame is cut short"
    length, crc, count, meta_length = HEADER.unpack_from(view, offset)
    body = offset + HEADER.size
    meta_json = view[body : body + meta_length]
    payload = view[body + meta_length : body + length]
    if _crc(position, length, count, meta_json, payload) != crc:
        return "the checksum does not match"
    return LogFrame(position, position + total, count, json.loads(bytes(meta_json)), bytes(payload))


def _crc(position: int, length: int, count: int, meta: bytes | memoryview, payload: bytes | memoryview) -> int:
    return zlib.crc32(payload, zlib.crc32(meta, zlib.crc32(_COVERED.pack(position, length, count, len(meta)))))


def published_end(directory: Path) -> int | None:
    """The position in the file `end`, or None if there is none."""
    try:
        raw = (directory / "end").read_bytes()
    except FileNotFoundError:
        return None
    return int(END.unpack(raw)[0]) if len(raw) == END.size else None


class FeedLogReader:
    """Reads the durable part of a log that this process or another one writes. Keeps one file open. Not thread-safe."""

    def __init__(self, directory: Path | str) -> None:
        self.directory = Path(directory)
        self._first = -1
        self._fd = -1

    @property
    def end(self) -> int:
        """Everything before this position is durable; 0 for a log that no writer has opened yet."""
        return published_end(self.directory) or 0

    @property
    def start(self) -> int:
        """The first position that has not been trimmed."""
        try:
            starts = segment_starts(self.directory)
        except FileNotFoundError:
            return 0
        return starts[0] if starts else 0

    def read(self, start: int, limit_bytes: int, end: int | None = None) -> tuple[list[LogFrame], int]:
        """(frames from `start` on, position after them): about `limit_bytes`, and at least one frame if there is one.

        `end` (default: the current durable end) is a frame boundary where reading stops. Reading between the same two
        positions always returns the same frames, which a replay needs.
        """
        durable_end = self.end
        stop = durable_end if end is None else min(end, durable_end)
        frames: list[LogFrame] = []
        position = start
        while position < stop and position - start < limit_bytes:
            more = self._read_segment(position, stop, limit_bytes - (position - start), bool(frames))
            if not more:
                break
            frames += more
            position = more[-1].next_position
        return frames, position

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd, self._first = -1, -1

    def _read_segment(self, position: int, stop: int, limit_bytes: int, may_be_empty: bool) -> list[LogFrame]:
        """Frames of the segment that contains `position`."""
        segment_end = self._seek(position)
        stop = min(stop, segment_end)
        raw = self._pread(position, min(stop - position, max(limit_bytes, HEADER.size)))
        first_length = frame_length(memoryview(raw), 0)
        if first_length is not None and first_length > len(raw):
            if may_be_empty:
                return []
            raw = self._pread(position, min(stop - position, first_length))
        view = memoryview(raw)
        frames: list[LogFrame] = []
        offset = 0
        while position + offset < stop:
            length = frame_length(view, offset)
            if frames and (offset + HEADER.size > len(view) or (length is not None and offset + length > len(view))):
                break  # the limit cuts this frame, not the log: the next call returns it
            frame = decode_frame(view, offset, position + offset)
            if isinstance(frame, str):
                raise FeedLogCorrupt(str(segment_path(self.directory, self._first)), position + offset, frame)
            frames.append(frame)
            offset = frame.next_position - position
        return frames

    def _seek(self, position: int) -> int:
        """Open the segment that contains `position` and return the position where that segment ends."""
        size = os.fstat(self._fd).st_size if self._fd >= 0 else 0
        if self._fd >= 0 and self._first <= position < self._first + size:
            return self._first + size
        self.close()
        starts = segment_starts(self.directory)
        if not starts or position < starts[0]:
            raise FeedLogTrimmed(position, starts[0] if starts else position)
        first = max(start for start in starts if start <= position)
        path = segment_path(self.directory, first)
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
