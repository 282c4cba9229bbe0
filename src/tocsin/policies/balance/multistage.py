"""Multistage adaptive load balancing: when to shuffle, when to migrate, when to move nothing [BAD §3.3, §5].

`plan(snapshot, settings)` is the only entry point: the coordinator calls it on live reports, the simulator on simulated
reports, a benchmark on a synthetic world. It shuffles when cov > γ and μ > θ; otherwise it migrates while cov > α and
μ > β. `MIGRATIONS` and `SHUFFLES` list the policies by name; a new policy registers in the same tables.

Measures against flapping, beyond the paper: an imbalance must be seen in `hits` consecutive rounds; a moved subscriber
rests; a plan has at most `max_moves` moves; a shuffle must promise a gain and is followed by a pause. The state for
that is in `Snapshot.memory` and `Snapshot.moved_at_s`: the same snapshot and settings always give the same plan.

A stage beyond the paper comes before both: when brokers foresee a surge, or a broker is above `overload_bytes_per_s`,
the plan migrates at once. It does not wait for `hits`: that would answer a disaster two rounds later.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, repeat
from typing import Final

import numpy as np

from tocsin.model.ids import BrokerId
from tocsin.model.plan import Balance, Move, Plan, Urgency
from tocsin.model.snapshot import Flags, Floats, Ints, Snapshot
from tocsin.policies.balance.affinity import rebalance
from tocsin.policies.balance.distance import Bits, added_m, reach_of
from tocsin.policies.balance.load import (
    LoadModel,
    Longs,
    balance_of,
    capacities,
    known_rates,
    movable_now,
    snapshot_balance,
    weights_of,
)
from tocsin.policies.balance.migration import migrate
from tocsin.policies.balance.renumbering import RenumberedSnapshot, renumber
from tocsin.policies.balance.settings import NONE, BalanceSettings
from tocsin.policies.balance.shuffle import greedy_shuffle

MIGRATION_HITS: Final = "balance.migration_hits"
SHUFFLE_HITS: Final = "balance.shuffle_hits"
SHUFFLED_AT_S: Final = "balance.shuffled_at_s"
_RELIEFS: Final = (0.9, 0.7, 0.5, 0.25, 0.0)
"""Shares of the present cov that an overload plan aims for, one after the other, until no broker is above its limit."""
_OVERLOAD_GAIN: Final = 0.02
"""The least share of the highest load that an overload plan must take away."""


@dataclass(frozen=True, slots=True)
class PolicyOutcome:
    """The result of a policy, in the numbers of the renumbered snapshot."""

    broker_of: Ints
    """Each subscriber's broker after the moves."""
    after: Balance
    moved: Longs
    """The subscribers that move, in order."""
    reasons: list[str] | str
    """The reasons, one per move, or one reason for all moves."""


@dataclass(frozen=True, slots=True)
class Candidacy:
    """Which subscribers may move, and where to."""

    movable: Flags
    reach: Bits


Policy = Callable[[RenumberedSnapshot, Candidacy, BalanceSettings], PolicyOutcome]


def _migration(
    renumbered: RenumberedSnapshot, candidacy: Candidacy, settings: BalanceSettings, *, similar: bool
) -> PolicyOutcome:
    model = LoadModel(renumbered.world, reach=candidacy.reach)
    moved, sources = migrate(
        model,
        candidacy.movable,
        similar=similar,
        alpha=settings.alpha * settings.settle,
        beta=settings.beta_bytes_per_s,
        max_moves=settings.max_moves or len(renumbered.order),
    )
    why = "fetches most of its subscriptions already" if similar else "was least loaded"
    names = renumbered.world.brokers
    pairs = zip(sources.tolist(), model.broker_of[moved].tolist(), strict=True)
    reasons = [
        f"{names[b]} was most loaded: its heaviest subscriber that fits moves; {names[t]} {why}" for b, t in pairs
    ]
    return PolicyOutcome(model.broker_of, model.balance(), moved, reasons)


def _gsh(renumbered: RenumberedSnapshot, candidacy: Candidacy, settings: BalanceSettings) -> PolicyOutcome:
    broker_of, loads, moved = greedy_shuffle(renumbered, candidacy.movable, candidacy.reach)
    accepting, per_capacity = capacities(renumbered.world)
    after = balance_of(loads * per_capacity, accepting)
    reason = "greedy shuffle: heaviest first, each to the broker that was then least loaded"
    return PolicyOutcome(broker_of, after, moved, reason)


