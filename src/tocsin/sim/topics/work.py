"""The time that real processes work on a message, measured beside a live scenario and replayed in its simulation.

The simulated network has delays alone. A live message also takes the work of both clients, the relay and the home, and
that work grows while the machine is busy. A prediction for a live run therefore adds work that was measured at the same
time of the run, so that busy moments are as long in both.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterable

import numpy as np

NEAR = 8
"""A message gets one of the measurements among the `NEAR` before it and the `NEAR` after it."""


class MeasuredWork:
    """Call it with the time of a message to get the seconds of work."""

    def __init__(self, measured: Iterable[tuple[float, float]], rng: np.random.Generator) -> None:
        """`measured`: (time, seconds of work), in any order; at least one."""
        self._at_s, self._work_s = zip(*sorted(measured), strict=True)
        self._rng = rng

    def __call__(self, at_s: float) -> float:
        index = bisect(self._at_s, at_s) + int(self._rng.integers(-NEAR, NEAR))
        return float(self._work_s[min(max(index, 0), len(self._work_s) - 1)])
