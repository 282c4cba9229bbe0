"""Dynamic migration: load-based (LDM) and similarity-based (SDM) [BAD §5.2, algorithm 1].

The most loaded broker gives its heaviest subscriber that fits to the least loaded broker (LDM), or to the broker below
the mean that already fetches most of what the subscriber wants (SDM), until the loads are even enough. Pure and
compiled; driven by `multistage.plan`, which decides when.

Where the pseudo-code of algorithm 1 is loose, the prose of §5.2 is followed:

- Line 17 compares the two brokers' present loads. The prose calls a migration valid if afterwards the target's load
  does not exceed the source's original load, and says that each step lowers the maximum or the number of brokers at it.
  Equality would only swap two brokers' roles, so the test here is strict.
- Line 18 leaves the subscriber at both brokers (x_ib = 1); lines 21–23 move somebody even if nobody was found. Here
  nothing moves without a valid migration.
- If the most loaded broker has no valid migration, the pseudo-code loops for ever. Here it is set aside for this plan
  and the next most loaded one above the mean gives; with none left the plan is complete.
- A subscriber moves at most once in a plan: sending it on would be two moves where one would do.

It ends: every step is one subscriber that moves for the only time, or one broker set aside.
"""

from __future__ import annotations

from typing import Final

import numba
import numpy as np

from tocsin.model.snapshot import Flags, Floats, Ints
from tocsin.policies.balance.load import LoadArrays, LoadModel, Longs, enter, fetches_added, leave
from tocsin.policies.balance.ranking import replay, tournament

UNTOUCHED: Final = -np.inf
"""The similarity of a broker that is not in the list of touched brokers. It is no sum of rates: 0 would be, because a
quiet BE subscription has the rate 0, and a broker would enter the list once for each of them."""
_RECOUNT: Final = 1024
"""Moves after which sums kept by adding and subtracting are computed anew, against rounding."""


def migrate(
    model: LoadModel, movable: Flags, *, similar: bool, alpha: float, beta: float, max_moves: int
) -> tuple[Longs, Ints]:
    """LDM, or SDM if `similar`: the subscribers that moved, in order, and their sources. `model` is as after the moves.

    Moves while cov > `alpha` and mean > `beta` [bytes/s], at most `max_moves` of them.
    """
    order, first = by_broker(model.broker_of, movable, model.weight, model.brokers)
    moved, sources = _migrate(
        model.arrays, model.per_capacity, model.accepting, order, first, similar, alpha, beta, max_moves
    )
    return moved, sources


def by_broker(broker_of: Ints, movable: Flags, weight: Floats, brokers: int) -> tuple[Longs, Longs]:
    """Movable subscribers by broker, heaviest first, and where each broker's begin.

    Who has subscribed to nothing yet weighs nothing: moving it would help nobody.
    """
    candidates = np.flatnonzero(movable & (broker_of >= 0) & (weight > 0.0))
    candidates = candidates[np.argsort(-weight[candidates], kind="stable")]
    here = broker_of[candidates]
    narrow = here.astype(np.int16) if brokers < 1 << 15 else here  # of 16 bits: a radix sort, in linear time
    candidates = candidates[np.argsort(narrow, kind="stable")]
    sizes = np.bincount(broker_of[candidates], minlength=brokers)
    return candidates, np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


