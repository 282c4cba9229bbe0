"""Rankings that planners keep while loads change: brokers by utilisation, and the candidates of each broker by weight.

A tournament finds the most or least loaded broker at its root; a changed value costs log₂ m comparisons. Ties go to the
lower index, so that a plan depends on its snapshot alone. Compiled; used by the planners of this folder.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numba
import numpy as np

from tocsin.model.snapshot import Flags, Floats, Ints
from tocsin.policies.balance.load import LoadArrays, LoadModel, Longs, enter, in_reach, leave

UNTOUCHED: Final = -np.inf
"""The similarity of a broker that is not in the list of touched brokers. It is no sum of rates: 0 would be, because a
quiet BE subscription has the rate 0, and a broker would enter the list once for each of them."""
_RECOUNT: Final = 1024
"""Moves after which sums kept by adding and subtracting are computed anew, against rounding."""


@numba.njit(cache=True)
def tournament(values: Floats, largest: bool) -> Ints:
    """A tree whose root (index 1) is the index of the largest, or smallest, value."""
    leaves = 1
    while leaves < values.size:
        leaves *= 2
    tree = np.full(2 * leaves, -1, dtype=np.int32)
    for j in range(values.size):
        tree[leaves + j] = j
    for node in range(leaves - 1, 0, -1):
        tree[node] = _winner(values, tree[2 * node], tree[2 * node + 1], largest)
    return tree


@numba.njit(cache=True)
def _winner(values: Floats, left: int, right: int, largest: bool) -> int:
    if left < 0 or right < 0:
        return max(left, right)
    better = values[right] > values[left] if largest else values[right] < values[left]
    return right if better else left


@numba.njit(cache=True)
def replay(tree: Ints, values: Floats, j: int, largest: bool) -> None:
    """Update the tree after a change of `values[j]`."""
    node = (tree.size // 2 + j) // 2
    while node:
        tree[node] = _winner(values, tree[2 * node], tree[2 * node + 1], largest)
        node //= 2


class BrokerRanking(NamedTuple):
    """The brokers by utilisation, in a form that numba can read. The kernels change the arrays in place."""

    per_capacity: Floats
    accepting: Flags
    giving: Floats
    """Utilisation of each broker as a source; -inf once it is set aside because no candidate of it can move."""
    taking: Floats
    """Utilisation of each broker as a target; inf if it accepts no subscribers."""
    most: Ints
    """Tournament over `giving`: the most loaded broker is at its root."""
    least: Ints
    """Tournament over `taking`: the least loaded broker is at its root."""
    sums: Floats
    """Σ and Σ² of the accepting brokers' utilisations, their number, and the moves until the sums are recounted."""
    similarity: Floats
    """Per broker: the rates that it shares with the candidate being examined; `UNTOUCHED` for most brokers."""
    touched: Ints
    """The brokers whose similarity is not `UNTOUCHED`."""


@numba.njit(cache=True)
def rank_brokers(a: LoadArrays, per_capacity: Floats, accepting: Flags) -> BrokerRanking:
    utilisation = (a.incoming + a.outgoing) * per_capacity
    taking = np.where(accepting, utilisation, np.inf)
    m = accepting.size
    sums = np.zeros(4)
    sums[2] = max(1, int(np.count_nonzero(accepting)))
    return BrokerRanking(
        per_capacity,
        accepting,
        utilisation,
        taking,
        tournament(utilisation, True),
        tournament(taking, False),
        sums,
        np.full(m, UNTOUCHED),
        np.zeros(m, dtype=np.int32),
    )


@numba.njit(cache=True)
def mean_and_deviation(r: BrokerRanking) -> tuple[float, float]:
    """Mean and standard deviation of the accepting brokers' utilisations."""
    if r.sums[3] == 0.0:
        counted = r.taking[r.accepting]
        r.sums[0], r.sums[1], r.sums[3] = counted.sum(), (counted**2).sum(), _RECOUNT
    mean = r.sums[0] / r.sums[2]
    return mean, np.sqrt(max(0.0, r.sums[1] / r.sums[2] - mean * mean))


