"""The load model [BAD §4, eq. 1–8] on arrays, kept up to date move by move.

A broker's load is what it fetches plus what it delivers: F_j = Σ_k z_jk (1 + n_jk) λ_k, where n_jk is how many of its
subscribers want BE subscription k and z_jk whether any does. A move changes two brokers and only the counts of what the
subscriber wants: it costs time in proportion to that, never a walk over everybody. Not a policy: it decides nothing.
Driven by the policies of this folder and by the simulator; the loops are compiled (numba).

The counts n_jk are rows per BE subscription: the brokers that hold it, and for how many. A row takes little more room
than it needs and is written anew at the end when it has none left: what a million subscribers want fits into a cache
so, where a table of brokers × BE subscriptions would be a cache miss at every look.

A compiled function is cached with the source file it is in. After changing a kernel here, delete `__pycache__` of this
folder: kernels elsewhere that have it built in do not notice.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np
import numpy.typing as npt

from tocsin.model.plan import Balance
from tocsin.model.snapshot import UNPLACED, Flags, Floats, Ints, Snapshot

Longs = npt.NDArray[np.int64]


class LoadArrays(NamedTuple):
    """What the kernels work on. The arrays are changed in place; the tuple is what numba can read."""

    start: Longs
    wants: Ints
    rate: Floats
    weight: Floats
    """u_i = Σ_k y_ik λ_k: what delivering to subscriber i takes."""
    broker_of: Ints
    incoming: Floats
    outgoing: Floats
    members: Longs
    row: Longs
    """Where row k of `holder` begins and ends, side by side: as many brokers hold k."""
    room: Ints
    """How many row k can take where it is."""
    holder: Ints | npt.NDArray[np.int16]
    """Of 16 bits where the brokers' numbers fit: twice as much of it is in the cache."""
    counts: Ints
    """n_jk, beside `holder`: always above 0."""
    end: Longs
    """One number: behind the last row."""


@numba.njit(cache=True)
def entry_of(a: LoadArrays, j: int, k: int) -> int:
    """Where n_jk is; -1 if broker j does not hold k. From the end: what came last is asked for most."""
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
    """What broker j would have to fetch in addition if subscriber i came."""
    added = 0.0
    for p in range(a.start[i], a.start[i + 1]):
        if entry_of(a, j, a.wants[p]) < 0:
            added += a.rate[a.wants[p]]
    return added


@numba.njit(cache=True)
def fetches_saved(a: LoadArrays, i: int) -> float:
    """What its broker would no longer have to fetch if subscriber i left."""
    saved, j = 0.0, a.broker_of[i]
    for p in range(a.start[i], a.start[i + 1]):
        if count_of(a, j, a.wants[p]) == 1:
            saved += a.rate[a.wants[p]]
    return saved


@numba.njit(cache=True)
def _append(a: LoadArrays, j: int, k: int) -> int:
    """Broker j, which did not hold k, does now, for nobody yet."""
    held = a.row[k, 1] - a.row[k, 0]
    if held == a.room[k]:
        old, new = a.row[k, 0], a.end[0]
        for at in range(held):
            a.holder[new + at], a.counts[new + at] = a.holder[old + at], a.counts[old + at]
        a.row[k, 0], a.row[k, 1], a.room[k] = new, new + held, 2 * a.room[k] + 2
        a.end[0] += a.room[k]
    at = int(a.row[k, 1])
    a.row[k, 1] += 1
    a.holder[at], a.counts[at] = j, 0
    return at


@numba.njit(cache=True)
def enter(a: LoadArrays, i: int, j: int) -> None:
    """Subscriber i, which has no broker, gets broker j."""
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
    """Subscriber i leaves its broker and has none."""
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
    if a.members[j] == 0:  # rounding leaves no ghost load on an empty broker
        a.incoming[j] = 0.0
        a.outgoing[j] = 0.0
    a.broker_of[i] = UNPLACED


@numba.njit(cache=True)
def _wanted_by(start: Longs, wants: Ints, order: Longs, q: int, people: Ints) -> Longs:
    """Fills in who wants each BE subscription, in that order; where each begins."""
    first = np.zeros(q + 1, dtype=np.int64)
    for p in range(wants.size):
        first[wants[p] + 1] += 1
    for k in range(q):
        first[k + 1] += first[k]
    at = first[:-1].copy()
    for i in order:
        for p in range(start[i], start[i + 1]):
            people[at[wants[p]]] = i
            at[wants[p]] += 1
    return first


@numba.njit(cache=True)
def _fill_rows(a: LoadArrays, first: Longs, people: Ints) -> None:
    """The counts, row by row, of people in the order of their brokers: what is written is written once, in a row."""
    for k in range(a.rate.size):
        at, last = a.row[k, 0] - 1, UNPLACED
        for p in range(first[k], first[k + 1]):
            j = a.broker_of[people[p]]
            if j == UNPLACED:
                continue
            if j != last:
                at, last = at + 1, j
                a.holder[at], a.counts[at] = j, 0
            a.counts[at] += 1
        a.row[k, 1] = at + 1


@numba.njit(cache=True)
def _standing(
    start: Longs, wants: Ints, rate: Floats, weight: Floats, order: Longs, broker_of: Ints, brokers: int
) -> tuple[Floats, Floats, Ints]:
    """I_j and O_j [BAD eq. 1, 4], and how many brokers hold each BE subscription.

    Without counts: with subscribers by broker, a mark per BE subscription will do.
    """
    incoming, outgoing = np.zeros(brokers), np.zeros(brokers)
    held, held_by = np.zeros(rate.size, dtype=np.int32), np.full(rate.size, -1, dtype=np.int32)
    for i in order:
        j = broker_of[i]
        outgoing[j] += weight[i]
        for p in range(start[i], start[i + 1]):
            k = wants[p]
            if held_by[k] != j:
                held_by[k] = j
                held[k] += 1
                incoming[j] += rate[k]
    return incoming, outgoing, held


