"""Greedy shuffle (GSH): place all subscribers anew, heaviest first, each on the least loaded broker [BAD §5.3].

Subscribers that may not move stay, and their load counts from the start. All others are removed first. Where
capacities differ, the least loaded broker is the one with the lowest utilisation. Pure and compiled; `multistage.plan`
decides whether a shuffle is due and worth its moves.
"""

from __future__ import annotations

import numba
import numpy as np
import numpy.typing as npt

from tocsin.model.snapshot import Flags, Floats, Ints
from tocsin.policies.balance.distance import EVERYWHERE, Bits
from tocsin.policies.balance.load import Longs, capacities, in_reach, known_rates, weights_of
from tocsin.policies.balance.ranking import replay, tournament
from tocsin.policies.balance.renumbering import RenumberedSnapshot


def greedy_shuffle(
    renumbered: RenumberedSnapshot, movable: Flags, reach: Bits = EVERYWHERE
) -> tuple[Ints, Floats, Longs]:
    """Each subscriber's broker after the shuffle, the brokers' loads then, and the subscribers that change broker."""
    snapshot = renumbered.world
    start, rate = snapshot.wants_start.astype(np.int64), known_rates(snapshot.rate)
    weight = weights_of(snapshot, rate)
    accepting, per_capacity = capacities(snapshot)
    # Subscribers without subscriptions stay: all of them would land on the one broker that is least loaded at the end,
    # and overload it as soon as they subscribe (the paper's own warning about least-loaded placement, §5.1).
    candidate = movable & (weight > 0.0) & accepting.any()
    # Equal weights are ordered by the number in the snapshot. Ordered by broker, a shuffle would undo the previous one.
    by_old_number = renumbered.number
    candidates = by_old_number[candidate[by_old_number]]
    order = candidates[np.argsort(-weight[candidates], kind="stable")]
    staying = np.ones(len(movable), dtype=np.bool_)
    staying[order] = False
    broker_of = snapshot.broker_of.astype(np.int32)
    fixed = np.flatnonzero(staying & (broker_of >= 0))
    loads = _greedy(start, snapshot.wants, rate, weight, broker_of, fixed, order, per_capacity, accepting, reach)
    return broker_of, loads, np.flatnonzero(broker_of != snapshot.broker_of)


@numba.njit(cache=True)
def _greedy(
    start: Longs,
    wants: Ints,
    rate: Floats,
    weight: Floats,
    broker_of: Ints,
    fixed: Longs,
    order: Longs,
    per_capacity: Floats,
    accepting: Flags,
    reach: Bits,
) -> Floats:
    """Place `order` into `broker_of` and return the loads.

    No subscriber leaves a broker here, so one bit for z_jk is all that eq. 5 needs; counts would not fit the caches.
    """
    held = np.zeros((accepting.size, rate.size // 64 + 1), dtype=np.uint64)
    loads = np.zeros(accepting.size)
    for i in fixed:
        loads[broker_of[i]] += weight[i] + _hold(start, wants, rate, held[broker_of[i]], i)
    taking = np.where(accepting, loads * per_capacity, np.inf)
    least = tournament(taking, False)
    for i in order:
        j = least[1] if reach.shape[0] == 0 else _least_in_reach(taking, reach, i)
        if j < 0:
            j = broker_of[i]
        loads[j] += weight[i] + _hold(start, wants, rate, held[j], i)
        broker_of[i] = j
        if accepting[j]:
            taking[j] = loads[j] * per_capacity[j]
            replay(least, taking, j, False)
    return loads


@numba.njit(cache=True)
def _least_in_reach(taking: Floats, reach: Bits, i: int) -> int:
    """The least loaded accepting broker that subscriber i may move to; -1 if there is none."""
    best = -1
    for j in range(taking.size):
        if taking[j] < np.inf and in_reach(reach, i, j) and (best < 0 or taking[j] < taking[best]):
            best = j
    return best


@numba.njit(cache=True)
def _hold(start: Longs, wants: Ints, rate: Floats, held: npt.NDArray[np.uint64], i: int) -> float:
    """Mark the BE subscriptions of subscriber i in `held`; return the traffic that the broker fetches in addition."""
    added = 0.0
    for p in range(start[i], start[i + 1]):
        k = wants[p]
        bit = np.uint64(1) << np.uint64(k & 63)
        if not held[k >> 6] & bit:
            held[k >> 6] |= bit
            added += rate[k]
    return added
