"""What offloading sees and says: loads, load states, bundles of clients, snapshot, plan [ePEER §4.4].

Plain values, the same for `drd-lb`, `peer-lb` and `peer-drd`; who fills them is a coordinator or the simulator.

A site has one head, which serves publishers, and edges, which serve subscribers. Load has three parts: bytes in, bytes
out and messages to match (table 4-2). A head's matching is not measured: its capacity for it is infinite.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import NamedTuple, NewType

from tocsin.model.ids import BrokerId, SubscriberId
from tocsin.policies.topics.types import TopicName

PublisherId = NewType("PublisherId", str)
SiteId = NewType("SiteId", str)
ClientId = SubscriberId | PublisherId


class Metric(StrEnum):
    INPUT = "Ui"
    OUTPUT = "Uo"
    MATCHING = "Um"


class Load(NamedTuple):
    """λ, μ and σ of [ePEER table 4-2]; also capacities in the same units."""

    in_bytes_per_s: float = 0.0
    out_bytes_per_s: float = 0.0
    matched_per_s: float = 0.0

    def plus(self, other: Load) -> Load:
        return Load(self[0] + other[0], self[1] + other[1], self[2] + other[2])

    def minus(self, other: Load) -> Load:
        return Load(self[0] - other[0], self[1] - other[1], self[2] - other[2])

    def fits(self, room: Load) -> bool:
        """All of it: a broker is overloaded by any one metric."""
        return self[0] <= room[0] + _ROUNDING and self[1] <= room[1] + _ROUNDING and self[2] <= room[2] + _ROUNDING

    def of(self, metric: Metric) -> float:
        return self[_PLACE[metric]]


_ROUNDING = 1e-6
"""Bytes or messages per second: a bound reached exactly is kept, not missed by the last bit of a sum."""
_PLACE = {Metric.INPUT: 0, Metric.OUTPUT: 1, Metric.MATCHING: 2}
NO_LOAD = Load()


class Utilisation(NamedTuple):
    """Ui, Uo and Um: shares of capacity."""

    input: float = 0.0
    output: float = 0.0
    matching: float = 0.0

    def of(self, metric: Metric) -> float:
        return self[_PLACE[metric]]


def utilisation(load: Load, capacity: Load) -> Utilisation:
    return Utilisation(load[0] / capacity[0], load[1] / capacity[1], load[2] / capacity[2])


class LoadState(IntEnum):
    LOW = 0
    HIGH = 1
    OVERLOAD = 2
    BUSY = 3
    """Takes part in an offloading: its load is unstable, it neither gives nor takes more [ePEER §3.2.2]."""


@dataclass(frozen=True, slots=True)
class Thresholds:
    low: float = 0.9
    """TH_low: from here on a broker accepts no more [ePEER §4.4.1.2]."""
    high: float = 0.95
    """TH_high: above it a broker is overloaded [ePEER §4.4.1.2]. §4.4.1.3 counts an example with 0.9; we keep to
    this."""


class Reach(StrEnum):
    """Where the other side of a topic is: for publishers their subscribers, for subscribers their publishers
    [ePEER tables 4-4 and 4-6]."""

    REMOTE = "r"
    LOCAL = "l"
    BOTH = "r-l"
    NOBODY = "n"


@dataclass(frozen=True, slots=True)
class Bundle:
    """All clients of one topic at one broker: they move together or stay together [ePEER §4.4.3.2].

    For an edge the clients are subscribers and `client_bytes_per_s` is what is sent to each (μ_s); for a head they are
    publishers and it is what each sends (λ_p).
    """

    topic: TopicName
    delay_s: float
    """What the topic's subscribers require, end to end; infinite where they require nothing."""
    reach: Reach
    load: Load
    """What this broker is relieved of when all of the bundle leaves (U_i^t, U_o^t, U_m^t before division)."""
    clients: tuple[ClientId, ...]
    client_bytes_per_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class BrokerReport:
    """What a broker's agent reports [ePEER §4.4.1.3]; averaged load, and the state that follows or BUSY."""

    broker: BrokerId
    site: SiteId
    is_head: bool
    state: LoadState
    load: Load
    capacity: Load
    topics: Container[TopicName] = frozenset()
    """Topics it serves already: more clients of those cost it no more input or matching."""

    @property
    def used(self) -> Utilisation:
        return utilisation(self.load, self.capacity)

    def remaining(self, thresholds: Thresholds) -> Load:
        """(TH_high − U) · C per metric."""
        pairs = zip(self.load, self.capacity, strict=True)
        return Load(*(math.inf if math.isinf(whole) else thresholds.high * whole - part for part, whole in pairs))

    def headroom(self, thresholds: Thresholds) -> float:
        """The available remaining capacity, as a share. The thesis takes the smallest of three numbers in different
        units (bytes/s, messages/s); shares of each capacity can be compared."""
        return thresholds.high - max(self.used)


@dataclass(frozen=True, slots=True)
class OffloadSnapshot:
    generation: int
    now_s: float
    brokers: tuple[BrokerReport, ...]
    """Of this site, head and edges."""
    bundles: Mapping[BrokerId, tuple[Bundle, ...]]
    """The load distribution profile [ePEER §4.4.3.1] of each broker that may have to give something away."""
    neighbours: tuple[BrokerReport, ...] = ()
    """Brokers of neighbouring sites, as their heads last stated them. The thesis states one sum per site; a sum can
    promise what no single broker can take, so each broker is stated."""


@dataclass(frozen=True, slots=True)
class BundleMove:
    topic: TopicName
    clients: tuple[ClientId, ...]
    source: BrokerId
    target: BrokerId
    target_site: SiteId
    accepted: Load
    """What the target takes on."""
    is_whole: bool = True
    """False for clients that were split from their bundle because nobody could take all of it."""


@dataclass(frozen=True, slots=True)
class Offload:
    """One offloading: from one broker to one or more, one phase of being BUSY, one count in [ePEER §4.5.3]."""

    source: BrokerId
    moves: tuple[BundleMove, ...]
    reason: str

    @property
    def brokers(self) -> tuple[BrokerId, ...]:
        """All that are BUSY meanwhile."""
        return tuple(dict.fromkeys((self.source, *(move.target for move in self.moves))))


@dataclass(frozen=True, slots=True)
class OffloadPlan:
    generation: int
    policy: str
    offloads: tuple[Offload, ...] = ()
    limited: tuple[BrokerId, ...] = ()
    """Overloaded brokers that nobody can help: the limited resource case, which is congestion control's [ePEER
    §5.1]."""


@dataclass(frozen=True, slots=True)
class OffloadParams:
    thresholds: Thresholds = field(default_factory=Thresholds)
    imbalance: float = 0.10
    """PEER: the difference between two brokers' loads that starts balancing between them [ePEER §4.5.4]."""
    imbalance_is_relative: bool = True
    """PEER: the difference is a share of the larger load, not points of utilisation. The thesis does not say. It
    counts 202 offloads while clients register, most of it at loads so low that ten points are out of reach."""
    balanced: float = 0.05
    """Ours, PEER: the difference at which it stops. The thesis does not say; half the trigger keeps it from starting
    again at once."""


def total(loads: Iterable[Load]) -> Load:
    summed = NO_LOAD
    for load in loads:
        summed = summed.plus(load)
    return summed