@numba.njit(cache=True)
def _migrate(
    a: LoadArrays,
    per_capacity: Floats,
    accepting: Flags,
    order: Longs,
    first: Longs,
    similar: bool,
    alpha: float,
    beta: float,
    max_moves: int,
) -> tuple[Longs, Ints]:
    m = accepting.size
    utilisation = (a.incoming + a.outgoing) * per_capacity
    giving = utilisation.copy()
    taking = np.where(accepting, utilisation, np.inf)
    most, least = tournament(giving, True), tournament(taking, False)
    following = np.arange(order.size + 1)  # the next candidate at or after each place that has not moved
    similarity, touched = np.full(m, UNTOUCHED), np.zeros(m, dtype=np.int32)
    cheapest = per_capacity[accepting].min() if accepting.any() else 1.0
    moved, sources = np.zeros(order.size, dtype=np.int64), np.zeros(order.size, dtype=np.int32)
    taking_part = max(1, int(np.count_nonzero(accepting)))
    done, recount = 0, 0
    total = squares = 0.0
    while done < max_moves:
        if recount == 0:
            total = taking[accepting].sum()
            squares = (taking[accepting] ** 2).sum()
            recount = _RECOUNT
        mean = total / taking_part
        spread = squares / taking_part - mean * mean
        if mean <= beta or mean <= 0.0 or np.sqrt(max(0.0, spread)) <= alpha * mean:
            break
        b = int(most[1])
        if not giving[b] > mean:
            break
        found, target = -1, b
        # Whoever delivers more than the gap between the two ends cannot fit anywhere: start after those.
        gap = (giving[b] - taking[least[1]]) / cheapest
        at = next_staying(following, first_lighter(a.weight, order, first[b], first[b + 1], gap))
        while at < first[b + 1]:
            i = order[at]
            target = int(least[1])
            if similar:
                target = _most_similar(a, i, taking, mean, similarity, touched, target)
            after = taking[target] + (a.weight[i] + fetches_added(a, i, target)) * per_capacity[target]
            if target != b and after < giving[b]:
                found = i
                break
            at = next_staying(following, at + 1)
        if found < 0:
            giving[b] = -np.inf
            replay(most, giving, b, True)
            continue
        following[at] = at + 1
        leave(a, found)
        enter(a, found, target)
        moved[done], sources[done] = found, b
        done, recount = done + 1, recount - 1
        for j in (b, target):
            now = (a.incoming[j] + a.outgoing[j]) * per_capacity[j]
            if accepting[j]:
                total += now - taking[j]
                squares += now * now - taking[j] * taking[j]
                taking[j] = now
                replay(least, taking, j, False)
            if giving[j] != -np.inf:
                giving[j] = now
                replay(most, giving, j, True)
    return moved[:done], sources[:done]


@numba.njit(cache=True)
def next_staying(following: Longs, at: int) -> int:
    """The first candidate at or after `at` that has not moved. Shortens the way for the next time."""
    end = at
    while following[end] != end:
        end = following[end]
    while following[at] != end:
        following[at], at = end, following[at]
    return end


@numba.njit(cache=True)
def first_lighter(weight: Floats, order: Longs, low: int, high: int, bound: float) -> int:
    """The first place in order[low:high], heaviest first, whose subscriber weighs less than `bound`."""
    while low < high:
        middle = (low + high) // 2
        if weight[order[middle]] < bound:
            high = middle
        else:
            low = middle + 1
    return low


@numba.njit(cache=True)
def _most_similar(
    a: LoadArrays, i: int, taking: Floats, mean: float, similarity: Floats, touched: Ints, fallback: int
) -> int:
    """The broker below the mean that fetches most of what i wants; the least loaded of several, or if none does.

    Asks who holds each BE subscription instead of asking each broker what it holds: most brokers share nothing with i.
    """
    reached = 0
    for p in range(a.start[i], a.start[i + 1]):
        k = a.wants[p]
        for at in range(a.row[k, 0], a.row[k, 1]):
            j = a.holder[at]
            if taking[j] < mean:
                if similarity[j] == UNTOUCHED:
                    touched[reached] = j
                    reached += 1
                    similarity[j] = 0.0
                similarity[j] += a.rate[k]
    best, most = fallback, 0.0
    for at in range(reached):
        j = touched[at]
        if similarity[j] > most or (similarity[j] == most and taking[j] < taking[best]):
            best, most = int(j), similarity[j]
        similarity[j] = UNTOUCHED
    return best
