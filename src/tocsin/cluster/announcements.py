"""What brokers hear of executions: which of *their* backend subscriptions have how many results and bytes.

Nobody is sent anything and forgotten: a broker asks for what came after a sequence number, and gets it from memory
when it keeps up or from the catalog and the stored results when it was away. So a broker costs a number, not a queue,
and one that is slow or gone hurts nobody.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pyarrow as pa

from tocsin.cluster.book import SubscriptionBook
from tocsin.cluster.catalog import Catalog, StoredExecution
from tocsin.cluster.store.filewriting import SUMMARY
from tocsin.cluster.store.results import ResultStore
from tocsin.model.ids import BrokerId, ChannelName
from tocsin.wire.cluster import SubscriptionNews

RECENT_ROWS = 2_000_000
"""Rows of summaries kept in memory, over all executions (24 bytes each)."""
PAGE = 200
"""Executions looked up at a time for a broker that was away."""


@dataclass(frozen=True, slots=True)
class Announcement:
    sequence: int
    """Ask for what comes after it."""
    channel: ChannelName
    epoch: int
    execution: int
    finished_s: float
    subscriptions: list[SubscriptionNews]


@dataclass(frozen=True, slots=True)
class News:
    announcements: list[Announcement]
    sequence: int
    """Everything up to here has been looked at, announced or not."""
    gap: bool = False
    """Results that this broker had not heard of have passed their retention."""


class Announcements:
    """Thread-safe."""

    def __init__(self, catalog: Catalog, results: ResultStore, book: SubscriptionBook) -> None:
        self._catalog = catalog
        self._results = results
        self._book = book
        self._guard = threading.Lock()
        self._recent: deque[tuple[StoredExecution, pa.Table]] = deque()
        self._recent_rows = 0
        self._listeners: set[Callable[[], None]] = set()
        self.sequence = catalog.last_sequence()

    def publish(self, execution: StoredExecution, summary: pa.Table) -> None:
        """An execution has been committed; in the order of sequences."""
        with self._guard:
            self._recent.append((execution, summary))
            self._recent_rows += summary.num_rows
            while self._recent_rows > RECENT_ROWS and len(self._recent) > 1:
                _, old = self._recent.popleft()
                self._recent_rows -= old.num_rows
            self.sequence = execution.sequence
            listeners = list(self._listeners)
        for listener in listeners:
            listener()

    def look_again(self) -> None:
        """Executions may have been committed that were not published: from here on they are looked up."""
        with self._guard:
            self._recent.clear()
            self._recent_rows = 0
            self.sequence = self._catalog.last_sequence()

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` (from any thread) when there may be news; returns how to stop it."""
        with self._guard:
            self._listeners.add(listener)

        def stop() -> None:
            with self._guard:
                self._listeners.discard(listener)

        return stop

    def since(self, broker: BrokerId, after: int) -> News:
        """What `broker` has not heard yet, in order; at most a page of executions, so ask again until it is empty."""
        with self._guard:
            recent = [(execution, summary) for execution, summary in self._recent if execution.sequence > after]
            complete = bool(self._recent) and self._recent[0][0].sequence <= after + 1
            upto = self.sequence
        if upto <= after:
            return News([], upto)
        gap = self._catalog.forgotten_sequence() > after
        executions = recent[:PAGE] if complete else self._looked_up(after, upto)
        announcements = []
        for execution, summary in executions:
            mine = self._mine(broker, summary)
            if mine:
                announcements.append(
                    Announcement(
                        execution.sequence, execution.channel, execution.epoch, execution.execution,
                        execution.finished_s, mine,
                    )
                )  # fmt: skip
        return News(announcements, executions[-1][0].sequence if executions else upto, gap)

    def _looked_up(self, after: int, upto: int) -> list[tuple[StoredExecution, pa.Table]]:
        # One may have been committed that is about to be published: it is told then.
        executions = [one for one in self._catalog.executions(after, limit=PAGE) if one.sequence <= upto]
        by_channel: dict[tuple[ChannelName, int], list[int]] = {}
        for execution in executions:
            by_channel.setdefault((execution.channel, execution.epoch), []).append(execution.execution)
        summaries: dict[tuple[ChannelName, int], Mapping[int, pa.Table]] = {
            (channel, epoch): self._results.summaries(channel, epoch, numbers)
            for (channel, epoch), numbers in by_channel.items()
        }
        found = []
        for execution in executions:
            counted = summaries[execution.channel, execution.epoch]
            found.append((execution, counted.get(execution.execution, SUMMARY.empty_table())))
        return found

    def _mine(self, broker: BrokerId, summary: pa.Table) -> list[SubscriptionNews]:
        numbers = summary["subscription"].to_numpy()
        held, ids = self._book.named(numbers, broker)
        results = summary["results"].to_numpy()[held].tolist()
        sizes = summary["bytes"].to_numpy()[held].tolist()
        return [SubscriptionNews(*news) for news in zip(ids, results, sizes, strict=True)]
