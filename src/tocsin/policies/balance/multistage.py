"""Multistage adaptive load balancing: when to shuffle, when to migrate, when to leave all in peace [BAD §3.3, §5].

`plan(snapshot, settings)` is the one door: the coordinator calls it on live reports, the simulator on simulated ones, a
benchmark on a made-up world. A shuffle when cov > γ and μ > θ, otherwise migration while cov > α and μ > β. Which
policies do it is by name in `MIGRATIONS` and `SHUFFLES`; they register through the same tables as anybody's.

Against flapping, beyond the paper: an imbalance must be seen `hits` times in a row; who has moved rests; a plan has at
most `max_moves` moves; a shuffle must promise a gain and is followed by a pause. What has to be remembered for that is
in `Snapshot.memory` and `Snapshot.moved_at_s`: the same snapshot and settings always give the same plan.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Final

import numpy as np

from tocsin.model.ids import BrokerId
from tocsin.model.plan import Balance, Move, Plan, Urgency
from tocsin.model.snapshot import Flags, Ints, Snapshot
from tocsin.policies.balance.affinity import rebalance
from tocsin.policies.balance.load import (
    LoadModel,
    Longs,
    balance_of,
    capacities,
    known_rates,
    movable_now,
    standing_balance,
    weights_of,
)
from tocsin.policies.balance.migration import migrate
from tocsin.policies.balance.renumbering import RenumberedSnapshot, renumber
from tocsin.policies.balance.shuffle import greedy_shuffle

NONE: Final = "none"

MIGRATION_HITS: Final = "balance.migration_hits"
SHUFFLE_HITS: Final = "balance.shuffle_hits"
SHUFFLED_AT_S: Final = "balance.shuffled_at_s"


@dataclass(frozen=True, slots=True)
class BalanceSettings:
    """All thresholds; those that the paper names keep its letters."""

    scheme: str = "ldm"
    """Migration: a name in `MIGRATIONS`, or "none"."""
    shuffle: str = "gsh"
    """A name in `SHUFFLES`, or "none"."""
    alpha: float = 0.15
    """Migration above this cov [BAD slides, "Parameter values"]."""
    beta_bytes_per_s: float = 0.0
    """Migration only above this mean load: an idle network may be as uneven as it likes."""
    gamma: float = 0.5
    """Shuffle above this cov [BAD slides]."""
    theta_bytes_per_s: float = 0.0
    """Shuffle only above this mean load."""
    settle: float = 1.0
    """Share of α that migration aims for. 1 is the paper's: it stops at α and a breath may start it again."""
    hits: int = 2
    """Rounds in a row that must see the imbalance before anybody moves; 1 is the paper's."""
    rest_s: float = 60.0
    """Who has moved stays at least this long."""
    max_moves: int = 1_000
    """Migrations in one plan; more wait for the next round. 0: no limit."""
    max_shuffle_moves: int = 0
    """A shuffle is all or nothing, half of one helps nobody: if it needs more moves than this, migration is used
    instead. 0: no limit."""
    shuffle_rest_s: float = 300.0
    """Between two shuffles."""
    shuffle_gain: float = 0.2
    """Share of the cov that a shuffle must take away to be worth it."""

    def __post_init__(self) -> None:
        """Raises ValueError, naming the setting, on what no policy could follow."""
        if self.scheme not in (*MIGRATIONS, NONE):
            raise ValueError(f"scheme: there is no migration {self.scheme!r}; there are {[*MIGRATIONS, NONE]}")
        if self.shuffle not in (*SHUFFLES, NONE):
            raise ValueError(f"shuffle: there is no shuffle {self.shuffle!r}; there are {[*SHUFFLES, NONE]}")
        for name in ("alpha", "gamma", "beta_bytes_per_s", "theta_bytes_per_s", "rest_s", "shuffle_rest_s",
                     "max_moves", "max_shuffle_moves", "shuffle_gain"):  # fmt: skip
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name}: {getattr(self, name)} is below 0")
        if not 0.0 < self.settle <= 1.0:
            raise ValueError(f"settle: {self.settle} is not above 0 and at most 1")
        if self.hits < 1:
            raise ValueError(f"hits: {self.hits}; an imbalance must be seen at least once")


@dataclass(frozen=True, slots=True)
class PolicyOutcome:
    """What a policy answers."""

    broker_of: Ints
    """Everybody's broker after the moves."""
    after: Balance
    moved: Longs
    """Who moves, in order."""
    reasons: list[str] | str
    """One per move, or one for all."""


