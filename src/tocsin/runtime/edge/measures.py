"""The processor's share of a node, and the rate of its rows."""

from __future__ import annotations

import time

_BURST_S = 0.1
_RATE_S = 3.0


class CpuBudget:
    """A share of one core. A node that used more waits until the time has passed that its work may take."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._free_s = 0.0

    def spend(self, cpu_s: float, now_s: float) -> float:
        """Count processor time. Returns how many seconds to wait before further work."""
        self._free_s = max(self._free_s, now_s - _BURST_S) + cpu_s / self._share
        return max(0.0, self._free_s - now_s)


class Rates:
    """Rows per second, over the last seconds."""

    def __init__(self) -> None:
        self.total = 0
        self._samples: list[tuple[float, int]] = [(time.monotonic(), 0)]

    def count(self, rows: int) -> None:
        self.total += rows

    def per_s(self, now_s: float) -> float:
        self._samples.append((now_s, self.total))
        while len(self._samples) > 2 and self._samples[1][0] <= now_s - _RATE_S:
            del self._samples[0]
        since_s, before = self._samples[0]
        return (self.total - before) / (now_s - since_s) if now_s > since_s else 0.0
