"""Announcements of executions: how many results and bytes each backend subscription of a broker has.

The data cluster keeps no queue per broker. A broker requests the executions after a sequence number. It gets them from
memory if it keeps up, or from the catalog and the stored results if it was away. A slow or dead broker costs nothing.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

import pyarrow as pa

from tocsin.cluster.book import SubscriptionBook
from tocsin.cluster.catalog import Catalog, StoredExecution
from tocsin.cluster.store.filewriting import SUMMARY
from tocsin.cluster.store.results import ResultStore
from tocsin.model.ids import BrokerId, ChannelName
from tocsin.wire.cluster import SubscriptionNews

RECENT_ROWS = 2_000_000
"""Rows of summaries kept in memory, over all executions, at 24 bytes each."""
RECENT_EXECUTIONS = 2_000
"""Executions kept in memory. Most have few rows, and then the objects around a summary need 4 KB and more [measured],
so that the bound of rows alone lets the log grow for hours. A broker further behind reads the catalog."""
PAGE = 200
"""The most executions in one answer."""


@dataclass(frozen=True, slots=True)
class Announcement:
    sequence: int
    """The execution's sequence number. The broker resumes with the executions after this one."""
    channel: ChannelName
    epoch: int
    execution: int
    finished_s: float
    subscriptions: list[SubscriptionNews]


@dataclass(frozen=True, slots=True)
class News:
    announcements: list[Announcement]
    sequence: int
    """The answer covers all executions up to this one, also those without results for the broker."""
    gap: bool = False
    """True if executions that this broker has not read are deleted: their retention has passed."""


class AnnouncementLog:
    """Thread-safe."""

    def __init__(self, catalog: Catalog, results: ResultStore, book: SubscriptionBook) -> None:
        self._catalog = catalog
        self._results = results
        self._book = book
        self._lock = threading.Lock()
        self._recent: deque[tuple[StoredExecution, pa.Table]] = deque()
        self._recent_rows = 0
        self._listeners: set[Callable[[], None]] = set()
        self.sequence = catalog.executions.last_sequence()

    def publish(self, committed: Sequence[tuple[StoredExecution, pa.Table]]) -> None:
        """Announce committed executions, each with its summary. Called in the order of sequences."""
        with self._lock:
            if committed[0][0].sequence > self.sequence + 1:
                # One in between may be committed without an answer of the catalog: `since` must look there.
                self._drop_recent()
            self._recent.extend(committed)
            self._recent_rows += sum(summary.num_rows for _, summary in committed)
            while len(self._recent) > RECENT_EXECUTIONS or (self._recent_rows > RECENT_ROWS and len(self._recent) > 1):
                _, old = self._recent.popleft()
                self._recent_rows -= old.num_rows
            self.sequence = committed[-1][0].sequence
        self._wake()

    def read_catalog_again(self) -> None:
        """Drop the executions in memory, because an execution may be committed but not published."""
        with self._lock:
            self._drop_recent()
            self.sequence = self._catalog.executions.last_sequence()
        self._wake()

    def _drop_recent(self) -> None:
        self._recent.clear()
        self._recent_rows = 0

    def _wake(self) -> None:
        with self._lock:
            listeners = list(self._listeners)
        for listener in listeners:
            listener()

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener`, from any thread, after each execution. Returns a function that removes the listener."""
        with self._lock:
            self._listeners.add(listener)

        def stop() -> None:
            with self._lock:
                self._listeners.discard(listener)

        return stop

    def since(self, broker: BrokerId, after: int) -> News:
        """Announce to `broker` the executions after sequence `after`, oldest first, at most a page of executions.

        The broker requests the next page with the `sequence` of the answer.
        """
        with self._lock:
            # From the newest on: a broker is rarely far behind, and the log of a long day has thousands of executions.
            later = takewhile(lambda recent: recent[0].sequence > after, reversed(self._recent))
            recent = list(later)[::-1]
            complete = bool(self._recent) and self._recent[0][0].sequence <= after + 1
            upto = self.sequence
        if upto <= after:
            return News([], upto)
        gap = self._catalog.executions.forgotten_sequence() > after
        executions = recent[:PAGE] if complete else self._read_catalog(after, upto)
        announcements = [
            Announcement(
                execution.sequence,
                execution.channel,
                execution.epoch,
                execution.execution,
                execution.finished_s,
                subscriptions,
            )
            for execution, summary in executions
            if (subscriptions := self._held_by(broker, execution.channel, summary))
        ]
        return News(announcements, executions[-1][0].sequence if executions else upto, gap)

    def _read_catalog(self, after: int, upto: int) -> list[tuple[StoredExecution, pa.Table]]:
        # An execution above `upto` may be committed and not published yet: its own `publish` announces it.
        executions = [stored for stored in self._catalog.executions.page(after, limit=PAGE) if stored.sequence <= upto]
        by_channel: dict[tuple[ChannelName, int], list[int]] = {}
        for execution in executions:
            by_channel.setdefault((execution.channel, execution.epoch), []).append(execution.execution)
        summaries: dict[tuple[ChannelName, int], Mapping[int, pa.Table]] = {
            (channel, epoch): self._results.summaries(channel, epoch, numbers)
            for (channel, epoch), numbers in by_channel.items()
        }
        empty = SUMMARY.empty_table()
        return [
            (execution, summaries[execution.channel, execution.epoch].get(execution.execution, empty))
            for execution in executions
        ]

    def _held_by(self, broker: BrokerId, channel: ChannelName, summary: pa.Table) -> list[SubscriptionNews]:
        numbers = summary["subscription"].to_numpy()
        held, ids = self._book.named(numbers, broker)
        self._book.announced(channel, ids, numbers[held])
        results = summary["results"].to_numpy()[held].tolist()
        sizes = summary["bytes"].to_numpy()[held].tolist()
        return [SubscriptionNews(*news) for news in zip(ids, results, sizes, strict=True)]
