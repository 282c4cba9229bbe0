"""The expected notifications, computed from reports, positions, shelters and parameters alone, without the product.

Two computations. *The day*: a subscription to a kind or a place must have received every matching report that was
published while the person had it. Channels that depend on a person's position are left out, because the position at the
moment of an execution is not known. *The last batch*: positions do not change any more, so the results of all eight
channels are known, with their lists of shelters. Pure, on numpy; distances come from a function of this module.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal, Self

import numpy as np
import numpy.typing as npt

from tocsin.demo.account import DemoAccount, PublishedReport, SubscriptionAccount

Flags = npt.NDArray[np.bool_]
Amounts = npt.NDArray[np.float64]
Place = tuple[float, float]
"""Latitude and longitude."""

_EARTH_M: Final = 6_371_008.8
_EDGE_M: Final = 0.05
"""A report this close to the edge of a circle is skipped: rounding may put it on either side."""
_NEAR_ME_M: Final = 1_000.0
_SHELTER_M: Final = 2_000.0
_SHELTERS: Final = 3
_SEVERE: Final = 4
_DUE_S: Final = 60.0
"""A report must have arrived if the person unsubscribed this long after it was published, or later. The longest period
is half of it."""


@dataclass(frozen=True, slots=True)
class _Rule:
    """What a channel of examples/emergency selects, besides `kind` if it has that parameter."""

    around: Literal["anywhere", "place", "user"] = "anywhere"
    """The centre of the circle that a report must lie in. Its radius is the parameter `radius_m`, or 1 km."""
    severity: int = 1
    shelters_from: Literal["report", "user"] | None = None


RULES: Final[dict[str, _Rule]] = {
    "EmergenciesOfType": _Rule(),
    "EmergenciesAtLocation": _Rule("place"),
    "EmergenciesNearMe": _Rule("user"),
    "EmergenciesOfTypeNearMe": _Rule("user"),
    "EmergenciesOfTypeAtLocation": _Rule("place"),
    "EmergenciesOfTypeWithShelterNearMe": _Rule("user", shelters_from="user"),
    "EmergenciesOfTypeAtLocationWithShelter": _Rule("place", shelters_from="report"),
    "SevereNearMe": _Rule("user", severity=_SEVERE),
}


@dataclass(slots=True)
class Recomputed:
    subscriptions: int = 0
    expected: int = 0
    lost: int = 0
    unexpected: int = 0
    wrong_shelters: int = 0
    """Results whose list of shelters has other names or another order."""
    skipped: int = 0
    """Pairs of subscription and report, and lists of shelters, too close to an edge to be decided."""

    def __iadd__(self, other: Recomputed) -> Self:
        for counted in fields(self):
            setattr(self, counted.name, getattr(self, counted.name) + getattr(other, counted.name))
        return self

    @property
    def is_wrong(self) -> bool:
        return bool(self.lost or self.unexpected or self.wrong_shelters)


def recomputed_day(account: DemoAccount) -> Recomputed:
    """Compare the whole day with the reports, for the channels without positions."""
    reports = _Reports.of(account.published[number] for number in range(len(account.published)))
    total = Recomputed()
    matches: dict[str, tuple[Flags, Flags]] = {}
    for holding in account:
        rule = RULES.get(holding.channel)
        if rule is None or rule.around == "user" or holding.first is None:
            continue
        if holding.subscription not in matches:
            matches[holding.subscription] = reports.matching(rule, holding.parameters, {})
        must, may = matches[holding.subscription]
        # A report published before the grant may or may not arrive: that depends on when the channel runs.
        promised = reports.published_s > holding.granted_s
        if holding.ended:
            promised &= reports.published_s < holding.leaving_s - _DUE_S
            may = may & (reports.published_s <= holding.ended_s)  # nothing may arrive after the answer
        total += _compared(holding, must & promised, may, first=0)
    return total


def recomputed_batch(account: DemoAccount, positions: Mapping[str, Place], shelters: Shelters) -> dict[str, Recomputed]:
    """Compare the last batch with the reports, the frozen positions of people and the shelters, by channel."""
    assert account.batch_from is not None
    first = account.batch_from
    reports = _Reports.of(account.published[number] for number in range(first, len(account.published)))
    totals = {channel: Recomputed() for channel in account.open_by_channel()}
    matches: dict[str, tuple[Flags, Flags]] = {}
    for holding in account:
        if holding.first is None or holding.ended:
            continue
        rule = RULES[holding.channel]
        if holding.subscription not in matches:
            matches[holding.subscription] = reports.matching(rule, holding.parameters, positions)
        must, may = matches[holding.subscription]
        compared = _compared(holding, must, may, first=first)
        compared.skipped = int((may & ~must).sum())
        if rule.shelters_from is not None:
            origins = reports.places if rule.shelters_from == "report" else None
            compared += _shelters_compared(holding, must, first, origins, positions, shelters)
        totals[holding.channel] += compared
    return totals


def _compared(holding: SubscriptionAccount, must: Flags, may: Flags, *, first: int) -> Recomputed:
    got = np.zeros(len(must), bool)
    numbers = np.array(holding.reports, np.int64) - first
    got[numbers[numbers >= 0]] = True
    return Recomputed(1, int(must.sum()), int((must & ~got).sum()), int((got & ~may).sum()))


def _shelters_compared(
    holding: SubscriptionAccount,
    must: Flags,
    first: int,
    origins: Amounts | None,
    positions: Mapping[str, Place],
    shelters: Shelters,
) -> Recomputed:
    """Compare the lists of the reports that must have arrived. `origins` is None if the user is the origin."""
    compared = Recomputed()
    for index in np.flatnonzero(must).tolist():
        received = holding.shelters.get(first + index)
        if received is None:
            continue  # counted as lost
        lat, lon = positions[holding.person] if origins is None else origins[index].tolist()
        names = shelters.nearest(lat, lon)
        compared.skipped += names is None
        compared.wrong_shelters += names is not None and names != received
    return compared


@dataclass(frozen=True, slots=True)
class _Reports:
    kinds: npt.NDArray[np.str_]
    severities: npt.NDArray[np.int64]
    places: Amounts
    published_s: Amounts

    @classmethod
    def of(cls, reports: Iterable[PublishedReport]) -> _Reports:
        rows = list(reports)
        return cls(
            np.array([row.kind for row in rows], np.str_),
            np.array([row.severity for row in rows], np.int64),
            np.array([(row.lat, row.lon) for row in rows]).reshape(-1, 2),
            np.array([row.published_s for row in rows]),
        )

    def matching(
        self, rule: _Rule, parameters: Mapping[str, Any], positions: Mapping[str, Place]
    ) -> tuple[Flags, Flags]:
        """Return which reports these parameters must match, and which they may match."""
        must = self.severities >= rule.severity
        if "kind" in parameters:
            must &= self.kinds == parameters["kind"]
        may = must.copy()
        if rule.around == "anywhere":
            return must, may
        if rule.around == "user":
            lat, lon = positions[str(parameters["user"])]
        else:
            lat, lon = float(parameters["lat"]), float(parameters["lon"])
        away_m = great_circle_m(self.places, lat, lon)
        radius_m = float(parameters.get("radius_m", _NEAR_ME_M))
        must &= away_m < radius_m - _EDGE_M
        may &= away_m < radius_m + _EDGE_M
        return must, may


@dataclass(frozen=True, slots=True)
class Shelters:
    names: tuple[str, ...]
    places: Amounts
    _nearest: dict[Place, tuple[str, ...] | None] = field(default_factory=dict)

    @classmethod
    def read(cls, lines: Iterable[str]) -> Shelters:
        """Read a CSV file with a header."""
        rows = list(csv.DictReader(lines))
        places = [(float(row["lat"]), float(row["lon"])) for row in rows]
        return cls(tuple(row["name"] for row in rows), np.array(places))

    def nearest(self, lat: float, lon: float) -> tuple[str, ...] | None:
        """The names of the three nearest shelters within 2 km, nearest first. None if rounding may decide the list."""
        if (lat, lon) not in self._nearest:
            self._nearest[lat, lon] = self._computed(lat, lon)
        return self._nearest[lat, lon]

    def _computed(self, lat: float, lon: float) -> tuple[str, ...] | None:
        away_m = great_circle_m(self.places, lat, lon)
        order = np.argsort(away_m)[: _SHELTERS + 1]
        nearest_m = away_m[order]
        close = nearest_m < _SHELTER_M + _EDGE_M
        listed = order[:_SHELTERS][close[:_SHELTERS]]
        on_the_edge = (np.abs(nearest_m[:_SHELTERS] - _SHELTER_M) < _EDGE_M).any()
        tied = (np.diff(nearest_m[close]) < _EDGE_M).any()
        return None if on_the_edge or tied else tuple(self.names[index] for index in listed.tolist())


def great_circle_m(places: Amounts, lat: float, lon: float) -> Amounts:
    """Distance in metres by the haversine formula, independent of the product's own function."""
    lats, lons = np.radians(places).T
    here_lat, here_lon = math.radians(lat), math.radians(lon)
    half = np.sin((lats - here_lat) / 2) ** 2 + math.cos(here_lat) * np.cos(lats) * np.sin((lons - here_lon) / 2) ** 2
    away: Amounts = 2 * _EARTH_M * np.arcsin(np.sqrt(half))
    return away
