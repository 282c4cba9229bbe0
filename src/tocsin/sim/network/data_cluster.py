"""The data cluster as brokers see it, in virtual time: executions, announcements, subscriptions, pulls and updates.

There is no Spark. It keeps the real one's promises to brokers. A subscription takes part from the next execution on. It
ends when no broker has held it for `unheld_s`; the next one with the same id has none of its results. Results are
numbered and kept. Announcements to one broker arrive in order. A pull returns all results from a position on. The
content of a result is a unique number, padded with spaces to its size.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tocsin.broker.effects import Fetch, StoreUpdates
from tocsin.broker.events import (
    Event,
    ExecutionAnnounced,
    FetchEnded,
    FetchFailed,
    ProgressAnnounced,
    ResultsFetched,
)
from tocsin.model.cursor import Cursor, offset_of
from tocsin.model.ids import BrokerId, ChannelName, DatasetName, SubscriberId, SubscriptionId
from tocsin.model.subscription import subscription_id
from tocsin.sim.kernel import Kernel
from tocsin.sim.network.transport import Pipe
from tocsin.wire.errors import Code

EPOCH = 1

ResultSizes = Callable[[SubscriptionId, np.random.Generator], list[int]]
"""Draws the sizes in bytes of the results of one execution for one subscription."""


@dataclass(slots=True)
class SimulatedSubscription:
    channel: ChannelName
    brokers: set[BrokerId] = field(default_factory=set)
    """The brokers that hold it."""
    unheld_since_s: float | None = None
    """When its last holder released it; None while a broker holds it, and before the first one does."""
    offsets: list[int] = field(default_factory=list)
    """The position after each result."""
    rows: list[bytes] = field(default_factory=list)

    def after(self, offset: int) -> list[tuple[int, bytes]]:
        """Every result that lies after a position, with the position after it."""
        first = bisect_right(self.offsets, offset)
        return list(zip(self.offsets[first:], self.rows[first:], strict=True))


class SimulatedDataCluster:
    def __init__(self, kernel: Kernel, channels: Mapping[ChannelName, float | None], sizes: ResultSizes) -> None:
        """`channels` gives each channel's period in seconds; None for a channel that only `execute` runs."""
        self._kernel = kernel
        self._sizes = sizes
        self._executions = dict.fromkeys(channels, 0)
        self._last_result = 0
        self.subscriptions: dict[SubscriptionId, SimulatedSubscription] = {}
        self.unheld_s = 30.0
        """How long a subscription outlives its last holder, as the setting of the data cluster."""
        self.own_records: dict[tuple[DatasetName, SubscriberId], bytes] = {}
        """The latest record of each subscriber in each dataset, as JSON."""
        self.announcements: dict[BrokerId, Pipe[Event]] = {}
        """The announcement streams of the running brokers."""
        self.piece = 50
        """Results in one piece of a pull's answer."""
        self.fail_pull: Callable[[], bool] = lambda: False
        """Decides for each pull whether it fails."""
        self.on_execution: Callable[[dict[SubscriptionId, int]], object] = lambda bytes_of: None
        """Called after each execution with the bytes per subscription."""
        self.silent = False
        """True if no more records arrive, so that periodic executions are empty."""
        for channel, period_s in channels.items():
            if period_s is not None:
                kernel.every(period_s, self._execute_periodically, channel)

    def head(self, channel: ChannelName) -> Cursor:
        return Cursor(EPOCH, offset_of(self._executions[channel] + 1))

    def subscribe(
        self, broker: BrokerId, channel: ChannelName, parameters: Mapping[str, Any]
    ) -> tuple[SubscriptionId, Cursor]:
        identity = subscription_id(channel, tuple(parameters.values()))
        stored = self.subscriptions.setdefault(identity, SimulatedSubscription(channel))
        if self._has_ended(stored):  # a new subscription with the same id: it has none of the earlier results
            stored.offsets, stored.rows = [], []
        stored.brokers.add(broker)
        stored.unheld_since_s = None
        return identity, self.head(channel)

    def has_ended(self, identity: SubscriptionId) -> bool:
        """True if no broker has held the subscription for so long that it gets no more results."""
        return identity in self.subscriptions and self._has_ended(self.subscriptions[identity])

    def _has_ended(self, stored: SimulatedSubscription) -> bool:
        since_s = stored.unheld_since_s
        return since_s is not None and self._kernel.now_s - since_s >= self.unheld_s

    def _takes_part(self, identity: SubscriptionId) -> bool:
        stored = self.subscriptions[identity]
        return bool(stored.brokers) or (stored.unheld_since_s is not None and not self._has_ended(stored))

    def release(self, broker: BrokerId, identity: SubscriptionId) -> None:
        """End a broker's hold. The results stay, so that a report can count them."""
        if identity in self.subscriptions:
            self._end_hold(broker, self.subscriptions[identity])

    def release_all(self, broker: BrokerId) -> None:
        for stored in self.subscriptions.values():
            self._end_hold(broker, stored)

    def _end_hold(self, broker: BrokerId, stored: SimulatedSubscription) -> None:
        if broker in stored.brokers:
            stored.brokers.remove(broker)
            if not stored.brokers:
                stored.unheld_since_s = self._kernel.now_s

    def _execute_periodically(self, channel: ChannelName) -> None:
        if not self.silent:
            rng = self._kernel.stream("results")
            ids = [key for key, stored in self.subscriptions.items() if stored.channel == channel]
            self.execute(
                channel, {identity: self._sizes(identity, rng) for identity in ids if self._takes_part(identity)}
            )

    def execute(self, channel: ChannelName, sizes: Mapping[SubscriptionId, list[int]]) -> None:
        """Run the channel once; `sizes` gives the bytes of each result, per subscription.

        An execution without results writes nothing and gets no number.
        """
        if not any(sizes.values()):
            return
        execution = self._executions[channel] = self._executions[channel] + 1
        announced: dict[BrokerId, list[SubscriptionId]] = {}
        bytes_of: dict[SubscriptionId, int] = {}
        for identity, row_sizes in sizes.items():
            stored = self.subscriptions.setdefault(identity, SimulatedSubscription(channel))
            if self._has_ended(stored):
                continue
            for row, size in enumerate(row_sizes):
                self._last_result += 1
                stored.offsets.append(offset_of(execution, row) + 1)
                stored.rows.append(b"%d" % self._last_result + b" " * max(0, size - len(str(self._last_result))))
                bytes_of[identity] = bytes_of.get(identity, 0) + len(stored.rows[-1])
            for broker in stored.brokers if row_sizes else ():
                announced.setdefault(broker, []).append(identity)
        self.on_execution(bytes_of)
        for broker, stream in self.announcements.items():
            if broker in announced:
                ids = announced[broker]
                sizes_bytes = [bytes_of[identity] for identity in ids]
                stream.send(ExecutionAnnounced(channel, EPOCH, execution, ids, self._kernel.now_s, sizes_bytes))
            stream.send(ProgressAnnounced({channel: self.head(channel)}))

    def store_own_records(self, updates: StoreUpdates) -> None:
        self.own_records |= {(updates.dataset, user): record for user, record in updates.records}

    def pull(self, broker: BrokerId, fetch: Fetch) -> list[Event]:
        """The events that answer a fetch. A broker may pull only the subscriptions that it holds."""
        if self.fail_pull():
            return [FetchFailed(fetch.fetch, Code.NOT_READY)]
        answer: list[Event] = []
        for identity, position in fetch.positions.items():
            stored = self.subscriptions.get(identity)
            if stored is None or broker not in stored.brokers:
                return [FetchFailed(fetch.fetch, Code.UNKNOWN_SUBSCRIPTION)]
            results = stored.after(position.offset)
            for start in range(0, len(results), self.piece):
                offsets, rows = zip(*results[start : start + self.piece], strict=True)
                answer.append(ResultsFetched(fetch.fetch, identity, EPOCH, list(offsets), list(rows)))
        return [*answer, FetchEnded(fetch.fetch, self.head(fetch.channel))]