@numba.njit(cache=True)
def weights_of(start: Longs, wants: Ints, rate: Floats) -> Floats:
    """u_i = Σ_k y_ik λ_k."""
    weight = np.zeros(start.size - 1)
    for i in range(weight.size):
        for p in range(start[i], start[i + 1]):
            weight[i] += rate[wants[p]]
    return weight


def known_rates(rate: Floats) -> Floats:
    """λ, and where nothing was measured yet (NaN) the mean of the others: what is assigned and not reported counts."""
    unknown = np.isnan(rate)
    if not unknown.any():
        return rate
    return np.where(unknown, 0.0 if unknown.all() else float(np.mean(rate[~unknown])), rate)


class LoadModel:
    """The loads of a snapshot's brokers. `broker_of` starts as the snapshot's, or as given, and follows the moves."""

    def __init__(self, snapshot: Snapshot, *, broker_of: Ints | None = None) -> None:
        self.brokers, q = len(snapshot.brokers), len(snapshot.rate)
        start = snapshot.wants_start.astype(np.int64)
        wants, rate = snapshot.wants, known_rates(snapshot.rate)
        placed = (snapshot.broker_of if broker_of is None else broker_of).astype(np.int32, copy=False)
        weight, order = weights_of(start, wants, rate), stable_order(placed)
        self.people = np.empty(len(wants), dtype=np.int32)
        """Who wants each BE subscription: subscription k's are from `people_start[k]` to `people_start[k + 1]`."""
        self.people_start = _wanted_by(start, wants, order, q, self.people)
        order = _placed(order, placed)
        incoming, outgoing, held = _standing(start, wants, rate, weight, order, placed, self.brokers)
        most = np.minimum(np.diff(self.people_start), self.brokers)
        room = np.minimum(held + held // 4 + 1, most)
        begins = np.concatenate([[0], np.cumsum(room)]).astype(np.int64)
        # Rows that double, the last to no more than twice what it needs, take at most four times that. Memory that is
        # never written to is never taken.
        entries = 4 * int(most.sum())
        self.arrays = LoadArrays(
            start, wants, rate, weight, placed.copy(), incoming, outgoing,
            np.bincount(placed[order], minlength=self.brokers), np.repeat(begins[:-1, None], 2, axis=1),
            room.astype(np.int32),
            np.empty(entries, np.int16) if self.brokers < 1 << 15 else np.empty(entries, np.int32),
            np.empty(entries, dtype=np.int32), begins[-1:].copy(),
        )  # fmt: skip
        _fill_rows(self.arrays, self.people_start, self.people)
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


def standing_balance(snapshot: Snapshot) -> Balance:
    """The balance of a snapshot as it is; for one look this takes less time and memory than a model."""
    start, rate = snapshot.wants_start.astype(np.int64), known_rates(snapshot.rate)
    incoming, outgoing, _ = _standing(
        start, snapshot.wants, rate, weights_of(start, snapshot.wants, rate),
        _placed(stable_order(snapshot.broker_of), snapshot.broker_of), snapshot.broker_of, len(snapshot.brokers),
    )  # fmt: skip
    accepting, per_capacity = capacities(snapshot)
    return balance_of((incoming + outgoing) * per_capacity, accepting)


def _placed(order: Longs, broker_of: Ints) -> Longs:
    """Of subscribers in `stable_order` those that have a broker."""
    return order[np.searchsorted(broker_of[order], 0) :]


def stable_order(broker_of: Ints) -> Longs:
    """Subscribers broker by broker, those without one first; as they came within a broker."""
    narrow = broker_of.astype(np.int16) if broker_of.size and broker_of.max() < 1 << 15 else broker_of
    return np.argsort(narrow, kind="stable")  # of 16 bits: a radix sort, in linear time


def balance_of(utilisations: Floats, accepting: Flags) -> Balance:
    """[BAD eq. 6–8]. Brokers that accept nobody are listed and do not count: evenness is no goal of theirs."""
    counted = utilisations[accepting]
    mean = float(counted.mean()) if counted.size else 0.0
    cov = float(counted.std()) / mean if mean > 0.0 else 0.0
    maximum = float(counted.max()) if counted.size else 0.0
    return Balance(tuple(map(float, utilisations)), mean, cov, maximum)


def capacities(snapshot: Snapshot) -> tuple[Flags, Floats]:
    """Who takes subscribers, and the factor from load to utilisation.

    The factor is relative to the mean capacity, so that β and θ are bytes/s whatever capacity is counted in.
    """
    capacity = snapshot.capacity
    usable = capacity > 0.0
    accepting = snapshot.accepting & usable
    counted = capacity[accepting] if accepting.any() else capacity[usable]
    if not counted.size or np.all(capacity[usable] == capacity[usable][0]):
        return accepting, np.ones(len(capacity))
    return accepting, np.where(usable, float(counted.mean()) / np.where(usable, capacity, 1.0), 1.0)


def movable_now(snapshot: Snapshot, rest_s: float) -> Flags:
    """Who may be moved: placed, movable, and not moved within the last `rest_s`."""
    rested: Flags = snapshot.at_s - snapshot.moved_at_s >= rest_s
    placed: Flags = snapshot.broker_of != UNPLACED
    return snapshot.movable & placed & rested