@numba.njit(cache=True)
def refresh(a: LoadArrays, r: BrokerRanking, j: int) -> None:
    """Update the ranking after a change of broker j's load."""
    now = (a.incoming[j] + a.outgoing[j]) * r.per_capacity[j]
    if r.accepting[j]:
        r.sums[0] += now - r.taking[j]
        r.sums[1] += now * now - r.taking[j] * r.taking[j]
        r.taking[j] = now
        replay(r.least, r.taking, j, False)
    if r.giving[j] != -np.inf:
        r.giving[j] = now
        replay(r.most, r.giving, j, True)


@numba.njit(cache=True)
def transfer(a: LoadArrays, r: BrokerRanking, i: int, target: int) -> None:
    """Move subscriber i to broker `target` and update the ranking."""
    source = a.broker_of[i]
    leave(a, i)
    enter(a, i, target)
    refresh(a, r, source)
    refresh(a, r, target)
    r.sums[3] -= 1.0


@numba.njit(cache=True)
def set_aside(r: BrokerRanking, j: int) -> None:
    """Exclude broker j, whose candidates cannot move, as a source until the plan ends."""
    r.giving[j] = -np.inf
    replay(r.most, r.giving, j, True)


@numba.njit(cache=True)
def least_for(a: LoadArrays, r: BrokerRanking, i: int) -> int:
    """The least loaded broker that subscriber i may move to; -1 if a bounded reach has no accepting broker."""
    if a.reach.shape[0] == 0:
        return int(r.least[1])
    best = -1
    for j in range(r.taking.size):
        if r.accepting[j] and in_reach(a.reach, i, j) and (best < 0 or r.taking[j] < r.taking[best]):
            best = j
    return best


@numba.njit(cache=True)
def touch_holders(a: LoadArrays, r: BrokerRanking, k: int, ceiling: float, touched: int) -> int:
    """Add λ_k to the similarity of each broker below `ceiling` that holds k; return the new number of touched brokers.

    Going through the holders is faster than going through all brokers: most share nothing with a candidate.
    """
    for at in range(a.row[k, 0], a.row[k, 1]):
        j = a.holder[at]
        if r.taking[j] < ceiling:
            if r.similarity[j] == UNTOUCHED:
                r.touched[touched] = j
                touched += 1
                r.similarity[j] = 0.0
            r.similarity[j] += a.rate[k]
    return touched


class Candidates(NamedTuple):
    """Movable subscribers, broker by broker, heaviest first."""

    order: Longs
    """The numbers of the subscribers."""
    first: Longs
    """Broker j has the candidates `order[first[j]:first[j + 1]]`."""
    following: Longs
    """For each place in `order`: itself, or a later place if that candidate has moved."""


def candidates_of(model: LoadModel, movable: Flags) -> Candidates:
    """The candidates of a model. A subscriber without subscriptions is none: moving it would not help."""
    broker_of, weight = model.broker_of, model.weight
    order = np.flatnonzero(movable & (broker_of >= 0) & (weight > 0.0))
    order = order[np.argsort(-weight[order], kind="stable")]
    here = broker_of[order]
    narrow = here.astype(np.int16) if model.brokers < 1 << 15 else here  # 16 bits: a radix sort, in linear time
    order = order[np.argsort(narrow, kind="stable")]
    sizes = np.bincount(broker_of[order], minlength=model.brokers)
    return Candidates(order, np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64), np.arange(order.size + 1))


@numba.njit(cache=True)
def next_staying(following: Longs, at: int) -> int:
    """The first place at or after `at` whose candidate has not moved. Shortens the path for the next call."""
    end = at
    while following[end] != end:
        end = following[end]
    while following[at] != end:
        following[at], at = end, following[at]
    return end


@numba.njit(cache=True)
def first_lighter(weight: Floats, order: Longs, low: int, high: int, bound: float) -> int:
    """The first place in order[low:high], heaviest first, whose subscriber weighs less than `bound`; `high` if none."""
    while low < high:
        middle = (low + high) // 2
        if weight[order[middle]] < bound:
            high = middle
        else:
            low = middle + 1
    return low
