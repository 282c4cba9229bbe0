"""Affinity: balancing that keeps together who shares interests, and moves few [ours; the future work of BAD §7].

The paper's greedy shuffle places everybody anew: nearly all move, and neighbours that share a BE subscription end up on
different brokers, each of which fetches it. Here everybody starts where they are. Whoever is above the mean gives until
it is at the mean, to brokers below it that have room, and each move is weighed at both ends: what the source no longer
fetches against what the target has to fetch in addition (exact, [BAD eq. 5]).

1. Groups (`affinity_groups`) move whole where that lowers the source by more per mover than the best single move does.
2. Single subscribers do the rest, heavy ones first: fewer moves for the same load.
3. For a shuffle, pairs between the most and the least loaded broker are exchanged until the maximum is at the mean.

The most loaded broker gives half of what it has above the mean before the next has its turn: the maximum falls fast
wherever a plan is cut off, and what a broker's subscribers want is still in the cache. Every step makes a broker above
the mean lighter and leaves the target below what that one had, and nobody moves twice in a plan: it ends, and repeated
planning comes to rest. Pure and compiled; registered in `multistage`.
"""

from __future__ import annotations

from typing import Final

import numba
import numpy as np

from tocsin.model.snapshot import Flags, Floats, Ints
from tocsin.policies.balance.affinity_choice import (
    LEVEL,
    Field,
    best_group,
    best_single,
    halving,
    mean_and_cov,
    transfer,
)
from tocsin.policies.balance.affinity_choice import field_of as _field
from tocsin.policies.balance.affinity_exchange import exchange_pairs
from tocsin.policies.balance.affinity_groups import groups_of
from tocsin.policies.balance.load import LoadArrays, LoadModel, Longs
from tocsin.policies.balance.migration import by_broker
from tocsin.policies.balance.ranking import replay

SINGLE: Final = 0
SWAPPED: Final = -1
"""How somebody moved: alone, in exchange for another; a positive number is the size of the group it moved with."""


def rebalance(
    model: LoadModel, movable: Flags, *, goal_cov: float, max_moves: int, exchange: bool
) -> tuple[Longs, Ints, Ints]:
    """The movers in order, their sources, and how each moved. `model` is as after the moves.

    Stops at `goal_cov`, or when nobody above the mean can give. With `exchange`, pairs are then swapped down to LEVEL.
    """
    none = np.zeros(0, dtype=np.int32)
    if not model.accepting.any() or not movable.any():
        return np.zeros(0, dtype=np.int64), none, none
    order, first = by_broker(model.broker_of, movable, model.weight, model.brokers)
    members, parts, parts_of = _parts(order, model.broker_of, groups_of(model), model.brokers)
    # What delivering to each part takes; it stays as it is while the parts' members move.
    delivered = np.add.reduceat(model.weight[members], parts[:-1]) if members.size else np.zeros(0)
    field = _field(model.arrays, model.per_capacity, model.accepting)
    following = np.arange(order.size + 1)
    moved, sources = np.zeros(order.size, dtype=np.int64), np.zeros(order.size, dtype=np.int32)
    kinds = np.zeros(order.size, dtype=np.int32)
    place_of = np.zeros(len(movable), dtype=np.int64)
    place_of[order] = np.arange(order.size)
    done = _level(
        model.arrays, field, order, first, following, place_of, members, parts, delivered, parts_of, goal_cov,
        max_moves, moved, sources, kinds,
    )  # fmt: skip
    if exchange:
        field = _field(model.arrays, model.per_capacity, model.accepting)
        before = done
        done = exchange_pairs(model.arrays, field, order, first, following, max_moves, done, moved, sources)
        kinds[before:done] = SWAPPED
    return moved[:done], sources[:done], kinds[:done]


def _parts(order: Longs, broker_of: Ints, label: Ints, brokers: int) -> tuple[Longs, Longs, Longs]:
    """Candidates by broker and group; where each part (a group's members at one broker) begins; each broker's parts."""
    members = order[np.lexsort((label[order], broker_of[order]))]
    if not members.size:
        return members, np.zeros(1, dtype=np.int64), np.zeros(brokers + 1, dtype=np.int64)
    here, labels = broker_of[members], label[members]
    begins = np.flatnonzero(np.concatenate([[True], (np.diff(here) != 0) | (np.diff(labels) != 0)]))
    parts_of = np.searchsorted(here[begins], np.arange(brokers + 1))
    return members, np.concatenate([begins, [len(members)]]).astype(np.int64), parts_of.astype(np.int64)


@numba.njit(cache=True)
def _level(
    a: LoadArrays,
    f: Field,
    order: Longs,
    first: Longs,
    following: Longs,
    place_of: Longs,
    members: Longs,
    parts: Longs,
    delivered: Floats,
    parts_of: Longs,
    goal_cov: float,
    max_moves: int,
    moved: Longs,
    sources: Ints,
    kinds: Ints,
) -> int:
    done, b, enough = 0, -1, 0.0
    whole = parts_of[:-1] == parts_of[1:]  # brokers whose groups need no further look
    gone = np.zeros(max(1, parts.size - 1), dtype=np.bool_)
    tally, seen = np.zeros(a.rate.size, dtype=np.int32), np.zeros(a.rate.size, dtype=np.int32)
    while done < max_moves:
        mean, cov = mean_and_cov(f)
        if b < 0 or not f.giving[b] > enough:
            b = int(f.most[1])
            enough = (f.giving[b] + mean) / 2.0
        if cov <= goal_cov or not f.giving[b] > mean * (1.0 + LEVEL):
            break
        excess = (f.giving[b] - mean) / f.per_capacity[b]
        i, target, score = best_single(a, f, order, first[b], first[b + 1], following, excess, mean)
        if not whole[b]:
            part, to, worth = best_group(a, f, members, parts, delivered, parts_of[b], parts_of[b + 1], gone, excess,
                                         mean, tally, seen, max_moves - done)  # fmt: skip
            if part < 0 or worth < score:
                whole[b] = True
            else:
                gone[part] = True
                size = parts[part + 1] - parts[part]
                for p in range(parts[part], parts[part + 1]):
                    transfer(a, f, members[p], to)
                    following[place_of[members[p]]] = place_of[members[p]] + 1
                    moved[done], sources[done], kinds[done] = members[p], b, size
                    done += 1
                continue
        if i < 0:
            i, target = halving(a, f, order, first[b], first[b + 1], following, b)
        if i < 0:
            f.giving[b] = -np.inf
            replay(f.most, f.giving, b, True)
            continue
        transfer(a, f, i, target)
        following[place_of[i]] = place_of[i] + 1
        moved[done], sources[done], kinds[done] = i, b, SINGLE
        whole[b] = True  # a group that has lost a member cannot move whole any more
        done += 1
    return done
