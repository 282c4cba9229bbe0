"""Links as delay lines: what goes in comes out in order, one delay later.

A link models propagation, optional serialisation at a bit rate, and a clock of its own when it is busy. It is not a
model of loss or of routes: a simulation that wants those composes several links or drops before it sends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tocsin.sim.kernel import Kernel


class Link:
    """One direction of a connection. `delay_s` may be changed while messages are on their way; none overtakes."""

    def __init__(self, kernel: Kernel, delay_s: float, *, rate_bytes_per_s: float | None = None) -> None:
        if delay_s < 0 or (rate_bytes_per_s is not None and rate_bytes_per_s <= 0):
            raise ValueError(f"a link cannot have delay {delay_s} s and rate {rate_bytes_per_s} bytes/s")
        self._kernel = kernel
        self.delay_s = delay_s
        self.rate_bytes_per_s = rate_bytes_per_s
        self.sent_bytes = 0
        self._free_at_s = 0.0
        self._last_arrival_s = 0.0

    def send(self, action: Callable[..., object], *arguments: Any, size_bytes: int = 0) -> float:
        """Call `action` at the far end; returns when it arrives."""
        self.sent_bytes += size_bytes
        leaves_s = self._kernel.now_s
        if self.rate_bytes_per_s is not None:
            leaves_s = max(leaves_s, self._free_at_s) + size_bytes / self.rate_bytes_per_s
            self._free_at_s = leaves_s
        arrives_s = max(leaves_s + self.delay_s, self._last_arrival_s)
        self._last_arrival_s = arrives_s
        self._kernel.call_at(arrives_s, action, *arguments)
        return arrives_s
