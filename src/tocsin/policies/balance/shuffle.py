"""Greedy shuffle (GSH): everybody is placed anew, heaviest first, each on the then least loaded broker [BAD §5.3].

Those that may not be moved stay where they are and their load is there from the start; everybody else is taken off
first. Where capacities differ, least loaded is by utilisation. Pure and compiled; driven by `multistage.plan`, which
decides whether a shuffle is due and worth its moves.
"""

from __future__ import annotations

import numba
import numpy as np
import numpy.typing as npt

from tocsin.model.snapshot import Flags, Floats, Ints
from tocsin.policies.balance.load import Longs, capacities, known_rates, weights_of
from tocsin.policies.balance.ranking import replay, tournament
from tocsin.policies.balance.renumbering import RenumberedSnapshot


def greedy_shuffle(near: RenumberedSnapshot, movable: Flags) -> tuple[Ints, Floats, Longs]:
    """Everybody's broker after the shuffle, the loads then, and whose broker changes."""
    snapshot = near.world
    start, rate = snapshot.wants_start.astype(np.int64), known_rates(snapshot.rate)
    weight = weights_of(start, snapshot.wants, rate)
    accepting, per_capacity = capacities(snapshot)
    # Who has subscribed to nothing yet stays: all of them would land on the one broker that is least loaded at the end,
    # and overload it as soon as they subscribe (the paper's own warning about least-loaded placement, §5.1).
    candidate = movable & (weight > 0.0) & accepting.any()
    # Among equals by their number in the snapshot: if it were by broker, a shuffle would undo the one before.
    entered = near.number
    candidates = entered[candidate[entered]]
    order = candidates[np.argsort(-weight[candidates], kind="stable")]
    staying = np.ones(len(movable), dtype=np.bool_)
    staying[order] = False
    broker_of = snapshot.broker_of.astype(np.int32)
    loads = _greedy(
        start, snapshot.wants, rate, weight, broker_of, np.flatnonzero(staying & (broker_of >= 0)), order,
        per_capacity, accepting,
    )  # fmt: skip
    return broker_of, loads, np.flatnonzero(broker_of != snapshot.broker_of)


@numba.njit(cache=True)
def _greedy(
    start: Longs,
    wants: Ints,
    rate: Floats,
    weight: Floats,
    broker_of: Ints,
    staying: Longs,
    order: Longs,
    per_capacity: Floats,
    accepting: Flags,
) -> Floats:
    """Nobody leaves a broker here, so z_jk, a bit each, says all that eq. 5 needs: counts would not fit the caches."""
    held = np.zeros((accepting.size, rate.size // 64 + 1), dtype=np.uint64)
    loads = np.zeros(accepting.size)
    for i in staying:
        loads[broker_of[i]] += weight[i] + _fetched(start, wants, rate, held[broker_of[i]], i)
    taking = np.where(accepting, loads * per_capacity, np.inf)
    least = tournament(taking, False)
    for i in order:
        j = least[1]
        loads[j] += weight[i] + _fetched(start, wants, rate, held[j], i)
        broker_of[i] = j
        taking[j] = loads[j] * per_capacity[j]
        replay(least, taking, j, False)
    return loads


@numba.njit(cache=True)
def _fetched(start: Longs, wants: Ints, rate: Floats, held: npt.NDArray[np.uint64], i: int) -> float:
    """What a broker holding `held` fetches in addition for subscriber i; it holds that too from now on."""
    added = 0.0
    for p in range(start[i], start[i + 1]):
        k = wants[p]
        bit = np.uint64(1) << np.uint64(k & 63)
        if not held[k >> 6] & bit:
            held[k >> 6] |= bit
            added += rate[k]
    return added
