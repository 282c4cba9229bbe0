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
from tocsin.policies.balance.load import (
    LoadArrays,
    LoadModel,
    Longs,
    count_of,
    fetches_added,
    fetches_saved,
    in_reach,
    stable_order,
)
from tocsin.policies.balance.ranking import (
    UNTOUCHED,
    BrokerRanking,
    Candidates,
    first_lighter,
    least_for,
    next_staying,
    touch_holders,
)

GROWTH_PRICE: Final = 0.5
"""Cost of a byte/s that a second broker must fetch, in bytes/s of relief. A larger price moves groups rather than their
heaviest members: fewer fetches, more movers. On *communities*, prices 0.5, 1 and 2 gave a mean load of 1.167, 1.166 and
1.164 × the lower bound for 31, 32 and 35 % of the subscribers moved."""
GROUP_AT_LEAST: Final = 3
GAIN: Final = 1e-9
"""The smallest relative gain that counts; less is rounding."""
_ROUNDS: Final = 3
"""Rounds of label propagation. Two find the neighbourhoods; a third settles the subscribers at their edges."""
_TRIES: Final = 3
"""Groups with a valid move that are compared before one is chosen."""
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
    """The candidates by broker and group. A part is the members of one group at one broker, those that help most
    first."""

    members: Longs
    head: Longs
    """Part p has the members `members[head[p]:end[p]]`. Members move from the front, and `head` follows."""
    end: Longs
    first: Longs
    """Broker j has the parts `first[j]` to `first[j + 1]`."""
    part_of: Longs
    """The part of each subscriber; 0 also for subscribers without one."""
    worth: Floats
    """Per broker: the score of its best part when last examined; -inf if no part of it fits any more."""


def parts_of(model: LoadModel, order: Longs) -> GroupParts:
    label, broker_of = groups_of(model), model.broker_of
    members = order[np.lexsort((label[order], broker_of[order]))]
    here, labels = broker_of[members], label[members]
    begins = np.flatnonzero(np.concatenate([[True], (np.diff(here) != 0) | (np.diff(labels) != 0)])[: members.size])
    first = np.searchsorted(here[begins], np.arange(model.brokers + 1)).astype(np.int64)
    end = np.append(begins[1:], members.size)[: begins.size].astype(np.int64)
    part_of = np.zeros(len(label), dtype=np.int64)
    part_of[members] = np.repeat(np.arange(begins.size), end - begins)
    worth = np.where(np.diff(first) > 0, np.inf, -np.inf)
    return GroupParts(members, begins.astype(np.int64), end, first, part_of, worth)


@numba.njit(cache=True)
def reliefs(a: LoadArrays, order: Longs) -> Floats:
    """Per subscriber: the load that its broker loses if it leaves, in bytes/s; 0 for subscribers not in `order`.

    `order` lists the subscribers broker by broker. One count per BE subscription is then enough, and no row is
    searched.
    """
    relief, count = np.zeros(a.weight.size), np.zeros(a.rate.size, dtype=np.int32)
    low = 0
    while low < order.size:
        high = low
        while high < order.size and a.broker_of[order[high]] == a.broker_of[order[low]]:
            for p in range(a.start[order[high]], a.start[order[high] + 1]):
                count[a.wants[p]] += 1
            high += 1
        for at in range(low, high):
            i = order[at]
            relief[i] = a.weight[i]
            for p in range(a.start[i], a.start[i + 1]):
                if count[a.wants[p]] == 1:
                    relief[i] += a.rate[a.wants[p]]
        for at in range(low, high):
            for p in range(a.start[order[at]], a.start[order[at] + 1]):
                count[a.wants[p]] = 0
        low = high
    return relief


