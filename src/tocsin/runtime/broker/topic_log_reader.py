"""Reads the segments of a topic's log. It remembers where the last reads ended: readers usually go on from there."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path

from tocsin.runtime.broker.topic_log_frames import HEADER, Frame, Kind, decode_frame, payload_bytes
from tocsin.segments.files import segment_path
from tocsin.wire.topic_log import Piece

_MOST_PLACES = 256
_CHUNK_BYTES = 256 << 10


class SegmentReader:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._places: OrderedDict[int, tuple[int, int]] = OrderedDict()
        """Sequence number → (segment, offset of the frame that has it)."""

    def forget(self) -> None:
        """Segments were deleted or replaced."""
        self._places.clear()

    def opening(self, segment: int) -> Frame:
        return next(self._frames(segment, 0))

    def pieces(self, segment: int, before: int, offset: int = 0) -> Iterator[Piece]:
        """The messages of a segment with sequence numbers below `before`."""
        return (piece for _, piece in self._located(segment, before, offset))

    def _located(self, segment: int, before: int, offset: int) -> Iterator[tuple[int, Piece]]:
        """(offset of the frame with the message behind the piece, or a frame before it; messages)."""
        for frame in self._frames(segment, offset):
            if frame.kind is Kind.PIECE and frame.count:
                if frame.first >= before:
                    return
                entries = frame.piece.entries
                following = frame.next_offset if frame.first + frame.count <= before else offset
                yield following, Piece(frame.epoch, frame.first, entries[: before - frame.first])
            offset = frame.next_offset

    def read(self, starts: Sequence[int], after: int, upto: int, limit_bytes: int) -> list[Piece]:
        pieces: list[Piece] = []
        size_bytes = 0
        wanted = max(after + 1, starts[0])
        segment, offset = self._places.pop(wanted, (max(first for first in starts if first <= wanted), 0))
        while wanted <= upto and size_bytes < limit_bytes:
            following = next((first for first in starts if first > segment), upto + 1)
            for next_offset, piece in self._located(segment, min(following, upto + 1), offset):
                offset = next_offset
                if piece.last < wanted:
                    continue
                pieces.append(Piece(piece.epoch, wanted, piece.entries[wanted - piece.first :]))
                wanted, size_bytes = piece.last + 1, size_bytes + pieces[-1].size_bytes
                if size_bytes >= limit_bytes:
                    break
            else:
                if following > upto:
                    break
                segment, offset = following, 0
                wanted = max(wanted, following)
        if pieces:
            self._places[wanted] = (segment, offset)
        if len(self._places) > _MOST_PLACES:
            self._places.popitem(last=False)
        return pieces

    def _frames(self, segment: int, offset: int) -> Iterator[Frame]:
        """Every frame of a segment from `offset` on, until none follows."""
        fd = os.open(segment_path(self._directory, segment), os.O_RDONLY)
        try:
            data, base = b"", offset
            while True:
                needed = _needed(data, offset - base)
                if needed > 0:
                    more = os.pread(fd, max(_CHUNK_BYTES, needed), base + len(data))
                    data, base = data[offset - base :] + more, offset
                    if not more:
                        return
                    continue
                frame = decode_frame(data, offset, base)
                if isinstance(frame, str):
                    return
                yield frame
                offset = frame.next_offset
        finally:
            os.close(fd)


def _needed(data: bytes, at: int) -> int:
    """The bytes that are missing for the frame at `at`; 0 if it is complete, or its header is impossible."""
    header = data[at : at + HEADER.size]
    if len(header) < HEADER.size:
        return HEADER.size - len(header)
    length = payload_bytes(header)
    return 0 if length is None else max(0, at + HEADER.size + length - len(data))
