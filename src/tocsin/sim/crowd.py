"""A small seeded city: people who wander, emergencies that happen, and what people subscribe to [BAD §6.1.2].

Pure and quick: straight walks between random places in a rectangle. Positions are a function of the seed and of the
steps taken, never of a clock.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

KINDS = ("fire", "flood", "storm", "crash", "outage", "explosion", "spill", "riot")
"""Eight kinds of emergency, as in the paper."""
SOUTH_WEST, NORTH_EAST = (60.155, 24.89), (60.195, 24.99)
"""About 4.4 × 5.5 km of central Helsinki."""
LOCATIONS = 12
"""Places people pick from when they subscribe to a location, so that some share their choice."""


@dataclass(frozen=True, slots=True)
class Wish:
    """A frontend subscription: who wants which channel with which values."""

    person: str
    channel: str
    parameters: dict[str, Any]


class Crowd:
    def __init__(self, people: int, generator: np.random.Generator) -> None:
        self._generator = generator
        self.people = [f"person-{number}" for number in range(people)]
        self._places = self._anywhere(people)
        self._goals = self._anywhere(people)
        self._speeds_m_s = generator.uniform(0.8, 14.0, people)  # walkers to cars
        self._reports = 0
        self._locations = [tuple(round(value, 4) for value in place) for place in self._anywhere(LOCATIONS).tolist()]

    def step(self, seconds: float) -> None:
        """Everybody goes towards a goal, and chooses another on arrival."""
        to_goal = self._goals - self._places
        metres = np.hypot(to_goal[:, 0] * 111_195, to_goal[:, 1] * 111_195 * math.cos(math.radians(60.17)))
        share = np.minimum(1.0, self._speeds_m_s * seconds / np.maximum(metres, 1e-9))
        self._places = self._places + to_goal * share[:, None]
        arrived = share >= 1.0
        self._goals[arrived] = self._anywhere(int(arrived.sum()))

    def locations(self, at: str) -> list[dict[str, Any]]:
        """Where everybody is, as records of UserLocations."""
        return [
            {"user_id": person, "lat": lat, "lon": lon, "at": at}
            for person, (lat, lon) in zip(self.people, self._places.round(6).tolist(), strict=True)
        ]

    def emergencies(self, count: int, at: str) -> list[dict[str, Any]]:
        """Records of EmergencyReports, 200 to 700 bytes each."""
        reports = []
        for lat, lon in self._anywhere(count).round(6).tolist():
            kind = KINDS[int(self._generator.integers(len(KINDS)))]
            reports.append(
                {
                    "report_id": f"report-{self._reports}",
                    "kind": kind,
                    "severity": int(self._generator.integers(1, 6)),
                    "lat": lat,
                    "lon": lon,
                    "message": f"{kind} reported here. ".ljust(int(self._generator.integers(60, 560)), "."),
                    "reported_at": at,
                }
            )
            self._reports += 1
        return reports

    def wishes(self) -> list[Wish]:
        """Each person subscribes to one to five channels, one to three times each [BAD §6.1.2]."""
        return [wish for person in self.people for wish in self._wishes_of(person)]

    def _wishes_of(self, person: str) -> list[Wish]:
        channels = self._generator.permutation(len(_PARAMETERS))[: int(self._generator.integers(1, 6))]
        wishes = []
        for index in channels.tolist():
            channel, names = _PARAMETERS[index]
            for _ in range(int(self._generator.integers(1, 4))):
                lat, lon = self._locations[int(self._generator.integers(LOCATIONS))]
                values = {
                    "kind": KINDS[int(self._generator.integers(len(KINDS)))],
                    "user": person,
                    "lat": lat,
                    "lon": lon,
                    "radius_m": 500.0 * int(self._generator.integers(1, 4)),
                }
                wish = Wish(person, channel, {name: values[name] for name in names})
                if wish not in wishes:
                    wishes.append(wish)
        return wishes

    def _anywhere(self, count: int) -> npt.NDArray[np.float64]:
        low, high = np.array(SOUTH_WEST), np.array(NORTH_EAST)
        spread: npt.NDArray[np.float64] = low + self._generator.random((count, 2)) * (high - low)
        return spread


_PARAMETERS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("EmergenciesOfType", ("kind",)),
    ("EmergenciesAtLocation", ("lat", "lon", "radius_m")),
    ("EmergenciesNearMe", ("user",)),
    ("EmergenciesOfTypeNearMe", ("kind", "user")),
    ("EmergenciesOfTypeAtLocation", ("kind", "lat", "lon", "radius_m")),
    ("EmergenciesOfTypeWithShelterNearMe", ("kind", "user")),
    ("EmergenciesOfTypeAtLocationWithShelter", ("kind", "lat", "lon", "radius_m")),
    ("SevereNearMe", ("user", "radius_m")),
)
