"""Initial placement: a broker for a new subscriber, whose subscriptions are not known yet [BAD §5.1].

Pure: the caller passes the turn of round robin and the draw of random. Only accepting brokers are considered. If there
is none, the result is None and the caller asks the subscriber to retry later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tocsin.coords.coordinate import Coordinate, distance_s
from tocsin.model.ids import BrokerId
from tocsin.model.snapshot import Place
from tocsin.policies.balance.distance import distances_m
from tocsin.policies.balance.settings import PlacementPolicy


@dataclass(frozen=True, slots=True)
class BrokerChoice:
    """A broker as placement sees it."""

    broker: BrokerId
    accepting: bool = True
    place: Place | None = None
    coordinate: Coordinate | None = None
    load_bytes_per_s: float = 0.0
    capacity: float = 1.0


@dataclass(frozen=True, slots=True)
class Newcomer:
    place: Place | None = None
    coordinate: Coordinate | None = None
    turn: int = 0
    """The number of subscribers placed before this one; for round robin."""
    draw: float = 0.0
    """A random number, uniform in [0, 1); for random placement."""


def place(policy: PlacementPolicy, newcomer: Newcomer, brokers: Sequence[BrokerChoice]) -> BrokerId | None:
    """Choose a broker; None if none accepts.

    The same arguments always give the same broker; of equals, the earlier one.
    """
    open_to = [choice for choice in brokers if choice.accepting]
    if not open_to:
        return None
    if policy is PlacementPolicy.RANDOM:
        return open_to[int(newcomer.draw * len(open_to))].broker
    if policy is PlacementPolicy.LEAST_LOADED:
        return min(open_to, key=lambda choice: choice.load_bytes_per_s / choice.capacity).broker
    if policy is PlacementPolicy.NEAREST:
        nearest = _nearest(newcomer, open_to)
        if nearest is not None:
            return nearest
    return open_to[newcomer.turn % len(open_to)].broker


def _nearest(newcomer: Newcomer, brokers: Sequence[BrokerChoice]) -> BrokerId | None:
    """The broker with the lowest predicted latency; without coordinates the closest on the map; None without either."""
    if newcomer.coordinate is not None:
        placed = [(distance_s(newcomer.coordinate, b.coordinate), b) for b in brokers if b.coordinate is not None]
        if placed:
            return min(placed, key=lambda pair: pair[0])[1].broker
    if newcomer.place is not None:
        located = [(distance_m(newcomer.place, b.place), b) for b in brokers if b.place is not None]
        if located:
            return min(located, key=lambda pair: pair[0])[1].broker
    return None


def distance_m(place: Place, other: Place) -> float:
    """Great-circle distance (haversine)."""
    return float(distances_m(np.array((place.lat, place.lon)), np.array((other.lat, other.lon))))
