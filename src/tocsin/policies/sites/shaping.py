"""The configured capacity of a broker, enforced: an egress shaper (bytes/s) and a matching budget (messages/s).

Pure and without a clock. One `Shaper` counts bytes before the broker's connections (`runtime.broker.egress`), another
one counts 1 per message before its matching (`runtime.broker.matching`). A driver calls `offer` for each item, sends
the items that come back, and calls `release` at `next_s()` for those that wait. The rate changes at run time (a quota
that an operator sets, or the emulated damage of a site), without losing or reordering an item.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

M = TypeVar("M")

BURST_S = 0.05
"""How long a shaper that was idle may send at once: 50 ms of its rate. A shorter burst wakes the driver more often; a
longer one exceeds the rate for longer than a load detection would overlook."""
LATE_S = 0.5
"""While items wait, a driver that comes late sends at once what it should have sent before: at most this long. Without
it, a busy machine would send less than the rate."""


class Shaper(Generic[M]):
    """A token bucket with a queue. Items leave in the order in which they came.

    An item may leave when the bucket is not in debt, and then takes its whole cost: so an item larger than the bucket
    leaves too, and the next one waits until its debt is paid. Over time the rate is exact.
    """

    def __init__(self, rate_per_s: float = math.inf, now_s: float = 0.0) -> None:
        self.queued_cost = 0.0
        self._queue: deque[tuple[M, float]] = deque()
        self._rate_per_s = _checked(rate_per_s)
        self._tokens = self._burst
        self._at_s = now_s

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def rate_per_s(self) -> float:
        return self._rate_per_s

    def set_rate(self, rate_per_s: float, now_s: float) -> list[M]:
        """Change the rate and return the items that may leave now. Tokens earned at the old rate stay earned, up to the
        new burst."""
        self._earn(now_s)
        self._rate_per_s = _checked(rate_per_s)
        self._tokens = min(self._tokens, self._burst)
        return self.release(now_s)

    def offer(self, item: M, cost: float, now_s: float) -> list[M]:
        """Add an item and return the items that may leave now, which may include it."""
        self._earn(now_s)
        self._queue.append((item, cost))
        self.queued_cost += cost
        return self.release(now_s)

    def release(self, now_s: float) -> list[M]:
        """The items that may leave now."""
        self._earn(now_s)
        ready: list[M] = []
        while self._queue and self._may_leave():
            item, cost = self._queue.popleft()
            self.queued_cost = self.queued_cost - cost if self._queue else 0.0
            self._tokens -= cost if math.isfinite(self._rate_per_s) else 0.0
            ready.append(item)
        if not self._queue:
            self._tokens = min(self._tokens, self._burst)
        return ready

    def refund(self, cost: float, now_s: float) -> list[M]:
        """Take back the cost of an item that left and was not sent; return the items that may leave now."""
        if math.isfinite(self._rate_per_s):
            self._tokens += cost
        return self.release(now_s)

    def keep(self, wanted: Callable[[M], bool]) -> None:
        """Drop the items that are not wanted any more; they cost nothing."""
        self._queue = deque(queued for queued in self._queue if wanted(queued[0]))
        self.queued_cost = sum(cost for _, cost in self._queue)

    def next_s(self) -> float | None:
        """When the next item may leave; None if none waits, or if the rate is 0."""
        if not self._queue or self._rate_per_s <= 0.0:
            return None
        return self._at_s + max(0.0, -self._tokens / self._rate_per_s)

    @property
    def burst(self) -> float:
        """The cost that an idle shaper lets through at once; infinite without a rate."""
        return self._rate_per_s * BURST_S

    @property
    def _burst(self) -> float:
        return self._rate_per_s * BURST_S if math.isfinite(self._rate_per_s) else 0.0

    def _may_leave(self) -> bool:
        # Rounding: a debt that is paid but for the last bits counts as paid.
        return math.isinf(self._rate_per_s) or (self._rate_per_s > 0.0 and self._tokens >= -1e-9 * self._rate_per_s)

    def _earn(self, now_s: float) -> None:
        """A clock that steps back earns nothing."""
        passed_s = max(0.0, now_s - self._at_s)
        self._at_s = max(now_s, self._at_s)
        if math.isinf(self._rate_per_s):
            self._tokens = 0.0
        else:
            most = self._rate_per_s * LATE_S if self._queue else self._burst
            self._tokens = max(self._tokens, min(most, self._tokens + passed_s * self._rate_per_s))


def _checked(rate_per_s: float) -> float:
    if not rate_per_s >= 0.0:
        raise ValueError(f"a rate is at least 0 per second, not {rate_per_s}")
    return rate_per_s
