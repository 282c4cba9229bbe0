"""The last step of an affinity shuffle: pairs are exchanged until the maximum is at the mean. Kernels of `affinity`.

Loads can be levelled by moving only down to what the lightest subscriber weighs. Exchanging two of nearly equal weight
goes far below, for two moves each.
"""

from __future__ import annotations

from typing import Final

import numba
import numpy as np

from tocsin.model.snapshot import Floats, Ints
from tocsin.policies.balance.affinity_choice import LEVEL, Field, mean_and_cov, refresh
from tocsin.policies.balance.load import LoadArrays, Longs, enter, leave
from tocsin.policies.balance.migration import next_staying
from tocsin.policies.balance.ranking import replay

_ROUNDS: Final = 8
"""Exchanges per broker at most."""
_GAIN: Final = 1e-9


@numba.njit(cache=True)
def exchange_pairs(
    a: LoadArrays,
    f: Field,
    order: Longs,
    first: Longs,
    following: Longs,
    max_moves: int,
    done: int,
    moved: Longs,
    sources: Ints,
) -> int:
    """Adds to the movers from place `done` on; returns how many there are then."""
    for _ in range(_ROUNDS * f.giving.size):
        mean, _cov = mean_and_cov(f)
        b, t = int(f.most[1]), int(f.least[1])
        if done + 2 > max_moves or not f.giving[b] > mean * (1.0 + LEVEL) or not f.accepting[t] or b == t:
            break
        wanted = (f.giving[b] - f.taking[t]) / (f.per_capacity[b] + f.per_capacity[t])
        at, other = _pair(a.weight, order, following, first[b], first[b + 1], first[t], first[t + 1], wanted)
        if at >= 0 and _swapped(a, f, order[at], order[other], b, t):
            moved[done], sources[done] = order[at], b
            moved[done + 1], sources[done + 1] = order[other], t
            following[at], following[other] = at + 1, other + 1
            done += 2
        else:
            f.giving[b] = -np.inf
            replay(f.most, f.giving, b, True)
    return done


@numba.njit(cache=True)
def _pair(
    weight: Floats, order: Longs, following: Longs, low: int, high: int, other_low: int, other_high: int, wanted: float
) -> tuple[int, int]:
    """Two that have not moved, one of each broker, whose weights differ by as nearly `wanted` as can be.

    Both lists are heaviest first, so one walk down both of them sees every pair that could be best.
    """
    best, one, two = np.inf, -1, -1
    at, other = next_staying(following, low), next_staying(following, other_low)
    while at < high and other < other_high:
        short = weight[order[at]] - weight[order[other]] - wanted
        if abs(short) < best:
            best, one, two = abs(short), at, other
        if short > 0.0:
            at = next_staying(following, at + 1)
        else:
            other = next_staying(following, other + 1)
    return one, two


@numba.njit(cache=True)
def _swapped(a: LoadArrays, f: Field, i: int, other: int, b: int, t: int) -> bool:
    """Exchange them; take it back if what each broker then fetches spoils it."""
    before = f.giving[b]
    leave(a, i)
    leave(a, other)
    enter(a, i, t)
    enter(a, other, b)
    larger = max(
        (a.incoming[b] + a.outgoing[b]) * f.per_capacity[b], (a.incoming[t] + a.outgoing[t]) * f.per_capacity[t]
    )
    if larger < before * (1.0 - _GAIN):
        refresh(a, f, b)
        refresh(a, f, t)
        f.sums[3] -= 1.0
        return True
    leave(a, i)
    leave(a, other)
    enter(a, i, b)
    enter(a, other, t)
    return False