def candidates_by_relief(model: LoadModel, movable: Flags) -> tuple[Candidates, Floats]:
    """Like `candidates_of`, those that relieve their broker most first; and the relief of each subscriber.

    The relief counts the traffic that only this subscriber makes its broker fetch. Ordered by weight alone, a plan
    needs 1 % more moves on *communities*.
    """
    broker_of = model.broker_of
    everyone = stable_order(broker_of)
    relief = reliefs(model.arrays, everyone[np.searchsorted(broker_of[everyone], 0) :])
    order = np.flatnonzero(movable & (broker_of >= 0) & (model.weight > 0.0))
    order = order[np.argsort(-relief[order], kind="stable")]
    order = order[stable_order(broker_of[order])]
    sizes = np.bincount(broker_of[order], minlength=model.brokers)
    first = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    return Candidates(order, first, np.arange(order.size + 1)), relief


@numba.njit(cache=True)
def price_above(utilisation: float, ceiling: float) -> float:
    """Excess² ÷ ceiling, in bytes/s; 0 for a utilisation below `ceiling`. Times a price, it is added to the load."""
    above = max(0.0, utilisation - ceiling)
    return above * above / ceiling if above > 0.0 else 0.0


@numba.njit(cache=True)
def choose(
    a: LoadArrays,
    r: BrokerRanking,
    i: int,
    touched: int,
    delivered: float,
    fetched: float,
    ceiling: float,
    overload_price: float,
    limit: float,
) -> tuple[int, float, float]:
    """The cheapest of the touched brokers and the least loaded one; -1 if none stays at or below `limit`.

    Returns the broker, the load that it gets in addition, and that load with the price of its load above `ceiling`.
    Every target is chosen here, within the reach of subscriber i, except in `best_halving` and in exchanges.
    """
    best, load, price = -1, np.inf, np.inf
    for at in range(-1, touched):
        j = r.touched[at] if at >= 0 else least_for(a, r, i)
        if j < 0 or not in_reach(a.reach, i, j):
            continue
        added = delivered + fetched - max(0.0, r.similarity[j])
        if added > price:
            continue
        after = r.taking[j] + added * r.per_capacity[j]
        if after <= limit:
            total = added + overload_price * price_above(after, ceiling)
            if best < 0 or total < price or (total == price and r.taking[j] < r.taking[best]):
                best, load, price = int(j), added, total
    for at in range(touched):
        r.similarity[r.touched[at]] = UNTOUCHED
    return best, load, price


@numba.njit(cache=True)
def examine(a: LoadArrays, r: BrokerRanking, i: int, ceiling: float) -> tuple[float, float, int]:
    """The traffic that only subscriber i makes its broker fetch, all its traffic, and the number of touched brokers.

    Touches the other brokers below `ceiling` that share traffic with i, like `touch_holders`. Each row is read once.
    """
    own, saved, fetched, touched = a.broker_of[i], 0.0, 0.0, 0
    for p in range(a.start[i], a.start[i + 1]):
        k = a.wants[p]
        fetched += a.rate[k]
        for at in range(a.row[k, 0], a.row[k, 1]):
            j = a.holder[at]
            if j == own:
                if a.counts[at] == 1:
                    saved += a.rate[k]
            elif r.taking[j] < ceiling:
                if r.similarity[j] == UNTOUCHED:
                    r.touched[touched] = j
                    touched += 1
                    r.similarity[j] = 0.0
                r.similarity[j] += a.rate[k]
    return saved, fetched, touched


@numba.njit(cache=True)
def first_single(
    a: LoadArrays, r: BrokerRanking, c: Candidates, order_relief: Floats, b: int, excess: float, mean: float
) -> tuple[int, int, float]:
    """The first of broker b's candidates that fits, its target and its score; -1 and -1 if none of the first fits.

    A candidate fits if its move relieves b by at most `excess` and leaves the target at or below `mean`.
    """
    looks, high = 0, c.first[b + 1]
    at = next_staying(c.following, c.first[b])
    if at < high and not order_relief[c.order[at]] < excess:
        at = next_staying(c.following, first_lighter(order_relief, c.order, at, high, excess))
    while at < high and looks < _LOOKS:
        i = c.order[at]
        saved, fetched, touched = examine(a, r, i, mean)
        relief = a.weight[i] + saved
        j, load, _price = choose(a, r, i, touched, a.weight[i], fetched, mean, 0.0, mean)
        if j >= 0 and relief <= excess:
            return i, j, relief - GROWTH_PRICE * max(0.0, load - relief)
        looks += 1
        at = next_staying(c.following, at + 1)
        if looks == _LOOKS // 2 and at < high:
            # Little room is left: continue with candidates that are light enough for the least loaded broker.
            room = (mean - r.taking[r.least[1]]) / r.per_capacity[r.least[1]]
            at = max(at, next_staying(c.following, first_lighter(order_relief, c.order, at, high, 2.0 * room)))
    return -1, -1, -np.inf


