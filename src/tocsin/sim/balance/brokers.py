"""The aggregated broker model: all brokers of a network as one table of counts, for worlds too large for broker logic.

It keeps who is served where, how many want each BE subscription at each broker, and the bytes that executions cause:
a result is fetched once by every broker that holds its subscription and delivered once per subscriber that wants it
[BAD §4]. It has no caches, queues or delays and loses nothing. Driven by `balance_run`.
"""

from __future__ import annotations

import numpy as np

from tocsin.model.snapshot import UNPLACED, Floats, Ints
from tocsin.policies.balance.load import Longs
from tocsin.sim.balance.world import BalanceWorld


class AggregatedBrokers:
    def __init__(self, world: BalanceWorld) -> None:
        m, q, n = len(world.brokers), len(world.rate), len(world.subscribers)
        self._world = world
        self._who = np.repeat(np.arange(n, dtype=np.int32), np.diff(world.start))
        self.counts = np.zeros((m, q), dtype=np.int32)
        """n_jk."""
        self.served_by: Ints = np.full(n, UNPLACED, dtype=np.int32)
        self.serving = 0
        """How many subscribers have a broker."""
        self.made = np.zeros(len(world.wants), dtype=np.bool_)
        """Per wish of the world: subscribed by now."""
        self.bytes_in = np.zeros(m)
        self.bytes_out = np.zeros(m)

    def subscribe(self, wishes: Longs) -> None:
        """Positions in the world's `wants`."""
        self.made[wishes] = True
        self._count(wishes, 1)

    def connect(self, subscribers: Longs, brokers: Ints) -> None:
        """They had no broker; all their subscriptions come with them."""
        self.served_by[subscribers] = brokers
        self.serving += len(subscribers)
        self._count(self._wishes(subscribers), 1)

    def disconnect(self, subscribers: Longs) -> None:
        self._count(self._wishes(subscribers), -1)
        self.served_by[subscribers] = UNPLACED
        self.serving -= len(subscribers)

    def move(self, subscribers: Longs, brokers: Ints) -> None:
        self.disconnect(subscribers)
        self.connect(subscribers, brokers)

    def deliver(self, subscriptions: Longs, size_bytes: Floats) -> None:
        """An execution had results of these sizes for these BE subscriptions."""
        wanted = self.counts[:, subscriptions]
        self.bytes_in += (wanted > 0) @ size_bytes
        self.bytes_out += wanted @ size_bytes

    def loads(self, rate: Floats) -> Floats:
        """F_j [BAD eq. 5] at these rates."""
        return self.counts @ rate + (self.counts > 0) @ rate

    def subscribers(self) -> Longs:
        """How many each broker serves."""
        return np.bincount(self.served_by[self.served_by >= 0], minlength=len(self.counts))

    def _wishes(self, subscribers: Longs) -> Longs:
        """The positions of what these have subscribed to."""
        start = self._world.start
        first, length = start[subscribers], start[subscribers + 1] - start[subscribers]
        before = np.cumsum(length) - length
        wishes = np.repeat(first - before, length) + np.arange(int(length.sum()))
        return wishes[self.made[wishes]]

    def _count(self, wishes: Longs, change: int) -> None:
        broker = self.served_by[self._who[wishes]]
        served = broker >= 0
        np.add.at(self.counts, (broker[served], self._world.wants[wishes[served]]), change)
