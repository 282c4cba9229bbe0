"""The aggregated broker model: all brokers of a network as tables of counts, for worlds too large for broker logic.

It keeps the broker of each subscriber, the number of subscribers per broker and BE subscription, and the bytes that
executions cause: each broker that holds a BE subscription fetches its result once and delivers it once per online
subscriber [BAD §4]. Like the real brokers it fetches for offline subscribers too. It has no caches, queues or delays
and loses nothing. Driven by `run`.
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
        self._owner = np.repeat(np.arange(n, dtype=np.int32), np.diff(world.start))
        """The subscriber of each entry of the world's `wants`."""
        self.counts = np.zeros((m, q), dtype=np.int32)
        """The number of subscribers of broker j with BE subscription k, online or not."""
        self.receiving = np.zeros((m, q), dtype=np.int32)
        """n_jk: the number of those that are online."""
        self.served_by: Ints = np.full(n, UNPLACED, dtype=np.int32)
        self.online = np.ones(n, dtype=np.bool_)
        """Per subscriber: False between a logout and the next login. A subscriber without a broker may be online."""
        self.serving = 0
        """The number of subscribers that have a broker."""
        self.subscribed = np.zeros(len(world.wants), dtype=np.bool_)
        """Per entry of the world's `wants`: True while the subscription exists."""
        self.bytes_in = np.zeros(m)
        self.bytes_out = np.zeros(m)

    def subscribe(self, entries: Longs) -> None:
        """Make the subscriptions at these entries of the world's `wants`."""
        self.subscribed[entries] = True
        self._count(entries, 1)

    def unsubscribe(self, entries: Longs) -> None:
        self._count(entries, -1)
        self.subscribed[entries] = False

    def connect(self, subscribers: Longs, brokers: Ints) -> None:
        """Assign subscribers without a broker, with all their subscriptions."""
        self.served_by[subscribers] = brokers
        self.serving += len(subscribers)
        self._count(self._entries(subscribers), 1)

    def disconnect(self, subscribers: Longs) -> None:
        """Take subscribers from their brokers."""
        self._count(self._entries(subscribers), -1)
        self.served_by[subscribers] = UNPLACED
        self.serving -= len(subscribers)

    def move(self, subscribers: Longs, brokers: Ints) -> None:
        self.disconnect(subscribers)
        self.connect(subscribers, brokers)

    def log_out(self, subscribers: Longs) -> None:
        """End the sessions of online subscribers; their brokers keep their subscriptions."""
        self._count_receiving(self._entries(subscribers), -1)
        self.online[subscribers] = False

    def log_in(self, subscribers: Longs) -> None:
        """Begin the sessions of offline subscribers, at the brokers that have them."""
        self.online[subscribers] = True
        self._count_receiving(self._entries(subscribers), 1)

    def deliver(self, subscriptions: Longs, size_bytes: Floats) -> None:
        """Fetch and deliver the results of one execution: one of this size for each of these BE subscriptions."""
        self.bytes_in += (self.counts[:, subscriptions] > 0) @ size_bytes
        self.bytes_out += self.receiving[:, subscriptions] @ size_bytes

    def traffic(self, subscriptions: Longs, rate: Floats) -> Floats:
        """The load of each broker by these BE subscriptions at these rates."""
        fetched: Floats = (self.counts[:, subscriptions] > 0) @ rate
        return fetched + self.receiving[:, subscriptions] @ rate

    def loads(self, rate: Floats) -> Floats:
        """F_j [BAD eq. 5] at these rates."""
        return self.receiving @ rate + (self.counts > 0) @ rate

    def subscribers(self) -> Longs:
        """The number of subscribers of each broker."""
        return np.bincount(self.served_by[self.served_by >= 0], minlength=len(self.counts))

    def _entries(self, subscribers: Longs) -> Longs:
        """The entries of the world's `wants` that these subscribers have subscribed to."""
        start = self._world.start
        first, length = start[subscribers], start[subscribers + 1] - start[subscribers]
        before = np.cumsum(length) - length
        entries = np.repeat(first - before, length) + np.arange(int(length.sum()))
        return entries[self.subscribed[entries]]

    def _count(self, entries: Longs, change: int) -> None:
        broker = self.served_by[self._owner[entries]]
        served = broker >= 0
        np.add.at(self.counts, (broker[served], self._world.wants[entries[served]]), change)
        self._count_receiving(entries[self.online[self._owner[entries]]], change)

    def _count_receiving(self, entries: Longs, change: int) -> None:
        broker = self.served_by[self._owner[entries]]
        served = broker >= 0
        np.add.at(self.receiving, (broker[served], self._world.wants[entries[served]]), change)
