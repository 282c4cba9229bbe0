"""Random waypoint: pick a point of the city, fly there at constant speed, hover, pick the next [ePulsar §5.1.1].

Positions as a function of time for one mover; who is where is asked, not pushed. Seeded by the generator handed in.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Point = npt.NDArray[np.float64]


class RandomWaypoint:
    """A mover in a square of `side_m`. Ask `at` with times that do not go back."""

    def __init__(self, rng: np.random.Generator, side_m: float, speed_m_per_s: float, hover_s: float = 0.0) -> None:
        if speed_m_per_s <= 0.0 or hover_s < 0.0:
            raise ValueError(f"nobody flies at {speed_m_per_s} m/s and hovers for {hover_s} s")
        self._rng, self._side_m, self._speed, self._hover_s = rng, side_m, speed_m_per_s, hover_s
        self._from: Point = rng.uniform(0.0, side_m, 2)
        self._to, self._leaves_s, self._arrives_s = self._from, 0.0, 0.0
        self._next_leg(0.0)

    def at(self, time_s: float) -> Point:
        while time_s >= self._arrives_s + self._hover_s:
            self._from = self._to
            self._next_leg(self._arrives_s + self._hover_s)
        share = min(1.0, (time_s - self._leaves_s) / (self._arrives_s - self._leaves_s))
        return self._from + share * (self._to - self._from)

    def _next_leg(self, leaves_s: float) -> None:
        self._to = self._rng.uniform(0.0, self._side_m, 2)
        length_m = max(float(np.linalg.norm(self._to - self._from)), 1e-3)
        self._leaves_s, self._arrives_s = leaves_s, leaves_s + length_m / self._speed