def _affinity(
    renumbered: RenumberedSnapshot, candidacy: Candidacy, settings: BalanceSettings, *, shuffle: bool
) -> PolicyOutcome:
    """A migration stops at the goal for cov and at `max_moves`; a shuffle levels the loads completely."""
    goal_cov = 0.0 if shuffle else settings.alpha * settings.settle
    limit = (0 if shuffle else settings.max_moves) or len(renumbered.order)
    model = LoadModel(renumbered.world, reach=candidacy.reach)
    moved, sources, kinds = rebalance(model, candidacy.movable, goal_cov=goal_cov, max_moves=limit, exchange=shuffle)
    reasons = _affinity_reasons(renumbered.world.brokers, model.broker_of[moved], sources, kinds)
    return PolicyOutcome(model.broker_of, model.balance(), moved, reasons)


def _affinity_reasons(names: tuple[BrokerId, ...], targets: Ints, sources: Ints, kinds: Ints) -> list[str]:
    """A reason per move. The members of a group move one after the other and share one text."""
    group = np.stack([sources, targets, kinds])
    begins = np.flatnonzero(np.concatenate([[True], (np.diff(group) != 0).any(axis=0)])[: len(kinds)])
    why = {kind: _AFFINITY[min(kind, 1)].format(kind) for kind in np.unique(kinds).tolist()}
    texts = [
        f"{names[b]} was above the mean; {why[kind]}; {names[t]} must fetch the least additional data"
        for b, t, kind in zip(*group[:, begins].tolist(), strict=True)
    ]
    lengths = np.diff(begins, append=len(kinds)).tolist()
    return list(chain.from_iterable(map(repeat, texts, lengths)))


_AFFINITY: Final = {
    1: "one of {} subscribers that share interests and move together",
    0: "one of its heaviest subscribers, which adds the least load",
    -1: "exchanged with another subscriber to level the two brokers",
}

MIGRATIONS: Final[dict[str, Policy]] = {
    "ldm": partial(_migration, similar=False),
    "sdm": partial(_migration, similar=True),
    "affinity": partial(_affinity, shuffle=False),
}
SHUFFLES: Final[dict[str, Policy]] = {"gsh": _gsh, "affinity": partial(_affinity, shuffle=True)}


def plan(snapshot: Snapshot, settings: BalanceSettings) -> Plan:
    """The moves that are due now, each with a reason, the balance before and after, and the memory for the next round.

    Never raises on a snapshot of the right shape: without brokers, placed subscribers or accepting brokers the plan is
    empty.
    """
    renumbered = renumber(snapshot)
    before = snapshot_balance(renumbered.world)
    extreme = settings.shuffle != NONE and before.cov > settings.gamma and before.mean > settings.theta_bytes_per_s
    uneven = settings.scheme != NONE and before.cov > settings.alpha and before.mean > settings.beta_bytes_per_s
    memory = dict(snapshot.memory)
    hit = 0.0 if snapshot.surge else 1.0  # rounds that answer surges are closer together than those that count
    memory[SHUFFLE_HITS] = memory.get(SHUFFLE_HITS, 0.0) + hit if extreme else 0.0
    memory[MIGRATION_HITS] = memory.get(MIGRATION_HITS, 0.0) + hit if uneven else 0.0
    candidacy = Candidacy(
        movable_now(renumbered.world, settings.rest_s), reach_of(renumbered.world, settings.max_added_m)
    )
    relieved = _relieve(renumbered, candidacy, settings, before, memory)
    if isinstance(relieved, Plan):
        return relieved
    declined = relieved
    if extreme and memory[SHUFFLE_HITS] >= settings.hits:
        shuffled = _shuffle(renumbered, candidacy, settings, before, memory)
        if isinstance(shuffled, Plan):
            return shuffled
        declined += shuffled
    if uneven and memory[MIGRATION_HITS] >= settings.hits:
        memory[MIGRATION_HITS] = 0.0
        outcome = MIGRATIONS[settings.scheme](renumbered, candidacy, settings)
        note = declined if len(outcome.moved) else f"{declined}uneven, and no valid migration is left; "
        return _plan(renumbered, settings.scheme, outcome, before, note, memory)
    if declined or not (extreme or uneven):
        note = declined or _note_without_moves(before, settings)
    else:
        uneven_rounds = int(max(memory[SHUFFLE_HITS], memory[MIGRATION_HITS]))
        note = f"uneven (cov {before.cov:.3f}) for {uneven_rounds} of {settings.hits} rounds"
    return Plan(snapshot.generation, NONE, Urgency.IMBALANCE, (), before, before, note, memory)


