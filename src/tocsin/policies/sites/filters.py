"""Where a congested site discards messages: the queue of a slow subscriber. `model.rate_limit` limits publishers.

Pure. `UsefulQueue` belongs to the edge that serves a slow subscriber [ePEER §6.2.2, future work].
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from dataclasses import dataclass
from typing import Generic, TypeVar

M = TypeVar("M")


@dataclass(frozen=True, slots=True)
class QueuedMessage(Generic[M]):
    message: M
    utility: float
    size_bytes: int


class UsefulQueue(Generic[M]):
    """A bounded queue that drops the least useful message first.

    Messages leave in order of arrival. Without room, the queue drops the least useful message, which may be the new
    one; among equals the oldest, because it is already late.
    """

    def __init__(self, room_bytes: int) -> None:
        if room_bytes < 1:
            raise ValueError(f"a queue has room for at least one byte, not {room_bytes}")
        self.room_bytes = room_bytes
        self.used_bytes = 0
        self.dropped = 0
        self._queued: OrderedDict[int, QueuedMessage[M]] = OrderedDict()
        self._least: list[tuple[float, int]] = []
        """A heap of (utility, number). It also holds numbers that have left the queue; `_drop_least` skips them."""
        self._number = 0

    def __len__(self) -> int:
        return len(self._queued)

    def put(self, message: M, utility: float, size_bytes: int) -> list[M]:
        """Add a message and return the dropped messages, which may include it."""
        if size_bytes > self.room_bytes:
            self.dropped += 1
            return [message]
        self._number += 1
        self._queued[self._number] = QueuedMessage(message, utility, size_bytes)
        self.used_bytes += size_bytes
        heapq.heappush(self._least, (utility, self._number))
        dropped = []
        while self.used_bytes > self.room_bytes:
            dropped.append(self._drop_least())
        self.dropped += len(dropped)
        return dropped

    def take(self) -> M | None:
        """Remove and return the oldest message; None if the queue is empty."""
        if not self._queued:
            return None
        _, oldest = self._queued.popitem(last=False)
        self.used_bytes -= oldest.size_bytes
        # The heap's entries of messages that have left must not outgrow the queue.
        if len(self._least) > 2 * len(self._queued) + 16:
            self._least = [(queued.utility, number) for number, queued in self._queued.items()]
            heapq.heapify(self._least)
        return oldest.message

    def _drop_least(self) -> M:
        while True:
            _, number = heapq.heappop(self._least)
            queued = self._queued.pop(number, None)
            if queued is not None:
                self.used_bytes -= queued.size_bytes
                return queued.message
