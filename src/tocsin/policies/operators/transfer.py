"""The decisions of the load balancing protocol: which node gives which operators to which neighbour.

Pure arithmetic on a node's usage and the offered transfers [AMI listings 3–5, 8, 9], without messages, rounds or state:
`edge/rounds.py` and `edge/replies.py` call these functions. Every bound is compared with the load *after* the
transfer. For memory alone this is the thesis' subtraction. It stays right when several resources are combined by their
maximum, where sizes do not add up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum

from tocsin.model.edge import NOTHING, EdgeNodeId, OperatorId, Transfer, Usage

_ROUNDING_PCT = 1e-9
"""Tolerance for sums of floats, so that a load exactly at a bound counts as within it."""


class Combine(StrEnum):
    MAXIMUM = "MAXIMUM"
    """The scarcest resource decides."""
    WEIGHTS = "WEIGHTS"
    """A weighted sum; weights that add up to 1 keep it in percent."""


@dataclass(frozen=True, slots=True)
class LoadMeasure:
    """Combines a usage to one load in percent. Weight 0 leaves a resource out, also under MAXIMUM."""

    memory_weight: float = 1.0
    cpu_weight: float = 0.0
    network_weight: float = 0.0
    combine: Combine = Combine.WEIGHTS

    def load_pct(self, usage: Usage) -> float:
        parts = (
            self.memory_weight * usage.memory_pct,
            self.cpu_weight * usage.cpu_pct,
            self.network_weight * usage.network_pct,
        )
        return max(parts) if self.combine is Combine.MAXIMUM else sum(parts)


MEMORY_ONLY = LoadMeasure()
"""The thesis' own measure [AMI §2.4]."""
SCARCEST = LoadMeasure(cpu_weight=1.0, network_weight=1.0, combine=Combine.MAXIMUM)
"""The resource that is closest to its budget. Live nodes use it: a burst shows as a backlog in memory or as CPU."""


@dataclass(frozen=True, slots=True)
class TransferThresholds:
    """L_t and U_t in percent [AMI figure 11, table 5]."""

    lower_pct: float = 40.0
    upper_pct: float = 60.0
    spare_pct: float = 1.0
    """A node that accepts an offer stays this far below U_t: the "− 1" of [AMI listing 4, line 5]."""

    @property
    def target_pct(self) -> float:
        """T_t, the mean of the two: a node at U_t itself would start the next round at once [AMI §3.3]."""
        return (self.lower_pct + self.upper_pct) / 2


class Band(StrEnum):
    UNDERLOADED = "UNDERLOADED"
    NORMAL = "NORMAL"
    OVERLOADED = "OVERLOADED"


class ReplyUrgency(IntEnum):
    """Orders the replies of one round, the most urgent first [AMI table 2]."""

    UNSET = 0
    NORMAL = 1
    HIGH = 2


@dataclass(frozen=True, slots=True)
class TransferRules:
    thresholds: TransferThresholds = TransferThresholds()
    measure: LoadMeasure = MEMORY_ONLY
    makes_room: bool = False
    """Beyond the thesis: a node that cannot accept all that an overloaded neighbour must give away gives as much away
    itself. In the thesis it waits until it is overloaded, or until a neighbour demands what it has above T_t."""

    def load_pct(self, usage: Usage) -> float:
        return self.measure.load_pct(usage)

    def band(self, usage: Usage) -> Band:
        load_pct = self.load_pct(usage)
        if load_pct > self.thresholds.upper_pct:
            return Band.OVERLOADED
        return Band.UNDERLOADED if load_pct < self.thresholds.lower_pct else Band.NORMAL

    def may_hold(self, usage: Usage) -> bool:
        """True if the load is at most U_t. A taker checks this again when the operators arrive."""
        return self.load_pct(usage) <= self.thresholds.upper_pct + _ROUNDING_PCT

    def may_give(self, usage: Usage, given: Usage, least_pct: float | None = None) -> bool:
        """True if the load stays at T_t, or at `least_pct`, or above without the usage `given`."""
        bound_pct = self.thresholds.target_pct if least_pct is None else least_pct
        return self.load_pct(usage - given) >= bound_pct - _ROUNDING_PCT


DEFAULT_RULES = TransferRules()


@dataclass(frozen=True, slots=True)
class Reply:
    """The part of a neighbour's reply that decisions need."""

    sender: EdgeNodeId
    urgency: ReplyUrgency
    transfers: tuple[Transfer, ...]


def offered(
    transfers: Iterable[Transfer], usage: Usage, rules: TransferRules, least_pct: float | None = None
) -> tuple[Transfer, ...]:
    """The transfers an overloaded node offers: each alone leaves it at T_t or above [AMI listing 3, lines 4–13].

    Like the listing this adds nothing up, and the sets may overlap.
    """
    return tuple(transfer for transfer in transfers if rules.may_give(usage, transfer.usage, least_pct))


def excess_pct(usage: Usage, rules: TransferRules) -> float:
    """The load that an overloaded node must give away to get to T_t."""
    return rules.load_pct(usage) - rules.thresholds.target_pct


