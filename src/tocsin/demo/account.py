"""The account of a demo: what every frontend subscription got, and the two ways to know what it should have got. Pure.

First, from the data cluster's stored results: each subscription must have received every result from its first cursor
on, once and in order. That covers all channels, but takes the data cluster's word for what the results are. Second,
without it: who wants a kind or a place must have received every report of that kind or place that was published after
the subscription was granted, computed here from the reports alone. Channels that depend on where somebody was at the
moment of an execution cannot be computed that way.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tocsin.model.cursor import Cursor

Flags = npt.NDArray[np.bool_]
Longs = npt.NDArray[np.int64]
Amounts = npt.NDArray[np.float64]
COMPUTED: Final = (
    "EmergenciesOfType", "EmergenciesAtLocation", "EmergenciesOfTypeAtLocation",
    "EmergenciesOfTypeAtLocationWithShelter",
)  # fmt: skip
_EARTH_M: Final = 6_371_008.8
_EDGE_M: Final = 0.05
"""Reports this close to the edge of a place are left out: which side rounding puts them on is nobody's promise."""


@dataclass(slots=True, eq=False)
class Holding:
    """One frontend subscription and what arrived for it, in order of arrival."""

    channel: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    first: Cursor | None = None
    """Results from here on are promised. None until it is granted."""
    granted_s: float = math.inf
    epochs: set[int] = field(default_factory=set)
    offsets: array[int] = field(default_factory=lambda: array("q"))
    reports: array[int] = field(default_factory=lambda: array("q"))
    latencies_s: array[float] = field(default_factory=lambda: array("f"))


@dataclass(slots=True)
class Account:
    holdings: dict[tuple[str, str], Holding] = field(default_factory=dict)
    """By person and subscription."""
    published: dict[int, tuple[str, float, float, float]] = field(default_factory=dict)
    """Kind, latitude, longitude and the wall time at which it was handed to the gateway, by the report's number."""
    gaps: int = 0
    strange: int = 0
    """Results of reports that nobody published."""
    delivered: int = 0

    def holding(self, person: str, subscription: str) -> Holding:
        """Results may be faster than the answer that grants the subscription."""
        found = self.holdings.get((person, subscription))
        if found is None:
            found = self.holdings[person, subscription] = Holding()
        return found

    def grant(
        self, person: str, subscription: str, channel: str, parameters: Mapping[str, Any], cursor: str, now_s: float
    ) -> None:
        holding = self.holding(person, subscription)
        holding.channel, holding.parameters = channel, parameters
        holding.first, holding.granted_s = Cursor.parse(cursor), now_s

    def publish(self, number: int, kind: str, lat: float, lon: float, now_s: float) -> None:
        """A report is about to be sent."""
        self.published[number] = (kind, lat, lon, now_s)

    def take(self, holding: Holding, cursor: str, number: int | None, now_s: float) -> None:
        at = Cursor.parse(cursor)
        known = None if number is None else self.published.get(number)
        if at is None or number is None or known is None:
            self.strange += 1
            return
        self.delivered += 1
        holding.epochs.add(at.epoch)
        holding.offsets.append(at.offset)
        holding.reports.append(number)
        holding.latencies_s.append(now_s - known[3])

    # -- the end -------------------------------------------------------------------------------------------------------

    def frontend(self) -> int:
        return sum(holding.first is not None for holding in self.holdings.values())

    def backend(self) -> int:
        return len({subscription for (_, subscription), one in self.holdings.items() if one.first is not None})

    def by_channel(self) -> dict[str, list[tuple[str, Holding]]]:
        """Subscription and holding, of each channel."""
        found: dict[str, list[tuple[str, Holding]]] = {}
        for (_, subscription), holding in self.holdings.items():
            found.setdefault(holding.channel, []).append((subscription, holding))
        return found

    def audited(self, stored: Mapping[str, Longs]) -> Audit:
        """`stored`: of each backend subscription the sorted offsets that follow its results in the data cluster."""
        audit = Audit()
        nothing = np.empty(0, np.int64)
        for (_, subscription), holding in self.holdings.items():
            audit += _against_stored(holding, stored.get(subscription, nothing))
        audit.unexpected += self.strange
        audit.gaps = self.gaps
        return audit

    def recomputed(self) -> Recomputed:
        """The same from the reports alone."""
        # Numbers have no holes: every one was drawn, and every one drawn was sent.
        rows = [self.published[number] for number in range(len(self.published))]
        places = np.array([(lat, lon) for _, lat, lon, _ in rows]).reshape(-1, 2)
        reports = _Reports(np.array([row[0] for row in rows]), places, np.array([row[3] for row in rows]))
        total = Recomputed()
        known: dict[str, tuple[Flags, Flags]] = {}
        for (_, subscription), holding in self.holdings.items():
            if holding.channel in COMPUTED and holding.first is not None:
                if subscription not in known:
                    known[subscription] = reports.matching(holding.parameters)
                total += _against_reports(holding, *known[subscription], reports.published_s)
        return total


