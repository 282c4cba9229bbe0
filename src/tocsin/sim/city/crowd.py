"""The people of the emergency city and the emergency reports [BAD §6.1.2].

Four hundred people walk and drive on streets, most of them in one quarter, so that placement by distance is uneven.
Eight publishers cross the city rapidly and report emergencies. Everything is a function of the seed and of virtual
time; the demo runs that time faster than the clock. `subscriptions` decides the channels that people subscribe to.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from tocsin.sim.city.street_movers import CAR, PEDESTRIAN, Gait, StreetMovers, gathering
from tocsin.sim.city.streets import Points, Streets
from tocsin.sim.city.subscriptions import KINDS, CitySubscription, NamedPlace, subscriptions_of

REPORTS_PER_S: Final = 10_000 / 1_800
"""About 10,000 reports in 30 minutes."""
REPORT_BYTES: Final = (200, 700)
"""Smallest and largest size of a report as JSON."""
PUBLISHERS: Final = 8
LOGINS_S: Final = (0.0, 240.0)
"""People log in during the first four minutes."""
SUBSCRIPTIONS_S: Final = (240.0, 480.0)
"""People subscribe during the next four minutes."""
_RESPONDER: Final = Gait((15.0, 30.0), (0.0, 0.0))
"""Publishers traverse the map "rapidly"; the paper gives no speed. Ours drive 54 to 108 km/h and never stop."""
_CAR_SHARE: Final = 1 / 3
"""The share of people in cars, as in the ONE simulator's Helsinki: two pedestrians for each car."""
_QUARTER_AT: Final = (0.72, 0.70)
"""The centre of the quarter, as shares of the map's extent from its south-west corner."""
_QUARTER_M: Final = 450.0
_ELSEWHERE: Final = 0.02
"""Weight of a crossing far from the quarter; 1 is the weight at its centre."""
_SENTENCES: Final = (
    "Several callers report the same. ",
    "Traffic is diverted; expect delays. ",
    "Keep windows and doors closed. ",
    "Emergency services are on their way. ",
    "Stay clear of the area. ",
    "No injuries are known so far. ",
    "People are asked to go indoors. ",
    "Follow the instructions of the staff on site. ",
)


@dataclass(frozen=True, slots=True)
class CityPerson:
    name: str
    login_s: float
    subscriptions: tuple[tuple[float, CitySubscription], ...]
    """(seconds at which it is made, subscription), in order; all after the login."""


@dataclass(frozen=True, slots=True)
class EmergencyReport:
    """One emergency, in virtual time."""

    number: int
    time_s: float
    publisher: int
    kind: str
    severity: int
    lat: float
    lon: float
    message: str

    @property
    def id(self) -> str:
        return f"report-{self.number}"

    def record(self, reported_at: str) -> dict[str, Any]:
        """A record of the dataset EmergencyReports."""
        return {
            "report_id": self.id,
            "kind": self.kind,
            "severity": self.severity,
            "lat": self.lat,
            "lon": self.lon,
            "message": self.message,
            "reported_at": reported_at,
        }


class CityCrowd:
    def __init__(
        self, streets: Streets, people: int, seed: int, *, places: Sequence[NamedPlace], pace: float = 1.0
    ) -> None:
        """With a `pace` of 1 logins and subscriptions take as long as in the paper, with 0.5 half as long."""
        self._streets = streets
        self.people = _people(people, seed, places, pace)
        # Each part has a random stream of its own (the last number), so that a change in one does not change the
        # others.
        gaits = [CAR if draw < _CAR_SHARE else PEDESTRIAN for draw in np.random.default_rng([seed, 1]).random(people)]
        weights = gathering(streets, _quarter(streets), _QUARTER_M, _ELSEWHERE)
        self._movers = StreetMovers(streets, gaits, [seed, 2], starts=weights, destinations=weights)
        self._publishers = StreetMovers(streets, [_RESPONDER] * PUBLISHERS, [seed, 3])
        self._rng = np.random.default_rng([seed, 4])
        self._next_report_s = self._pause_s()
        self._reported = 0

    def positions(self, time_s: float) -> Points:
        """Latitude and longitude of each person, in the order of `people`."""
        return self._streets.degrees(self._movers.at(time_s))

    def locations(self, time_s: float, at: str) -> list[dict[str, Any]]:
        """The positions as records of the dataset UserLocations."""
        return [
            {"user_id": person.name, "lat": lat, "lon": lon, "at": at}
            for person, (lat, lon) in zip(self.people, self.positions(time_s).round(6).tolist(), strict=True)
        ]

    def reports(self, until_s: float) -> list[EmergencyReport]:
        """The reports since the last call, in order: a Poisson stream, each from the position of a random publisher."""
        reports = []
        while self._next_report_s < until_s:
            reports.append(self._report(self._next_report_s))
            self._next_report_s += self._pause_s()
        return reports

    def _report(self, time_s: float) -> EmergencyReport:
        rng = self._rng
        publisher = int(rng.integers(PUBLISHERS))
        [lat, lon] = self._streets.degrees(self._publishers.at(time_s)[publisher]).round(6).tolist()
        kind, severity = KINDS[int(rng.integers(len(KINDS)))], int(rng.integers(1, 6))
        size_bytes = int(rng.integers(REPORT_BYTES[0], REPORT_BYTES[1] + 1))
        report = EmergencyReport(self._reported, time_s, publisher, kind, severity, lat, lon, "")
        self._reported += 1
        return _with_message(report, size_bytes, rng)

    def _pause_s(self) -> float:
        return float(self._rng.exponential(1.0 / REPORTS_PER_S))


def _people(count: int, seed: int, places: Sequence[NamedPlace], pace: float) -> list[CityPerson]:
    people = []
    for number, stream in enumerate(np.random.SeedSequence([seed, 5]).spawn(count)):
        rng, name = np.random.default_rng(stream), f"person-{number}"
        login_s = pace * float(rng.uniform(*LOGINS_S))
        timed = [(pace * float(rng.uniform(*SUBSCRIPTIONS_S)), made) for made in subscriptions_of(name, rng, places)]
        people.append(CityPerson(name, login_s, tuple(sorted(timed, key=lambda pair: pair[0]))))
    return people


def _quarter(streets: Streets) -> Points:
    low, high = streets.nodes_m.min(axis=0), streets.nodes_m.max(axis=0)
    centre: Points = low + (high - low) * np.array(_QUARTER_AT)
    return centre


_DATE = "2026-01-01T00:00:00.000000+00:00"
"""A date for measuring a record's size: it is as long as any other date."""


def _with_message(report: EmergencyReport, size_bytes: int, rng: np.random.Generator) -> EmergencyReport:
    """The report with a message that gives its record this size as JSON."""
    bare = len(json.dumps(report.record(_DATE), separators=(",", ":")))
    text = f"{report.kind.capitalize()}, severity {report.severity} of 5, seen by unit {report.publisher + 1}. "
    while bare + len(text) < size_bytes:
        text += _SENTENCES[int(rng.integers(len(_SENTENCES)))]
    text = text[: max(0, size_bytes - bare)]
    return replace(report, message=text)


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