def room_pct(usage: Usage, missing_pct: float, rules: TransferRules) -> float:
    """Down to which load a node gives operators away to make room for a neighbour.

    It may fall below L_t for a moment: the neighbour gives the room its load in the next round.
    """
    return max(0.0, rules.load_pct(usage) - missing_pct)


def acceptable(transfers: Iterable[Transfer], usage: Usage, rules: TransferRules) -> tuple[Transfer, ...]:
    """The offered transfers a node accepts, in their order, up to U_t − 1 [AMI listing 4, lines 5–14].

    The node skips a transfer that is too large and tries the smaller ones after it (line 8). It accepts no two sets
    with a common operator: line 11 as its prose explains it.
    """
    if rules.band(usage) is Band.OVERLOADED:
        return ()
    ceiling_pct = rules.thresholds.upper_pct - rules.thresholds.spare_pct + _ROUNDING_PCT
    return _greedy(transfers, usage, rules, ceiling_pct)[0]


def acceptor_urgency(usage: Usage, rules: TransferRules) -> ReplyUrgency:
    """An underloaded node gets operators before a normal one [AMI listing 4, lines 15–18]."""
    return ReplyUrgency.HIGH if rules.load_pct(usage) <= rules.thresholds.lower_pct else ReplyUrgency.NORMAL


def agreed(
    replies: Sequence[Reply],
    usage: Usage,
    available: Mapping[tuple[EdgeNodeId, tuple[OperatorId, ...]], Transfer],
    rules: TransferRules,
    least_pct: float | None = None,
) -> dict[EdgeNodeId, tuple[Transfer, ...]]:
    """The transfers an overloaded node makes to each neighbour, down to T_t or `least_pct` [AMI listing 5].

    A transfer must still be available and share no operator with an earlier one. (Line 14 removes only the transfer
    itself, which would give an operator twice when sets overlap.)
    """
    leaving_operators: set[OperatorId] = set()
    leaving = NOTHING
    plan: dict[EdgeNodeId, tuple[Transfer, ...]] = {}
    for reply in _most_urgent_first(replies):
        for accepted in reply.transfers:
            current = available.get((reply.sender, accepted.operators))
            if current is None or current.shares_operators_with(leaving_operators):
                continue
            if rules.may_give(usage - leaving, current.usage, least_pct):
                leaving = leaving + current.usage
                leaving_operators.update(current.operators)
                plan[reply.sender] = (*plan.get(reply.sender, ()), current)
    return plan


def demanded_pct(usage: Usage, rules: TransferRules) -> float:
    """The load that takes an underloaded node up to T_t [AMI listing 3, line 19]."""
    return rules.thresholds.target_pct - rules.load_pct(usage)


def givable(transfers: Iterable[Transfer], size_pct: float, usage: Usage, rules: TransferRules) -> tuple[Transfer, ...]:
    """The transfers of at most `size_pct` that each leave the giver at T_t or above [AMI listing 8].

    Under MAXIMUM a set adds at most its own load at any node, so the comparison with `size_pct` is safe.
    """
    if rules.load_pct(usage) <= rules.thresholds.target_pct:
        return ()
    return tuple(
        transfer
        for transfer in transfers
        if rules.load_pct(transfer.usage) <= size_pct + _ROUNDING_PCT and rules.may_give(usage, transfer.usage)
    )


def giver_urgency(usage: Usage, rules: TransferRules) -> ReplyUrgency:
    """An overloaded giver is relieved first [AMI listing 8, lines 17–20]."""
    return ReplyUrgency.NORMAL if rules.load_pct(usage) < rules.thresholds.upper_pct else ReplyUrgency.HIGH


def taken(replies: Sequence[Reply], usage: Usage, rules: TransferRules) -> dict[EdgeNodeId, tuple[Transfer, ...]]:
    """The transfers an underloaded node takes from each neighbour, up to T_t [AMI listing 9].

    Each transfer in a giver's reply alone leaves the giver at T_t or above; several together might not. The giver
    therefore decides last: it passes the demanded transfers through `agreed` before it hands operators over.
    """
    ceiling_pct = rules.thresholds.target_pct + _ROUNDING_PCT
    plan: dict[EdgeNodeId, tuple[Transfer, ...]] = {}
    for reply in _most_urgent_first(replies):
        chosen, usage = _greedy(reply.transfers, usage, rules, ceiling_pct)
        if chosen:
            plan[reply.sender] = chosen
    return plan


def _greedy(
    transfers: Iterable[Transfer], usage: Usage, rules: TransferRules, ceiling_pct: float
) -> tuple[tuple[Transfer, ...], Usage]:
    """Transfers in their order, without a common operator, with a load up to the ceiling; and the new usage."""
    chosen: list[Transfer] = []
    operators: set[OperatorId] = set()
    for transfer in transfers:
        if not transfer.shares_operators_with(operators) and rules.load_pct(usage + transfer.usage) <= ceiling_pct:
            usage = usage + transfer.usage
            operators.update(transfer.operators)
            chosen.append(transfer)
    return tuple(chosen), usage


def _most_urgent_first(replies: Sequence[Reply]) -> list[Reply]:
    """Replies of equal urgency keep the order in which they arrived."""
    return sorted(replies, key=lambda reply: -reply.urgency)
