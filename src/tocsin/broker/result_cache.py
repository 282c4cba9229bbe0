"""The result cache: recent batches of every backend subscription, for sessions that log in late or reconnect.

One byte limit covers all subscriptions, and the oldest batch is evicted first. The cached results of a backend
subscription are always one interval without holes: [kept_from, position).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque

from tocsin.broker.hosted import BackendSubscription
from tocsin.broker.message_encoding import Encoding
from tocsin.broker.result_batch import Batch
from tocsin.model.cursor import Cursor


class ResultCache:
    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._order: deque[BackendSubscription] = deque()
        """Eviction order: one entry per cached batch. Forgotten subscriptions may leave entries behind."""

    def append(self, backend: BackendSubscription, batch: Batch) -> None:
        """Add the newest results, which start at the position, and advance the position to the end of the batch."""
        backend.batches.append(batch)
        backend.position = batch.end
        self._count(backend, batch)
        self._evict()

    def prepend(self, backend: BackendSubscription, batches: list[Batch], start: Cursor) -> None:
        """Add results that are older than the cached ones and end where those start. The caller checks the size."""
        backend.batches[0:0] = batches
        backend.kept_from = start
        for batch in batches:
            self._count(backend, batch)
        self._evict()

    def _count(self, backend: BackendSubscription, batch: Batch) -> None:
        self._order.append(backend)
        self.used_bytes += batch.footprint_bytes
        batch.cached = True

    def encoded(self, batch: Batch, encoding: Encoding) -> bytes:
        """Encode a batch; if it is cached, its new encoding counts towards the limit."""
        before_bytes = batch.footprint_bytes
        data = batch.encoded(encoding)
        if batch.cached:
            self.used_bytes += batch.footprint_bytes - before_bytes
        return data

    def after(self, backend: BackendSubscription, cursor: Cursor) -> Batch | None:
        """The batch with the first result after `cursor`, which must not be before `kept_from`; None if none."""
        index = bisect_right(backend.batches, cursor, key=lambda batch: batch.end)
        return backend.batches[index] if index < len(backend.batches) else None

    def forget(self, backend: BackendSubscription) -> None:
        for batch in backend.batches:
            self.used_bytes -= batch.footprint_bytes
            batch.cached = False
        backend.batches.clear()
        backend.kept_from = backend.position

    def trim(self) -> None:
        """Evict batches if new encodings exceed the limit; drop entries of forgotten subscriptions."""
        self._evict()
        if len(self._order) > 64 and not self.used_bytes:
            self._order.clear()

    def _evict(self) -> None:
        while self.used_bytes > self.limit_bytes and self._order:
            backend = self._order.popleft()
            if backend.batches:
                evicted = backend.batches.pop(0)
                backend.kept_from = evicted.end
                evicted.cached = False
                self.used_bytes -= evicted.footprint_bytes
