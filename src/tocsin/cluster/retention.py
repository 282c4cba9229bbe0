"""The retention clock: the time that counts for retention. A step of the wall clock does not move it.

It starts at the wall time of the first start and advances with the time that the machine has been up. So a wall clock
that jumps two days ahead expires nothing, and a wall clock that is set back does not make new records look old when it
is corrected. The catalog stores the clock, so it goes on after a restart. The time between a shutdown of the machine
and the next start cannot be measured and does not count: records stay longer, never shorter.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tocsin.cluster.catalog import Catalog

CLOCK_FACT = "retention_clock"
STORE_EVERY_S = 60.0
"""The clock is stored this often. After a crash of the machine it is behind by no more than this."""


@dataclass(frozen=True, slots=True)
class Uptime:
    """How long a machine has been up, suspended time included."""

    elapsed_s: Callable[[], float]
    boot: str | None
    """Names the boot since which `elapsed_s` counts; None if it is unknown."""


def machine_uptime() -> Uptime:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return Uptime(lambda: time.clock_gettime(time.CLOCK_BOOTTIME), boot)
    except (OSError, AttributeError):  # not Linux
        return Uptime(time.monotonic, None)


class StoredClock(msgspec.Struct):
    retention_s: float
    elapsed_s: float
    boot: str | None


class RetentionClock:
    """Thread-safe. Call it for the time in seconds."""

    def __init__(self, catalog: Catalog, wall_s: Callable[[], float], uptime: Uptime) -> None:
        self._catalog = catalog
        self._uptime = uptime
        self._lock = threading.Lock()
        elapsed_s = uptime.elapsed_s()
        text = catalog.fact(CLOCK_FACT)
        if text is None:
            start_s = wall_s()
        else:
            stored = msgspec.json.decode(text, type=StoredClock)
            same_boot = uptime.boot is not None and stored.boot == uptime.boot
            start_s = stored.retention_s + (max(0.0, elapsed_s - stored.elapsed_s) if same_boot else 0.0)
        self._offset_s = start_s - elapsed_s
        self._stored_at_s = -STORE_EVERY_S
        self.store()

    def __call__(self) -> float:
        return self._offset_s + self._uptime.elapsed_s()

    def store(self, every_s: float = 0.0) -> None:
        """Store the clock, unless it was stored less than `every_s` ago."""
        with self._lock:
            now_s, elapsed_s = self(), self._uptime.elapsed_s()
            if now_s - self._stored_at_s >= every_s:
                stored = StoredClock(now_s, elapsed_s, self._uptime.boot)
                self._catalog.set_fact(CLOCK_FACT, msgspec.json.encode(stored).decode())
                self._stored_at_s = now_s
