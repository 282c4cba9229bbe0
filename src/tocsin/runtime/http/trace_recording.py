"""Records trace rows to a Parquet file, and reads such a file.

A Parquet file has its footer at the end, so a process that dies would leave no readable file. Rows are therefore first
appended to `FILE.part`, an Arrow stream that is readable up to its last complete batch. Closing the recording turns it
into FILE. After a crash `finish` turns the part into FILE at the next start, or `read_trace` reads the part itself.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec.structs import replace

from tocsin.model.trace import SCHEMA, Kind, TraceRow, problem_with, to_table
from tocsin.runtime.http.logs import logger
from tocsin.wire.errors import Code, TocsinError

FLUSH_S = 3.0
"""Seconds between two writes: a crash loses at most the rows of this time."""
_FLUSH_ROWS = 50_000
_GROUP_ROWS = 100_000


class Recording:
    """Call `add` for each frame, then `close`. Not thread-safe, but another thread may call `close` at the end."""

    def __init__(self, path: Path) -> None:
        """Begin a recording.

        Raises OSError if the file cannot be written, TocsinError if the recording exists already.
        """
        if path.exists():
            raise TocsinError(Code.EXISTS, f"{path} exists: choose another name, recordings are not overwritten")
        path.parent.mkdir(parents=True, exist_ok=True)
        if part_path(path).exists():
            message = f"{part_path(path)} was left by a recording that crashed, or another process is writing it"
            raise TocsinError(Code.EXISTS, message)
        self.path = path
        self.rows = 0
        self._unwritten: list[TraceRow] = []
        self._time_s = float("-inf")
        self._flushed_s = time.monotonic()
        self._file = part_path(path).open("wb", buffering=0)
        self._writer = pa.ipc.new_stream(self._file, SCHEMA)
        self._failed = False

    def add(self, rows: Sequence[TraceRow], is_picture: bool) -> None:
        """Record the rows of a frame. Never raises: a full disk ends the recording, not the recorded process."""
        if self._failed or not rows:
            return
        if is_picture:
            if self.rows:
                self._unwritten.append(TraceRow(rows[-1].time_s, Kind.PICTURE))
            # A picture repeats recent events. They are recorded already, or happened before the recording started.
            rows = [row for row in rows if row.kind != Kind.EVENT]
        self._unwritten += rows
        self.rows += len(rows)
        if len(self._unwritten) >= _FLUSH_ROWS or time.monotonic() - self._flushed_s >= FLUSH_S:
            try:
                self.flush()
            except OSError as error:
                self._failed = True
                logger().error("the recording ends: the file cannot be written", path=str(self.path), reason=str(error))

    def flush(self) -> None:
        self._flushed_s = time.monotonic()
        if self._unwritten:
            self._writer.write_table(to_table([self._in_order(row) for row in self._unwritten]))
            self._unwritten = []

    def _in_order(self, row: TraceRow) -> TraceRow:
        """The row, with its time raised to that of the previous row: rows of a later picture may be older than that."""
        self._time_s = max(self._time_s, row.time_s)
        return row if row.time_s == self._time_s else replace(row, time_s=self._time_s)

    def close(self) -> None:
        """Make FILE of the part. Raises OSError if FILE cannot be written; the part remains."""
        try:
            if not self._failed:
                self.flush()
                self._writer.close()
        finally:
            self._file.close()
        finish(self.path)


def part_path(path: Path) -> Path:
    return path.with_name(path.name + ".part")


def unused_path(path: Path) -> Path:
    """`path`, or `path` with the first number that is not in use: a restart overwrites no earlier recording.

    Also finishes the recordings that a crash left under these names.
    """
    number, unused = 1, path
    finish(unused)
    while unused.exists():
        number += 1
        unused = path.with_stem(f"{path.stem}-{number}")
        finish(unused)
    return unused


def finish(path: Path) -> None:
    """Make FILE of FILE.part, with row groups that are large enough for fast reads. Does nothing without a part."""
    part = part_path(path)
    if not part.exists():
        return
    making = path.with_name(path.name + ".making")
    with pq.ParquetWriter(making, SCHEMA, compression="zstd") as writer:
        group: list[pa.RecordBatch] = []
        for batch in _readable(part):
            group.append(batch)
            if sum(member.num_rows for member in group) >= _GROUP_ROWS:
                writer.write_table(_joined(group))
                group = []
        if group:
            writer.write_table(_joined(group))
    making.replace(path)
    part.unlink()


def read_trace(path: Path) -> pa.Table:
    """The rows of FILE, or of FILE.part if there is no FILE. Raises TocsinError if neither can be read."""
    try:
        if path.exists():
            table = pq.read_table(path)
        elif part_path(path).exists():
            table = _joined(list(_readable(part_path(path))))
        else:
            raise TocsinError(Code.NOT_FOUND, f"there is no file {path}")
    except (pa.ArrowInvalid, OSError) as error:
        raise TocsinError(Code.BAD_REQUEST, f"{path} cannot be read as Parquet: {str(error).splitlines()[0]}") from None
    problem = problem_with(table.schema)
    if problem is not None:
        raise TocsinError(Code.BAD_REQUEST, f"{path}: {problem}")
    return table


def _readable(part: Path) -> Iterator[pa.RecordBatch]:
    """All complete batches of the part."""
    with part.open("rb") as file:
        try:
            reader = pa.ipc.open_stream(file)
            while True:
                yield reader.read_next_batch()
        except (StopIteration, pa.ArrowInvalid, OSError):
            return


def _joined(batches: list[pa.RecordBatch]) -> pa.Table:
    return pa.Table.from_batches(batches, schema=SCHEMA).unify_dictionaries()
