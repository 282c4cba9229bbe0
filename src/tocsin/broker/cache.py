"""The results kept for those who come late or come back: the last of every subscription, bounded in bytes over all.

What a backend subscription keeps is always one interval, [kept_from, position): oldest out first.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque

from tocsin.broker.batches import Batch
from tocsin.broker.encodings import Encoding
from tocsin.broker.entities import Backend
from tocsin.model.cursor import Cursor


class ResultCache:
    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._order: deque[Backend] = deque()
        """Whose oldest batch goes first: one entry per batch kept, and some left over from those that went early."""

    def append(self, backend: Backend, batch: Batch) -> None:
        """The newest results of a subscription, which begin at its position; that moves on."""
        backend.batches.append(batch)
        backend.position = batch.end
        self._count(backend, batch)
        self._evict()

    def prepend(self, backend: Backend, batches: list[Batch], start: Cursor) -> None:
        """Results older than what is kept, without a hole in between; they must fit."""
        backend.batches[0:0] = batches
        backend.kept_from = start
        for batch in batches:
            self._count(backend, batch)
        self._evict()

    def _count(self, backend: Backend, batch: Batch) -> None:
        self._order.append(backend)
        self.used_bytes += batch.footprint_bytes
        batch.cached = True

    def encoded(self, batch: Batch, encoding: Encoding) -> bytes:
        """What a batch in the cache is encoded to takes room there too."""
        before_bytes = batch.footprint_bytes
        data = batch.encoded(encoding)
        if batch.cached:
            self.used_bytes += batch.footprint_bytes - before_bytes
        return data

    def after(self, backend: Backend, cursor: Cursor) -> Batch | None:
        """The batch that holds the first result after `cursor`, which is not before `kept_from`."""
        place = bisect_right(backend.batches, cursor, key=lambda batch: batch.end)
        return backend.batches[place] if place < len(backend.batches) else None

    def forget(self, backend: Backend) -> None:
        for batch in backend.batches:
            self.used_bytes -= batch.footprint_bytes
            batch.cached = False
        backend.batches.clear()
        backend.kept_from = backend.position

    def trim(self) -> None:
        """Encoding may have made it too large, and forgotten subscriptions leave their places in the order."""
        self._evict()
        if len(self._order) > 64 and not self.used_bytes:
            self._order.clear()

    def _evict(self) -> None:
        while self.used_bytes > self.limit_bytes and self._order:
            backend = self._order.popleft()
            if backend.batches:
                gone = backend.batches.pop(0)
                backend.kept_from = gone.end
                gone.cached = False
                self.used_bytes -= gone.footprint_bytes
