"""The readings that entered at this node, on disk. An entry keeps each batch until no recovery can need it.

The log is a folder of segments (`tocsin.segments`); a segment is named after its first position and begins with a
snapshot of the publishers' last numbers, so that old segments can be deleted without forgetting which batches are
repeats. A frame is

    length of the payload, CRC-32 of its offset and payload; payload in msgpack

Files only: `entry_journal` calls `write` and `trim` in a thread, one after the other, and the rest on the event loop.
"""

from __future__ import annotations

import fcntl
import os
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import msgspec
import pyarrow as pa

from tocsin.segments.files import fsync_directory, segment_path, segment_starts, write_durably

SEGMENT_BYTES = 16 << 20
_HEADER = struct.Struct("<II")
_OFFSET = struct.Struct("<Q")
_FRAME_BYTES = 1 << 30


class EntryLogError(Exception):
    """The disk refused, or the log is damaged. The message says what to do."""


class Readings(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """A batch of a publisher."""

    stream: str
    publisher: str
    number: int
    newest_us: int | None
    """The newest event time; None if no reading has one."""
    batch: bytes
    """An Arrow IPC stream with one batch."""


class StreamWatermark(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """A publisher's promise: no older reading of the stream will enter here."""

    stream: str
    watermark_us: int


class Void(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """The batches of this publisher before this frame no longer count: another node owns the publisher."""

    publisher: str


class SegmentStart(msgspec.Struct, frozen=True, array_like=True, tag=3):
    publishers: dict[str, int]


Record = Readings | StreamWatermark | Void
_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(Readings | StreamWatermark | Void | SegmentStart)


@dataclass(frozen=True, slots=True)
class LogEntry:
    """Where a record is, and what decides how long it is kept."""

    position: int
    segment: int
    offset: int
    size_bytes: int
    stream: str
    publisher: str
    number: int
    newest_us: int | None


class EntryLog:
    def __init__(self, folder: Path, segment_bytes: int = SEGMENT_BYTES) -> None:
        """Open the log, or create it: cut off an incomplete last frame."""
        self.folder = folder
        self._segment_bytes = segment_bytes
        self.entries: dict[int, LogEntry] = {}
        """The records that count, by position, in order."""
        self.stored_through: dict[str, int] = {}
        """Publisher → the number of its last batch here."""
        self._next = 1
        self._fd = -1
        self._size = 0
        self._starts: list[int] = []
        self._damaged = False
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock_fd = os.open(folder / "writer", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._recover()
        except BlockingIOError:
            self.close()
            raise EntryLogError(f"{folder}: another process writes this log; does this node run twice?") from None
        except BaseException:
            self.close()
            raise

    @property
    def end(self) -> int:
        """The position of the next record."""
        return self._next

    @property
    def first_segment_end(self) -> int:
        """The first position behind the oldest segment; the next position if there is one segment."""
        return self._starts[1] if len(self._starts) > 1 else self._next

    def close(self) -> None:
        for fd in (self._fd, self._lock_fd):
            if fd >= 0:
                os.close(fd)
        self._fd = self._lock_fd = -1

    # -- start ---------------------------------------------------------------------------------------------------------

    def _recover(self) -> None:
        for leftover in self.folder.glob("*.new"):
            leftover.unlink()
        self._starts = segment_starts(self.folder)
        if not self._starts:
            self._begin_segment()
            return
        for number, first in enumerate(self._starts):
            path = segment_path(self.folder, first)
            data = path.read_bytes()
            offset = self._load_segment(first, data, is_first=number == 0)
            if offset < len(data) and first != self._starts[-1]:
                raise EntryLogError(
                    f"{path}: damaged at byte {offset}. Restore the folder, or remove it to lose its data."
                )
        path = segment_path(self.folder, self._starts[-1])
        self._fd, self._size = os.open(path, os.O_RDWR), offset
        os.ftruncate(self._fd, offset)
        os.fsync(self._fd)

    def _load_segment(self, first: int, data: bytes, *, is_first: bool) -> int:
        """Index the records of a segment. Returns the offset behind its last complete frame."""
        offset, position = 0, first
        while (payload := _payload(data, offset)) is not None:
            record = _decoder.decode(payload)
            if isinstance(record, SegmentStart):
                if is_first:
                    self.stored_through = dict(record.publishers)
            else:
                self.note([_entry(position, first, offset, len(payload), record)], [record])
                position += 1
            offset += _HEADER.size + len(payload)
        self._next = position
        return offset

    def note(self, entries: Sequence[LogEntry], records: Sequence[Record]) -> None:
        """Take written records into the index."""
        for entry, record in zip(entries, records, strict=True):
            self._next = max(self._next, entry.position + 1)
            match record:
                case Void(publisher):
                    self._forget(publisher)
                case Readings(_, publisher, number):
                    if number > self.stored_through.get(publisher, 0):  # a repeat: a `Void` could not be written
                        self.stored_through[publisher] = number
                        self.entries[entry.position] = entry
                case StreamWatermark():
                    self.entries[entry.position] = entry

    def _forget(self, publisher: str) -> None:
        self.stored_through.pop(publisher, None)
        for position in [entry.position for entry in self.entries.values() if entry.publisher == publisher]:
            del self.entries[position]

    # -- writing -------------------------------------------------------------------------------------------------------

    def write(self, records: Sequence[Record]) -> list[LogEntry]:
        """Store the records with one fsync. If the disk refuses, none is stored. Call `note` with the result."""
        try:
            if self._damaged:
                os.ftruncate(self._fd, self._size)
                self._damaged = False
            frames: list[bytes] = []
            entries: list[LogEntry] = []
            offset, position = self._size, self._next
            for record in records:
                payload = _encode(record)
                if len(payload) > _FRAME_BYTES:  # `_payload` would take it for damage
                    raise EntryLogError(f"a record of {len(payload)} bytes is too large")
                entries.append(_entry(position, self._starts[-1], offset, len(payload), record))
                frames.append(_frame(offset, payload))
                offset += len(frames[-1])
                position += 1
            self._damaged = True
            write_durably(self._fd, self._size, frames)
            self._damaged = False
        except OSError as error:
            raise EntryLogError(f"{self.folder}: {error.strerror or error}; nothing was stored") from error
        self._size = offset
        return entries

    @property
    def is_segment_full(self) -> bool:
        return self._size > self._segment_bytes

    def begin_segment(self) -> None:
        """Call it when all written records are noted."""
        try:
            self._begin_segment()
        except OSError as error:
            raise EntryLogError(f"{self.folder}: {error.strerror or error}") from error

    def _begin_segment(self) -> None:
        path = segment_path(self.folder, self._next)
        frame = _frame(0, _encode(SegmentStart(dict(self.stored_through))))
        new = path.with_suffix(".new")
        fd = os.open(new, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            write_durably(fd, 0, [frame])
            new.rename(path)
            fsync_directory(self.folder)
        except BaseException:
            os.close(fd)
            raise
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._size = fd, len(frame)
        self._starts = sorted({*self._starts, self._next})

    def trim(self, keep_from: int) -> None:
        """Delete the segments whose records are all before this position, never the last one."""
        for first, following in pairwise(list(self._starts)):
            if following > keep_from:
                return
            segment_path(self.folder, first).unlink(missing_ok=True)
            fsync_directory(self.folder)
            self._starts.remove(first)

    def drop_entries(self, is_needed: Callable[[LogEntry], bool]) -> int:
        """Remove the entries from the index that are not needed. Returns the first position that is still needed."""
        for position in [entry.position for entry in self.entries.values() if not is_needed(entry)]:
            del self.entries[position]
        return next(iter(self.entries), self._next)

    # -- reading -------------------------------------------------------------------------------------------------------

    def read(self, entries: Sequence[LogEntry]) -> Iterator[Readings | StreamWatermark]:
        """The records of these entries, from disk."""
        fds: dict[int, int] = {}
        try:
            for entry in entries:
                if entry.segment not in fds:
                    fds[entry.segment] = os.open(segment_path(self.folder, entry.segment), os.O_RDONLY)
                data = os.pread(fds[entry.segment], _HEADER.size + entry.size_bytes, entry.offset)
                payload = _payload(data, 0, entry.offset)
                record = None if payload is None else _decoder.decode(payload)
                if not isinstance(record, Readings | StreamWatermark):
                    raise EntryLogError(f"{segment_path(self.folder, entry.segment)}: damaged at byte {entry.offset}")
                yield record
        except OSError as error:
            raise EntryLogError(f"{self.folder}: {error.strerror or error}") from error
        finally:
            for fd in fds.values():
                os.close(fd)


def _entry(position: int, segment: int, offset: int, size_bytes: int, record: Record) -> LogEntry:
    match record:
        case Readings(stream, publisher, number, newest_us):
            return LogEntry(position, segment, offset, size_bytes, stream, publisher, number, newest_us)
        case StreamWatermark(stream, watermark_us):
            return LogEntry(position, segment, offset, size_bytes, stream, "", 0, watermark_us)
        case Void(publisher):
            return LogEntry(position, segment, offset, size_bytes, "", publisher, 0, None)


def _frame(offset: int, payload: bytes) -> bytes:
    return _HEADER.pack(len(payload), zlib.crc32(payload, zlib.crc32(_OFFSET.pack(offset)))) + payload


def _payload(data: bytes, at: int, offset: int | None = None) -> bytes | None:
    """The payload of the frame at `at`, which has this offset in its segment; None if no complete frame is there."""
    if len(data) < at + _HEADER.size:
        return None
    length, crc = _HEADER.unpack_from(data, at)
    payload = data[at + _HEADER.size : at + _HEADER.size + length]
    if length > _FRAME_BYTES or len(payload) < length:
        return None
    expected = zlib.crc32(payload, zlib.crc32(_OFFSET.pack(at if offset is None else offset)))
    return payload if crc == expected else None


def encode_batch(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    encoded: bytes = sink.getvalue().to_pybytes()
    return encoded


def decode_batch(data: bytes) -> pa.RecordBatch:
    """Raises `pa.ArrowException`, or StopIteration if there is no batch."""
    return pa.ipc.open_stream(pa.py_buffer(data)).read_next_batch()
