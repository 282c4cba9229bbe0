"""How a batch of accepted records looks on disk: one frame of a feed log.

    header  length, CRC-32, record count, meta length        four little-endian 32-bit numbers
    meta    a JSON object: when it was accepted, idempotency key and answer
    payload canonical JSON lines joined by newlines          `length` counts meta and payload

The CRC also covers the frame's position in the log. Bytes left behind by an earlier life of the file can therefore not
be taken for a frame that belongs where they lie, and a file of zeros is no frame either.

This is a format, not a log: `feedlog.py` says where frames go. Standard library only: Spark's Python workers read it.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

HEADER = struct.Struct("<IIII")
_COVERED = struct.Struct("<QIII")
MAX_FRAME_BYTES = 1 << 30
"""Longer than any request the gateway lets in; a length beyond it is damage, not data."""


class FeedLogError(Exception):
    """Root of what a feed log raises.

    FeedLogError
    ├── FeedLogCorrupt      durable bytes are not what was written; nothing is skipped silently
    ├── FeedLogTrimmed      the position asked for was already given up by `trim`
    ├── FeedLogInUse        another process writes this log
    └── FeedLogWriteFailed  a sync failed (disk full, I/O error); what it covered is not stored
    """


class FeedLogCorrupt(FeedLogError):
    def __init__(self, file: str, position: int, reason: str) -> None:
        super().__init__(
            f"{file}: damaged at position {position}: {reason}. Records up to there are intact. Restore the file from "
            f"a copy; or, to give up what follows, move later segments away, cut this file to the bytes before that "
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
class Frame:
    position: int
    next_position: int
    """Where the following frame starts: [position, next_position) is half-open."""
    count: int
    meta: Mapping[str, Any]
    payload: bytes

    def lines(self) -> list[bytes]:
        """The records, one JSON object each. Split at newlines alone: a record may hold U+2028 and its kin."""
        return self.payload.split(b"\n") if self.count else []


def encode_frame(position: int, payload: bytes, count: int, meta: Mapping[str, Any]) -> tuple[bytes, bytes]:
    """The frame in two pieces, so that the payload need not be copied."""
    meta_json = json.dumps(meta, ensure_ascii=False, separators=(",", ":")).encode()
    length = len(meta_json) + len(payload)
    if length > MAX_FRAME_BYTES:
        raise ValueError(f"a frame holds at most {MAX_FRAME_BYTES} bytes, not {length}")
    crc = _crc(position, length, count, meta_json, payload)
    return HEADER.pack(length, crc, count, len(meta_json)) + meta_json, payload


def frame_length(view: memoryview, offset: int) -> int | None:
    """Bytes of the frame that starts at `offset`, header included; None when its header is not all there or absurd."""
    if offset + HEADER.size > len(view):
        return None
    length, _, _, meta_length = HEADER.unpack_from(view, offset)
    return None if length > MAX_FRAME_BYTES or meta_length > length else HEADER.size + int(length)


def decode_frame(view: memoryview, offset: int, position: int) -> Frame | str:
    """The frame at `offset` of `view`, known to lie at `position` of the log; or why there is none."""
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
    return Frame(position, position + total, count, json.loads(bytes(meta_json)), bytes(payload))


def _crc(position: int, length: int, count: int, meta: bytes | memoryview, payload: bytes | memoryview) -> int:
    return zlib.crc32(payload, zlib.crc32(meta, zlib.crc32(_COVERED.pack(position, length, count, len(meta)))))
