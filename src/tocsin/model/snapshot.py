"""What a balancing policy sees: brokers, subscribers, who is where, who wants what, and how much comes of it [BAD §4].

Arrays, not objects: a plan for a million subscribers is a walk over numbers. Whoever drives the policies (the
coordinator on live reports, the simulator, a benchmark) fills one in; policies never change it. What a policy must
remember from one round to the next is in `memory`, so that a plan depends on nothing else.
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


@dataclass(frozen=True, slots=True)
class Place:
    """Where on Earth, in degrees."""

    lat: float
    lon: float


@dataclass(frozen=True, slots=True)
class Snapshot:
    generation: int
    """Grows with every change of assignment or membership; a plan made from an older one is refused."""
    at_s: float
    brokers: tuple[BrokerId, ...]
    capacity: Floats
    """Per broker, in any one unit: policies balance load ÷ capacity, so equal capacities mean plain load."""
    accepting: Flags
    """Per broker: may be given subscribers (alive, trusted, not draining). Others may only lose them."""
    subscribers: tuple[SubscriberId, ...]
    broker_of: Ints
    """x: per subscriber, the index of its broker, counting moves under way as made; `UNPLACED` for none."""
    wants_start: Ints
    """y as rows: subscriber i wants the BE subscriptions `wants[wants_start[i]:wants_start[i + 1]]`."""
    wants: Ints
    rate: Floats
    """λ per BE subscription, in bytes/s: the moving average of what its results amount to."""
    movable: Flags
    """Per subscriber: False while it is on its way, or offline."""
    moved_at_s: Floats
    """Per subscriber: when it last moved, -inf if never. Who has just moved rests."""
    memory: Mapping[str, float] = field(default_factory=dict)
    """What the policies remembered in the previous plan (`Plan.memory`): consecutive hits, last shuffle and so on."""
