"""The log of one persistent topic on disk. `topic_logs` runs it in threads, one operation at a time.

A log is a directory of segments; each is named after the sequence number of its first message and begins with a
snapshot of what precedes it, so that a start reads the last segment alone. A segment ends where the next one begins:
cutting the log begins a segment behind the cut and never rewrites messages that may be acknowledged. `end` names the
segment and offset up to which everything was fsynced; damage before it is not the trace of a crash. `promise` has the
epoch that the broker has promised to follow.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path

from tocsin.model.flow import is_flow
from tocsin.runtime.broker.topic_log_facts import PublishedEnd, read_promise, store_promise
from tocsin.runtime.broker.topic_log_frames import (
    Kind,
    SegmentStart,
    decode_frame,
    encode_piece,
    encode_start,
)
from tocsin.runtime.broker.topic_log_reader import SegmentReader
from tocsin.segments.files import fsync_directory, segment_path, segment_starts, write_durably
from tocsin.wire.topic_log import Epochs, Piece, Snapshot, cut_epochs, with_epoch

SEGMENT_BYTES = 16 << 20
_SEGMENTS_PER_LOG = 8
_LEAST_SEGMENT_BYTES = 128 << 10
_MOST_PUBLISHERS = 10_000


class TopicLogError(Exception):
    """The disk refused, or the log is damaged. The message says what to do."""


class TopicLog:
    def __init__(self, directory: Path, segment_bytes: int = SEGMENT_BYTES) -> None:
        """Open the log, or create it: cut off an incomplete last frame."""
        self.directory = directory
        self.segment_bytes = segment_bytes
        self.promised = 0
        self.epochs: Epochs = []
        self.end = 0
        self.publishers: dict[int, int] = {}
        self.fsyncs = 0
        self.written_bytes = 0
        self._fd = self._lock_fd = -1
        self._size = 0
        """The bytes of the last segment that are durable."""
        self._must_cut = False
        self._reader = SegmentReader(directory)
        directory.mkdir(parents=True, exist_ok=True)
        self._end = PublishedEnd(directory)
        self._lock_fd = os.open(directory / "writer", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._recover()
        except BlockingIOError:
            self.close()
            raise TopicLogError(f"{directory}: another process writes this log; does this broker run twice?") from None
        except BaseException:
            self.close()
            raise

    @property
    def start(self) -> int:
        """The oldest sequence number in the log."""
        return self._starts[0]

    @property
    def size_bytes(self) -> int:
        older = sum(segment_path(self.directory, first).stat().st_size for first in self._starts[:-1])
        return older + self._size

    # -- start ---------------------------------------------------------------------------------------------------------

    def _recover(self) -> None:
        for leftover in self.directory.glob("*.new"):
            leftover.unlink()
        self.promised = read_promise(self.directory)
        self._starts = segment_starts(self.directory)
        if not self._starts:
            self._begin_segment(1)
            return
        first = self._starts[-1]
        path = segment_path(self.directory, first)
        data = path.read_bytes()
        opening = decode_frame(data, 0)
        if isinstance(opening, str) or opening.kind is not Kind.SNAPSHOT:
            raise self._damaged(path, 0, opening if isinstance(opening, str) else "no snapshot")
        if opening.start.fresh:
            self._remove(self._starts[:-1])
        self._load(opening.start)
        offset, reason = opening.next_offset, "durable bytes are missing"
        while offset < len(data):
            frame = decode_frame(data, offset)
            if isinstance(frame, str):
                reason = frame
                break
            self._note(frame.piece)
            offset = frame.next_offset
        self.promised = max(self.promised, self.epochs[-1][0] if self.epochs else 0)
        if self._end.offset_in(first) > offset:
            raise self._damaged(path, offset, reason)
        self._fd, self._size = os.open(path, os.O_RDWR), offset
        os.ftruncate(self._fd, offset)
        # The process that wrote these frames may have died before its fsync. From here on they count as durable.
        os.fsync(self._fd)
        fsync_directory(self.directory)
        self._end.publish(self._starts[-1], self._size)

    def _load(self, start: SegmentStart) -> None:
        self.epochs, self.end = list(start.snapshot.epochs), start.snapshot.first - 1
        self.publishers = dict(start.snapshot.publishers)

    def _note(self, piece: Piece) -> None:
        self.epochs, self.promised = with_epoch(self.epochs, piece), max(self.promised, piece.epoch)
        self.end = piece.last
        for publisher, number, _ in piece.entries:
            self.publishers[publisher] = number
        while len(self.publishers) > _MOST_PUBLISHERS:
            # The numbers of flows are kept: an import continues behind them.
            del self.publishers[next(publisher for publisher in self.publishers if not is_flow(publisher))]

    def _damaged(self, path: Path, offset: int, reason: str) -> TopicLogError:
        return TopicLogError(
            f"{path}: damaged at byte {offset}: {reason}. Move the folder of this log away and start the broker again: "
            f"it gets the log from the other replicas. Without replicas, delete `end` beside it to lose what follows."
        )

    # -- writing -------------------------------------------------------------------------------------------------------

    def append(self, pieces: Sequence[Piece]) -> None:
        """Store the pieces with one fsync. If the disk refuses, none is stored."""
        frames: list[bytes] = []
        offset = self._ready()
        for piece in pieces:
            frames.append(encode_piece(offset, piece))
            offset += len(frames[-1])
        self._write(frames)
        for piece in pieces:
            self._note(piece)
        if self._size > self.segment_bytes:
            self._begin_segment(self.end + 1)

    def adopt(self, epoch: int, cut: tuple[int, int] | None) -> None:
        """Store the promise to follow `epoch`, and cut the log after (last epoch, end) if that is given."""
        self._promise(epoch)
        if cut is not None and (cut[1] < self.end or cut_epochs(self.epochs, cut[0]) != self.epochs):
            self._cut(*cut)

    def _promise(self, epoch: int) -> None:
        if epoch <= self.promised:
            return
        with self._failing_clearly():
            store_promise(self.directory, epoch)
        self.promised = epoch
        self.fsyncs += 1

    def reset(self, epoch: int, snapshot: Snapshot) -> None:
        """Replace the log by an empty one that begins at the snapshot."""
        self._promise(epoch)
        self._ready()
        self._remove([first for first in self._starts if first > snapshot.first], reverse=True)
        self._load(SegmentStart(snapshot))
        self._begin_segment(snapshot.first, fresh=True)
        self._remove([first for first in self._starts if first < snapshot.first])

    def _cut(self, last_epoch: int, end: int) -> None:
        self._ready()
        self._remove([first for first in self._starts if first > end + 1], reverse=True)
        holder = next(first for first in reversed(self._starts) if first <= end + 1)
        opening = self._reader.opening(holder).start
        publishers = dict(opening.snapshot.publishers)
        for piece in self._reader.pieces(holder, end + 1):
            publishers.update((publisher, number) for publisher, number, _ in piece.entries)
        epochs = cut_epochs(self.epochs, last_epoch)
        self._load(SegmentStart(Snapshot(end + 1, epochs, list(publishers.items()))))
        self._begin_segment(end + 1)

    def _ready(self) -> int:
        """The offset of the next frame. Cuts off what a failed write may have left."""
        if self._must_cut:
            with self._failing_clearly():
                os.ftruncate(self._fd, self._size)
                os.fsync(self._fd)
            self._must_cut = False
        return self._size

    def _write(self, frames: list[bytes]) -> None:
        try:
            with self._failing_clearly():
                write_durably(self._fd, self._size, frames)
        except TopicLogError:
            self._must_cut = True
            with suppress(TopicLogError):
                self._ready()
            raise
        self._size += sum(map(len, frames))
        self.written_bytes += sum(map(len, frames))
        self.fsyncs += 1
        self._end.publish(self._starts[-1], self._size)

    @contextmanager
    def _failing_clearly(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise TopicLogError(f"{self.directory}: {error.strerror or error}; nothing was stored") from error

    def _begin_segment(self, first: int, *, fresh: bool = False) -> None:
        """Begin a segment with the present state. It replaces one of the same name."""
        path = segment_path(self.directory, first)
        frame = encode_start(SegmentStart(Snapshot(first, self.epochs, list(self.publishers.items())), fresh))
        new = path.with_suffix(".new")
        with self._failing_clearly():
            fd = os.open(new, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
            try:
                write_durably(fd, 0, [frame])
                if path.exists():  # `end` must not name bytes of the file that is replaced
                    self._end.clear()
                new.rename(path)
                fsync_directory(self.directory)
            except OSError:
                os.close(fd)
                raise
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._size, self._must_cut = fd, len(frame), False
        self._starts = sorted({*self._starts, first})
        self.fsyncs += 1
        self._end.publish(self._starts[-1], self._size)

    # -- retention -----------------------------------------------------------------------------------------------------

    def trim(self, before: int) -> None:
        """Delete the segments that end before this sequence number, never the last one."""
        self._remove([first for first, following in pairwise(self._starts) if following <= before])

    def retain(self, retain_bytes: int, retain_s: float | None, now_s: float) -> None:
        """Delete the oldest segments beyond the size, and those whose last message is too old."""
        self.segment_bytes = max(_LEAST_SEGMENT_BYTES, min(SEGMENT_BYTES, retain_bytes // _SEGMENTS_PER_LOG))
        if retain_s is not None and self.end >= self._starts[-1] and self._age_s(self._starts[-1], now_s) > retain_s:
            self._ready()
            self._begin_segment(self.end + 1)
        sizes = {first: segment_path(self.directory, first).stat().st_size for first in self._starts}
        total = sum(sizes.values())
        old: list[int] = []
        for first in self._starts[:-1]:
            if total <= retain_bytes and (retain_s is None or self._age_s(first, now_s) <= retain_s):
                break
            total -= sizes[first]
            old.append(first)
        self._remove(old)

    def _age_s(self, first: int, now_s: float) -> float:
        return now_s - segment_path(self.directory, first).stat().st_mtime

    def _remove(self, segments: list[int], *, reverse: bool = False) -> None:
        """Delete segments one at a time: after a power failure, no segment may be missing between two others."""
        for first in sorted(segments, reverse=reverse):
            segment_path(self.directory, first).unlink(missing_ok=True)
            fsync_directory(self.directory)
            self._starts.remove(first)
        self._reader.forget()

    # -- reading -------------------------------------------------------------------------------------------------------

    def read(self, after: int, upto: int, limit_bytes: int) -> list[Piece]:
        """Messages behind `after`, about `limit_bytes` of them and at least one if there is one, up to `upto`."""
        return self._reader.read(self._starts, after, min(upto, self.end), limit_bytes)

    def snapshot(self) -> Snapshot:
        """The snapshot with which the log begins."""
        return self._reader.opening(self._starts[0]).start.snapshot

    def close(self) -> None:
        for fd in (self._fd, self._lock_fd):
            if fd >= 0:
                os.close(fd)
        self._end.close()
        self._fd = self._lock_fd = -1