Policy = Callable[[RenumberedSnapshot, Flags, BalanceSettings], PolicyOutcome]


def _ldm(near: RenumberedSnapshot, movable: Flags, settings: BalanceSettings) -> PolicyOutcome:
    return _migrated(near, movable, settings, similar=False)


def _sdm(near: RenumberedSnapshot, movable: Flags, settings: BalanceSettings) -> PolicyOutcome:
    return _migrated(near, movable, settings, similar=True)


def _migrated(near: RenumberedSnapshot, movable: Flags, settings: BalanceSettings, *, similar: bool) -> PolicyOutcome:
    model = LoadModel(near.world)
    moved, sources = migrate(
        model, movable, similar=similar, alpha=settings.alpha * settings.settle, beta=settings.beta_bytes_per_s,
        max_moves=settings.max_moves or len(near.order),
    )  # fmt: skip
    why = "shares most with it among those below the mean" if similar else "was least loaded"
    names = near.world.brokers
    pairs = zip(sources.tolist(), model.broker_of[moved].tolist(), strict=True)
    reasons = [f"{names[b]} was most loaded, heaviest that fitted; {names[t]} {why}" for b, t in pairs]
    return PolicyOutcome(model.broker_of, model.balance(), moved, reasons)


def _gsh(near: RenumberedSnapshot, movable: Flags, settings: BalanceSettings) -> PolicyOutcome:
    broker_of, loads, moved = greedy_shuffle(near, movable)
    accepting, per_capacity = capacities(near.world)
    after = balance_of(loads * per_capacity, accepting)
    return PolicyOutcome(
        broker_of, after, moved, "greedy shuffle: heaviest first, each to the then least loaded broker"
    )


def _affinity(near: RenumberedSnapshot, movable: Flags, settings: BalanceSettings) -> PolicyOutcome:
    limit = settings.max_moves or len(near.order)
    return _rebalanced(near, movable, settings.alpha * settings.settle, limit, exchange=False)


def _affinity_shuffle(near: RenumberedSnapshot, movable: Flags, settings: BalanceSettings) -> PolicyOutcome:
    return _rebalanced(near, movable, 0.0, len(near.order), exchange=True)


def _rebalanced(
    near: RenumberedSnapshot, movable: Flags, goal_cov: float, limit: int, *, exchange: bool
) -> PolicyOutcome:
    model = LoadModel(near.world)
    moved, sources, kinds = rebalance(model, movable, goal_cov=goal_cov, max_moves=limit, exchange=exchange)
    return PolicyOutcome(
        model.broker_of, model.balance(), moved, _told(near.world.brokers, model.broker_of[moved], sources, kinds)
    )


def _told(names: tuple[BrokerId, ...], targets: Ints, sources: Ints, kinds: Ints) -> list[str]:
    """A reason per move, written once for all of a group, which move one after the other."""
    group = np.stack([sources, targets, kinds])
    begins = np.flatnonzero(np.concatenate([[True], (np.diff(group) != 0).any(axis=0)])[: len(kinds)])
    why = {kind: _AFFINITY[min(kind, 1)].format(kind) for kind in np.unique(kinds).tolist()}
    texts = [
        f"{names[b]} was above the mean; {why[kind]}, {names[t]} has to fetch least more"
        for b, t, kind in zip(*group[:, begins].tolist(), strict=True)
    ]
    lengths = np.diff(begins, append=len(kinds)).tolist()
    return list(chain.from_iterable(map(repeat, texts, lengths)))


_AFFINITY: Final = {
    1: "one of {} that share interests and move together",
    0: "of the heaviest that fit the one whose move adds least",
    -1: "exchanged with another to level the two",
}

MIGRATIONS: Final[dict[str, Policy]] = {"ldm": _ldm, "sdm": _sdm, "affinity": _affinity}
SHUFFLES: Final[dict[str, Policy]] = {"gsh": _gsh, "affinity": _affinity_shuffle}


