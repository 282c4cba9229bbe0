"""The crowd of the emergency city [BAD §6.1.2]: where people are, what they do, and the emergency reports.

Four hundred people walk and drive on streets, most of them in one quarter, so that placement by distance is uneven.
Eight publishers cross the city rapidly and report emergencies. Everything is a function of the seed and of virtual
time; the demo runs that time faster than the clock. `interactions` decides when people log in, subscribe, unsubscribe
and log out, and `subscriptions` the channels that they subscribe to.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import numpy as np

from tocsin.sim.city.emergency_reports import ReportStream
from tocsin.sim.city.interactions import people_of
from tocsin.sim.city.street_movers import CAR, PEDESTRIAN, StreetMovers, gathering
from tocsin.sim.city.streets import Points, Streets
from tocsin.sim.city.subscriptions import CHANNELS, NamedPlace

_CAR_SHARE: Final = 1 / 3
"""The share of people in cars, as in the ONE simulator's Helsinki: two pedestrians for each car."""
_QUARTER_AT: Final = (0.72, 0.70)
"""The centre of the quarter, as shares of the map's extent from its south-west corner."""
_QUARTER_M: Final = 450.0
_ELSEWHERE: Final = 0.02
"""Weight of a crossing far from the quarter; 1 is the weight at its centre."""


class CityCrowd:
    def __init__(
        self,
        streets: Streets,
        people: int,
        seed: int,
        *,
        places: Sequence[NamedPlace],
        pace: float = 1.0,
        channels: Collection[str] = CHANNELS,
    ) -> None:
        """With a `pace` of 1 logins and subscriptions take as long as in the paper, with 0.5 half as long. People
        choose among `channels`."""
        self._streets = streets
        self.people = people_of(people, seed, places, pace, channels)
        self.reports = ReportStream(streets, seed)
        # Each part has a random stream of its own (the last number), so that a change in one does not change the
        # others.
        gaits = [CAR if draw < _CAR_SHARE else PEDESTRIAN for draw in np.random.default_rng([seed, 1]).random(people)]
        weights = gathering(streets, _quarter(streets), _QUARTER_M, _ELSEWHERE)
        self._movers = StreetMovers(streets, gaits, [seed, 2], starts=weights, destinations=weights)

    def positions(self, time_s: float) -> Points:
        """Latitude and longitude of each person, in the order of `people`, to a tenth of a metre."""
        return self._streets.degrees(self._movers.at(time_s)).round(6)


def _quarter(streets: Streets) -> Points:
    low, high = streets.nodes_m.min(axis=0), streets.nodes_m.max(axis=0)
    centre: Points = low + (high - low) * np.array(_QUARTER_AT)
    return centre


def broker_places(streets: Streets, count: int) -> list[tuple[float, float]]:
    """Latitude and longitude of brokers spread over the streets: each in the middle of about as many crossings.

    Lloyd's algorithm from points along the map's diagonal order; the same for every seed, as cell towers are.
    """
    nodes = streets.nodes_m
    order = np.argsort(nodes @ np.array([1.0, 0.37]))
    centres = nodes[order[((np.arange(count) + 0.5) * len(nodes) / count).astype(int)]]
    for _ in range(50):
        nearest = np.linalg.norm(nodes[:, None] - centres[None], axis=2).argmin(axis=1)
        centres = np.array(
            [nodes[nearest == j].mean(axis=0) if (nearest == j).any() else centres[j] for j in range(count)]
        )
    return [(round(lat, 6), round(lon, 6)) for lat, lon in streets.degrees(centres).tolist()]
