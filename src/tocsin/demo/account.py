"""The account of a demo: the results of each frontend subscription, and two ways to compute the expected results. Pure.

First, from the data cluster's stored results: each subscription must have received every result from its first cursor
on, once and in order. This covers all channels, but trusts the data cluster's results. Second, from the reports alone:
a subscription to a kind or a place must have received every matching report that was published after the subscription
was granted. This cannot cover channels that depend on where a person was at the moment of an execution.
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
    "EmergenciesOfType",
    "EmergenciesAtLocation",
    "EmergenciesOfTypeAtLocation",
    "EmergenciesOfTypeAtLocationWithShelter",
)
_EARTH_M: Final = 6_371_008.8
_EDGE_M: Final = 0.05
"""The recomputation skips reports this close to the edge of a place: rounding may put them on either side."""


@dataclass(slots=True, eq=False)
class SubscriptionAccount:
    """One frontend subscription and its results, in order of arrival."""

    channel: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    first: Cursor | None = None
    """Results from this cursor on are promised. None until the subscription is granted."""
    granted_s: float = math.inf
    epochs: set[int] = field(default_factory=set)
    offsets: array[int] = field(default_factory=lambda: array("q"))
    reports: array[int] = field(default_factory=lambda: array("q"))
    latencies_s: array[float] = field(default_factory=lambda: array("f"))


@dataclass(slots=True)
class DemoAccount:
    holdings: dict[tuple[str, str], SubscriptionAccount] = field(default_factory=dict)
    """The account of each subscription, by person and subscription."""
    published: dict[int, tuple[str, float, float, float]] = field(default_factory=dict)
    """(kind, latitude, longitude, wall-clock time of publishing) by the report's number."""
    gaps: int = 0
    strange: int = 0
    """Results of reports that the demo did not publish."""
    delivered: int = 0

    def holding(self, person: str, subscription: str) -> SubscriptionAccount:
        """Return the entry of a subscription, and create it if a result overtook the grant."""
        return self.holdings.setdefault((person, subscription), SubscriptionAccount())

    def grant(
        self, person: str, subscription: str, channel: str, parameters: Mapping[str, Any], cursor: str, now_s: float
    ) -> None:
        holding = self.holding(person, subscription)
        holding.channel, holding.parameters = channel, parameters
        holding.first, holding.granted_s = Cursor.parse(cursor), now_s

    def publish(self, number: int, kind: str, lat: float, lon: float, now_s: float) -> None:
        """Record a report before it is sent."""
        self.published[number] = (kind, lat, lon, now_s)

    def take(self, holding: SubscriptionAccount, cursor: str, number: int | None, now_s: float) -> None:
        at = Cursor.parse(cursor)
        report = None if number is None else self.published.get(number)
        if at is None or number is None or report is None:
            self.strange += 1
            return
        self.delivered += 1
        holding.epochs.add(at.epoch)
        holding.offsets.append(at.offset)
        holding.reports.append(number)
        holding.latencies_s.append(now_s - report[3])

    # -- the end -------------------------------------------------------------------------------------------------------

    def frontend(self) -> int:
        return sum(holding.first is not None for holding in self.holdings.values())

    def backend(self) -> int:
        return len({subscription for (_, subscription), held in self.holdings.items() if held.first is not None})

    def by_channel(self) -> dict[str, list[tuple[str, SubscriptionAccount]]]:
        """Return (subscription, results) pairs by channel."""
        channels: dict[str, list[tuple[str, SubscriptionAccount]]] = {}
        for (_, subscription), holding in self.holdings.items():
            channels.setdefault(holding.channel, []).append((subscription, holding))
        return channels

    def audited(self, stored: Mapping[str, Longs]) -> Audit:
        """Compare with the data cluster's results: `stored` has the sorted offsets after each, per subscription."""
        audit = Audit()
        nothing = np.empty(0, np.int64)
        for (_, subscription), holding in self.holdings.items():
            audit += _against_stored(holding, stored.get(subscription, nothing))
        audit.unexpected += self.strange
        audit.gaps = self.gaps
        return audit

    def recomputed(self) -> Recomputed:
        """Compare with the reports alone."""
        # Report numbers have no holes: the demo publishes every number.
        rows = [self.published[number] for number in range(len(self.published))]
        places = np.array([(lat, lon) for _, lat, lon, _ in rows]).reshape(-1, 2)
        reports = _Reports(np.array([row[0] for row in rows]), places, np.array([row[3] for row in rows]))
        total = Recomputed()
        matches: dict[str, tuple[Flags, Flags]] = {}
        for (_, subscription), holding in self.holdings.items():
            if holding.channel in COMPUTED and holding.first is not None:
                if subscription not in matches:
                    matches[subscription] = reports.matching(holding.parameters)
                total += _against_reports(holding, *matches[subscription], reports.published_s)
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


def _against_stored(holding: SubscriptionAccount, stored: Longs) -> Audit:
    received = np.array(holding.offsets, np.int64)
    distinct = np.unique(received)
    start = 0 if holding.first is None else holding.first.offset
    # The cursor of a result is the position after it, so promised results have cursors above the first one.
    promised = stored[stored > start]
    other_epoch = holding.first is not None and bool(holding.epochs - {holding.first.epoch})
    return Audit(
        expected=len(promised),
        received=len(received),
        lost=len(np.setdiff1d(promised, distinct, assume_unique=True)),
        repeated=len(received) - len(distinct),
        out_of_order=int((np.diff(received) < 0).sum()),
        unexpected=len(np.setdiff1d(distinct, promised, assume_unique=True)) + other_epoch,
    )


def _against_reports(holding: SubscriptionAccount, must: Flags, may: Flags, published_s: Amounts) -> Recomputed:
    """A report published before the grant may or may not arrive: that depends on when the channel runs."""
    got = np.zeros(len(must), bool)
    got[np.array(holding.reports, np.int64)] = True
    expected = must & (published_s > holding.granted_s)
    return Recomputed(1, int(expected.sum()), int((expected & ~got).sum()), int((got & ~may).sum()))


@dataclass(frozen=True, slots=True)
class _Reports:
    kinds: npt.NDArray[np.str_]
    places: Amounts
    published_s: Amounts

    def matching(self, parameters: Mapping[str, Any]) -> tuple[Flags, Flags]:
        """Return which reports these parameters must match, and which they may match."""
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
    """Distance in metres by the haversine formula, independent of the product's own function."""
    lats, lons = np.radians(places).T
    here_lat, here_lon = math.radians(lat), math.radians(lon)
    half = np.sin((lats - here_lat) / 2) ** 2 + math.cos(here_lat) * np.cos(lats) * np.sin((lons - here_lon) / 2) ** 2
    away: Amounts = 2 * _EARTH_M * np.arcsin(np.sqrt(half))
    return away


def quantiles_s(latencies: Iterable[array[float]]) -> tuple[float, float] | None:
    """Return (p50, p95) in seconds, or None without latencies."""
    merged = np.concatenate([np.array(values, np.float32) for values in latencies] or [np.empty(0, np.float32)])
    if not len(merged):
        return None
    return float(np.quantile(merged, 0.5)), float(np.quantile(merged, 0.95))
