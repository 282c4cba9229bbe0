"""Movers on streets, as in the ONE simulator [BAD §6.1.2]: shortest path to a random crossing, pause, next trip.

Positions depend on the seed and the time, not on how often they are read: each mover has a random stream of its own.
Time is virtual and only goes forward. Positions between crossings are interpolated for all movers at once; Python code
runs only for movers that have reached a crossing.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from tocsin.sim.city.streets import Points, Streets

Amounts = npt.NDArray[np.float64]
Draw = Callable[[], float]
"""Returns a random number, uniform in [0, 1)."""


@dataclass(frozen=True, slots=True)
class Gait:
    """Ranges from which a speed for each trip and a pause after it are drawn, uniformly."""

    speed_m_per_s: tuple[float, float]
    pause_s: tuple[float, float] = (0.0, 120.0)


# The ONE simulator's own settings for its Helsinki: 0.5–1.5 m/s, 10–50 km/h, up to two minutes at each destination.
PEDESTRIAN: Final = Gait((0.5, 1.5))
CAR: Final = Gait((2.7, 13.9))


class StreetMovers:
    def __init__(
        self,
        streets: Streets,
        gaits: Sequence[Gait],
        seed: Sequence[int],
        *,
        starts: Amounts | None = None,
        destinations: Amounts | None = None,
    ) -> None:
        """`starts` and `destinations` are weights of the crossings; None gives all crossings the same weight."""
        if len(streets.nodes_m) < 2:
            raise ValueError("a map needs at least two crossings to move on")
        self._streets = streets
        self._nodes_m = [(x, y) for x, y in streets.nodes_m.tolist()]
        self._destinations = _cumulated(destinations, len(self._nodes_m))
        begin = _cumulated(starts, len(self._nodes_m))
        streams = np.random.SeedSequence(list(seed)).spawn(len(gaits))
        draws = (np.random.default_rng(stream).random for stream in streams)
        self._walks = [_Walk(gait, draw, _drawn(draw, begin)) for gait, draw in zip(gaits, draws, strict=True)]
        self._from_m: Points = streets.nodes_m[[walk.node for walk in self._walks]]
        self._to_m: Points = self._from_m.copy()
        self._leaves_s = np.zeros(len(gaits))
        self._arrives_s = np.array([walk.arrives_s for walk in self._walks])
        self.time_s = 0.0

    def __len__(self) -> int:
        return len(self._walks)

    def at(self, time_s: float) -> Points:
        """The position of each mover, in metres. Raises ValueError if `time_s` is before that of the previous call."""
        if time_s < self.time_s:
            raise ValueError(f"position at {time_s} s requested after {self.time_s} s: movers do not go back")
        self.time_s = time_s
        arrived = np.flatnonzero(self._arrives_s <= time_s)
        if len(arrived):
            walks = [self._walks[number] for number in arrived.tolist()]
            segments = [self._walked(walk, time_s) for walk in walks]
            self._from_m[arrived], self._to_m[arrived] = zip(*segments, strict=True)
            self._leaves_s[arrived] = [walk.leaves_s for walk in walks]
            self._arrives_s[arrived] = [walk.arrives_s for walk in walks]
        share = (time_s - self._leaves_s) / (self._arrives_s - self._leaves_s)
        return self._from_m + (self._to_m - self._from_m) * share[:, None]

    def _walked(self, walk: _Walk, time_s: float) -> tuple[tuple[float, float], tuple[float, float]]:
        """Advance `walk` to its segment at `time_s` and return both ends. A pause is a segment of length 0."""
        nodes = self._nodes_m
        here = nodes[walk.node]
        there = here
        while walk.arrives_s <= time_s:
            here = nodes[walk.node]
            walk.leaves_s = walk.arrives_s
            if not walk.path and walk.paused:
                self._set_out(walk)
            walk.paused = not walk.path
            if walk.paused:
                there = here
                walk.arrives_s += walk.pause_s()
            else:
                walk.node = walk.path.pop()
                there = nodes[walk.node]
                walk.arrives_s += math.hypot(there[0] - here[0], there[1] - here[1]) / walk.speed_m_per_s
        return here, there

    def _set_out(self, walk: _Walk) -> None:
        destination = walk.node
        while destination == walk.node:
            destination = _drawn(walk.draw, self._destinations)
        low, high = walk.gait.speed_m_per_s
        walk.speed_m_per_s = low + (high - low) * walk.draw()
        walk.path = self._streets.path(walk.node, destination)[::-1]


class _Walk:
    """One mover: its current segment, and the crossings after it, last first."""

    __slots__ = ("arrives_s", "draw", "gait", "leaves_s", "node", "path", "paused", "speed_m_per_s")

    def __init__(self, gait: Gait, draw: Draw, node: int) -> None:
        self.gait = gait
        self.draw = draw
        self.node = node
        """The crossing at the end of the segment."""
        self.path: list[int] = []
        self.speed_m_per_s = 1.0
        self.leaves_s = 0.0
        # Each mover begins with a pause, so that not all set out at once.
        self.paused = True
        self.arrives_s = self.pause_s()

    def pause_s(self) -> float:
        low, high = self.gait.pause_s
        return max(1e-3, low + (high - low) * self.draw())  # above 0: positions divide by the duration


def _drawn(draw: Draw, cumulated: list[float]) -> int:
    return bisect_right(cumulated, draw())


def _cumulated(weights: Amounts | None, count: int) -> list[float]:
    amounts = np.ones(count) if weights is None else np.asarray(weights, np.float64)
    if len(amounts) != count or (amounts < 0.0).any() or (amounts > 0.0).sum() < 2:
        raise ValueError("expected a weight per crossing, none below 0 and at least two above it")
    total: list[float] = (np.cumsum(amounts) / amounts.sum()).tolist()
    last = int(np.flatnonzero(amounts)[-1])  # rounding must not make a crossing of weight 0 reachable
    return total[:last] + [1.0] * (count - last)


def gathering(streets: Streets, centre_m: Sequence[float] | Points, spread_m: float, floor: float) -> Amounts:
    """Weights of crossings around a point: a Gaussian of width `spread_m` over a constant `floor` (0 to 1)."""
    away_m = np.hypot(*(streets.nodes_m - np.asarray(centre_m, np.float64)).T)
    bell: Amounts = np.exp(-0.5 * (away_m / spread_m) ** 2)
    return floor + (1.0 - floor) * bell
