"""What a balancing policy answers: moves, each with its reason, and what they change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from tocsin.model.ids import BrokerId, SubscriberId


class Urgency(StrEnum):
    """Why somebody moves, most urgent first: the order in which the arbiter takes plans (docs/architecture.md)."""

    FAILOVER = "failover"
    DRAIN = "drain"
    LATENCY = "latency"
    OVERLOAD = "overload"
    IMBALANCE = "imbalance"


class Move(msgspec.Struct, frozen=True, gc=False):
    """One step of a plan. Any prefix of a plan leaves everybody served: a move is made before it breaks.

    A shuffle has a million of them. They hold nothing but text and a number, so the garbage collector, which would go
    through them again and again while they are made, need not know them.
    """

    subscriber: SubscriberId
    source: BrokerId | None
    """None when its broker is gone."""
    target: BrokerId
    reason: str
    """For people: why this one, why there."""
    load_bytes_per_s: float = 0.0
    """What the subscriber's subscriptions amount to: Σ λ over them."""


@dataclass(frozen=True, slots=True)
class Balance:
    """How even the brokers' loads are [BAD eq. 5–8]: of utilisations where capacities differ."""

    loads: tuple[float, ...]
    mean: float
    cov: float
    maximum: float


@dataclass(frozen=True, slots=True)
class Plan:
    generation: int
    """Of the snapshot it was made from."""
    policy: str
    urgency: Urgency
    moves: tuple[Move, ...] = ()
    before: Balance | None = None
    after: Balance | None = None
    """Expected once all moves are made, from the same rates."""
    note: str = ""
    """Why there are no moves, or what the plan is about."""
    memory: Mapping[str, float] = field(default_factory=dict)
    """To be put into the next snapshot."""
