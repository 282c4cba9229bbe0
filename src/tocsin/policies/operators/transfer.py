"""Who gives which operators to whom: the decisions of the load balancing protocol [AMI listings 3–5, 8, 9].

Pure arithmetic on what a node uses and what was offered. No messages, no rounds, no state: `edge/negotiation.py` asks
these questions at the right moments. Every bound is asked as "the load *after* the transfer", which for memory alone is
the thesis' subtraction and stays right when several measures are combined by their maximum, where sizes do not add up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum

from tocsin.model.edge import NOTHING, EdgeNodeId, OperatorId, Transfer, Usage

_ROUNDING_PCT = 1e-9
"""Sums of floats: a bound reached exactly is kept, not missed by the last bit."""


class Combine(StrEnum):
    MAXIMUM = "MAXIMUM"
    """The scarcest resource decides."""
    WEIGHTS = "WEIGHTS"
    """A weighted sum; weights that add up to 1 keep it in percent."""


@dataclass(frozen=True, slots=True)
class LoadMeasure:
    """How a usage becomes one number in percent. Weight 0 leaves a resource out, also under MAXIMUM."""

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


@dataclass(frozen=True, slots=True)
class Thresholds:
    """L_t and U_t in percent [AMI figure 11, table 5]."""

    lower_pct: float = 40.0
    upper_pct: float = 60.0
    spare_pct: float = 1.0
    """An acceptor stays this far under U_t: the "− 1" of [AMI listing 4, line 5]."""

    @property
    def target_pct(self) -> float:
        """T_t is the mean of the two: aiming at U_t itself would start the next round at once [AMI §3.3]."""
        return (self.lower_pct + self.upper_pct) / 2


class Band(StrEnum):
    UNDERLOADED = "UNDERLOADED"
    NORMAL = "NORMAL"
    OVERLOADED = "OVERLOADED"


class Urgency(IntEnum):
    """Sorts the replies of one round; the most urgent is served first [AMI table 2]."""

    UNSET = 0
    NORMAL = 1
    HIGH = 2


@dataclass(frozen=True, slots=True)
class Rules:
    thresholds: Thresholds = Thresholds()
    measure: LoadMeasure = MEMORY_ONLY

    def load_pct(self, usage: Usage) -> float:
        return self.measure.load_pct(usage)

    def band(self, usage: Usage) -> Band:
        load_pct = self.load_pct(usage)
        if load_pct > self.thresholds.upper_pct:
            return Band.OVERLOADED
        return Band.UNDERLOADED if load_pct < self.thresholds.lower_pct else Band.NORMAL

    def may_hold(self, usage: Usage) -> bool:
        """No acceptance above U_t: the last word, asked again when the operators themselves arrive."""
        return self.load_pct(usage) <= self.thresholds.upper_pct + _ROUNDING_PCT


DEFAULT_RULES = Rules()


@dataclass(frozen=True, slots=True)
class Reply:
    """What one neighbour answered, as far as a decision needs it."""

    sender: EdgeNodeId
    urgency: Urgency
    transfers: tuple[Transfer, ...]


def offered(transfers: Iterable[Transfer], usage: Usage, rules: Rules) -> tuple[Transfer, ...]:
    """What an overloaded node offers: whatever does not take it below T_t [AMI listing 3, lines 4–13].

    The listing adds up nothing here: the sets may overlap, and each is small enough by itself.
    """
    target_pct = rules.thresholds.target_pct
    return tuple(one for one in transfers if rules.load_pct(usage - one.usage) >= target_pct - _ROUNDING_PCT)


def acceptable(transfers: Iterable[Transfer], usage: Usage, rules: Rules) -> tuple[Transfer, ...]:
    """What a node takes of an offer, in the order offered, staying under U_t − 1 [AMI listing 4, lines 5–14].

    One that is too large is passed over for a smaller one behind it (line 8). Having taken a set, the node takes no
    other with an operator of it: line 11 as its prose explains it.
    """
    if rules.band(usage) is Band.OVERLOADED:
        return ()
    ceiling_pct = rules.thresholds.upper_pct - rules.thresholds.spare_pct + _ROUNDING_PCT
    return _greedy(transfers, usage, rules, ceiling_pct)[0]


def acceptor_urgency(usage: Usage, rules: Rules) -> Urgency:
    """An underloaded node gets the operators before a normal one [AMI listing 4, lines 15–18]."""
    return Urgency.HIGH if rules.load_pct(usage) <= rules.thresholds.lower_pct else Urgency.NORMAL


def agreed(
    replies: Sequence[Reply], usage: Usage, available: Mapping[tuple[EdgeNodeId, tuple[OperatorId, ...]], Transfer],
    rules: Rules,
) -> dict[EdgeNodeId, tuple[Transfer, ...]]:  # fmt: skip
    """Which operators an overloaded node really gives, and to whom [AMI listing 5].

    A transfer must still be available and share no operator with one already given away (line 14 removes the transfer;
    removing only that one would give an operator twice when sets overlap). It stops at T_t.
    """
    target_pct = rules.thresholds.target_pct
    given: set[OperatorId] = set()
    leaving = NOTHING
    plan: dict[EdgeNodeId, tuple[Transfer, ...]] = {}
    for reply in _most_urgent_first(replies):
        mine: list[Transfer] = []
        for wanted in reply.transfers:
            current = available.get((reply.sender, wanted.operators))
            if current is None or current.shares_operators_with(given):
                continue
            if rules.load_pct(usage - leaving - current.usage) >= target_pct - _ROUNDING_PCT:
                leaving = leaving + current.usage
                given.update(current.operators)
                mine.append(current)
        if mine:
            plan[reply.sender] = tuple(mine)
    return plan


def demanded_pct(usage: Usage, rules: Rules) -> float:
    """How much an underloaded node asks for: up to T_t [AMI listing 3, line 19]."""
    return rules.thresholds.target_pct - rules.load_pct(usage)


def givable(transfers: Iterable[Transfer], size_pct: float, usage: Usage, rules: Rules) -> tuple[Transfer, ...]:
    """What a node can give to one that asks for `size_pct`, without falling below T_t [AMI listing 8].

    Under MAXIMUM the load of a set alone bounds what it adds anywhere, so comparing it with `size_pct` is safe.
    """
    target_pct = rules.thresholds.target_pct
    if rules.load_pct(usage) <= target_pct:
        return ()
    return tuple(
        one
        for one in transfers
        if rules.load_pct(one.usage) <= size_pct + _ROUNDING_PCT
        and rules.load_pct(usage - one.usage) >= target_pct - _ROUNDING_PCT
    )


def giver_urgency(usage: Usage, rules: Rules) -> Urgency:
    """An overloaded giver is relieved first [AMI listing 8, lines 17–20]."""
    return Urgency.NORMAL if rules.load_pct(usage) < rules.thresholds.upper_pct else Urgency.HIGH


def taken(replies: Sequence[Reply], usage: Usage, rules: Rules) -> dict[EdgeNodeId, tuple[Transfer, ...]]:
    """What an underloaded node takes of what it was shown, up to T_t [AMI listing 9].

    A giver's reply lists alternatives, each of which alone leaves it at T_t or above; taken together they might not.
    The giver therefore has the last word: it passes what it is asked for through `agreed` before it lets go.
    """
    ceiling_pct = rules.thresholds.target_pct + _ROUNDING_PCT
    arriving = usage
    plan: dict[EdgeNodeId, tuple[Transfer, ...]] = {}
    for reply in _most_urgent_first(replies):
        chosen, arriving = _greedy(reply.transfers, arriving, rules, ceiling_pct)
        if chosen:
            plan[reply.sender] = chosen
    return plan


def _greedy(
    transfers: Iterable[Transfer], usage: Usage, rules: Rules, ceiling_pct: float
) -> tuple[tuple[Transfer, ...], Usage]:
    """Transfers in their order, none sharing an operator with an earlier one, while the load stays at the ceiling."""
    chosen: list[Transfer] = []
    operators: set[OperatorId] = set()
    for one in transfers:
        if not one.shares_operators_with(operators) and rules.load_pct(usage + one.usage) <= ceiling_pct:
            usage = usage + one.usage
            operators.update(one.operators)
            chosen.append(one)
    return tuple(chosen), usage


def _most_urgent_first(replies: Sequence[Reply]) -> list[Reply]:
    """Stable: replies of equal urgency keep the order in which they came."""
    return sorted(replies, key=lambda reply: -reply.urgency)
