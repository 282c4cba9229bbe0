"""Plans: the moves that a balancing policy proposes, their reasons and their expected effect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from tocsin.model.ids import BrokerId, SubscriberId


class Urgency(StrEnum):
    """The cause of a plan, most urgent first: the arbiter takes plans in this order (docs/coordinator.md)."""

    FAILOVER = "failover"
    DRAIN = "drain"
    LATENCY = "latency"
    OVERLOAD = "overload"
    IMBALANCE = "imbalance"


class Move(msgspec.Struct, frozen=True, gc=False):
    """One step of a plan. Every prefix of a plan leaves each subscriber served: the target is ready before the release.

    A shuffle has up to a million moves. They hold only text and a number, so the garbage collector need not track them
    (`gc=False`); it would scan all of them repeatedly while they are created.
    """

    subscriber: SubscriberId
    source: BrokerId | None
    """The present broker; None if the subscriber's broker has failed."""
    target: BrokerId
    reason: str
    """A text for people: the reason for this subscriber and this target."""
    load_bytes_per_s: float = 0.0
    """The load of the subscriber: Σ λ over its subscriptions."""
    added_m: float | None = None
    """How much farther the target is from the subscriber than the source, in metres; None if unknown."""


@dataclass(frozen=True, slots=True)
class Balance:
    """How even the brokers' loads are [BAD eq. 5–8]. Where capacities differ, these are loads ÷ capacity."""

    loads: tuple[float, ...]
    mean: float
    cov: float
    """Coefficient of variation: standard deviation ÷ mean."""
    maximum: float


@dataclass(frozen=True, slots=True)
class Plan:
    generation: int
    """The generation of the snapshot that the plan was made from."""
    policy: str
    urgency: Urgency
    moves: tuple[Move, ...] = ()
    before: Balance | None = None
    after: Balance | None = None
    """The expected balance after all moves, with the same rates."""
    note: str = ""
    """A text for people: the purpose of the plan, or the reason why it has no moves."""
    memory: Mapping[str, float] = field(default_factory=dict)
    """The policy's memory, for the next snapshot."""
