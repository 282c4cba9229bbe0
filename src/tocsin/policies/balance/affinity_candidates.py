"""Candidates of `affinity`: groups of subscribers that share interests, and the best subscriber or group to move next.

[BAD §7] names grouping as future work: cluster subscribers by similarity and move them in groups. Label propagation
over the graph of subscribers and BE subscriptions finds the groups. A subscriber takes the label that carries most of
its rates; a BE subscription takes the label that most of its subscribers have. It takes a few rounds over all
subscriptions, in linear time. In a world without communities the groups share nothing in particular; that does no harm,
because `best_group` weighs what a move saves. Pure and compiled.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numba
import numpy as np

from tocsin.model.snapshot import Flags, Floats, Ints
from tocsin.policies.balance.load import LoadArrays, LoadModel, Longs, count_of, fetches_added, fetches_saved
from tocsin.policies.balance.ranking import (
    UNTOUCHED,
    BrokerRanking,
    Candidates,
    first_lighter,
    next_staying,
    touch_holders,
)

GROWTH_PRICE: Final = 2.0
"""Cost of a byte/s that a second broker must fetch, in bytes/s of relief. A larger price moves groups rather than their
heaviest members: fewer fetches, more movers. On *communities*, prices 1, 2 and 4 gave a maximum of 1.19, 1.18 and 1.17
× the lower bound for 31, 33 and 35 % of the subscribers moved."""
GROUP_AT_LEAST: Final = 3
GAIN: Final = 1e-9
"""The smallest relative gain that counts; less is rounding."""
_ROUNDS: Final = 3
"""Rounds of label propagation. Two find the neighbourhoods; a third settles the subscribers at their edges."""
_TRIES: Final = 3
"""Valid moves, of groups or of single subscribers, that are compared before one is chosen."""
_LOOKS: Final = 48
"""Candidates that are examined before the search at one broker ends."""


def groups_of(model: LoadModel) -> Ints:
    """A label per subscriber; equal labels share interests. -1 if all its BE subscriptions have the rate 0."""
    a = model.arrays
    n, q = a.start.size - 1, a.rate.size
    if not a.wants.size:
        return np.full(n, -1, dtype=np.int32)
    # A BE subscription that all subscribers have does not tell them apart: the more subscribers, the smaller its vote.
    degree = np.maximum(1, np.diff(model.subscribers_start))
    vote = a.rate * np.log1p(n / degree)
    label = np.arange(q, dtype=np.int32)
    group = _label_subscribers(a.start, a.wants, vote, label)
    for _ in range(_ROUNDS - 1):
        _label_subscriptions(model.subscribers_start, model.subscribers, group, label)
        group = _label_subscribers(a.start, a.wants, vote, label)
    return group


@numba.njit(cache=True)
def _label_subscribers(start: Longs, wants: Ints, vote: Floats, label: Ints) -> Ints:
    group = np.full(start.size - 1, -1, dtype=np.int32)
    votes = np.zeros(label.size)
    for i in range(start.size - 1):
        best = 0.0
        for p in range(start[i], start[i + 1]):
            candidate = label[wants[p]]
            votes[candidate] += vote[wants[p]]
            if votes[candidate] > best or (votes[candidate] == best and candidate < group[i]):
                best, group[i] = votes[candidate], candidate
        for p in range(start[i], start[i + 1]):
            votes[label[wants[p]]] = 0.0
    return group


@numba.njit(cache=True)
def _label_subscriptions(first: Longs, subscribers: Ints, group: Ints, label: Ints) -> None:
    votes = np.zeros(label.size, dtype=np.int32)
    for k in range(label.size):
        best = 0
        for p in range(first[k], first[k + 1]):
            candidate = group[subscribers[p]]
            if candidate < 0:  # a subscriber of nothing but quiet BE subscriptions has no label to vote for
                continue
            votes[candidate] += 1
            if votes[candidate] > best or (votes[candidate] == best and candidate < label[k]):
                best, label[k] = votes[candidate], candidate
        for p in range(first[k], first[k + 1]):
            if group[subscribers[p]] >= 0:
                votes[group[subscribers[p]]] = 0


class GroupParts(NamedTuple):
    """The candidates by broker and group. A part is the members of one group at one broker."""

    members: Longs
    begin: Longs
    """Part p has the members `members[begin[p]:begin[p + 1]]`."""
    first: Longs
    """Broker j has the parts `first[j]` to `first[j + 1]`."""
    delivered: Floats
    """The traffic delivered to each part, in bytes/s. It does not change when members move."""


def parts_of(model: LoadModel, order: Longs) -> GroupParts:
    label, broker_of = groups_of(model), model.broker_of
    members = order[np.lexsort((label[order], broker_of[order]))]
    if not members.size:
        empty = np.zeros(1, dtype=np.int64)
        return GroupParts(members, empty, np.zeros(model.brokers + 1, dtype=np.int64), np.zeros(0))
    here, labels = broker_of[members], label[members]
    begins = np.flatnonzero(np.concatenate([[True], (np.diff(here) != 0) | (np.diff(labels) != 0)]))
    first = np.searchsorted(here[begins], np.arange(model.brokers + 1)).astype(np.int64)
    begin = np.concatenate([begins, [len(members)]]).astype(np.int64)
    return GroupParts(members, begin, first, np.add.reduceat(model.weight[members], begin[:-1]))


@numba.njit(cache=True)
def _cheapest(a: LoadArrays, r: BrokerRanking, i: int, ceiling: float) -> tuple[int, float]:
    """The target at which subscriber i costs least without lifting it above `ceiling`, and the cost there."""
    touched = 0
    for p in range(a.start[i], a.start[i + 1]):
        touched = touch_holders(a, r, a.wants[p], ceiling, touched)
    return _choose(r, touched, a.weight[i], a.weight[i], ceiling)


@numba.njit(cache=True)
def _choose(r: BrokerRanking, touched: int, delivered: float, fetched: float, ceiling: float) -> tuple[int, float]:
    """Among the touched brokers and the least loaded one, the one with room that has to fetch least; -1 if none."""
    best, shared = int(r.least[1]), max(0.0, r.similarity[r.least[1]])
    if r.taking[best] + (delivered + fetched - shared) * r.per_capacity[best] > ceiling:
        best, shared = -1, -1.0
    for at in range(touched):
        j = r.touched[at]
        after = r.taking[j] + (delivered + fetched - r.similarity[j]) * r.per_capacity[j]
        if after <= ceiling and (
            r.similarity[j] > shared or (r.similarity[j] == shared and r.taking[j] < r.taking[best])
        ):
            best, shared = int(j), r.similarity[j]
        r.similarity[j] = UNTOUCHED
    return best, delivered + fetched - shared


@numba.njit(cache=True)
def best_single(
    a: LoadArrays, r: BrokerRanking, c: Candidates, b: int, excess: float, mean: float
) -> tuple[int, int, float]:
    """The most helpful of broker b's heaviest candidates that fit, its target and its score; -1 and -1 if none fits.

    A candidate fits if its move relieves b by at most `excess` and leaves the target at or below `mean`.
    """
    best, target, score = -1, -1, -np.inf
    tries = looks = 0
    high = c.first[b + 1]
    at = next_staying(c.following, first_lighter(a.weight, c.order, c.first[b], high, excess))
    while at < high and tries < _TRIES and looks < _LOOKS:
        i = c.order[at]
        relief = a.weight[i] + fetches_saved(a, i)
        looks += 1
        if relief <= excess:
            j, cost = _cheapest(a, r, i, mean)
            if j >= 0:
                tries += 1
                worth = relief - GROWTH_PRICE * max(0.0, cost - relief)
                if worth > score:
                    best, target, score = i, j, worth
        at = next_staying(c.following, at + 1)
        if looks == _LOOKS // 2 and tries == 0 and at < high:
            # Little room is left: continue with candidates that are light enough for the least loaded broker.
            room = (mean - r.taking[r.least[1]]) / r.per_capacity[r.least[1]]
            at = max(at, next_staying(c.following, first_lighter(a.weight, c.order, at, high, room)))
    return best, target, score


@numba.njit(cache=True)
def best_group(
    a: LoadArrays,
    r: BrokerRanking,
    parts: GroupParts,
    b: int,
    moved: Flags,
    excess: float,
    mean: float,
    tally: Ints,
    seen: Ints,
    most: int,
) -> tuple[int, int, float]:
    """The part of broker b that fits and helps most per mover, its target and its score; -1 and -1 if none fits.

    A part fits if it has at most `most` members, and its move relieves b by at most `excess` and leaves the target at
    or below `mean`. `tally` and `seen` are working space.
    """
    best, target, score, tries = -1, -1, -np.inf, 0
    for part in range(parts.first[b], parts.first[b + 1]):
        if tries == _TRIES:
            break
        low, high = parts.begin[part], parts.begin[part + 1]
        size = high - low
        if moved[part] or size < GROUP_AT_LEAST or size > most or parts.delivered[part] > excess:
            continue
        saved = fetched = 0.0
        kinds = touched = 0
        for p in range(low, high):
            for at in range(a.start[parts.members[p]], a.start[parts.members[p] + 1]):
                k = a.wants[at]
                if tally[k] == 0:
                    seen[kinds] = k
                    kinds += 1
                tally[k] += 1
        for at in range(kinds):
            k = seen[at]
            fetched += a.rate[k]
            touched = touch_holders(a, r, k, mean, touched)
            if count_of(a, b, k) == tally[k]:
                saved += a.rate[k]
            tally[k] = 0
        j, cost = _choose(r, touched, parts.delivered[part], fetched, mean)
        relief = parts.delivered[part] + saved
        if j >= 0 and relief <= excess:
            tries += 1
            worth = (relief - GROWTH_PRICE * max(0.0, cost - relief)) / size
            if worth > score:
                best, target, score = part, j, worth
    return best, target, score


@numba.njit(cache=True)
def best_halving(a: LoadArrays, r: BrokerRanking, c: Candidates, b: int) -> tuple[int, int]:
    """The candidate of broker b whose move to the least loaded broker best halves their difference, and that broker.

    For loads too coarse to reach the mean. "Best" makes the larger of the two loads smallest. The candidate is -1 if no
    move makes it smaller than b's present load.
    """
    target = int(r.least[1])
    best, larger = -1, r.giving[b] * (1.0 - GAIN)
    if target == b or not r.accepting[target]:
        return -1, -1
    high = c.first[b + 1]
    half = (r.giving[b] - r.taking[target]) / (r.per_capacity[b] + r.per_capacity[target])
    at = next_staying(c.following, first_lighter(a.weight, c.order, c.first[b], high, 2.0 * half))
    looks = 0
    while at < high and looks < _LOOKS:
        i = c.order[at]
        source_after = r.giving[b] - (a.weight[i] + fetches_saved(a, i)) * r.per_capacity[b]
        target_after = r.taking[target] + (a.weight[i] + fetches_added(a, i, target)) * r.per_capacity[target]
        if max(source_after, target_after) < larger:
            best, larger = i, max(source_after, target_after)
        looks += 1
        at = next_staying(c.following, at + 1)
    return best, target
