"""What affinity considers: who could leave a broker, for where, and what that is worth. Kernels of `affinity`."""

from __future__ import annotations

from typing import Final, NamedTuple

import numba
import numpy as np

from tocsin.model.snapshot import Flags, Floats, Ints
from tocsin.policies.balance.load import LoadArrays, Longs, count_of, enter, fetches_added, fetches_saved, leave
from tocsin.policies.balance.migration import UNTOUCHED, first_lighter, next_staying
from tocsin.policies.balance.ranking import replay, tournament

GROWTH_PRICE: Final = 2.0
"""What a byte/s fetched twice costs, in bytes/s of relief. A larger price moves groups rather than their heaviest
members: fewer fetches, more movers. On *communities*, prices 1, 2 and 4 gave a maximum of 1.19, 1.18 and 1.17 × the
lower bound for 31, 33 and 35 % of the subscribers moved."""
LEVEL: Final = 1e-5
"""How near to the mean a shuffle brings the maximum, relative."""
GROUP_AT_LEAST: Final = 3
_TRIES: Final = 3
"""Candidates, groups or singles, compared before one is chosen."""
_LOOKS: Final = 48
"""Candidates looked at before giving up on a broker's heavier ones."""
_RECOUNT: Final = 1024
_GAIN: Final = 1e-9
"""Relative; less is rounding."""


class Field(NamedTuple):
    """What the kernels know of the brokers, besides the load arrays. Changed in place."""

    per_capacity: Floats
    accepting: Flags
    giving: Floats
    """Utilisation; -inf once a broker has nothing left to give."""
    taking: Floats
    """Utilisation; inf if it takes nobody."""
    most: Ints
    least: Ints
    sums: Floats
    """Σ and Σ² of the utilisations of those that accept, their number, and moves until they are recounted."""
    similarity: Floats
    touched: Ints


@numba.njit(cache=True)
def field_of(a: LoadArrays, per_capacity: Floats, accepting: Flags) -> Field:
    utilisation = (a.incoming + a.outgoing) * per_capacity
    taking = np.where(accepting, utilisation, np.inf)
    m = accepting.size
    sums = np.zeros(4)
    sums[2] = np.count_nonzero(accepting)
    return Field(
        per_capacity, accepting, utilisation, taking, tournament(utilisation, True), tournament(taking, False), sums,
        np.full(m, UNTOUCHED), np.zeros(m, dtype=np.int32),
    )  # fmt: skip


@numba.njit(cache=True)
def mean_and_cov(f: Field) -> tuple[float, float]:
    if f.sums[3] == 0.0:
        counted = f.taking[f.accepting]
        f.sums[0], f.sums[1], f.sums[3] = counted.sum(), (counted**2).sum(), _RECOUNT
    mean = f.sums[0] / f.sums[2]
    if mean <= 0.0:
        return 0.0, 0.0
    return mean, np.sqrt(max(0.0, f.sums[1] / f.sums[2] - mean * mean)) / mean


@numba.njit(cache=True)
def refresh(a: LoadArrays, f: Field, j: int) -> None:
    """Broker j's load has changed."""
    now = (a.incoming[j] + a.outgoing[j]) * f.per_capacity[j]
    if f.accepting[j]:
        f.sums[0] += now - f.taking[j]
        f.sums[1] += now * now - f.taking[j] * f.taking[j]
        f.taking[j] = now
        replay(f.least, f.taking, j, False)
    if f.giving[j] != -np.inf:
        f.giving[j] = now
        replay(f.most, f.giving, j, True)


@numba.njit(cache=True)
def transfer(a: LoadArrays, f: Field, i: int, target: int) -> None:
    source = a.broker_of[i]
    leave(a, i)
    enter(a, i, target)
    refresh(a, f, source)
    refresh(a, f, target)
    f.sums[3] -= 1.0


@numba.njit(cache=True)
def _cheapest(a: LoadArrays, f: Field, i: int, ceiling: float) -> tuple[int, float]:
    """Where i costs least without lifting the target above `ceiling`, and what it costs there."""
    reached = 0
    for p in range(a.start[i], a.start[i + 1]):
        k = a.wants[p]
        for at in range(a.row[k, 0], a.row[k, 1]):
            j = a.holder[at]
            if f.taking[j] < ceiling:
                if f.similarity[j] == UNTOUCHED:
                    f.touched[reached] = j
                    reached += 1
                    f.similarity[j] = 0.0
                f.similarity[j] += a.rate[k]
    return _choose(f, reached, a.weight[i], a.weight[i], ceiling)


