"""The load of a broker: moving averages in bytes/s [BAD §4, eq. 1–5; §6.1.2].

λ_k is measured per backend subscription where its results arrive; I_j is the sum over the held subscriptions (eq. 1).
O_j is measured where results are handed to sessions (eq. 4). The load of one subscriber follows from its subscriptions,
Σ_k y_ik λ_k, so a subscriber has no counter of its own: a counter would cost one more write per delivery.

The average is exponential with one time constant: a plain window would have to store every arrival of the last minute.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

WINDOW_S = 60.0
"""Default time constant: an arrival this long ago counts for 1/e."""
REPORT_SHARE = 0.05
"""A rate is reported again when it has changed by more than this share."""


@dataclass(slots=True)
class Rate:
    """A decaying sum of amounts, per second."""

    window_s: float = WINDOW_S
    value_per_s: float = 0.0
    at_s: float = 0.0
    reported_per_s: float = 0.0

    def add(self, amount: float, now_s: float) -> None:
        self.value_per_s = self.now(now_s) + amount / self.window_s
        self.at_s = max(now_s, self.at_s)

    def now(self, now_s: float) -> float:
        if self.value_per_s == 0.0:
            return 0.0
        value = self.value_per_s * math.exp(-max(0.0, now_s - self.at_s) / self.window_s)
        return value if value > 1e-6 else 0.0

    def take_changed(self, now_s: float) -> float | None:
        """Return the rate and mark it as reported; None if it is within `REPORT_SHARE` of the last reported value."""
        value = self.now(now_s)
        if abs(value - self.reported_per_s) <= REPORT_SHARE * self.reported_per_s:
            return None
        self.reported_per_s = value
        return value


@dataclass(slots=True)
class LoadMeter:
    """Load of the whole broker. Totals count from the start of the process."""

    in_rate: Rate
    out_rate: Rate
    notification_rate: Rate
    in_bytes: int = 0
    out_bytes: int = 0
    notifications: int = 0

    @classmethod
    def fresh(cls, window_s: float = WINDOW_S) -> LoadMeter:
        return cls(Rate(window_s), Rate(window_s), Rate(window_s))

    def fetched(self, size_bytes: int, now_s: float) -> None:
        self.in_bytes += size_bytes
        self.in_rate.add(size_bytes, now_s)

    def delivered(self, size_bytes: int, notifications: int, now_s: float) -> None:
        self.out_bytes += size_bytes
        self.notifications += notifications
        self.out_rate.add(size_bytes, now_s)
        self.notification_rate.add(notifications, now_s)
