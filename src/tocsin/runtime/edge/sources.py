"""Sources that a node reads by itself: files, and topics of a Tocsin broker, which MQTT clients can feed as well.

A source has no entry log: it is read again from its durable position, in front of which no recovery needs a reading.
The position of a file is a row number. The position of a topic is its epoch and sequence number in one integer.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Protocol

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from tocsin.client.errors import ClientError
from tocsin.client.topic_events import TopicGap
from tocsin.client.topics import Topics
from tocsin.edge.generations import SourceSpec
from tocsin.edge.operators.contract import END_OF_TIME_US
from tocsin.edge.plan import Stream
from tocsin.model.topic import BEGINNING, Position
from tocsin.runtime.edge.readings import conform, from_json, newest_us
from tocsin.runtime.http.logs import is_worth_logging, logger
from tocsin.wire.errors import TocsinError

_BATCH_ROWS = 4_096
_RETRY_S = 2.0
_SEQUENCE_BITS = 40

Chunk = tuple[pa.RecordBatch | None, int]
"""Readings, and the position behind them; None at the end of the source."""


class Operators(Protocol):
    async def wait_for_room(self) -> None: ...

    def take_readings(self, generation: int, stream: str, batch: pa.RecordBatch, publisher: str) -> None: ...

    def take_watermark(self, generation: int, stream: str, watermark_us: int) -> None: ...


class SourceReader:
    """Reads one source for one generation."""

    def __init__(
        self, generation: int, spec: SourceSpec, stream: Stream, position: int, operators: Operators, folder: Path
    ) -> None:
        """`folder`: where relative paths begin."""
        self.spec = spec
        self.position = position
        """No recovery needs readings before it."""
        self._generation = generation
        self._stream = stream
        self._operators = operators
        self._folder = folder
        self._unsettled: deque[tuple[int, int | None]] = deque()
        """(position behind the batch, newest time) of the batches that a recovery may need."""
        self.rows = 0
        self.raw_bytes = 0
        self._task = asyncio.create_task(self._run())

    def stop(self) -> None:
        self._task.cancel()

    def settle(self, horizon_us: int) -> bool:
        """No recovery needs batches whose newest reading is at or below the horizon. True if the position moved."""
        before = self.position
        while self._unsettled and (self._unsettled[0][1] is None or self._unsettled[0][1] <= horizon_us):
            self.position = self._unsettled.popleft()[0]
        return self.position > before

    async def _run(self) -> None:
        failures = 0
        position = self.position
        pacing = _Pacing(float(self.spec.options.get("speed", 0)))
        while True:
            try:
                async for batch, through in self._chunks(position):
                    position = through
                    if batch is None:
                        self._end()
                        return
                    newest = newest_us(batch, self._stream)
                    await pacing.wait(newest)
                    await self._operators.wait_for_room()
                    self._unsettled.append((position, newest))
                    self.rows += batch.num_rows
                    self.raw_bytes += int(batch.nbytes)
                    self._operators.take_readings(self._generation, self.spec.stream, batch, self.spec.publisher)
                    failures = 0
            except Exception as error:
                failures += 1
                if is_worth_logging(failures):
                    is_expected = isinstance(error, OSError | TocsinError | ClientError | pa.ArrowException)
                    trace = None if is_expected else error
                    logger().error(
                        "a source cannot be read; retrying", source=self.spec.name, reason=str(error), exc_info=trace
                    )
                await asyncio.sleep(_RETRY_S)

    def _end(self) -> None:
        """`at_end = "close"`: no reading of the stream follows here, so that all its windows can close."""
        if self.spec.options.get("at_end") == "close":
            self._operators.take_watermark(self._generation, self.spec.stream, END_OF_TIME_US)

    def _chunks(self, position: int) -> AsyncIterator[Chunk]:
        if self.spec.kind == "topic":
            return read_topic(self.spec, self._stream, position)
        return read_file(self._folder / self.spec.location, self._stream, position, self.spec.options)


class _Pacing:
    """Replays event time at a speed: 60 replays a minute of readings in a second. 0 is as fast as possible."""

    def __init__(self, speed: float) -> None:
        self._speed = speed
        self._first: tuple[float, int] | None = None

    async def wait(self, newest: int | None) -> None:
        if self._speed <= 0 or newest is None:
            return
        now_s = time.monotonic()
        self._first = self._first or (now_s, newest)
        due_s = self._first[0] + (newest - self._first[1]) / 1e6 / self._speed
        if due_s > now_s:
            await asyncio.sleep(due_s - now_s)


async def read_file(path: Path, stream: Stream, position: int, options: Mapping[str, str]) -> AsyncIterator[Chunk]:
    """The rows behind `position`, in batches. The ending names the format: csv, parquet, arrow (IPC file or stream)."""
    rows = int(options.get("batch_rows", _BATCH_ROWS))
    batches = await asyncio.to_thread(_open, path, rows)
    behind = 0
    while (batch := await asyncio.to_thread(next, batches, None)) is not None:
        start, behind = behind, behind + batch.num_rows
        if behind > position:
            batch = batch.slice(max(0, position - start))
            for offset in range(0, batch.num_rows, rows):
                part = batch.slice(offset, rows)
                through = behind - batch.num_rows + offset + part.num_rows
                yield conform(pa.Table.from_batches([part]), stream), through
    yield None, behind


def _open(path: Path, rows: int) -> Iterator[pa.RecordBatch]:
    match path.suffix:
        case ".parquet":
            return iter(pyarrow.parquet.ParquetFile(path).iter_batches(rows))
        case ".csv":
            return iter(pyarrow.csv.open_csv(path))
        case _:
            try:
                file = pa.ipc.open_file(path)
                return (file.get_batch(number) for number in range(file.num_record_batches))
            except pa.ArrowInvalid:
                return iter(pa.ipc.open_stream(pa.OSFile(str(path))))


async def read_topic(spec: SourceSpec, stream: Stream, position: int) -> AsyncIterator[Chunk]:
    """The messages of a topic behind `position`. A message is a JSON object or array of readings.

    `location` is the coordinator's address; options: `topic`, and `token_file`. A message that does not match the
    stream is logged and skipped.
    """
    path = spec.options.get("token_file")
    token = None if path is None else Path(path).read_text(encoding="utf-8").strip()
    after = BEGINNING if position == 0 else unpacked(position)
    async with Topics(spec.location, token=token, coordinates=False) as topics:
        subscription = topics.subscribe(spec.options["topic"], after=after)
        while True:
            items = [await anext(subscription)]
            while subscription.items and len(items) < _BATCH_ROWS:
                items.append(await anext(subscription))
            batches = []
            for item in items:
                if isinstance(item, TopicGap):
                    logger().error("a topic has lost messages", source=spec.name, first=item.first, last=item.last)
                    continue
                position = packed(item.position)
                try:
                    data = item.data if item.data.lstrip()[:1] == b"[" else b"[" + item.data + b"]"
                    batches.append(from_json(data, stream))
                except TocsinError as error:
                    logger().warning("a message is no reading", source=spec.name, reason=error.message)
            if batches:
                yield pa.Table.from_batches(batches).combine_chunks().to_batches()[0], position


def packed(position: Position) -> int:
    return position.epoch << _SEQUENCE_BITS | position.sequence


def unpacked(position: int) -> Position:
    return Position(position >> _SEQUENCE_BITS, position & (1 << _SEQUENCE_BITS) - 1)


class Sources:
    """The sources that this node reads in the running generation."""

    def __init__(self, operators: Operators, folder: Path, report: Callable[[str, int], None]) -> None:
        """`report` sends a source's new position to the root."""
        self._operators = operators
        self._folder = folder
        self._report = report
        self._readers: list[SourceReader] = []
        self._rows = self._raw_bytes = 0

    @property
    def rows(self) -> int:
        return self._rows + sum(reader.rows for reader in self._readers)

    @property
    def raw_bytes(self) -> int:
        return self._raw_bytes + sum(reader.raw_bytes for reader in self._readers)

    def start(self, generation: int, sources: Iterable[tuple[SourceSpec, Stream, int]]) -> None:
        self.stop()
        self._readers = [
            SourceReader(generation, spec, stream, position, self._operators, self._folder)
            for spec, stream, position in sources
        ]

    def stop(self) -> None:
        self._rows, self._raw_bytes = self.rows, self.raw_bytes
        for reader in self._readers:
            reader.stop()
        self._readers = []

    def settle(self, horizons_us: Mapping[str, int]) -> None:
        for reader in self._readers:
            horizon_us = horizons_us.get(reader.spec.stream)
            if horizon_us is not None and reader.settle(horizon_us):
                self._report(reader.spec.name, reader.position)
