"""Recording trace rows to a Parquet file, and reading one.

A Parquet file has its footer at the end: a process that dies leaves nothing readable. So rows are first appended to
`FILE.part`, an Arrow stream that can be read up to where it breaks off, and become FILE when the recording is closed. A
part left by a crash is finished at the next start, by `finish`, or read as it is by `read_trace`.
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
"""What a crash may lose."""
_FLUSH_ROWS = 50_000
_GROUP_ROWS = 100_000


class Recording:
    """`add` frames, `close` at the end. Not thread-safe; `close` may be called from another thread once adding ends."""

    def __init__(self, path: Path) -> None:
        """Raises OSError if it cannot be written, TocsinError if there is such a recording already."""
        if path.exists():
            raise TocsinError(Code.EXISTS, f"{path} exists: choose another name, recordings are not overwritten")
        path.parent.mkdir(parents=True, exist_ok=True)
        if part_of(path).exists():
            raise TocsinError(
                Code.EXISTS, f"{part_of(path)} was left by a recording that did not end, or is being written by another"
            )
        self.path = path
        self.rows = 0
        self._waiting: list[TraceRow] = []
        self._time_s = float("-inf")
        self._flushed_s = time.monotonic()
        self._file = part_of(path).open("wb", buffering=0)
        self._writer = pa.ipc.new_stream(self._file, SCHEMA)
        self._failed = False

    def add(self, rows: Sequence[TraceRow], is_picture: bool) -> None:
        """Never raises: a disk that is full ends the recording, not what is recorded."""
        if self._failed or not rows:
            return
        if is_picture:
            if self.rows:
                self._waiting.append(TraceRow(rows[-1].time_s, Kind.PICTURE))
            # Events that a picture still shows happened before: they are recorded already, or not part of this.
            rows = [row for row in rows if row.kind != Kind.EVENT]
        self._waiting += rows
        self.rows += len(rows)
        if len(self._waiting) >= _FLUSH_ROWS or time.monotonic() - self._flushed_s >= FLUSH_S:
            try:
                self.flush()
            except OSError as error:
                self._failed = True
                logger().error("the recording ends: it cannot be written", path=str(self.path), reason=str(error))

    def flush(self) -> None:
        self._flushed_s = time.monotonic()
        if self._waiting:
            self._writer.write_table(to_table([self._in_order(row) for row in self._waiting]))
            self._waiting = []

    def _in_order(self, row: TraceRow) -> TraceRow:
        """A picture in the middle names events that are older than what was written before it."""
        self._time_s = max(self._time_s, row.time_s)
        return row if row.time_s == self._time_s else replace(row, time_s=self._time_s)

    def close(self) -> None:
        """Make FILE of it. Raises OSError if that cannot be written; the part stays."""
        try:
            if not self._failed:
                self.flush()
                self._writer.close()
        finally:
            self._file.close()
        finish(self.path)


def part_of(path: Path) -> Path:
    return path.with_name(path.name + ".part")


def free_name(path: Path) -> Path:
    """`path`, or with the first number that makes it new: a restart does not write over what was recorded before.

    What a crash left is finished on the way.
    """
    number, found = 1, path
    finish(found)
    while found.exists():
        number += 1
        found = path.with_stem(f"{path.stem}-{number}")
        finish(found)
    return found


def finish(path: Path) -> None:
    """FILE from FILE.part, in groups large enough to be read fast; nothing happens if there is no part."""
    part = part_of(path)
    if not part.exists():
        return
    making = path.with_name(path.name + ".making")
    with pq.ParquetWriter(making, SCHEMA, compression="zstd") as writer:
        waiting: list[pa.RecordBatch] = []
        for batch in _readable(part):
            waiting.append(batch)
            if sum(one.num_rows for one in waiting) >= _GROUP_ROWS:
                writer.write_table(_joined(waiting))
                waiting = []
        if waiting:
            writer.write_table(_joined(waiting))
    making.replace(path)
    part.unlink()


def read_trace(path: Path) -> pa.Table:
    """Raises TocsinError with what to do about it."""
    try:
        if path.exists():
            table = pq.read_table(path)
        elif part_of(path).exists():
            table = _joined(list(_readable(part_of(path))))
        else:
            raise TocsinError(Code.NOT_FOUND, f"there is no file {path}")
    except (pa.ArrowInvalid, OSError) as error:
        raise TocsinError(Code.BAD_REQUEST, f"{path} cannot be read as Parquet: {str(error).splitlines()[0]}") from None
    problem = problem_with(table.schema)
    if problem is not None:
        raise TocsinError(Code.BAD_REQUEST, f"{path}: {problem}")
    return table


def _readable(part: Path) -> Iterator[pa.RecordBatch]:
    """All batches up to where the file breaks off."""
    with part.open("rb") as file:
        try:
            reader = pa.ipc.open_stream(file)
            while True:
                yield reader.read_next_batch()
        except (StopIteration, pa.ArrowInvalid, OSError):
            return


def _joined(batches: list[pa.RecordBatch]) -> pa.Table:
    return pa.Table.from_batches(batches, schema=SCHEMA).unify_dictionaries()
