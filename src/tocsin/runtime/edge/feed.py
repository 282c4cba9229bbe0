"""Hands the kept readings of the entry log to the operators: first the replay, then each batch as it is stored.

Readings always travel through the log. So a generation that starts later gets them in the same order, and a burst that
the operators cannot follow waits on disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

import pyarrow as pa

from tocsin.runtime.edge.entry_journal import EntryJournal
from tocsin.runtime.edge.entry_log import (
    EntryLog,
    EntryLogError,
    LogEntry,
    Readings,
    Record,
    StreamWatermark,
    decode_batch,
)
from tocsin.runtime.http.logs import logger

_READ_BYTES = 4 << 20
"""About this much is read from disk at once."""
_PART_ROWS = 16_384
"""Larger batches are handed in as several: while one is processed, no message of a hand-over is."""
_RECENT_BYTES = 32 << 20
"""Most bytes of stored and not yet handed in batches that are also kept in memory."""


class Operators(Protocol):
    """The operators of the running generation, as the feed sees them."""

    async def wait_for_room(self) -> None:
        """Return when the inbox has room."""

    def take_readings(self, generation: int, stream: str, batch: pa.RecordBatch, publisher: str) -> None: ...

    def take_watermark(self, generation: int, stream: str, watermark_us: int) -> None: ...

    def finish_replay(self, generation: int) -> None: ...


class EntryFeed:
    def __init__(self, log: EntryLog, operators: Operators) -> None:
        self._log = log
        self._operators = operators
        self.journal = EntryJournal(log, self._on_stored)
        self._recent: dict[int, tuple[Record, int]] = {}
        """By position: stored records that wait to be handed in, with their size."""
        self._recent_bytes = 0
        self.cursor = 0
        """Everything before this position was handed in to the running generation."""
        self.on_failure: Callable[[], None] = lambda: None
        """Called if readings can no longer be handed in. The process must end: it would acknowledge more of them."""
        self._more = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.waiting_bytes = sum(entry.size_bytes for entry in log.entries.values())
        """Bytes of records that wait to be handed in."""

    def _on_stored(self, entry: LogEntry, record: Record) -> None:
        if entry.position not in self._log.entries:
            return
        self.waiting_bytes += entry.size_bytes
        if self._recent_bytes + entry.size_bytes <= _RECENT_BYTES:
            self._recent[entry.position] = (record, entry.size_bytes)
            self._recent_bytes += entry.size_bytes
        self._more.set()

    def start(self, generation: int, horizons_us: Mapping[str, int], sources: Callable[[], Awaitable[None]]) -> None:
        """Hand in the records above the horizon of their stream. `sources` starts the sources after them."""
        self.stop()
        self.cursor = next(iter(self._log.entries), self._log.end)
        for position in [position for position in self._recent if position not in self._log.entries]:
            self._take_recent(position)
        self.waiting_bytes = sum(entry.size_bytes for entry in self._log.entries.values())
        self._task = asyncio.create_task(self._run(generation, dict(horizons_us), sources))

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self.cursor = 0

    async def close(self) -> None:
        self.stop()
        await self.journal.close()

    async def _run(
        self, generation: int, horizons_us: Mapping[str, int], sources: Callable[[], Awaitable[None]]
    ) -> None:
        replay_end = self._log.end
        replaying = True
        try:
            while True:
                if replaying and self.cursor >= replay_end:
                    replaying = False
                    self._operators.finish_replay(generation)
                    await sources()
                self._more.clear()
                chunk = self._next_chunk(horizons_us)
                if not chunk:
                    await self._more.wait()
                    continue
                for entry, record in zip(chunk, await self._records(chunk), strict=True):
                    await self._operators.wait_for_room()
                    if entry.position in self._log.entries:  # not voided meanwhile
                        self._hand_in(generation, record)
                    self.cursor = entry.position + 1
                    self.waiting_bytes -= entry.size_bytes
        except EntryLogError as error:
            logger().error("the entry log cannot be read", reason=str(error))
            self.on_failure()
        except Exception as error:
            logger().error("the feed of readings failed", exc_info=error)
            self.on_failure()

    def _next_chunk(self, horizons_us: Mapping[str, int]) -> list[LogEntry]:
        """The next entries to hand in. Moves the cursor past those that need not be handed in."""
        chunk: list[LogEntry] = []
        size_bytes = 0
        for position in range(self.cursor, self._log.end):
            entry = self._log.entries.get(position)
            if entry is not None:
                if entry.newest_us is not None and entry.newest_us > horizons_us.get(entry.stream, -(2**63)):
                    chunk.append(entry)
                    size_bytes += entry.size_bytes
                elif not chunk:
                    self.waiting_bytes -= entry.size_bytes
                    self._take_recent(position)
            if not chunk:
                self.cursor = position + 1
            if size_bytes > _READ_BYTES:
                break
        return chunk

    async def _records(self, chunk: list[LogEntry]) -> list[Record]:
        """The records of these entries, from memory or from disk."""
        records: dict[int, Record] = {}
        for entry in chunk:
            if (record := self._take_recent(entry.position)) is not None:
                records[entry.position] = record
        missing = [entry for entry in chunk if entry.position not in records]
        if missing:
            read = await self.journal.read(missing)
            records |= {entry.position: record for entry, record in zip(missing, read, strict=True)}
        return [records[entry.position] for entry in chunk]

    def _take_recent(self, position: int) -> Record | None:
        record, size_bytes = self._recent.pop(position, (None, 0))
        self._recent_bytes -= size_bytes
        return record

    def _hand_in(self, generation: int, record: Record) -> None:
        match record:
            case Readings(stream, publisher, _, _, data):
                batch = decode_batch(data)
                for first in range(0, batch.num_rows, _PART_ROWS):
                    self._operators.take_readings(generation, stream, batch.slice(first, _PART_ROWS), publisher)
            case StreamWatermark(stream, watermark_us):
                self._operators.take_watermark(generation, stream, watermark_us)
