"""The input and output of a topic policy: topics, brokers, snapshot, moves, plan [ePulsar].

Plain values. The coordinator or the simulator fills a snapshot; the policy and its baselines read the same one.
Latencies are one-way, in seconds: the time from publishing a message to receiving it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from tocsin.coords.coordinate import Coordinate
from tocsin.model.ids import BrokerId
from tocsin.model.ids import TopicName as TopicName


@dataclass(frozen=True, slots=True)
class TopicReport:
    """A broker's report of a topic that it hosts. Its size does not depend on the number of clients [ePulsar §3.2]."""

    topic: TopicName
    broker: BrokerId
    """P[t]: the home of the topic."""
    in_rate_per_s: float = 0.0
    out_rate_per_s: float = 0.0
    producers: int = 0
    consumers: int = 0
    producer_centroid: Coordinate | None = None
    """NC_P(t); None if the topic has no producer."""
    consumer_centroid: Coordinate | None = None
    """NC_C(t); None if the topic has no consumer."""
    deviation_s: float = 0.0
    """W(t): distance of the outermost producer from its centroid plus that of the outermost consumer from its own."""
    worst_latency_s: float = 0.0
    """E(t): latency of the worst producer–consumer pair through the present home; 0 without a pair.

    It is computed from the same coordinates as the rest of the report, so it never exceeds W(t, home).
    """

    @property
    def rate_per_s(self) -> float:
        """R_out(t) of [ePulsar §3.4.3]: incoming and outgoing messages together. They cause the load of a topic."""
        return self.in_rate_per_s + self.out_rate_per_s


@dataclass(frozen=True, slots=True)
class Clients:
    """The coordinate of every client of a topic. Only the `all-pairs` baseline reads it."""

    producers: tuple[Coordinate, ...]
    consumers: tuple[Coordinate, ...]


class TopicMoveReason(StrEnum):
    LATENCY = "latency"
    OVERLOAD = "overload"
    HASH = "hash"


@dataclass(frozen=True, slots=True)
class Departure:
    """The policy's record that a topic left a broker."""

    broker: BrokerId
    at_s: float
    reason: TopicMoveReason
    expected_s: float
    """W(t, broker) at the time of the departure."""


@dataclass(frozen=True, slots=True)
class Topic:
    report: TopicReport
    bound_s: float | None = None
    """L_th(t); None for a topic without a bound."""
    departures: tuple[Departure, ...] = ()
    """The latest departures, oldest first; see `departures_after`."""
    clients: Clients | None = None


@dataclass(frozen=True, slots=True)
class LoadSample:
    """What a broker has reported at some time: its messages, in and out, and its utilisations (shares, 0 to 1)."""

    rate_per_s: float
    cpu: float = 0.0
    memory: float = 0.0
    network: float = 0.0


@dataclass(frozen=True, slots=True)
class TopicBroker:
    """A broker that can host topics. Utilisations are shares, 0 to 1."""

    broker: BrokerId
    coordinate: Coordinate
    cpu: float = 0.0
    memory: float = 0.0
    network: float = 0.0
    rate_limit_per_s: float | None = None
    """R_th_out of this broker, in outgoing messages; None for `PartitionParams.rate_limit_per_s`."""
    samples: tuple[LoadSample, ...] = ()
    """Earlier reports of this broker, from which `load` learns what a message costs; see `load.samples_after`."""


@dataclass(frozen=True, slots=True)
class PartitionSnapshot:
    generation: int
    now_s: float
    topics: tuple[Topic, ...]
    brokers: tuple[TopicBroker, ...]


@dataclass(frozen=True, slots=True)
class PartitionParams:
    utilisation_limit: float = 0.85
    """A broker with any resource above this share is overloaded [ePulsar §3.4.2, as in Pulsar]."""
    rate_limit_per_s: float = 1_500_000.0
    """R_th_out, *outgoing* messages of a broker: above it processing latency deteriorates [ePulsar §3.4.2, §5.4]."""
    headroom: float = 0.10
    """Ours: share of a bound that is kept free, because coordinates are estimates. Topics and brokers are compared with
    the bound less this share. Without it, a topic whose true latency is 1 % above its bound does not move if its
    coordinates predict 1 % below; [ePulsar §5.3] has errors of up to 6 % per leg."""
    gain_s: float = 0.001
    """Ours: a topic that cannot meet its bound moves only if it gains at least this much, so noise does not move it."""
    rest_s: float = 60.0
    """Ours: how long a topic does not return to a broker that it left, unless `return_gain` allows it."""
    return_gain: float = 0.10
    """Ours: W(t, b) must have fallen by this share before a topic may return to b within `rest_s`."""


class Shortfall(StrEnum):
    """Why the plan leaves a topic above its bound."""

    OUT_OF_REACH = "out-of-reach"
    """No broker is close enough to the clients."""
    NO_ROOM = "no-room"
    """The brokers that are close enough would be overloaded."""
    RESTING = "resting"
    """The topic has recently left the only brokers that could host it, for the same reason."""


@dataclass(frozen=True, slots=True)
class TopicMove:
    topic: TopicName
    source: BrokerId
    target: BrokerId
    reason: TopicMoveReason
    expected_before_s: float
    """W(t, source)."""
    expected_after_s: float
    """W(t, target)."""


@dataclass(frozen=True, slots=True)
class Unmet:
    """A topic above its bound, with the lowest latency that any broker offers."""

    topic: TopicName
    bound_s: float
    best_broker: BrokerId
    best_latency_s: float
    why: Shortfall


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    generation: int
    """Generation of the snapshot; the executor refuses a stale plan."""
    moves: tuple[TopicMove, ...] = ()
    unmet: tuple[Unmet, ...] = ()


PartitionPolicy = Callable[[PartitionSnapshot, PartitionParams], PartitionPlan]
"""Pure and deterministic: ties in latency are broken by name."""

_DEPARTURES_KEPT = 4


def departures_after(topic: Topic, move: TopicMove, now_s: float) -> tuple[Departure, ...]:
    """The topic's departures after `move`, for the next snapshot."""
    return latest_departures(topic.departures, Departure(move.source, now_s, move.reason, move.expected_before_s))


def latest_departures(departures: tuple[Departure, ...], last: Departure) -> tuple[Departure, ...]:
    """As many as a policy needs."""
    return (*departures, last)[-_DEPARTURES_KEPT:]
