"""A snapshot with new numbers, so that data used together is close together in memory.

A policy works on the subscribers of one broker and on their BE subscriptions. In a snapshot both are in the order of
their registration, so with a million subscribers nearly every access is a cache miss. Here subscribers are numbered
broker by broker, and BE subscriptions in the order in which those subscribers have them: the data of one broker is
small and contiguous. A policy decides the same on both, except between equals. Pure and compiled; `multistage.plan`
plans on the result.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numba
import numpy as np

from tocsin.model.ids import SubscriberId
from tocsin.model.snapshot import Ints, Snapshot
from tocsin.policies.balance.load import Longs, stable_order


@dataclass(frozen=True, slots=True)
class RenumberedSnapshot:
    world: Snapshot
    """The snapshot in the new numbers, without subscriber names: only the movers' names are needed."""
    order: Longs
    """The old number of each subscriber, by new number."""
    names: tuple[SubscriberId, ...]
    """The names of the subscribers, by old number."""

    @property
    def number(self) -> Longs:
        """The new number of each subscriber, by old number."""
        number = np.empty_like(self.order)
        number[self.order] = np.arange(self.order.size)
        return number

    def named(self, subscribers: Longs) -> Iterator[SubscriberId]:
        """The names of subscribers given by new number."""
        return map(self.names.__getitem__, self.order[subscribers].tolist())


def renumber(snapshot: Snapshot) -> RenumberedSnapshot:
    order = stable_order(snapshot.broker_of)
    start = snapshot.wants_start.astype(np.int64)
    # Allocated here and not in the kernel: numpy requests large pages, which makes random access faster.
    wants_start, wants = np.zeros(len(order) + 1, dtype=np.int32), np.empty(len(snapshot.wants), dtype=np.int32)
    old_subscription = _renumber(start, snapshot.wants, order, len(snapshot.rate), wants_start, wants)
    world = replace(
        snapshot,
        subscribers=(),
        broker_of=snapshot.broker_of[order],
        wants_start=wants_start,
        wants=wants,
        rate=snapshot.rate[old_subscription],
        movable=snapshot.movable[order],
        moved_at_s=snapshot.moved_at_s[order],
        online=None if snapshot.online is None else snapshot.online[order],
        places_deg=None if snapshot.places_deg is None else snapshot.places_deg[order],
    )
    return RenumberedSnapshot(world, order, snapshot.subscribers)


@numba.njit(cache=True)
def _renumber(start: Longs, wants: Ints, order: Longs, q: int, new_start: Ints, new_wants: Ints) -> Longs:
    """Fill `new_start` and `new_wants`; return the old number of each BE subscription, by new number.

    Reads in the old order and writes in the new one: a processor waits for reads, not for writes.
    """
    begin = np.zeros(order.size, dtype=np.int32)
    for to in range(order.size):
        i = order[to]
        begin[i] = new_start[to]
        new_start[to + 1] = new_start[to] + start[i + 1] - start[i]
    for i in range(order.size):
        shift = begin[i] - start[i]
        for p in range(start[i], start[i + 1]):
            new_wants[p + shift] = wants[p]
    number, old, known = np.full(q, -1, dtype=np.int32), np.zeros(q, dtype=np.int64), 0
    for p in range(new_wants.size):
        k = new_wants[p]
        if number[k] < 0:
            number[k], old[known] = known, k
            known += 1
        new_wants[p] = number[k]
    for k in range(q):  # BE subscriptions without a subscriber come last
        if number[k] < 0:
            old[known] = k
            known += 1
    return old
