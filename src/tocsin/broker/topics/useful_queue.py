"""The queue of a slow receiver of a volatile topic: it drops the least useful messages first [ePEER §6.2.2].

Pure. Messages leave in order of their sequence numbers. The caller drops messages that are too old (`expire`), then
bounds the queue (`shrink`): that drops the least useful messages, and among equals the oldest, because it is late
already. Utilities are rounded to 1/20, so that no operation searches the whole queue.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from tocsin.wire.topic import Entry

OVERHEAD_BYTES = 64
"""Memory of a message besides its data. It bounds the number of small messages."""
_LEVELS = 20


class QueuedMessage(NamedTuple):
    sequence: int
    epoch: int
    entry: Entry

    @property
    def size_bytes(self) -> int:
        return len(self.entry[2]) + OVERHEAD_BYTES


class UsefulQueue:
    def __init__(self) -> None:
        self.used_bytes = 0
        self._count = 0
        self._levels: dict[int, deque[QueuedMessage]] = {}
        """Utility in steps → its messages, oldest first. No deque is empty."""

    def __len__(self) -> int:
        return self._count

    def put(self, message: QueuedMessage, utility: float) -> None:
        """Add a message with a higher sequence number than all earlier ones."""
        level = round(utility * _LEVELS)
        queued = self._levels.get(level)
        if queued is None:
            queued = self._levels[level] = deque()
        queued.append(message)
        self._count += 1
        self.used_bytes += message.size_bytes

    def expire(self, upto: int) -> None:
        """Drop the messages up to this sequence number."""
        for level in list(self._levels):
            while level in self._levels and self._levels[level][0].sequence <= upto:
                self._pop(level)

    def shrink(self, room_bytes: float) -> None:
        """Drop the least useful messages until the others fit. One message stays, whatever its size."""
        while self.used_bytes > room_bytes and self._count > 1:
            self._pop(min(self._levels))

    def take(self, limit_bytes: int) -> list[QueuedMessage]:
        """Remove the oldest messages, of about `limit_bytes` in all; at least one, if there is any."""
        taken: list[QueuedMessage] = []
        size_bytes = 0
        while self._levels and size_bytes < limit_bytes:
            message = self._pop(min(self._levels, key=self._first))
            size_bytes += message.size_bytes
            taken.append(message)
        return taken

    def _first(self, level: int) -> int:
        return self._levels[level][0].sequence

    def _pop(self, level: int) -> QueuedMessage:
        """Remove the oldest message of a level."""
        queued = self._levels[level]
        message = queued.popleft()
        self._count -= 1
        self.used_bytes -= message.size_bytes
        if not queued:
            del self._levels[level]
        return message
