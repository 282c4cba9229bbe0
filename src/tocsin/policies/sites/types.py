"""The input and output of an offloading policy: loads, load states, bundles of clients, snapshot, plan [ePEER §4.4].

Plain values, the same for `drd-lb`, `peer-lb` and `peer-drd`. A coordinator or the simulator fills the snapshot.

A site has one head, which serves publishers, and edges, which serve subscribers. Load has three parts: bytes in, bytes
out and messages to match (table 4-2). A head's matching is not measured: its matching capacity is infinite.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import NamedTuple, NewType

from tocsin.model.ids import BrokerId, SubscriberId
from tocsin.model.ids import PublisherId as PublisherId
from tocsin.policies.topics.types import TopicName

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
        """True if every metric fits: one metric alone overloads a broker."""
        return self[0] <= room[0] + _ROUNDING and self[1] <= room[1] + _ROUNDING and self[2] <= room[2] + _ROUNDING

    def of(self, metric: Metric) -> float:
        return self[_POSITION[metric]]


_ROUNDING = 1e-6
"""Bytes or messages per second: the rounding error of a sum does not exceed a limit that is reached exactly."""
_POSITION = {Metric.INPUT: 0, Metric.OUTPUT: 1, Metric.MATCHING: 2}
NO_LOAD = Load()


class Utilisation(NamedTuple):
    """Ui, Uo and Um: shares of capacity."""

    input: float = 0.0
    output: float = 0.0
    matching: float = 0.0

    def of(self, metric: Metric) -> float:
        return self[_POSITION[metric]]


def utilisation(load: Load, capacity: Load) -> Utilisation:
    return Utilisation(load[0] / capacity[0], load[1] / capacity[1], load[2] / capacity[2])


class LoadState(IntEnum):
    LOW = 0
    HIGH = 1
    OVERLOAD = 2
    BUSY = 3
    """The broker takes part in an offloading: its load is unstable, so it neither gives nor accepts [ePEER §3.2.2]."""


@dataclass(frozen=True, slots=True)
class LoadThresholds:
    low: float = 0.9
    """TH_low: a broker at or above it accepts no more load [ePEER §4.4.1.2]."""
    high: float = 0.95
    """TH_high: a broker above it is overloaded [ePEER §4.4.1.2]. The example of §4.4.1.3 uses 0.9; we do not."""


class Reach(StrEnum):
    """Where a bundle's counterparts are: the subscribers of publishers, the publishers of subscribers
    [ePEER tables 4-4 and 4-6]."""

    REMOTE = "r"
    LOCAL = "l"
    BOTH = "r-l"
    NONE = "n"


@dataclass(frozen=True, slots=True)
class Bundle:
    """All clients of one topic at one broker. They move together where possible [ePEER §4.4.3.2].

    At an edge the clients are subscribers, and `client_bytes_per_s` is the output to each (μ_s). At a head they
    are publishers, and it is the input from each (λ_p).
    """

    topic: TopicName
    delay_s: float
    """The end-to-end delay that the topic's subscribers require; infinite without a requirement."""
    reach: Reach
    load: Load
    """The load that leaves the broker with the whole bundle (U_i^t, U_o^t, U_m^t before division)."""
    clients: tuple[ClientId, ...]
    client_bytes_per_s: tuple[float, ...]
    client_matched_per_s: float = 0.0
    """The part of the matching that leaves with each client. 0: a broker matches a message once for all subscribers of
    its topic [ePEER table 4-3]. Otherwise it matches a message once per subscription."""
    latency_s: float = 0.0
    """The delay that the topic's messages have already, as measured; 0 if that is not known."""


@dataclass(frozen=True, slots=True)
class BrokerReport:
    """The report of a broker's agent [ePEER §4.4.1.3]: averaged load, and the state that follows from it, or BUSY."""

    broker: BrokerId
    site: SiteId
    is_head: bool
    state: LoadState
    load: Load
    capacity: Load
    topics: Container[TopicName] = frozenset()
    """Topics that the broker serves: more clients of these topics add no input and no matching."""
    delay_s: float = 0.0
    """A broker of another site: so much later do messages reach clients that move there, as measured."""
    offers: Container[TopicName] | None = None
    """A broker of another site: the topics whose flows that site has. None: of all topics."""

    @property
    def used(self) -> Utilisation:
        return utilisation(self.load, self.capacity)

    def remaining(self, thresholds: LoadThresholds) -> Load:
        """(TH_high − U) · C per metric."""
        pairs = zip(self.load, self.capacity, strict=True)
        return Load(*(math.inf if math.isinf(whole) else thresholds.high * whole - part for part, whole in pairs))

    def headroom(self, thresholds: LoadThresholds) -> float:
        """The smallest remaining capacity, as a share. The thesis compares numbers in different units (bytes/s,
        messages/s); shares of each capacity are comparable."""
        return thresholds.high - max(self.used)


@dataclass(frozen=True, slots=True)
class OffloadSnapshot:
    generation: int
    now_s: float
    brokers: tuple[BrokerReport, ...]
    """The head and the edges of this site."""
    bundles: Mapping[BrokerId, tuple[Bundle, ...]]
    """The load distribution profile [ePEER §4.4.3.1] of each broker that may have to offload."""
    neighbours: tuple[BrokerReport, ...] = ()
    """Brokers of neighbouring sites, from the latest reports of their heads. The thesis reports one sum per site; a sum
    can promise more than any single broker can take, so each broker is reported."""


@dataclass(frozen=True, slots=True)
class SiteMove:
    topic: TopicName
    clients: tuple[ClientId, ...]
    source: BrokerId
    target: BrokerId
    target_site: SiteId
    accepted: Load
    """The load that the move adds to the target."""
    is_whole: bool = True
    """False for part of a bundle: no broker could accept the whole bundle."""


@dataclass(frozen=True, slots=True)
class Offload:
    """One offloading from one broker to one or more others: one BUSY phase, one count in [ePEER §4.5.3]."""

    source: BrokerId
    moves: tuple[SiteMove, ...]
    reason: str

    @property
    def brokers(self) -> tuple[BrokerId, ...]:
        """The source and all targets: they are BUSY during the offloading."""
        return tuple(dict.fromkeys((self.source, *(move.target for move in self.moves))))


@dataclass(frozen=True, slots=True)
class OffloadPlan:
    generation: int
    policy: str
    offloads: tuple[Offload, ...] = ()
    waiting: tuple[BrokerId, ...] = ()
    """Overloaded brokers whose helpers take part in another offloading. A later plan relieves them; limits on
    publishers would last longer than the wait."""
    limited: tuple[BrokerId, ...] = ()
    """Overloaded brokers that no other broker can help, BUSY or not: the limited resource case, left to congestion
    control [ePEER §5.1]."""


@dataclass(frozen=True, slots=True)
class OffloadParams:
    thresholds: LoadThresholds = field(default_factory=LoadThresholds)
    imbalance: float = 0.10
    """PEER: a larger difference between the loads of two brokers starts balancing between them [ePEER §4.5.4]."""
    imbalance_is_relative: bool = True
    """PEER: the difference is a share of the larger load, not points of utilisation. The thesis does not say which. It
    counts 202 offloads while clients register, mostly at loads too low for a difference of ten points."""
    balanced: float = 0.05
    """Ours, PEER: the difference at which balancing stops. The thesis does not give it; half of the trigger keeps
    balancing from starting again at once."""


def total(loads: Iterable[Load]) -> Load:
    summed = NO_LOAD
    for load in loads:
        summed = summed.plus(load)
    return summed
