"""Affinity: balancing that keeps subscribers with shared interests together and moves few [ours; see BAD §7].

The paper's greedy shuffle places all subscribers anew: nearly all move, and neighbours that share a BE subscription end
up on different brokers, each of which fetches it. Here all subscribers start where they are. Each broker above the mean
gives subscribers until it is at the mean, to brokers below the mean that have room. Each move is weighed at both ends:
the traffic that the source no longer fetches against the traffic that the target fetches in addition (exact, [BAD eq.
5]).

1. Groups (`affinity_candidates`) move where that lowers the source by more per mover than the best single move: whole,
   or the half that helps most.
2. Single subscribers do the rest, those that relieve the source most first: fewer moves for the same load.
3. When all movers have a target, each mover is examined again, and goes to another target where less is fetched in all.
   That costs no moves, and it repairs early choices, which were made before the other movers had targets. Fetches and
   with them the mean fall, so the brokers above the new mean give once more.
4. For a shuffle, pairs between the most and the least loaded broker are exchanged until the maximum is at the mean.
   Moves can level loads only down to the weight of the lightest subscriber. Exchanging two subscribers of nearly equal
   weight goes far below that, for two moves each.

The most loaded broker gives half of its excess over the mean before the next broker gives. The maximum then falls fast
wherever a plan is cut off, and the data of a broker's subscribers is still in the cache. No step lifts a target above
the most loaded broker, and no subscriber moves twice in a plan. A plan that does not make the loads more even is
dropped. So a plan ends, and repeated planning reaches a fixed point. Pure and compiled; registered in `multistage`.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numba
import numpy as np

from tocsin.model.snapshot import Flags, Floats, Ints
from tocsin.policies.balance.affinity_candidates import (
    GAIN,
    GroupParts,
    best_group,
    best_halving,
    candidates_by_relief,
    choose,
    examine,
    first_single,
    parts_of,
    price_above,
)
from tocsin.policies.balance.load import LoadArrays, LoadModel, Longs, enter, in_reach, leave
from tocsin.policies.balance.ranking import (
    BrokerRanking,
    Candidates,
    mean_and_deviation,
    next_staying,
    rank_brokers,
    refresh,
    set_aside,
    transfer,
)

LEVEL: Final = 1e-5
"""A shuffle brings the maximum this close to the mean, as a share of the mean."""
SINGLE: Final = 0
SWAPPED: Final = -1
"""How a subscriber moved: alone, or in exchange for another. A positive number is the size of the group it moved
with."""
_OVERLOAD_PRICES: Final = (12.0, 12.0, 96.0)
"""The price of load above the mean in each sweep over the movers, see `price_above`. At 12 and 1 % above the mean, a
byte/s more costs as much as a quarter of a byte/s fetched. The high price at the end levels what the others left."""
_WORTH_A_SWEEP: Final = 8
"""Another sweep follows if the last one redirected at least one in this many movers."""
_EXAMINED: Final = 100_000
"""The most movers that a sweep examines, a regular sample if there are more: some 0.2 s."""
_COARSE: Final = 0.005
"""The cov at which a sweep begins. If brokers were fuller, movers could not change their targets."""
_ALMOST_FULL: Final = 1.02
"""A mover may get another target that is below this share of the mean."""
_EXCHANGES: Final = 8
"""The most exchanges per broker."""


class _MoveLog(NamedTuple):
    """The moves made so far, in order; longer than needed."""

    moved: Longs
    sources: Ints
    kinds: Ints


def rebalance(
    model: LoadModel, movable: Flags, *, goal_cov: float, max_moves: int, exchange: bool
) -> tuple[Longs, Ints, Ints]:
    """The movers in order, their sources, and how each moved. The moves are applied to `model`.

    Stops at `goal_cov`, or when no broker above the mean can give. With `exchange`, pairs are then swapped down to
    LEVEL.
    """
    none = np.zeros(0, dtype=np.int32)
    if not model.accepting.any() or not movable.any():
        return np.zeros(0, dtype=np.int64), none, none
    before = model.utilisations
    candidates, relief = candidates_by_relief(model, movable)
    order = candidates.order
    parts = parts_of(model, order)
    place_of = np.zeros(len(movable), dtype=np.int64)
    place_of[order] = np.arange(order.size)
    n = order.size
    log = _MoveLog(np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int32), np.zeros(n, dtype=np.int32))
    done = 0
    for overload_price in _OVERLOAD_PRICES:
        ranking = rank_brokers(model.arrays, model.per_capacity, model.accepting)
        coarse = max(goal_cov, _COARSE)
        done = _level(model.arrays, ranking, candidates, relief, parts, place_of, coarse, max_moves, done, log)
        ranking = rank_brokers(model.arrays, model.per_capacity, model.accepting)
        by_number = np.argsort(log.moved[:done])[:: 1 + done // _EXAMINED]
        if _redirect(model.arrays, ranking, by_number, overload_price, log) * _WORTH_A_SWEEP < done:
            break
    ranking = rank_brokers(model.arrays, model.per_capacity, model.accepting)
    done = _level(model.arrays, ranking, candidates, relief, parts, place_of, goal_cov, max_moves, done, log)
    if exchange:
        ranking = rank_brokers(model.arrays, model.per_capacity, model.accepting)
        done = _exchange_pairs(model.arrays, ranking, candidates, max_moves, done, log)
    if not is_more_even(model.utilisations, before):
        for i, source in zip(log.moved[:done].tolist(), log.sources[:done].tolist(), strict=True):
            model.move(i, source)
        done = 0
    return log.moved[:done], log.sources[:done], log.kinds[:done]


def is_more_even(after: Floats, before: Floats) -> bool:
    """Whether the largest utilisation that differs is smaller after. No series of such plans returns to its start."""
    now, then = np.sort(after)[::-1], np.sort(before)[::-1]
    different = np.flatnonzero(np.abs(now - then) > GAIN * then.max(initial=0.0))
    return bool(different.size and now[different[0]] < then[different[0]])


@numba.njit(cache=True)
def _level(
    a: LoadArrays,
    r: BrokerRanking,
    c: Candidates,
    relief: Floats,
    parts: GroupParts,
    place_of: Longs,
    goal_cov: float,
    max_moves: int,
    done: int,
    log: _MoveLog,
) -> int:
    """Move groups and single subscribers; return the number of moves so far."""
    b, enough = -1, 0.0
    tally, seen = np.zeros(a.rate.size, dtype=np.int32), np.zeros(a.rate.size, dtype=np.int32)
    while done < max_moves:
        mean, cov = _mean_and_cov(r)
        if b < 0 or not r.giving[b] > enough:
            b = int(r.most[1])
            enough = (r.giving[b] + mean) / 2.0
        if cov <= goal_cov or not r.giving[b] > mean * (1.0 + LEVEL):
            break
        excess = (r.giving[b] - mean) / r.per_capacity[b]
        i, target, score = first_single(a, r, c, relief, b, excess, mean)
        if score < parts.worth[b]:
            part, size, to, parts.worth[b] = best_group(a, r, parts, b, excess, mean, tally, seen, max_moves - done)
            if part >= 0 and parts.worth[b] >= score:
                for _ in range(size):
                    member = parts.members[parts.head[part]]
                    parts.head[part] += 1
                    transfer(a, r, member, to)
                    c.following[place_of[member]] = place_of[member] + 1
                    log.moved[done], log.sources[done], log.kinds[done] = member, b, size
                    done += 1
                continue
        if i < 0:
            i, target = best_halving(a, r, c, relief, b)
        if i < 0:
            set_aside(r, b)
            continue
        transfer(a, r, i, target)
        c.following[place_of[i]] = place_of[i] + 1
        log.moved[done], log.sources[done], log.kinds[done] = i, b, SINGLE
        parts.head[parts.part_of[i]] = parts.end[parts.part_of[i]]  # without this member the group does not move
        done += 1
    return done


@numba.njit(cache=True)
def _redirect(a: LoadArrays, r: BrokerRanking, by_number: Longs, overload_price: float, log: _MoveLog) -> int:
    """Send each mover to a better target, now that the other movers have theirs; return how many got another one.

    `by_number` lists the moves in the order of the subscribers' numbers. In the order of the moves, one target would
    lose all its movers before any other broker has room.
    """
    redirected = 0
    for at in by_number:
        i = log.moved[at]
        t = a.broker_of[i]
        mean, _deviation = mean_and_deviation(r)
        saved, fetched, touched = examine(a, r, i, mean * _ALMOST_FULL)
        load, here = a.weight[i] + saved, r.taking[t]
        r.taking[t] = np.inf  # its own broker is no other target
        j, _load, price = choose(a, r, i, touched, a.weight[i], fetched, mean, overload_price, r.giving[r.most[1]])
        r.taking[t] = here
        left = here - load * r.per_capacity[t]
        worth = load + overload_price * (price_above(here, mean) - price_above(left, mean))
        if j >= 0 and j != log.sources[at] and price < worth * (1.0 - GAIN):
            transfer(a, r, i, j)
            log.kinds[at] = SINGLE
            redirected += 1
    return redirected


@numba.njit(cache=True)
def _mean_and_cov(r: BrokerRanking) -> tuple[float, float]:
    mean, deviation = mean_and_deviation(r)
    if mean <= 0.0:
        return 0.0, 0.0
    return mean, deviation / mean


@numba.njit(cache=True)
def _exchange_pairs(a: LoadArrays, r: BrokerRanking, c: Candidates, max_moves: int, done: int, log: _MoveLog) -> int:
    """Exchange subscribers of the most and the least loaded broker; return the number of moves made so far."""
    for _ in range(_EXCHANGES * r.giving.size):
        mean, _cov = _mean_and_cov(r)
        b, t = int(r.most[1]), int(r.least[1])
        if done + 2 > max_moves or not r.giving[b] > mean * (1.0 + LEVEL) or not r.accepting[t] or b == t:
            break
        difference = (r.giving[b] - r.taking[t]) / (r.per_capacity[b] + r.per_capacity[t])
        at, other = _pair(a.weight, c, b, t, difference)
        if at >= 0 and _swap(a, r, c.order[at], c.order[other], b, t):
            for place, source in ((at, b), (other, t)):
                log.moved[done], log.sources[done], log.kinds[done] = c.order[place], source, SWAPPED
                c.following[place] = place + 1
                done += 1
        else:
            set_aside(r, b)
    return done


@numba.njit(cache=True)
def _pair(weight: Floats, c: Candidates, b: int, t: int, difference: float) -> tuple[int, int]:
    """The places of the candidates of brokers b and t whose weights differ by nearly `difference`; -1 and -1 if none.

    Both lists are heaviest first, so one walk down both sees every pair that could be best.
    """
    best, left, right = np.inf, -1, -1
    at, other = next_staying(c.following, c.first[b]), next_staying(c.following, c.first[t])
    while at < c.first[b + 1] and other < c.first[t + 1]:
        short = weight[c.order[at]] - weight[c.order[other]] - difference
        if abs(short) < best:
            best, left, right = abs(short), at, other
        if short > 0.0:
            at = next_staying(c.following, at + 1)
        else:
            other = next_staying(c.following, other + 1)
    return left, right


@numba.njit(cache=True)
def _swap(a: LoadArrays, r: BrokerRanking, i: int, other: int, b: int, t: int) -> bool:
    """Exchange subscriber i of broker b and `other` of t. Undo it and return False if the larger load does not fall."""
    if not (in_reach(a.reach, i, t) and in_reach(a.reach, other, b)):
        return False
    before = r.giving[b]
    leave(a, i)
    leave(a, other)
    enter(a, i, t)
    enter(a, other, b)
    larger = max(
        (a.incoming[b] + a.outgoing[b]) * r.per_capacity[b], (a.incoming[t] + a.outgoing[t]) * r.per_capacity[t]
    )
    if larger < before * (1.0 - GAIN):
        refresh(a, r, b)
        refresh(a, r, t)
        r.sums[3] -= 1.0
        return True
    leave(a, i)
    leave(a, other)
    enter(a, i, b)
    enter(a, other, t)
    return False
