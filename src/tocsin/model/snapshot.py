"""Snapshots: the input of a balancing policy. Brokers, subscribers, homes, subscriptions and rates [BAD §4].

A snapshot holds arrays instead of objects, because a plan may cover a million subscribers. The coordinator, the
simulator or a benchmark fills it in; policies never change it. A policy's memory between two rounds is part of the
snapshot, so that a plan depends on the snapshot alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tocsin.model.ids import BrokerId, SubscriberId

Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

UNPLACED = -1
"""The broker index of a subscriber without a broker."""


@dataclass(frozen=True, slots=True)
class Place:
    """A position on Earth, in degrees."""

    lat: float
    lon: float


@dataclass(frozen=True, slots=True)
class Snapshot:
    generation: int
    """Grows with every change of homes or brokers; a plan made from an older snapshot is refused."""
    at_s: float
    """When the snapshot was taken."""
    brokers: tuple[BrokerId, ...]
    capacity: Floats
    """The capacity of each broker, in any unit. Policies balance load ÷ capacity: plain load for equal capacities."""
    accepting: Flags
    """Per broker: True if it may get subscribers (alive, trusted, not draining). Other brokers may only lose them."""
    subscribers: tuple[SubscriberId, ...]
    broker_of: Ints
    """x: per subscriber, the index of its broker or `UNPLACED`. A move in progress counts as made."""
    wants_start: Ints
    """y as rows: subscriber i holds the BE subscriptions `wants[wants_start[i]:wants_start[i + 1]]`."""
    wants: Ints
    rate: Floats
    """λ per BE subscription, in bytes/s: the moving average of the size of its results. NaN: not measured yet."""
    movable: Flags
    """Per subscriber: False while a move is in progress or the subscriber is offline."""
    moved_at_s: Floats
    """Per subscriber: the time of its last move, -inf if there was none.

    A policy does not move a subscriber again for some time.
    """
    online: Flags | None = None
    """Per subscriber: True if its broker delivers to it. Its broker fetches for an offline subscriber, and delivers
    nothing [BAD §4]. None: all are online."""
    delivery_ratio: float = 1.0
    """Bytes that a subscriber gets per byte that its broker fetches for it: the encodings of both ways differ."""
    surge: bool = False
    """True if brokers have reported a surge since the last round: plan at once."""
    places_deg: Floats | None = None
    """Latitude and longitude of each subscriber, NaN if unknown. None: all are unknown."""
    broker_places_deg: Floats | None = None
    """Latitude and longitude of each broker, NaN if unknown. None: all are unknown."""
    memory: Mapping[str, float] = field(default_factory=dict)
    """The memory of the previous plan (`Plan.memory`): consecutive hits, the last shuffle and so on."""
