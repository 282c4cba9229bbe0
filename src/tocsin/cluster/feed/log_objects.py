"""The objects of a shared log: the frames of a group of requests, as the local feed log writes them, compressed.

Positions of frames inside an object begin at 0; the catalog says where in the log the object lies. Compressed lines
take a fifth of their length, and the same code reads both logs. A checksum of each frame shows damage.

Spark's Python workers load this module.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from tocsin.cluster.feed.feedlog_reader import FeedLogCorrupt, LogFrame, NewFrame, decode_frame
from tocsin.cluster.store.storage import Storage

_CODEC = "zstd"
LeftOut = Mapping[int, Sequence[int] | None]
"""Frame in the object → numbers of its lines that do not count; None for all of them."""


@dataclass(frozen=True, slots=True)
class ObjectPlace:
    """Where an object lies: in the log, and below the data root."""

    first: int
    next: int
    path: str
    left_out: LeftOut


def write_object(storage: Storage, path: str, frames: Sequence[NewFrame]) -> int:
    """Write an object, and return its length in the log. When this returns, the object is durable."""
    content = b"".join(piece for frame in frames for piece in frame.pieces())
    storage.write(path, [pa.compress(content, _CODEC, asbytes=True)])
    return len(content)


def read_object(storage: Storage, place: ObjectPlace) -> list[LogFrame]:
    """The frames of an object that have records, without the lines that do not count.

    `next_position` is that of the following frame with records, or the end of the object: so a reader that has all of
    these frames has reached the end.
    """
    length = place.next - place.first
    view = memoryview(pa.decompress(storage.read(place.path), length, _CODEC, asbytes=True))
    frames: list[LogFrame] = []
    offset = number = 0
    while offset < length:
        frame = decode_frame(view, offset, offset)
        if isinstance(frame, str):
            raise FeedLogCorrupt(place.path, place.first + offset, frame)
        offset = frame.next_position
        kept = _kept(frame, place.left_out.get(number, ()))
        if kept.count:
            frames.append(replace(kept, position=place.first + kept.position))
        number += 1
    ends = [*(frame.position for frame in frames[1:]), place.next]
    return [replace(frame, next_position=end) for frame, end in zip(frames, ends, strict=False)]


def _kept(frame: LogFrame, left_out: Sequence[int] | None) -> LogFrame:
    if left_out is None:
        return replace(frame, count=0, payload=b"")
    if not left_out:
        return frame
    dropped = set(left_out)
    lines = [line for number, line in enumerate(frame.lines()) if number not in dropped]
    return replace(frame, count=len(lines), payload=b"\n".join(lines))