def plan(snapshot: Snapshot, settings: BalanceSettings) -> Plan:
    """The moves that are due now, with a reason each, the balance before and after, and what to remember.

    Never raises on a snapshot of the right shape: no brokers, nobody placed and nobody accepting are worlds with
    nothing to do.
    """
    near = renumber(snapshot)
    before = standing_balance(near.world)
    extreme = settings.shuffle != NONE and before.cov > settings.gamma and before.mean > settings.theta_bytes_per_s
    uneven = settings.scheme != NONE and before.cov > settings.alpha and before.mean > settings.beta_bytes_per_s
    memory = dict(snapshot.memory)
    memory[SHUFFLE_HITS] = memory.get(SHUFFLE_HITS, 0.0) + 1.0 if extreme else 0.0
    memory[MIGRATION_HITS] = memory.get(MIGRATION_HITS, 0.0) + 1.0 if uneven else 0.0
    movable = movable_now(near.world, settings.rest_s)
    declined = ""
    if extreme and memory[SHUFFLE_HITS] >= settings.hits:
        found = _shuffle(near, movable, settings, before, memory)
        if isinstance(found, Plan):
            return found
        declined = found
    if uneven and memory[MIGRATION_HITS] >= settings.hits:
        memory[MIGRATION_HITS] = 0.0
        outcome = MIGRATIONS[settings.scheme](near, movable, settings)
        note = declined if len(outcome.moved) else f"{declined}uneven, and no valid migration is left"
        return _plan(near, settings.scheme, outcome, before, note, memory)
    if declined or not (extreme or uneven):
        note = declined or _at_rest(before, settings)
    else:
        seen = int(max(memory[SHUFFLE_HITS], memory[MIGRATION_HITS]))
        note = f"uneven (cov {before.cov:.3f}) for {seen} of {settings.hits} rounds"
    return Plan(snapshot.generation, NONE, Urgency.IMBALANCE, (), before, before, note, memory)


def _shuffle(
    near: RenumberedSnapshot, movable: Flags, settings: BalanceSettings, before: Balance, memory: dict[str, float]
) -> Plan | str:
    """The plan, or why a shuffle that is due is not made."""
    since_s = near.world.at_s - memory.get(SHUFFLED_AT_S, -np.inf)
    if since_s < settings.shuffle_rest_s:
        return f"no shuffle: the last was {since_s:.0f} s ago; "
    outcome = SHUFFLES[settings.shuffle](near, movable, settings)
    after, moves = outcome.after, len(outcome.moved)
    if not moves or after.cov > before.cov * (1.0 - settings.shuffle_gain):
        return f"no shuffle: it would leave cov at {after.cov:.3f}; "
    if settings.max_shuffle_moves and moves > settings.max_shuffle_moves:
        return f"no shuffle: {moves:,} moves are more than {settings.max_shuffle_moves:,}; "
    memory.update({SHUFFLE_HITS: 0.0, MIGRATION_HITS: 0.0, SHUFFLED_AT_S: near.world.at_s})
    name = f"{settings.shuffle}-shuffle" if settings.shuffle in MIGRATIONS else settings.shuffle
    return _plan(near, name, outcome, before, "", memory)


def _plan(
    near: RenumberedSnapshot,
    policy: str,
    outcome: PolicyOutcome,
    before: Balance,
    note: str,
    memory: Mapping[str, float],
) -> Plan:
    after = outcome.after
    moves = _moves(near, outcome)
    told = f"{note}cov {before.cov:.3f} → {after.cov:.3f}, maximum {before.maximum:,.0f} → {after.maximum:,.0f} bytes/s"
    return Plan(near.world.generation, policy, Urgency.IMBALANCE, moves, before, after, told, memory)


def _moves(near: RenumberedSnapshot, outcome: PolicyOutcome) -> tuple[Move, ...]:
    """One `Move` per mover, column by column: a shuffle has a million of them."""
    world, moved = near.world, outcome.moved
    start, broker = world.wants_start.astype(np.int64), world.brokers.__getitem__
    return tuple(
        map(
            Move,
            near.named(moved),
            map(broker, world.broker_of[moved].tolist()),
            map(broker, outcome.broker_of[moved].tolist()),
            repeat(outcome.reasons, len(moved)) if isinstance(outcome.reasons, str) else outcome.reasons,
            weights_of(start, world.wants, known_rates(world.rate))[moved].tolist(),
        )
    )


def _at_rest(before: Balance, settings: BalanceSettings) -> str:
    if settings.scheme == NONE and settings.shuffle == NONE:
        return "balancing is off"
    return f"even enough: cov {before.cov:.3f}, mean {before.mean:,.0f} bytes/s"
