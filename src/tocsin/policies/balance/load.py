"""The load model [BAD §4, eq. 1–8] on arrays, updated with every move.

The load of a broker is the traffic that it fetches plus the traffic that it delivers: F_j = Σ_k z_jk (1 + n_jk) λ_k.
n_jk is the number of its online subscribers with BE subscription k; z_jk is 1 if any of its subscribers has k, else 0:
our brokers fetch for offline subscribers too, and deliver to online ones only. The paper assumes that all are online
(§4). λ is what a broker fetches; what it delivers may be encoded shorter, which scales n_jk λ_k by one factor for all
(`Snapshot.delivery_ratio`). A move changes two brokers, and only the counts of the subscriber's BE subscriptions: its
cost grows with their number, not with the size of the network. The policies of this folder and the simulator use this
module; it makes no decisions. The loops are compiled (numba).

The counts are one row per BE subscription: the brokers that hold it, and the subscribers of each. A row has little
spare room and moves to the end of the array when it is full. The counts of a million subscribers therefore fit into a
cache, where a table of brokers × BE subscriptions would be a cache miss at every access.

Numba caches a compiled function beside its source file and does not notice changes in kernels that it calls. After
changing a kernel, delete `__pycache__` of this folder.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np
import numpy.typing as npt

from tocsin.model.plan import Balance
from tocsin.model.snapshot import UNPLACED, Flags, Floats, Ints, Snapshot
from tocsin.policies.balance.distance import EVERYWHERE, Bits

Longs = npt.NDArray[np.int64]


class LoadArrays(NamedTuple):
    """The state of a load model, in a form that numba can read. The kernels change the arrays in place."""

    start: Longs
    wants: Ints
    """BE subscription numbers: subscriber i has `wants[start[i]:start[i + 1]]`."""
    rate: Floats
    weight: Floats
    """u_i = Σ_k y_ik λ_k: the traffic delivered to subscriber i, in bytes/s; 0 if it is offline."""
    broker_of: Ints
    incoming: Floats
    outgoing: Floats
    members: Longs
    row: Longs
    """Row k is `holder[row[k, 0]:row[k, 1]]`: the brokers that hold BE subscription k."""
    room: Ints
    """How many entries row k can hold before it must move."""
    holder: Ints | npt.NDArray[np.int16]
    """Broker numbers, in 16 bits if they fit: twice as many are then in the cache."""
    counts: Ints
    """The subscribers of each entry of `holder`, online or not; always above 0."""
    end: Longs
    """One number: the end of the last row."""
    reach: Bits
    """The brokers that each subscriber may move to (`distance.reach_of`); empty if that is every broker."""


@numba.njit(cache=True)
def in_reach(reach: Bits, i: int, j: int) -> bool:
    """True if subscriber i may move to broker j."""
    return reach.shape[0] == 0 or bool((reach[i, j >> 6] >> np.uint64(j & 63)) & np.uint64(1))


@numba.njit(cache=True)
def entry_of(a: LoadArrays, j: int, k: int) -> int:
    """The entry of broker j in row k, or -1 if j does not hold k. Searched from the end: recent ones are used most."""
    for at in range(a.row[k, 1] - 1, a.row[k, 0] - 1, -1):
        if a.holder[at] == j:
            return at
    return -1


@numba.njit(cache=True)
def count_of(a: LoadArrays, j: int, k: int) -> int:
    at = entry_of(a, j, k)
    return a.counts[at] if at >= 0 else 0


@numba.njit(cache=True)
def fetches_added(a: LoadArrays, i: int, j: int) -> float:
    """The traffic that broker j would fetch in addition if it got subscriber i, in bytes/s."""
    added = 0.0
    for p in range(a.start[i], a.start[i + 1]):
        if entry_of(a, j, a.wants[p]) < 0:
            added += a.rate[a.wants[p]]
    return added


@numba.njit(cache=True)
def fetches_saved(a: LoadArrays, i: int) -> float:
    """The traffic that its broker would no longer fetch if subscriber i left, in bytes/s."""
    saved, j = 0.0, a.broker_of[i]
    for p in range(a.start[i], a.start[i + 1]):
        if count_of(a, j, a.wants[p]) == 1:
            saved += a.rate[a.wants[p]]
    return saved


@numba.njit(cache=True)
def _append(a: LoadArrays, j: int, k: int) -> int:
    """Add broker j to row k with a count of 0 and return the entry."""
    size = a.row[k, 1] - a.row[k, 0]
    if size == a.room[k]:
        old, new = a.row[k, 0], a.end[0]
        for at in range(size):
            a.holder[new + at], a.counts[new + at] = a.holder[old + at], a.counts[old + at]
        a.row[k, 0], a.row[k, 1], a.room[k] = new, new + size, 2 * a.room[k] + 2
        a.end[0] += a.room[k]
    at = int(a.row[k, 1])
    a.row[k, 1] += 1
    a.holder[at], a.counts[at] = j, 0
    return at


@numba.njit(cache=True)
def enter(a: LoadArrays, i: int, j: int) -> None:
    """Assign subscriber i, which has no broker, to broker j."""
    for p in range(a.start[i], a.start[i + 1]):
        k = a.wants[p]
        at = entry_of(a, j, k)
        if at < 0:
            at = _append(a, j, k)
            a.incoming[j] += a.rate[k]
        a.counts[at] += 1
    a.outgoing[j] += a.weight[i]
    a.members[j] += 1
    a.broker_of[i] = j


@numba.njit(cache=True)
def leave(a: LoadArrays, i: int) -> None:
    """Remove subscriber i from its broker."""
    j = a.broker_of[i]
    for p in range(a.start[i], a.start[i + 1]):
        k = a.wants[p]
        at = entry_of(a, j, k)
        a.counts[at] -= 1
        if a.counts[at] == 0:
            last = a.row[k, 1] - 1
            a.holder[at], a.counts[at] = a.holder[last], a.counts[last]
            a.row[k, 1] = last
            a.incoming[j] -= a.rate[k]
    a.outgoing[j] -= a.weight[i]
    a.members[j] -= 1
    if a.members[j] == 0:  # rounding must not leave a load on an empty broker
        a.incoming[j] = 0.0
        a.outgoing[j] = 0.0
    a.broker_of[i] = UNPLACED


@numba.njit(cache=True)
def _list_subscribers(start: Longs, wants: Ints, order: Longs, q: int, subscribers: Ints) -> Longs:
    """Write the subscribers of each BE subscription, in this order, and return where each list begins."""
    first = np.zeros(q + 1, dtype=np.int64)
    for p in range(wants.size):
        first[wants[p] + 1] += 1
    for k in range(q):
        first[k + 1] += first[k]
    at = first[:-1].copy()
    for i in order:
        for p in range(start[i], start[i + 1]):
            subscribers[at[wants[p]]] = i
            at[wants[p]] += 1
    return first


@numba.njit(cache=True)
def _fill_rows(a: LoadArrays, first: Longs, subscribers: Ints) -> None:
    """Count row by row. Subscribers are in the order of their brokers, so each entry is written once, in sequence."""
    for k in range(a.rate.size):
        at, last = a.row[k, 0] - 1, UNPLACED
        for p in range(first[k], first[k + 1]):
            j = a.broker_of[subscribers[p]]
            if j == UNPLACED:
                continue
            if j != last:
                at, last = at + 1, j
                a.holder[at], a.counts[at] = j, 0
            a.counts[at] += 1
        a.row[k, 1] = at + 1


@numba.njit(cache=True)
def _loads_and_holders(
    start: Longs, wants: Ints, rate: Floats, weight: Floats, order: Longs, broker_of: Ints, brokers: int
) -> tuple[Floats, Floats, Ints]:
    """I_j and O_j [BAD eq. 1, 4], and the number of brokers that hold each BE subscription.

    Needs no counts: subscribers are in the order of their brokers, so one mark per BE subscription is enough.
    """
    incoming, outgoing = np.zeros(brokers), np.zeros(brokers)
    holders, last = np.zeros(rate.size, dtype=np.int32), np.full(rate.size, -1, dtype=np.int32)
    for i in order:
        j = broker_of[i]
        outgoing[j] += weight[i]
        for p in range(start[i], start[i + 1]):
            k = wants[p]
            if last[k] != j:
                last[k] = j
                holders[k] += 1
                incoming[j] += rate[k]
    return incoming, outgoing, holders


def weights_of(snapshot: Snapshot, rate: Floats) -> Floats:
    """u_i = Σ_k y_ik λ_k of the online subscribers, 0 for the others, as delivered. `rate` is λ without unknown
    values."""
    weight = snapshot.delivery_ratio * _sums_of_rates(snapshot.wants_start.astype(np.int64), snapshot.wants, rate)
    return weight if snapshot.online is None else np.where(snapshot.online, weight, 0.0)


@numba.njit(cache=True)
def _sums_of_rates(start: Longs, wants: Ints, rate: Floats) -> Floats:
    weight = np.zeros(start.size - 1)
    for i in range(weight.size):
        for p in range(start[i], start[i + 1]):
            weight[i] += rate[wants[p]]
    return weight


def known_rates(rate: Floats) -> Floats:
    """λ, with the mean of the measured rates for those not yet measured (NaN): assigned load counts before it is
    reported."""
    unknown = np.isnan(rate)
    if not unknown.any():
        return rate
    return np.where(unknown, 0.0 if unknown.all() else float(np.mean(rate[~unknown])), rate)


class LoadModel:
    """The loads of a snapshot's brokers. `broker_of` starts as given, or as in the snapshot, and follows the moves."""

    def __init__(self, snapshot: Snapshot, *, broker_of: Ints | None = None, reach: Bits = EVERYWHERE) -> None:
        self.brokers, q = len(snapshot.brokers), len(snapshot.rate)
        start = snapshot.wants_start.astype(np.int64)
        wants, rate = snapshot.wants, known_rates(snapshot.rate)
        placed = (snapshot.broker_of if broker_of is None else broker_of).astype(np.int32, copy=False)
        weight, order = weights_of(snapshot, rate), stable_order(placed)
        self.subscribers = np.empty(len(wants), dtype=np.int32)
        """BE subscription k has the subscribers `subscribers[subscribers_start[k]:subscribers_start[k + 1]]`."""
        self.subscribers_start = _list_subscribers(start, wants, order, q, self.subscribers)
        order = _placed(order, placed)
        incoming, outgoing, holders = _loads_and_holders(start, wants, rate, weight, order, placed, self.brokers)
        most_holders = np.minimum(np.diff(self.subscribers_start), self.brokers)
        room = np.minimum(holders + holders // 4 + 1, most_holders)
        begins = np.concatenate([[0], np.cumsum(room)]).astype(np.int64)
        # A row doubles when it is full, so all its copies together take at most four times what it needs. The operating
        # system provides memory only for pages that are written.
        entries = 4 * int(most_holders.sum())
        self.arrays = LoadArrays(
            start=start,
            wants=wants,
            rate=rate,
            weight=weight,
            broker_of=placed.copy(),
            incoming=incoming,
            outgoing=outgoing,
            members=np.bincount(placed[order], minlength=self.brokers),
            row=np.repeat(begins[:-1, None], 2, axis=1),
            room=room.astype(np.int32),
            holder=np.empty(entries, np.int16) if self.brokers < 1 << 15 else np.empty(entries, np.int32),
            counts=np.empty(entries, dtype=np.int32),
            end=begins[-1:].copy(),
            reach=reach,
        )
        _fill_rows(self.arrays, self.subscribers_start, self.subscribers)
        self.accepting, self.per_capacity = capacities(snapshot)

    @property
    def broker_of(self) -> Ints:
        return self.arrays.broker_of

    @property
    def weight(self) -> Floats:
        return self.arrays.weight

    @property
    def loads(self) -> Floats:
        """F_j [BAD eq. 5], in bytes/s."""
        return self.arrays.incoming + self.arrays.outgoing

    @property
    def utilisations(self) -> Floats:
        """Load ÷ capacity, in bytes/s of a broker of mean capacity: plain load when capacities are equal."""
        return self.loads * self.per_capacity

    def move(self, subscriber: int, broker: int) -> None:
        if self.arrays.broker_of[subscriber] != UNPLACED:
            leave(self.arrays, subscriber)
        if broker != UNPLACED:
            enter(self.arrays, subscriber, broker)

    def balance(self) -> Balance:
        return balance_of(self.utilisations, self.accepting)


def snapshot_balance(snapshot: Snapshot) -> Balance:
    """The balance of a snapshot as it is."""
    accepting, per_capacity = capacities(snapshot)
    return balance_of(snapshot_loads(snapshot) * per_capacity, accepting)


def snapshot_loads(snapshot: Snapshot) -> Floats:
    """F_j of a snapshot as it is, in bytes/s. Takes less time and memory than building a `LoadModel`."""
    start, rate = snapshot.wants_start.astype(np.int64), known_rates(snapshot.rate)
    weight = weights_of(snapshot, rate)
    order = _placed(stable_order(snapshot.broker_of), snapshot.broker_of)
    incoming, outgoing, _ = _loads_and_holders(
        start, snapshot.wants, rate, weight, order, snapshot.broker_of, len(snapshot.brokers)
    )
    return incoming + outgoing


def _placed(order: Longs, broker_of: Ints) -> Longs:
    """The part of a `stable_order` with the subscribers that have a broker."""
    return order[np.searchsorted(broker_of[order], 0) :]


def stable_order(broker_of: Ints) -> Longs:
    """Subscriber numbers, broker by broker, those without a broker first; in ascending order within a broker."""
    narrow = broker_of.astype(np.int16) if broker_of.size and broker_of.max() < 1 << 15 else broker_of
    return np.argsort(narrow, kind="stable")  # 16 bits: a radix sort, in linear time


def balance_of(utilisations: Floats, accepting: Flags) -> Balance:
    """Mean, cov and maximum [BAD eq. 6–8] over the accepting brokers. Others are only listed: they take no
    subscribers."""
    counted = utilisations[accepting]
    mean = float(counted.mean()) if counted.size else 0.0
    cov = float(counted.std()) / mean if mean > 0.0 else 0.0
    maximum = float(counted.max()) if counted.size else 0.0
    return Balance(tuple(map(float, utilisations)), mean, cov, maximum)


def capacities(snapshot: Snapshot) -> tuple[Flags, Floats]:
    """Per broker: True if it accepts subscribers, and the factor from load to utilisation.

    A broker without capacity accepts none. The factor is relative to the mean capacity, so that β and θ are in bytes/s
    whatever the unit of capacity.
    """
    capacity = snapshot.capacity
    usable = capacity > 0.0
    accepting = snapshot.accepting & usable
    counted = capacity[accepting] if accepting.any() else capacity[usable]
    if not counted.size or np.all(capacity[usable] == capacity[usable][0]):
        return accepting, np.ones(len(capacity))
    return accepting, np.where(usable, float(counted.mean()) / np.where(usable, capacity, 1.0), 1.0)


def movable_now(snapshot: Snapshot, rest_s: float) -> Flags:
    """Per subscriber: True if it has a broker, is movable, and has not moved within the last `rest_s`."""
    rested: Flags = snapshot.at_s - snapshot.moved_at_s >= rest_s
    placed: Flags = snapshot.broker_of != UNPLACED
    return snapshot.movable & placed & rested
