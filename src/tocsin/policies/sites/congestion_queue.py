"""A bounded queue for one slow subscriber that drops the least useful message first [ePEER §6.2.2, future work].

Messages leave in the order they came. When there is no room, the least useful of all that wait, the new one included,
is dropped; among equals the oldest, because it is the one that is late already. Pure and in memory: the edge that
serves the subscriber owns it.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from dataclasses import dataclass
from typing import Generic, TypeVar

M = TypeVar("M")


@dataclass(frozen=True, slots=True)
class Waiting(Generic[M]):
    message: M
    utility: float
    size_bytes: int


class UsefulQueue(Generic[M]):
    def __init__(self, room_bytes: int) -> None:
        if room_bytes < 1:
            raise ValueError(f"a queue has room for at least one byte, not {room_bytes}")
        self.room_bytes = room_bytes
        self.used_bytes = 0
        self.dropped = 0
        self._waiting: OrderedDict[int, Waiting[M]] = OrderedDict()
        self._least: list[tuple[float, int]] = []
        """A heap of (utility, number); numbers that have left are skipped when they come up."""
        self._number = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, message: M, utility: float, size_bytes: int) -> list[M]:
        """Returns what was dropped for it, which may be the message itself."""
        if size_bytes > self.room_bytes:
            self.dropped += 1
            return [message]
        self._number += 1
        self._waiting[self._number] = Waiting(message, utility, size_bytes)
        self.used_bytes += size_bytes
        heapq.heappush(self._least, (utility, self._number))
        dropped = []
        while self.used_bytes > self.room_bytes:
            dropped.append(self._drop_least())
        self.dropped += len(dropped)
        return dropped

    def take(self) -> M | None:
        """The oldest; None when nothing waits."""
        if not self._waiting:
            return None
        _, waiting = self._waiting.popitem(last=False)
        self.used_bytes -= waiting.size_bytes
        self._tidy()
        return waiting.message

    def _drop_least(self) -> M:
        while True:
            _, number = heapq.heappop(self._least)
            waiting = self._waiting.pop(number, None)
            if waiting is not None:
                self.used_bytes -= waiting.size_bytes
                return waiting.message

    def _tidy(self) -> None:
        """Entries of messages long gone may not outgrow those that wait."""
        if len(self._least) > 2 * len(self._waiting) + 16:
            self._least = [(waiting.utility, number) for number, waiting in self._waiting.items()]
            heapq.heapify(self._least)
