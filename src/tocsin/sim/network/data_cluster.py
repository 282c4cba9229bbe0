"""A data cluster in virtual time: what brokers see of one. Executions, announcements, subscriptions, pulls; no Spark.

It keeps every promise the real one makes to brokers: a subscription takes part from the next execution on, results are
numbered and stay, announcements to one broker come in order, a pull gives all there is from a position on. What the
results say does not matter here; each is unique.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tocsin.broker.effects import Fetch
from tocsin.broker.events import (
    Event,
    ExecutionAnnounced,
    FetchEnded,
    FetchFailed,
    ProgressAnnounced,
    ResultsFetched,
)
from tocsin.model.cursor import Cursor, offset_of
from tocsin.model.ids import BrokerId, ChannelName, SubscriptionId
from tocsin.model.subscription import subscription_id
from tocsin.sim.kernel import Kernel
from tocsin.wire.errors import Code

EPOCH = 1
PIECE = 50
"""Results in one piece of a pull's answer."""


@dataclass(slots=True)
class _Held:
    channel: ChannelName
    brokers: set[BrokerId] = field(default_factory=set)
    offsets: list[int] = field(default_factory=list)
    """Cursors of its results: the position after each."""
    rows: list[bytes] = field(default_factory=list)


Sizes = Callable[[SubscriptionId, np.random.Generator], list[int]]
"""How large the results of one execution for one subscription are, in bytes each."""
Executed = Callable[[dict[SubscriptionId, int]], None]


class SimulatedCluster:
    def __init__(self, kernel: Kernel, periods_s: Mapping[ChannelName, float], sizes: Sizes) -> None:
        self._kernel = kernel
        self._sizes = sizes
        self._executions = dict.fromkeys(periods_s, 0)
        self._number = 0
        self.subscriptions: dict[SubscriptionId, _Held] = {}
        self.listeners: dict[BrokerId, Callable[[Event], None]] = {}
        """Brokers that are connected, and how they are told."""
        self.executed: list[Executed] = []
        """Who else wants to know how many bytes each subscription got."""
        self.silent = False
        """Nothing comes in any more, so executions are empty."""
        for channel, period_s in periods_s.items():
            kernel.every(period_s, self._execute, channel)

    def head(self, channel: ChannelName) -> Cursor:
        return Cursor(EPOCH, offset_of(self._executions[channel] + 1))

    def subscribe(
        self, broker: BrokerId, channel: ChannelName, parameters: Mapping[str, Any]
    ) -> tuple[SubscriptionId, Cursor]:
        identity = subscription_id(channel, tuple(parameters.values()))
        self.subscriptions.setdefault(identity, _Held(channel)).brokers.add(broker)
        return identity, self.head(channel)

    def release(self, broker: BrokerId, identity: SubscriptionId) -> None:
        """Results of a subscription nobody holds are kept for whoever checks, but it takes part no more."""
        held = self.subscriptions.get(identity)
        if held is not None:
            held.brokers.discard(broker)

    def release_all(self, broker: BrokerId) -> None:
        for held in self.subscriptions.values():
            held.brokers.discard(broker)

    def _execute(self, channel: ChannelName) -> None:
        execution = self._executions[channel] + 1
        rng = self._kernel.stream("results")
        told: dict[BrokerId, list[SubscriptionId]] = {}
        got: dict[SubscriptionId, int] = {}
        for identity, held in self.subscriptions.items():
            if self.silent or held.channel != channel or not held.brokers:
                continue
            sizes = self._sizes(identity, rng)
            for row, size in enumerate(sizes):
                self._number += 1
                held.offsets.append(offset_of(execution, row) + 1)
                held.rows.append(b"%d" % self._number + b" " * max(0, size - len(str(self._number))))
                got[identity] = got.get(identity, 0) + len(held.rows[-1])
            if sizes:
                for broker in held.brokers:
                    told.setdefault(broker, []).append(identity)
        if not told:
            return  # empty executions write nothing, and have no number
        self._executions[channel] = execution
        for executed in self.executed:
            executed(got)
        for broker, tell in list(self.listeners.items()):
            if broker in told:
                tell(ExecutionAnnounced(channel, EPOCH, execution, told[broker], self._kernel.now_s))
            tell(ProgressAnnounced({channel: self.head(channel)}))

    def pull(self, fetch: Fetch) -> list[Event]:
        found: list[Event] = []
        for identity, position in fetch.positions.items():
            held = self.subscriptions.get(identity)
            if held is None or not held.brokers:
                return [FetchFailed(fetch.fetch, str(Code.UNKNOWN_SUBSCRIPTION))]
            first = int(np.searchsorted(held.offsets, position.offset, side="right"))
            for start in range(first, len(held.offsets), PIECE):
                offsets, rows = held.offsets[start : start + PIECE], held.rows[start : start + PIECE]
                found.append(ResultsFetched(fetch.fetch, identity, EPOCH, offsets, rows))
        return [*found, FetchEnded(fetch.fetch, self.head(fetch.channel))]
