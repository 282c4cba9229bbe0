"""The emergency city's people and what happens to them [BAD §6.1.2]: who is where, who wants what, what is reported.

Four hundred people walk and drive on streets, most of them drawn to one quarter, so that a placement by distance is
uneven. Eight publishers cross the city rapidly and report emergencies. Everything is a function of the seed and of
virtual time; the demo compresses that time, and nothing here knows. What people subscribe to is `wishes`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from tocsin.sim.city.street_movers import CAR, PEDESTRIAN, Gait, StreetMovers, gathering
from tocsin.sim.city.streets import Points, Streets
from tocsin.sim.city.subscriptions import KINDS, CitySubscription, NamedPlace, wishes_of

REPORTS_PER_S: Final = 10_000 / 1_800
"""About 10,000 in 30 minutes."""
REPORT_BYTES: Final = (200, 700)
"""Of one report as JSON."""
PUBLISHERS: Final = 8
LOGINS_S: Final = (0.0, 240.0)
"""Everybody logs in during the first four minutes,"""
SUBSCRIPTIONS_S: Final = (240.0, 480.0)
"""and subscribes during the next four."""
_RESPONDER: Final = Gait((15.0, 30.0), (0.0, 0.0))
"""Publishers traverse the map "rapidly"; the paper gives no speed. These do 54 to 108 km/h and never stop."""
_CAR_SHARE: Final = 1 / 3
"""As the ONE simulator's Helsinki: two groups of pedestrians for each of cars."""
_QUARTER_AT: Final = (0.72, 0.70)
"""Where people gather, as shares of the map's extent from its south-west corner."""
_QUARTER_M: Final = 450.0
_ELSEWHERE: Final = 0.02
"""Weight of a crossing far from the quarter, beside 1 in its middle."""
_SENTENCES: Final = (
    "Several callers report the same. ", "Traffic is diverted; expect delays. ", "Keep windows and doors closed. ",
    "Emergency services are on their way. ", "Stay clear of the area. ", "No injuries are known so far. ",
    "People are asked to go indoors. ", "Follow the instructions of the staff on site. ",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class CityPerson:
    name: str
    login_s: float
    wishes: tuple[tuple[float, CitySubscription], ...]
    """When each is made, in order; after the login."""


@dataclass(frozen=True, slots=True)
class EmergencyReport:
    """One emergency, before it has a date."""

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
        """As EmergencyReports has it."""
        return {
            "report_id": self.id, "kind": self.kind, "severity": self.severity, "lat": self.lat, "lon": self.lon,
            "message": self.message, "reported_at": reported_at,
        }  # fmt: skip


class CityCrowd:
    def __init__(
        self, streets: Streets, people: int, seed: int, *, places: Sequence[NamedPlace], pace: float = 1.0
    ) -> None:
        """`pace`: 1 is the paper's; with 0.5 logins and subscriptions take half as long."""
        self._streets = streets
        self.people = _people(people, seed, places, pace)
        # Streams are told apart by their last number: a change in one part must not draw another city.
        gaits = [CAR if one < _CAR_SHARE else PEDESTRIAN for one in np.random.default_rng([seed, 1]).random(people)]
        drawn = gathering(streets, _quarter(streets), _QUARTER_M, _ELSEWHERE)
        self._movers = StreetMovers(streets, gaits, [seed, 2], starts=drawn, destinations=drawn)
        self._publishers = StreetMovers(streets, [_RESPONDER] * PUBLISHERS, [seed, 3])
        self._dice = np.random.default_rng([seed, 4])
        self._next_report_s = self._pause_s()
        self._reported = 0

    def positions(self, time_s: float) -> Points:
        """Everybody's latitude and longitude, in the order of `people`."""
        return self._streets.degrees(self._movers.at(time_s))

    def locations(self, time_s: float, at: str) -> list[dict[str, Any]]:
        """The same as records of UserLocations."""
        return [
            {"user_id": person.name, "lat": lat, "lon": lon, "at": at}
            for person, (lat, lon) in zip(self.people, self.positions(time_s).round(6).tolist(), strict=True)
        ]

    def reports(self, until_s: float) -> list[EmergencyReport]:
        """Those since the last call, in order: a Poisson stream, each from one of the publishers where it is then."""
        found = []
        while self._next_report_s < until_s:
            found.append(self._report(self._next_report_s))
            self._next_report_s += self._pause_s()
        return found

    def _report(self, time_s: float) -> EmergencyReport:
        dice = self._dice
        publisher = int(dice.integers(PUBLISHERS))
        [lat, lon] = self._streets.degrees(self._publishers.at(time_s)[publisher]).round(6).tolist()
        kind, severity = KINDS[int(dice.integers(len(KINDS)))], int(dice.integers(1, 6))
        size_bytes = int(dice.integers(REPORT_BYTES[0], REPORT_BYTES[1] + 1))
        report = EmergencyReport(self._reported, time_s, publisher, kind, severity, lat, lon, "")
        self._reported += 1
        return _with_message(report, size_bytes, dice)

    def _pause_s(self) -> float:
        return float(self._dice.exponential(1.0 / REPORTS_PER_S))


def _people(count: int, seed: int, places: Sequence[NamedPlace], pace: float) -> list[CityPerson]:
    found = []
    for number, stream in enumerate(np.random.SeedSequence([seed, 5]).spawn(count)):
        dice, name = np.random.default_rng(stream), f"person-{number}"
        login_s = pace * float(dice.uniform(*LOGINS_S))
        timed = [(pace * float(dice.uniform(*SUBSCRIPTIONS_S)), wish) for wish in wishes_of(name, dice, places)]
        found.append(CityPerson(name, login_s, tuple(sorted(timed, key=lambda one: one[0]))))
    return found


def _quarter(streets: Streets) -> Points:
    low, high = streets.nodes_m.min(axis=0), streets.nodes_m.max(axis=0)
    where: Points = low + (high - low) * np.array(_QUARTER_AT)
    return where


_DATE = "2026-01-01T00:00:00.000000+00:00"
"""As long as any other."""


def _with_message(report: EmergencyReport, size_bytes: int, dice: np.random.Generator) -> EmergencyReport:
    """Words until the record has its size as JSON."""
    bare = len(json.dumps(report.record(_DATE), separators=(",", ":")))
    text = f"{report.kind.capitalize()}, severity {report.severity} of 5, seen by unit {report.publisher + 1}. "
    while bare + len(text) < size_bytes:
        text += _SENTENCES[int(dice.integers(len(_SENTENCES)))]
    text = text[: max(0, size_bytes - bare)]
    return EmergencyReport(
        report.number, report.time_s, report.publisher, report.kind, report.severity, report.lat, report.lon, text
    )


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
