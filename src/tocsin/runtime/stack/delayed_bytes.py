"""One direction of a delayed connection: chunks of bytes, each with the time at which it is due. Pure.

The delay may change while chunks wait. A chunk keeps its due time, and a later chunk is never due before an earlier
one: TCP keeps the order.
"""

from __future__ import annotations

from collections import deque


class DelayedBytes:
    __slots__ = ("_chunks", "_last_due_s", "waiting_bytes")

    def __init__(self, not_before_s: float = 0.0) -> None:
        """No chunk is due before `not_before_s`."""
        self._chunks: deque[tuple[float, bytes]] = deque()
        self._last_due_s = not_before_s
        self.waiting_bytes = 0

    def add(self, data: bytes, now_s: float, delay_s: float) -> float:
        """Add a chunk that was read now; an empty one is the end of the stream. Returns its due time."""
        self._last_due_s = max(self._last_due_s, now_s + delay_s)
        self._chunks.append((self._last_due_s, data))
        self.waiting_bytes += len(data)
        return self._last_due_s

    def due(self, now_s: float) -> tuple[float, bytes] | None:
        """The first chunk and its due time, if it is due; it stays until `sent` removes it."""
        if not self._chunks or self._chunks[0][0] > now_s:
            return None
        return self._chunks[0]

    def sent(self, count: int) -> None:
        """The first `count` bytes of the first chunk are sent."""
        due_s, data = self._chunks.popleft()
        self.waiting_bytes -= count
        if count < len(data):
            self._chunks.appendleft((due_s, data[count:]))

    @property
    def next_due_s(self) -> float | None:
        return self._chunks[0][0] if self._chunks else None
