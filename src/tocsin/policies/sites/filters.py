"""Where a congested site discards messages: a publisher's rate limit and a slow subscriber's queue.

Pure and without a clock. `RateLimit` is the rate limit filter of [ePEER §5.2.1]: the publisher's library calls
`admit(now_s)` before it builds a message, and discards the message at no cost if it is not admitted. The head sets the
rate. `UsefulQueue` belongs to the edge that serves a slow subscriber [ePEER §6.2.2, future work].
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

M = TypeVar("M")


@dataclass(frozen=True, slots=True)
class RateLimit:
    """A token bucket. It is a value: `admit` returns the answer and the bucket after it."""

    rate_per_s: float = math.inf
    """Messages per second; infinite: no limit, 0: stop."""
    burst: float = 1.0
    """Messages that may follow each other at once after a pause. The thesis compares a measured rate with the limit,
    which admits a burst as long as its measuring window. One second's worth is the same for limits above 1/s."""
    tokens: float = 1.0
    at_s: float = 0.0

    @classmethod
    def of(cls, rate_per_s: float, now_s: float) -> RateLimit:
        """A full bucket of one second's worth."""
        if not rate_per_s >= 0.0:
            raise ValueError(f"a rate is at least 0 messages per second, not {rate_per_s}")
        burst = max(1.0, rate_per_s) if rate_per_s > 0.0 else 0.0
        return cls(rate_per_s, burst, burst, now_s)

    def admit(self, now_s: float) -> tuple[bool, RateLimit]:
        """Decide whether a message may be sent now. A clock that steps back adds and removes no tokens."""
        if math.isinf(self.rate_per_s):
            return True, self
        tokens = self._tokens_at(now_s)
        at_s = max(now_s, self.at_s)
        # Rounding: a token that is complete but for the last bits counts as complete.
        if tokens >= 1.0 - 1e-9:
            return True, replace(self, tokens=max(0.0, tokens - 1.0), at_s=at_s)
        return False, replace(self, tokens=tokens, at_s=at_s)

    def limited_to(self, rate_per_s: float, now_s: float) -> RateLimit:
        """The bucket with another rate. It keeps its tokens as far as the new bucket holds them: a higher limit grants
        no burst, a lower limit removes the old one."""
        fresh = RateLimit.of(rate_per_s, now_s)
        if math.isinf(self.rate_per_s) or math.isinf(rate_per_s):
            return fresh
        return replace(fresh, tokens=min(self._tokens_at(now_s), fresh.burst))

    def _tokens_at(self, now_s: float) -> float:
        return min(self.burst, self.tokens + self.rate_per_s * max(0.0, now_s - self.at_s))


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
