"""Simulated smart meters of one neighbourhood, as one publisher sends them [AMI §1.1, figure 3]. No clock, no I/O.

All consumptions are multiples of 1/1024 kWh: sums are exact in any order, so results can be compared bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

STREAM: Final = "Readings"
DECLARATION: Final = (
    f"CREATE EDGE STREAM {STREAM} "
    "(meter STRING, neighbourhood STRING, district STRING, ts TIMESTAMP, kwh DOUBLE) TIME ts;"
)
SCHEMA: Final = pa.schema(
    [
        ("meter", pa.string()),
        ("neighbourhood", pa.string()),
        ("district", pa.string()),
        ("ts", pa.timestamp("us", "UTC")),
        ("kwh", pa.float64()),
    ]
)
_USUAL: Final = 512
"""Mean consumption of a usual meter, in 1/1024 kWh per reading."""
_HIGH: Final = 8
"""A suspicious meter uses this many times as much [AMI §2.2.1: the filters look for suspicious values]."""


@dataclass(frozen=True, slots=True)
class Place:
    neighbourhood: str
    district: str


class MeterGroup:
    """Meters that read at a common rate, each at its own moments. Every `high_each`-th meter has a suspicious use."""

    def __init__(
        self, name: str, place: Place, meters: int, rate_per_s: float, start_us: int, seed: int, high_each: int = 100
    ) -> None:
        self.name = name
        self.place = place
        self.rate_per_s = rate_per_s
        """Readings per second and meter. It may change between two calls [AMI §1.1: the rate depends on the time]."""
        self._random = np.random.default_rng(seed)
        self._names = pa.array([f"{name}-{number:05}" for number in range(meters)])
        self._level = np.where(np.arange(meters) % high_each == 0, _HIGH, 1)
        self._next_us: Any = start_us + self._random.integers(0, round(1e6 / rate_per_s), meters)

    def __len__(self) -> int:
        return len(self._names)

    def change_rate(self, factor: float) -> None:
        """Read this many times as often from the next reading on."""
        self.rate_per_s *= factor

    def readings(self, until_us: int) -> pa.RecordBatch | None:
        """The readings of all meters before this time that were not returned before, in order of time."""
        interval_us = max(1, round(1e6 / self.rate_per_s))
        counts = np.maximum(0, -((self._next_us - until_us) // interval_us))
        total = int(counts.sum())
        if not total:
            return None
        meters = np.repeat(np.arange(len(self)), counts)
        repeated = np.arange(total) - np.repeat(counts.cumsum() - counts, counts)
        times = self._next_us[meters] + repeated * interval_us
        self._next_us += counts * interval_us
        order = np.argsort(times, kind="stable")
        meters, times = meters[order], times[order]
        kwh = self._random.integers(1, 2 * _USUAL, total) * self._level[meters] / 1024.0
        columns = [
            self._names.take(pa.array(meters)),
            pa.array([self.place.neighbourhood]).take(pa.array(np.zeros(total, np.int8))),
            pa.array([self.place.district]).take(pa.array(np.zeros(total, np.int8))),
            pa.array(times).cast(pa.timestamp("us", "UTC")),
            pa.array(kwh),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
