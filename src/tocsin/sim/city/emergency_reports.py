"""Emergency reports: a Poisson stream from publishers that cross the city, and a last batch for an audit [BAD §6.1.2].

Pure: reports are functions of the seed and of virtual time.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from tocsin.sim.city.street_movers import Gait, StreetMovers
from tocsin.sim.city.streets import METRES_PER_DEGREE, Points, Streets
from tocsin.sim.city.subscriptions import KINDS, NamedPlace

REPORTS_PER_S: Final = 10_000 / 1_800
"""About 10,000 reports in 30 minutes."""
REPORT_BYTES: Final = (200, 700)
"""Smallest and largest size of a report as JSON."""
PUBLISHERS: Final = 8
_RESPONDER: Final = Gait((15.0, 30.0), (0.0, 0.0))
"""Publishers traverse the map "rapidly"; the paper gives no speed. Ours drive 54 to 108 km/h and never stop."""
_NEAR_PERSON_M: Final = 1_600.0
"""The last batch has reports up to this far from a person: inside and outside of every radius of "near me"."""
_NEAR_PLACE: Final = 1.6
"""The last batch has reports up to this many radii from the centre of a place."""
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


class ReportStream:
    def __init__(self, streets: Streets, seed: int) -> None:
        self._streets = streets
        self._seed = seed
        self._publishers = StreetMovers(streets, [_RESPONDER] * PUBLISHERS, [seed, 3])
        self._rng = np.random.default_rng([seed, 4])
        self._next_s = self._pause_s()
        self._reported = 0

    def until(self, time_s: float) -> list[EmergencyReport]:
        """The reports since the last call, in order: a Poisson stream, each from the position of a random publisher."""
        reports = []
        while self._next_s < time_s:
            publisher = int(self._rng.integers(PUBLISHERS))
            [lat, lon] = self._streets.degrees(self._publishers.at(self._next_s)[publisher]).round(6).tolist()
            reports.append(self._report(self._next_s, publisher, lat, lon, self._rng))
            self._next_s += self._pause_s()
        return reports

    def last_batch(
        self, count: int, time_s: float, people: Points, places: Sequence[NamedPlace]
    ) -> list[EmergencyReport]:
        """Reports for an audit, in turn: near one of `people` (degrees), near a named place, at any crossing."""
        rng = np.random.default_rng([self._seed, 9])
        reports = []
        for number in range(count):
            match number % 3:
                case 0:
                    centre, reach_m = people[int(rng.integers(len(people)))], _NEAR_PERSON_M
                case 1:
                    place = places[int(rng.integers(len(places)))]
                    centre, reach_m = np.array([place.lat, place.lon]), _NEAR_PLACE * place.radius_m
                case _:
                    crossing = int(rng.integers(len(self._streets.nodes_m)))
                    centre, reach_m = self._streets.degrees(self._streets.nodes_m[crossing]), 0.0
            lat, lon = _around(centre, reach_m, rng)
            reports.append(self._report(time_s, int(rng.integers(PUBLISHERS)), lat, lon, rng))
        return reports

    def _report(
        self, time_s: float, publisher: int, lat: float, lon: float, rng: np.random.Generator
    ) -> EmergencyReport:
        kind, severity = KINDS[int(rng.integers(len(KINDS)))], int(rng.integers(1, 6))
        size_bytes = int(rng.integers(REPORT_BYTES[0], REPORT_BYTES[1] + 1))
        report = EmergencyReport(self._reported, time_s, publisher, kind, severity, lat, lon, "")
        self._reported += 1
        return _with_message(report, size_bytes, rng)

    def _pause_s(self) -> float:
        return float(self._rng.exponential(1.0 / REPORTS_PER_S))


def _around(centre: Points, reach_m: float, rng: np.random.Generator) -> tuple[float, float]:
    """A random point at most `reach_m` from a place; every distance is equally likely."""
    away_m, angle = float(rng.uniform(0.0, reach_m)), float(rng.uniform(0.0, 2.0 * np.pi))
    lat = float(centre[0]) + away_m * np.sin(angle) / METRES_PER_DEGREE
    lon = float(centre[1]) + away_m * np.cos(angle) / (METRES_PER_DEGREE * np.cos(np.radians(float(centre[0]))))
    return round(float(lat), 6), round(float(lon), 6)


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
