"""Dynamic migration: load-based (LDM) and similarity-based (SDM) [BAD §5.2, algorithm 1].

The most loaded broker gives its heaviest subscriber that fits. The target is the least loaded broker (LDM), or the
broker below the mean that already fetches most of the subscriber's traffic (SDM). This repeats until the loads are even
enough. Pure and compiled; `multistage.plan` decides when to migrate.

Where the pseudo-code of algorithm 1 is loose, this module follows the prose of §5.2:

- Line 17 compares the present loads of the two brokers. The prose calls a migration valid if the target's load
  afterwards does not exceed the source's original load, and says that each step lowers the maximum or the number of
  brokers at it. Equality would only swap the roles of the two brokers, so the test here is strict.
- Line 18 leaves the subscriber at both brokers (x_ib = 1). Lines 21–23 move a subscriber even if none was found. Here
  nothing moves without a valid migration.
- If the most loaded broker has no valid migration, the pseudo-code loops for ever. Here that broker is set aside for
  this plan and the next most loaded broker above the mean gives. The plan is complete when none is left.
- A subscriber moves at most once in a plan: moving it on would be two moves where one is enough.

The algorithm ends, because every step moves one subscriber for the only time, or sets one broker aside.
"""

from __future__ import annotations

import numba
import numpy as np

from tocsin.model.snapshot import Flags, Ints
from tocsin.policies.balance.load import LoadArrays, LoadModel, Longs, fetches_added, in_reach
from tocsin.policies.balance.ranking import (
    UNTOUCHED,
    BrokerRanking,
    Candidates,
    candidates_of,
    first_lighter,
    least_for,
    mean_and_deviation,
    next_staying,
    rank_brokers,
    set_aside,
    touch_holders,
    transfer,
)


def migrate(
    model: LoadModel, movable: Flags, *, similar: bool, alpha: float, beta: float, max_moves: int
) -> tuple[Longs, Ints]:
    """LDM, or SDM if `similar`. Apply the moves to `model`; return the moved subscribers, in order, and their sources.

    Moves while cov > `alpha` and mean > `beta` [bytes/s], at most `max_moves` times.
    """
    ranking = rank_brokers(model.arrays, model.per_capacity, model.accepting)
    candidates = candidates_of(model, movable)
    moved, sources = _migrate(model.arrays, ranking, candidates, similar, alpha, beta, max_moves)
    return moved, sources


@numba.njit(cache=True)
def _migrate(
    a: LoadArrays, r: BrokerRanking, c: Candidates, similar: bool, alpha: float, beta: float, max_moves: int
) -> tuple[Longs, Ints]:
    cheapest = r.per_capacity[r.accepting].min() if r.accepting.any() else 1.0
    moved, sources = np.zeros(c.order.size, dtype=np.int64), np.zeros(c.order.size, dtype=np.int32)
    done = 0
    while done < max_moves:
        mean, deviation = mean_and_deviation(r)
        if mean <= beta or mean <= 0.0 or deviation <= alpha * mean:
            break
        b = int(r.most[1])
        if not r.giving[b] > mean:
            break
        mover, target = -1, b
        # A subscriber heavier than the gap between the most and the least loaded broker fits nowhere: start after it.
        gap = (r.giving[b] - r.taking[r.least[1]]) / cheapest
        at = next_staying(c.following, first_lighter(a.weight, c.order, c.first[b], c.first[b + 1], gap))
        while at < c.first[b + 1]:
            i = c.order[at]
            target = _most_similar(a, r, i, mean) if similar else least_for(a, r, i)
            if target >= 0 and target != b:
                after = r.taking[target] + (a.weight[i] + fetches_added(a, i, target)) * r.per_capacity[target]
                if after < r.giving[b]:
                    mover = i
                    break
            at = next_staying(c.following, at + 1)
        if mover < 0:
            set_aside(r, b)
            continue
        c.following[at] = at + 1
        transfer(a, r, mover, target)
        moved[done], sources[done] = mover, b
        done += 1
    return moved[:done], sources[:done]


@numba.njit(cache=True)
def _most_similar(a: LoadArrays, r: BrokerRanking, i: int, mean: float) -> int:
    """The broker below the mean that fetches most of subscriber i's traffic; the least loaded of equals, or if none.

    Only brokers in the subscriber's reach count; -1 if none accepts it.
    """
    touched = 0
    for p in range(a.start[i], a.start[i + 1]):
        touched = touch_holders(a, r, a.wants[p], mean, touched)
    best, most = least_for(a, r, i), 0.0
    for at in range(touched):
        j = r.touched[at]
        if in_reach(a.reach, i, j) and (
            r.similarity[j] > most or (r.similarity[j] == most and r.taking[j] < r.taking[best])
        ):
            best, most = int(j), r.similarity[j]
        r.similarity[j] = UNTOUCHED
    return best