@dataclass(slots=True)
class Audit:
    expected: int = 0
    received: int = 0
    lost: int = 0
    repeated: int = 0
    out_of_order: int = 0
    unexpected: int = 0
    gaps: int = 0

    def __iadd__(self, other: Audit) -> Audit:
        for name in ("expected", "received", "lost", "repeated", "out_of_order", "unexpected", "gaps"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        return self


@dataclass(slots=True)
class Recomputed:
    subscriptions: int = 0
    expected: int = 0
    lost: int = 0
    unexpected: int = 0

    def __iadd__(self, other: Recomputed) -> Recomputed:
        for name in ("subscriptions", "expected", "lost", "unexpected"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        return self


def _against_stored(holding: Holding, stored: Longs) -> Audit:
    received = np.array(holding.offsets, np.int64)
    distinct = np.unique(received)
    start = 0 if holding.first is None else holding.first.offset
    # A result's cursor is the place after it, so the first promised one has a cursor above the first.
    promised = stored[stored > start]
    another_life = holding.first is not None and bool(holding.epochs - {holding.first.epoch})
    return Audit(
        expected=len(promised),
        received=len(received),
        lost=len(np.setdiff1d(promised, distinct, assume_unique=True)),
        repeated=len(received) - len(distinct),
        out_of_order=int((np.diff(received) < 0).sum()),
        unexpected=len(np.setdiff1d(distinct, promised, assume_unique=True)) + another_life,
    )


def _against_reports(holding: Holding, must: Flags, may: Flags, published_s: Amounts) -> Recomputed:
    """What was published before the subscription was granted may or may not come: an execution decides."""
    got = np.zeros(len(must), bool)
    got[np.array(holding.reports, np.int64)] = True
    wanted = must & (published_s > holding.granted_s)
    return Recomputed(1, int(wanted.sum()), int((wanted & ~got).sum()), int((got & ~may).sum()))


@dataclass(frozen=True, slots=True)
class _Reports:
    kinds: npt.NDArray[np.str_]
    places: Amounts
    published_s: Amounts

    def matching(self, parameters: Mapping[str, Any]) -> tuple[Flags, Flags]:
        """Which reports these parameters must match, and which they may."""
        must = np.ones(len(self.kinds), bool)
        if "kind" in parameters:
            must &= self.kinds == parameters["kind"]
        may = must.copy()
        if "lat" in parameters:
            away_m = great_circle_m(self.places, float(parameters["lat"]), float(parameters["lon"]))
            must &= away_m < float(parameters["radius_m"]) - _EDGE_M
            may &= away_m < float(parameters["radius_m"]) + _EDGE_M
        return must, may


def great_circle_m(places: Amounts, lat: float, lon: float) -> Amounts:
    """By the haversine formula; written again here, because what is checked must not check itself."""
    lats, lons = np.radians(places).T
    here_lat, here_lon = math.radians(lat), math.radians(lon)
    half = np.sin((lats - here_lat) / 2) ** 2 + math.cos(here_lat) * np.cos(lats) * np.sin((lons - here_lon) / 2) ** 2
    away: Amounts = 2 * _EARTH_M * np.arcsin(np.sqrt(half))
    return away


def quantiles_s(latencies: Iterable[array[float]]) -> tuple[float, float] | None:
    """p50 and p95; None if there are none."""
    merged = np.concatenate([np.array(one, np.float32) for one in latencies] or [np.empty(0, np.float32)])
    if not len(merged):
        return None
    return float(np.quantile(merged, 0.5)), float(np.quantile(merged, 0.95))
