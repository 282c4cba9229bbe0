"""A pool of equal workers in virtual time: whoever asks first is served first.

Used for the migration executors of the topic simulation [ePulsar §3.6] and for anything else of which there are only so
many. It is not a thread pool: a worker is a permit that a simulated process holds.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from tocsin.sim.kernel import Kernel, Signal


class Pool:
    """`size` permits. `yield pool.acquire()` waits for one; `release` hands it to who has waited longest."""

    def __init__(self, kernel: Kernel, size: int) -> None:
        if size < 1:
            raise ValueError(f"a pool has at least one worker, not {size}")
        self._kernel = kernel
        self.size = size
        self.busy = 0
        self._waiting: deque[Signal[Any]] = deque()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def acquire(self) -> Signal[Any]:
        """A signal that fires with the time at which the permit was granted."""
        granted: Signal[Any] = self._kernel.signal()
        if self.busy < self.size:
            self.busy += 1
            granted.fire(self._kernel.now_s)
        else:
            self._waiting.append(granted)
        return granted

    def release(self) -> None:
        if self.busy < 1:
            raise RuntimeError("released a permit that nobody held")
        if self._waiting:
            self._waiting.popleft().fire(self._kernel.now_s)
        else:
            self.busy -= 1
