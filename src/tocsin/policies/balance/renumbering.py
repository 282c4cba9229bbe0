"""The same world, numbered so that what is used together lies together.

A policy works on a broker's subscribers and on what they want. In a snapshot both are wherever they happened to be
entered, so for a million subscribers nearly every look is a cache miss. Numbered broker by broker, and BE subscriptions
in the order in which those subscribers want them, one broker's share of the arrays is small and in one piece. A policy
decides the same, except between equals. Pure and compiled; `multistage.plan` plans on what this returns.
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
    """In the new numbers, and without names: of a million only those that move are asked for."""
    order: Longs
    """Which number each subscriber has in the snapshot."""
    names: tuple[SubscriberId, ...]
    """As in the snapshot."""

    @property
    def number(self) -> Longs:
        """The new number of each subscriber of the snapshot."""
        number = np.empty_like(self.order)
        number[self.order] = np.arange(self.order.size)
        return number

    def named(self, subscribers: Longs) -> Iterator[SubscriberId]:
        return map(self.names.__getitem__, self.order[subscribers].tolist())


def renumber(snapshot: Snapshot) -> RenumberedSnapshot:
    order = stable_order(snapshot.broker_of)
    start = snapshot.wants_start.astype(np.int64)
    # Made here and not in the kernel: numpy asks for large pages, which random looks into it are glad of.
    wants_start, wants = np.zeros(len(order) + 1, dtype=np.int32), np.empty(len(snapshot.wants), dtype=np.int32)
    taken = _arrange(start, snapshot.wants, order, len(snapshot.rate), wants_start, wants)
    world = replace(
        snapshot, subscribers=(), broker_of=snapshot.broker_of[order], wants_start=wants_start, wants=wants,
        rate=snapshot.rate[taken], movable=snapshot.movable[order], moved_at_s=snapshot.moved_at_s[order],
    )  # fmt: skip
    return RenumberedSnapshot(world, order, snapshot.subscribers)


@numba.njit(cache=True)
def _arrange(start: Longs, wants: Ints, order: Longs, q: int, row: Ints, rows: Ints) -> Longs:
    """Fills in the wants as rows in the new numbers; which old number each new one has.

    Read in the old order and written in the new: a processor waits for what it reads, not for what it writes.
    """
    begin = np.zeros(order.size, dtype=np.int32)
    for to in range(order.size):
        i = order[to]
        begin[i] = row[to]
        row[to + 1] = row[to] + start[i + 1] - start[i]
    for i in range(order.size):
        shift = begin[i] - start[i]
        for p in range(start[i], start[i + 1]):
            rows[p + shift] = wants[p]
    number, taken, known = np.full(q, -1, dtype=np.int32), np.zeros(q, dtype=np.int64), 0
    for p in range(rows.size):
        k = rows[p]
        if number[k] < 0:
            number[k], taken[known] = known, k
            known += 1
        rows[p] = number[k]
    for k in range(q):  # what nobody wants
        if number[k] < 0:
            taken[known] = k
            known += 1
    return taken
