"""The frames in the segments of a topic's log.

    header   payload length, CRC-32, kind, epoch, first sequence number, number of messages
    payload  msgpack: a snapshot, or a list of (publisher, number, data)

A segment begins with a snapshot of the log in front of it. The CRC also covers the offset of the frame in its segment:
bytes that an earlier use of the disk left behind are no frame.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from enum import IntEnum

import msgspec

from tocsin.wire.topic import Entry
from tocsin.wire.topic_log import Piece, Snapshot

HEADER = struct.Struct("<IIBQQI")
_COVERED = struct.Struct("<QIBQQI")
"""Offset and the header without the CRC."""
MAX_FRAME_BYTES = 1 << 30
_encode = msgspec.msgpack.Encoder().encode
_entries = msgspec.msgpack.Decoder(list[Entry])


class Kind(IntEnum):
    SNAPSHOT = 0
    PIECE = 1


class SegmentStart(msgspec.Struct, frozen=True):
    snapshot: Snapshot
    fresh: bool = False
    """The log begins here: earlier segments belong to a log that this one replaces."""


_starts = msgspec.msgpack.Decoder(SegmentStart)


@dataclass(frozen=True, slots=True)
class Frame:
    kind: Kind
    epoch: int
    first: int
    count: int
    payload: bytes
    next_offset: int

    @property
    def piece(self) -> Piece:
        return Piece(self.epoch, self.first, _entries.decode(self.payload))

    @property
    def start(self) -> SegmentStart:
        return _starts.decode(self.payload)


def encode_piece(offset: int, piece: Piece) -> bytes:
    return _frame(offset, Kind.PIECE, piece.epoch, piece.first, len(piece.entries), _encode(piece.entries))


def encode_start(start: SegmentStart) -> bytes:
    return _frame(0, Kind.SNAPSHOT, 0, start.snapshot.first, 0, _encode(start))


def _frame(offset: int, kind: Kind, epoch: int, first: int, count: int, payload: bytes) -> bytes:
    crc = zlib.crc32(payload, zlib.crc32(_COVERED.pack(offset, len(payload), kind, epoch, first, count)))
    return HEADER.pack(len(payload), crc, kind, epoch, first, count) + payload


def payload_bytes(header: bytes) -> int | None:
    """The length of the payload behind a header; None if the header is incomplete or impossible."""
    if len(header) < HEADER.size:
        return None
    length = int(HEADER.unpack_from(header)[0])
    return None if length > MAX_FRAME_BYTES else length


def decode_frame(data: bytes, offset: int, base: int = 0) -> Frame | str:
    """The frame at `offset` of a segment, of which `data` begins at `base`; or the reason why there is none."""
    at = offset - base
    length = payload_bytes(data[at : at + HEADER.size])
    if length is None:
        return "no frame header"
    payload = data[at + HEADER.size : at + HEADER.size + length]
    if len(payload) < length:
        return "the frame is cut short"
    _, crc, kind, epoch, first, count = HEADER.unpack_from(data, at)
    if zlib.crc32(payload, zlib.crc32(_COVERED.pack(offset, length, kind, epoch, first, count))) != crc:
        return "the checksum does not match"
    return Frame(Kind(kind), epoch, first, count, payload, offset + HEADER.size + length)