@numba.njit(cache=True)
def _choose(f: Field, reached: int, delivered: float, fetched: float, ceiling: float) -> tuple[int, float]:
    """Among the brokers reached, and the least loaded: the one with room that has to fetch least."""
    best, shared = int(f.least[1]), max(0.0, f.similarity[f.least[1]])
    if f.taking[best] + (delivered + fetched - shared) * f.per_capacity[best] > ceiling:
        best, shared = -1, -1.0
    for at in range(reached):
        j = f.touched[at]
        after = f.taking[j] + (delivered + fetched - f.similarity[j]) * f.per_capacity[j]
        if after <= ceiling and (
            f.similarity[j] > shared or (f.similarity[j] == shared and f.taking[j] < f.taking[best])
        ):
            best, shared = int(j), f.similarity[j]
        f.similarity[j] = UNTOUCHED
    return best, delivered + fetched - shared


@numba.njit(cache=True)
def best_single(
    a: LoadArrays, f: Field, order: Longs, low: int, high: int, following: Longs, excess: float, mean: float
) -> tuple[int, int, float]:
    """Of the heaviest that fit between the source's excess and some target's room: the one that helps most."""
    best, target, score = -1, -1, -np.inf
    tries = looks = 0
    at = next_staying(following, first_lighter(a.weight, order, low, high, excess))
    while at < high and tries < _TRIES and looks < _LOOKS:
        i = order[at]
        relief = a.weight[i] + fetches_saved(a, i)
        looks += 1
        if relief <= excess:
            j, cost = _cheapest(a, f, i, mean)
            if j >= 0:
                tries += 1
                worth = relief - GROWTH_PRICE * max(0.0, cost - relief)
                if worth > score:
                    best, target, score = i, j, worth
        at = next_staying(following, at + 1)
        if looks == _LOOKS // 2 and tries == 0 and at < high:
            # The room left is small: go on with those light enough for the least loaded broker.
            room = (mean - f.taking[f.least[1]]) / f.per_capacity[f.least[1]]
            at = max(at, next_staying(following, first_lighter(a.weight, order, at, high, room)))
    return best, target, score


@numba.njit(cache=True)
def best_group(
    a: LoadArrays,
    f: Field,
    members: Longs,
    parts: Longs,
    delivered: Floats,
    low: int,
    high: int,
    gone: Flags,
    excess: float,
    mean: float,
    tally: Ints,
    seen: Ints,
    most: int,
) -> tuple[int, int, float]:
    """The part of the broker that can move whole, within excess and room, and helps most per mover."""
    best, target, score, tries = -1, -1, -np.inf, 0
    for part in range(low, high):
        if tries == _TRIES:
            break
        size = parts[part + 1] - parts[part]
        if gone[part] or size < GROUP_AT_LEAST or size > most or delivered[part] > excess:
            continue
        saved = fetched = 0.0
        kinds = reached = 0
        b = a.broker_of[members[parts[part]]]
        for p in range(parts[part], parts[part + 1]):
            for at in range(a.start[members[p]], a.start[members[p] + 1]):
                k = a.wants[at]
                if tally[k] == 0:
                    seen[kinds] = k
                    kinds += 1
                tally[k] += 1
        for at in range(kinds):
            k = seen[at]
            fetched += a.rate[k]
            for h in range(a.row[k, 0], a.row[k, 1]):
                j = a.holder[h]
                if f.taking[j] < mean:
                    if f.similarity[j] == UNTOUCHED:
                        f.touched[reached] = j
                        reached += 1
                        f.similarity[j] = 0.0
                    f.similarity[j] += a.rate[k]
            if count_of(a, b, k) == tally[k]:
                saved += a.rate[k]
            tally[k] = 0
        j, cost = _choose(f, reached, delivered[part], fetched, mean)
        relief = delivered[part] + saved
        if j >= 0 and relief <= excess:
            tries += 1
            worth = (relief - GROWTH_PRICE * max(0.0, cost - relief)) / size
            if worth > score:
                best, target, score = part, j, worth
    return best, target, score


@numba.njit(cache=True)
def halving(a: LoadArrays, f: Field, order: Longs, low: int, high: int, following: Longs, b: int) -> tuple[int, int]:
    """Where loads are too coarse to reach the mean: whose move to the least loaded broker leaves the larger of the two
    smallest, and smaller than the source was."""
    target = int(f.least[1])
    best, larger = -1, f.giving[b] * (1.0 - _GAIN)
    if target == b or not f.accepting[target]:
        return -1, -1
    half = (f.giving[b] - f.taking[target]) / (f.per_capacity[b] + f.per_capacity[target])
    at = next_staying(following, first_lighter(a.weight, order, low, high, 2.0 * half))
    looks = 0
    while at < high and looks < _LOOKS:
        i = order[at]
        source_after = f.giving[b] - (a.weight[i] + fetches_saved(a, i)) * f.per_capacity[b]
        target_after = f.taking[target] + (a.weight[i] + fetches_added(a, i, target)) * f.per_capacity[target]
        if max(source_after, target_after) < larger:
            best, larger = i, max(source_after, target_after)
        looks += 1
        at = next_staying(following, at + 1)
    return best, target