@numba.njit(cache=True)
def best_group(
    a: LoadArrays,
    r: BrokerRanking,
    parts: GroupParts,
    b: int,
    excess: float,
    mean: float,
    tally: Ints,
    seen: Ints,
    most: int,
) -> tuple[int, int, int, float]:
    """The part of broker b that fits and helps most per mover, how many of it move, their target and their score.

    Either all members of a part move, or the half that helps most: fewer movers for the same load, for a second fetch.
    They fit if they are at most `most`, relieve b by at most `excess` and leave the target at or below `mean`. The part
    is -1 if none fits. `tally` and `seen` are working space.
    """
    best, movers, target, score, tries = -1, 0, -1, -np.inf, 0
    for part in range(parts.first[b], parts.first[b + 1]):
        if tries == _TRIES:
            break
        low, size = parts.head[part], parts.end[part] - parts.head[part]
        if size < GROUP_AT_LEAST:
            continue
        delivered = 0.0
        kinds, fitted = 0, False
        for p in range(low, parts.end[part]):
            i = parts.members[p]
            delivered += a.weight[i]
            for at in range(a.start[i], a.start[i + 1]):
                k = a.wants[at]
                if tally[k] == 0:
                    seen[kinds] = k
                    kinds += 1
                tally[k] += 1
            count = p + 1 - low
            if count > most or delivered > excess:
                break
            if count < GROUP_AT_LEAST or (count != size // 2 and count != size):
                continue
            saved, fetched, touched = 0.0, 0.0, 0
            for at in range(kinds):
                k = seen[at]
                fetched += a.rate[k]
                touched = touch_holders(a, r, k, mean, touched)
                if count_of(a, b, k) == tally[k]:
                    saved += a.rate[k]
            j, load, _price = choose(a, r, i, touched, delivered, fetched, mean, 0.0, mean)
            for q in range(low, p):  # `i` is the last of them
                if j >= 0 and not in_reach(a.reach, parts.members[q], j):
                    j = -1
            relief = delivered + saved
            if j >= 0 and relief <= excess:
                fitted = True
                worth = (relief - GROWTH_PRICE * max(0.0, load - relief)) / count
                if worth > score:
                    best, movers, target, score = part, count, j, worth
        for at in range(kinds):
            tally[seen[at]] = 0
        tries += fitted
    return best, movers, target, score


@numba.njit(cache=True)
def best_halving(a: LoadArrays, r: BrokerRanking, c: Candidates, order_relief: Floats, b: int) -> tuple[int, int]:
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
    at = next_staying(c.following, first_lighter(order_relief, c.order, c.first[b], high, 2.0 * half))
    looks = 0
    while at < high and looks < _LOOKS:
        i = c.order[at]
        if not in_reach(a.reach, i, target):
            looks += 1
            at = next_staying(c.following, at + 1)
            continue
        source_after = r.giving[b] - (a.weight[i] + fetches_saved(a, i)) * r.per_capacity[b]
        target_after = r.taking[target] + (a.weight[i] + fetches_added(a, i, target)) * r.per_capacity[target]
        if max(source_after, target_after) < larger:
            best, larger = i, max(source_after, target_after)
        looks += 1
        at = next_staying(c.following, at + 1)
    return best, target
