"""Runs the entry log: files in a thread, so that an fsync never blocks the event loop.

Records that wait together are written with one fsync (group commit): while one fsync runs, every batch that arrives
waits for the next.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

from tocsin.runtime.edge.entry_log import (
    EntryLog,
    EntryLogError,
    LogEntry,
    Readings,
    Record,
    StreamWatermark,
    Void,
)
from tocsin.runtime.http.logs import logger
from tocsin.wire.errors import Code, TocsinError

_BATCH_BYTES = 32 << 20
"""Most bytes that are written with one fsync."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    """Records that are written together: all or none."""

    records: Sequence[Record]
    size_bytes: int
    stored: asyncio.Future[LogEntry]

    @property
    def voids(self) -> list[str]:
        return [record.publisher for record in self.records if isinstance(record, Void)]


class EntryJournal:
    def __init__(self, log: EntryLog, on_stored: Callable[[LogEntry, Record], None]) -> None:
        """`on_stored` is called with each durable record, in order, before its writer continues."""
        self._log = log
        self._on_stored = on_stored
        self._waiting: list[_Waiting] = []
        self._writing: list[_Waiting] = []
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="entry-log")
        self._task: asyncio.Task[None] | None = None
        self._keep_from = 0
        self._voiding: Counter[str] = Counter()
        """Publishers whose `Void` waits: records of them that are being written do not count."""
        self._first_live: dict[str, int] = {}
        self._index_publishers()
        self.fsyncs = 0
        self.written_bytes = 0

    # -- writing -------------------------------------------------------------------------------------------------------

    async def append(self, *records: Record) -> LogEntry:
        """Return when the records are on disk, with the last entry. Raises `TocsinError` if the disk refuses them."""
        size_bytes = sum(len(record.batch) for record in records if isinstance(record, Readings))
        waiting = _Waiting(records, size_bytes, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        self._wake()
        try:
            return await waiting.stored
        except EntryLogError as error:
            raise TocsinError(Code.NOT_READY, f"the entry log cannot be written: {error}", retry_after_s=5) from None

    @property
    def publishers(self) -> frozenset[str]:
        """The publishers of all batches that are here, also of those that are being written."""
        pending = (record for waiting in (*self._writing, *self._waiting) for record in waiting.records)
        return frozenset(
            {*self._log.stored_through, *(record.publisher for record in pending if isinstance(record, Readings))}
        )

    def void(self, publisher: str) -> None:
        """Forget the batches of the publisher, also after a restart. Batches that are being written do not count."""
        if publisher in self.publishers:
            future: asyncio.Future[LogEntry] = asyncio.get_running_loop().create_future()
            future.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._waiting.append(_Waiting([Void(publisher)], 0, future))
            self._voiding[publisher] += 1
            self._log.note([_nowhere(self._log.end - 1)], [Void(publisher)])
            self._first_live.pop(publisher, None)
            self._wake()

    def _wake(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._work())

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting or self._keep_from:
            if not self._waiting:
                keep_from, self._keep_from = self._keep_from, 0
                with suppress(OSError):  # tried again after the next change of a floor
                    await loop.run_in_executor(self._thread, self._log.trim, keep_from)
                continue
            batch = self._writing = self._next_batch()
            try:
                records = [record for waiting in batch for record in waiting.records]
                entries = await loop.run_in_executor(self._thread, self._log.write, records)
                self.fsyncs += 1
                self._note(entries, batch)
                self._writing = []
                if self._log.is_segment_full:
                    await loop.run_in_executor(self._thread, self._log.begin_segment)
            except EntryLogError as error:
                logger().error("the entry log cannot be written", reason=str(error))
                self._writing = []
                for waiting in batch:
                    if not waiting.stored.done():
                        self._voiding.subtract(waiting.voids)
                        waiting.stored.set_exception(error)

    def _next_batch(self) -> list[_Waiting]:
        size_bytes = 0
        for count, waiting in enumerate(self._waiting):
            size_bytes += waiting.size_bytes
            if size_bytes > _BATCH_BYTES and count:
                break
        else:
            count = len(self._waiting)
        batch, self._waiting = self._waiting[:count], self._waiting[count:]
        return batch

    def _note(self, entries: Sequence[LogEntry], batch: Sequence[_Waiting]) -> None:
        written = iter(entries)
        for waiting in batch:
            self._voiding.subtract(waiting.voids)
            for record in waiting.records:
                entry = next(written)
                self._note_record(entry, record)
            if not waiting.stored.done():
                waiting.stored.set_result(entry)

    def _note_record(self, entry: LogEntry, record: Record) -> None:
        is_void = self._voiding[entry.publisher] > 0
        self._log.note([entry], [Void(entry.publisher) if is_void else record])
        self.written_bytes += entry.size_bytes
        if isinstance(record, Readings) and not is_void:
            self._first_live.setdefault(entry.publisher, entry.number)
        self._on_stored(entry, record)

    # -- retention -----------------------------------------------------------------------------------------------------

    def stored_through(self, publisher: str) -> int:
        return self._log.stored_through.get(publisher, 0)

    def durable_through(self, publisher: str) -> int:
        """No recovery needs the publisher's batches up to this number."""
        return self._first_live.get(publisher, self.stored_through(publisher) + 1) - 1

    def forget(self, horizons_us: Mapping[str, int], fed_before: int) -> None:
        """Forget the records at or below the horizon of their stream that were handed in (before this position)."""

        def is_needed(entry: LogEntry) -> bool:
            horizon_us = horizons_us.get(entry.stream)
            if entry.position >= fed_before or horizon_us is None:
                return True
            return entry.newest_us is not None and entry.newest_us > horizon_us

        keep_from = self._log.drop_entries(is_needed)
        self._index_publishers()
        if keep_from > self._log.first_segment_end:
            self._keep_from = keep_from
            self._wake()

    def _index_publishers(self) -> None:
        self._first_live = {}
        for entry in self._log.entries.values():
            if entry.publisher:
                self._first_live.setdefault(entry.publisher, entry.number)

    # -- reading -------------------------------------------------------------------------------------------------------

    async def read(self, entries: Sequence[LogEntry]) -> list[Readings | StreamWatermark]:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, lambda: list(self._log.read(entries)))

    async def close(self) -> None:
        """Finish what was begun, and close the files."""
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)
        self._thread.shutdown(wait=True)
        self._log.close()


def _nowhere(position: int) -> LogEntry:
    return LogEntry(position, 0, 0, 0, "", "", 0, None)
