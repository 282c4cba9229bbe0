"""What topic partitioning sees and says: topics, brokers, snapshot, moves, plan.

Plain values. The same snapshot is given to the policy and to its baselines; who fills it is the coordinator or the
simulator. Latencies are one-way, in seconds: the time from publishing a message to having it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import NewType

from tocsin.coords.coordinate import Coordinate
from tocsin.model.ids import BrokerId

TopicName = NewType("TopicName", str)


@dataclass(frozen=True, slots=True)
class TopicReport:
    """What a broker reports of a topic it hosts, the same size whatever the number of clients [ePulsar §3.2]."""

    topic: TopicName
    broker: BrokerId
    """P[t]: the home of the topic."""
    in_rate_per_s: float = 0.0
    out_rate_per_s: float = 0.0
    producers: int = 0
    consumers: int = 0
    producer_centroid: Coordinate | None = None
    """NC_P(t); None while there is no producer."""
    consumer_centroid: Coordinate | None = None
    """NC_C(t); None while there is no consumer."""
    deviation_s: float = 0.0
    """W(t): how far the outermost producer and the outermost consumer stand from their centroids, together."""
    worst_latency_s: float = 0.0
    """E(t): publisher to subscriber through the present home, for the worst pair; 0 while there is no pair.

    It comes from the same coordinates as the rest of the report, so it is never above W(t, home).
    """

    @property
    def rate_per_s(self) -> float:
        """R_out(t): incoming and outgoing messages together [ePulsar §3.4.3]."""
        return self.in_rate_per_s + self.out_rate_per_s


@dataclass(frozen=True, slots=True)
class Clients:
    """Every client's own coordinate. Only the `all-pairs` baseline reads it; it grows with the number of clients."""

    producers: tuple[Coordinate, ...]
    consumers: tuple[Coordinate, ...]


class Reason(StrEnum):
    """Why a topic moves."""

    LATENCY = "latency"
    OVERLOAD = "overload"
    HASH = "hash"


@dataclass(frozen=True, slots=True)
class Departure:
    """Policy memory: a topic left a broker, when, why and what latency it had to expect there."""

    broker: BrokerId
    at_s: float
    reason: Reason
    expected_s: float


@dataclass(frozen=True, slots=True)
class Topic:
    report: TopicReport
    bound_s: float | None = None
    """L_th(t); None for a topic that carries no bound."""
    departures: tuple[Departure, ...] = ()
    """The latest ones, oldest first; see `remembered`."""
    clients: Clients | None = None


@dataclass(frozen=True, slots=True)
class Broker:
    """What a broker reports of itself. Utilisations are shares of the whole, 0 to 1."""

    broker: BrokerId
    coordinate: Coordinate
    cpu: float = 0.0
    memory: float = 0.0
    network: float = 0.0
    rate_limit_per_s: float | None = None
    """R_th_out of this broker, where it differs from the common one."""


@dataclass(frozen=True, slots=True)
class PartitionSnapshot:
    generation: int
    now_s: float
    topics: tuple[Topic, ...]
    brokers: tuple[Broker, ...]


@dataclass(frozen=True, slots=True)
class PartitionParams:
    utilisation_limit: float = 0.85
    """Above it a broker is overloaded, whatever the resource [ePulsar §3.4.2, Pulsar's own]."""
    rate_limit_per_s: float = 1_500_000.0
    """R_th_out, messages in and out: beyond it processing latency deteriorates [ePulsar §5.4]."""
    headroom: float = 0.10
    """Ours: share of a bound that is kept free, because coordinates are estimates: a topic counts as violating, and a
    broker as feasible, against the bound less this. Without it a topic 1 % above its bound by the clock stays where it
    is while its coordinates say 1 % below; [ePulsar §5.3] has errors of up to 6 % per leg."""
    gain_s: float = 0.001
    """Ours: a topic that cannot meet its bound moves only for at least this much, so noise does not move it."""
    rest_s: float = 60.0
    """Ours: how long a topic stays away from a broker it left, unless the reason for leaving is gone."""
    return_gain: float = 0.10
    """Ours: share by which the latency to expect there must have fallen before a topic may go back within `rest_s`."""


class Shortfall(StrEnum):
    """Why a topic above its bound is not helped."""

    OUT_OF_REACH = "out-of-reach"
    """No broker is close enough to its clients."""
    NO_ROOM = "no-room"
    """Brokers that are close enough would be overloaded."""
    RESTING = "resting"
    """The only brokers left are ones it has just left for the same reason."""


@dataclass(frozen=True, slots=True)
class Move:
    topic: TopicName
    source: BrokerId
    target: BrokerId
    reason: Reason
    expected_before_s: float
    """W(t, source)."""
    expected_after_s: float
    """W(t, target)."""


@dataclass(frozen=True, slots=True)
class Unmet:
    """A topic above its bound, with the best that any broker could give it."""

    topic: TopicName
    bound_s: float
    best_broker: BrokerId
    best_latency_s: float
    why: Shortfall


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    generation: int
    """Of the snapshot it was made from; a stale plan is refused by whoever executes it."""
    moves: tuple[Move, ...] = ()
    unmet: tuple[Unmet, ...] = ()


PartitionPolicy = Callable[[PartitionSnapshot, PartitionParams], PartitionPlan]
"""Pure, and without a random generator: every choice is settled by latency, then by name."""

_DEPARTURES_KEPT = 4


def remembered(topic: Topic, move: Move, now_s: float) -> tuple[Departure, ...]:
    """The topic's departures after `move`: what the driver puts into the next snapshot."""
    gone = Departure(move.source, now_s, move.reason, move.expected_before_s)
    return (*topic.departures, gone)[-_DEPARTURES_KEPT:]