def _relieve(
    renumbered: RenumberedSnapshot,
    candidacy: Candidacy,
    settings: BalanceSettings,
    before: Balance,
    memory: dict[str, float],
) -> Plan | str:
    """The overload plan that is due now; otherwise the reason why none is made, which is empty without an overload."""
    limit = settings.overload_bytes_per_s
    overloaded = limit > 0.0 and before.maximum > limit
    surge = renumbered.world.surge and settings.surges
    if settings.scheme == NONE or not (overloaded or surge):
        return ""
    why = f"{before.maximum:,.0f} bytes/s are above the limit of {limit:,.0f}; " if overloaded else "a surge; "
    if not overloaded and (before.cov <= settings.alpha or before.mean <= settings.beta_bytes_per_s):
        return f"{why}the brokers share it evenly; "
    outcome = _relief(renumbered, candidacy, settings, before.cov, limit) if overloaded else None
    outcome = outcome or MIGRATIONS[settings.scheme](renumbered, candidacy, settings)
    if not len(outcome.moved) or outcome.after.maximum > before.maximum * (1.0 - _OVERLOAD_GAIN):
        return f"{why}no migration would lower the highest load; "
    memory.update({SHUFFLE_HITS: 0.0, MIGRATION_HITS: 0.0})
    return _plan(renumbered, settings.scheme, outcome, before, why, memory, Urgency.OVERLOAD)


def _relief(
    renumbered: RenumberedSnapshot, candidacy: Candidacy, settings: BalanceSettings, cov: float, limit: float
) -> PolicyOutcome:
    """The migration with the fewest moves, of a few, that brings the highest load below `limit`; else the most even.

    A broker above its limit is relieved even if all others are nearly as loaded.
    """
    outcome = None
    for share in _RELIEFS:
        goal = replace(settings, alpha=share * cov, settle=1.0, beta_bytes_per_s=0.0)
        outcome = MIGRATIONS[settings.scheme](renumbered, candidacy, goal)
        if outcome.after.maximum <= limit:
            break
    assert outcome is not None
    return outcome


def _shuffle(
    renumbered: RenumberedSnapshot,
    candidacy: Candidacy,
    settings: BalanceSettings,
    before: Balance,
    memory: dict[str, float],
) -> Plan | str:
    """The plan of a shuffle that is due, or the reason why it is not made."""
    at_s = renumbered.world.at_s
    since_s = at_s - memory.get(SHUFFLED_AT_S, -np.inf)
    if since_s < settings.shuffle_rest_s:
        return f"no shuffle: the last was {since_s:.0f} s ago; "
    outcome = SHUFFLES[settings.shuffle](renumbered, candidacy, settings)
    after, moves = outcome.after, len(outcome.moved)
    if not moves or after.cov > before.cov * (1.0 - settings.shuffle_gain):
        return f"no shuffle: it would leave cov at {after.cov:.3f}; "
    if settings.max_shuffle_moves and moves > settings.max_shuffle_moves:
        return f"no shuffle: {moves:,} moves are more than {settings.max_shuffle_moves:,}; "
    memory.update({SHUFFLE_HITS: 0.0, MIGRATION_HITS: 0.0, SHUFFLED_AT_S: at_s})
    name = f"{settings.shuffle}-shuffle" if settings.shuffle in MIGRATIONS else settings.shuffle
    return _plan(renumbered, name, outcome, before, "", memory)


def _plan(
    renumbered: RenumberedSnapshot,
    policy: str,
    outcome: PolicyOutcome,
    before: Balance,
    note: str,
    memory: dict[str, float],
    urgency: Urgency = Urgency.IMBALANCE,
) -> Plan:
    after, world = outcome.after, renumbered.world
    note += f"cov {before.cov:.3f} → {after.cov:.3f}, maximum {before.maximum:,.0f} → {after.maximum:,.0f} bytes/s"
    farther_m = added_m(world, outcome.moved, outcome.broker_of[outcome.moved])
    if farther_m is not None and not np.isnan(farther_m).all():
        note += f"; moves add {np.nanmean(farther_m):,.0f} m on average, {np.nanmax(farther_m):,.0f} m at most"
    moves = _moves(renumbered, outcome, farther_m)
    return Plan(world.generation, policy, urgency, moves, before, after, note, memory)


def _moves(renumbered: RenumberedSnapshot, outcome: PolicyOutcome, farther_m: Floats | None) -> tuple[Move, ...]:
    """One `Move` per mover, made column by column because a shuffle may have a million."""
    world, moved = renumbered.world, outcome.moved
    broker = world.brokers.__getitem__
    unknown = repeat(None, len(moved))
    return tuple(
        map(
            Move,
            renumbered.named(moved),
            map(broker, world.broker_of[moved].tolist()),
            map(broker, outcome.broker_of[moved].tolist()),
            repeat(outcome.reasons, len(moved)) if isinstance(outcome.reasons, str) else outcome.reasons,
            weights_of(world, known_rates(world.rate))[moved].tolist(),
            unknown if farther_m is None else (None if metres != metres else metres for metres in farther_m.tolist()),
        )
    )


def _note_without_moves(before: Balance, settings: BalanceSettings) -> str:
    if settings.scheme == NONE and settings.shuffle == NONE:
        return "balancing is off"
    return f"even enough: cov {before.cov:.3f}, mean {before.mean:,.0f} bytes/s"
