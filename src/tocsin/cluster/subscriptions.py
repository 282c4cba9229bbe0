"""The backend subscriptions of all channels: their rows in the catalog, and in memory their holders and data rates."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

import msgspec
import numpy as np
import pyarrow as pa

from tocsin.cluster.book import Amounts, Rates, SubscriptionBook
from tocsin.cluster.catalog import Catalog, StoredSubscription
from tocsin.cluster.live import LiveChannel
from tocsin.cluster.store.numbered_rows import Numbers
from tocsin.model.entities import Channel
from tocsin.model.ids import BrokerId, ChannelName, SubscriptionId
from tocsin.model.subscription import BadParameter, ForeignUser, bind_user, canonical_values, subscription_id
from tocsin.wire.errors import Code, TocsinError

Users = Sequence[str | None] | None
"""The user of each set of parameter values, None for a user without proof. None instead of a list: an administrator
spells every value."""


class Subscriptions:
    """Thread-safe: changes of the catalog, the book and the rates happen together.

    `Channels` makes every change of a channel's subscriptions under the lock of `Channels`, and passes the
    `LiveChannel` that is current at that moment. This class never calls `Channels`.
    """

    def __init__(
        self, catalog: Catalog, rate_window_s: float, unheld_s: float = 0.0, clock_s: Callable[[], float] = lambda: 0.0
    ) -> None:
        """`unheld_s` is how long a subscription outlives its last holder, by `clock_s`, which never steps back."""
        self._catalog = catalog
        self._unheld_s = unheld_s
        self._clock_s = clock_s
        self._unheld: dict[ChannelName, dict[int, float]] = {}
        """Subscriptions that no broker holds, by channel: number → since when."""
        self._lock = threading.RLock()
        self._rates = Rates(rate_window_s)
        self.book = SubscriptionBook()
        self.newest = 0
        """The highest subscription number granted since this process started."""

    def load(self, live: LiveChannel, tried: int | None) -> None:
        """Add the stored subscriptions of a channel to memory. `tried` is the catalog's, None if it has none."""
        stored = list(self._catalog.subscriptions.of_channel(live.name))
        live.subscribers.add((number, parameters) for number, _, parameters in stored)
        newest = stored[-1][0] if stored else 0
        live.tried = newest if tried is None else tried
        live.refused = self._catalog.subscriptions.refused(live.name)
        live.deaths = self._catalog.trials.deaths(live.name)
        self.book.load(((number, key) for number, key, _ in stored), ())
        self._lose_holders(live, self._catalog.subscriptions.unheld(live.name))

    def load_holders(self) -> None:
        self.book.load((), self._catalog.subscriptions.holders())

    def check(
        self, live: LiveChannel, values: Sequence[Mapping[str, object]], users: Users = None
    ) -> list[tuple[SubscriptionId, str]]:
        """(id, canonical parameters as JSON) of each set of values; raise if the channel refuses one of them."""
        channel = live.prepared.channel
        if users is not None and channel.bound:
            values = [_bound_values(channel, given, user) for given, user in zip(values, users, strict=True)]
        rows: list[tuple[SubscriptionId, str]] = []
        for parameter_values in values:
            canonical = canonical_values(channel.parameters, parameter_values)
            if isinstance(canonical, BadParameter):
                raise TocsinError(Code.BAD_PARAMETER, f"channel {channel.name}: {canonical}")
            subscription = subscription_id(channel.name, canonical)
            if (reason := live.refused.get(subscription)) is not None:
                raise TocsinError(Code.BAD_PARAMETER, f"channel {channel.name} fails with these values: {reason}")
            rows.append((subscription, msgspec.json.encode(canonical).decode()))
        return rows

    def grant(
        self, live: LiveChannel, rows: Sequence[tuple[SubscriptionId, str]], broker: BrokerId
    ) -> list[StoredSubscription]:
        """Make `broker` a holder of the subscriptions that `check` returned."""
        with self._lock:
            stored = self._catalog.subscriptions.subscribe(live.name, rows, broker)
            self.newest = max([self.newest, *(row.number for row in stored)])
            created = {row.number: row for row in stored if row.created}
            for row in created.values():
                self.book.add(row.number, row.id)
            live.subscribers.add((row.number, row.parameters) for row in created.values())
            self.book.hold(broker, (row.number for row in stored))
            if unheld := self._unheld.get(live.name):
                for row in stored:
                    unheld.pop(row.number, None)
            return stored

    def release(self, live: LiveChannel, ids: Sequence[SubscriptionId], broker: BrokerId) -> int:
        """End `broker`'s hold on these subscriptions, and return how many it held.

        A subscription without a holder stays for `unheld_s`: a subscriber that moves may be released by one broker
        before the other subscribes, and the results of that time would be lost.
        """
        with self._lock:
            released, unheld = self._catalog.subscriptions.unsubscribe(live.name, ids, broker)
            self.book.release(broker, released)
            self._lose_holders(live, unheld)
            if unheld and self._unheld_s <= 0.0:
                self.end_unheld(live)
            return len(released)

    def _lose_holders(self, live: LiveChannel, numbers: Sequence[int]) -> None:
        if numbers:
            self._unheld.setdefault(live.name, {}).update(dict.fromkeys(numbers, self._clock_s()))

    def end_unheld(self, live: LiveChannel) -> int:
        """End a channel's subscriptions that no broker has held for `unheld_s`; return how many."""
        with self._lock:
            before_s = self._clock_s() - self._unheld_s
            due = [number for number, since_s in self._unheld.get(live.name, {}).items() if since_s <= before_s]
            if due:
                self._catalog.subscriptions.end_unheld(due)
                self.forget(live.name, due)
                live.subscribers.remove(due)
            return len(due)

    def refuse(self, live: LiveChannel, reasons: Mapping[int, str], postponed: Sequence[int]) -> None:
        """End the subscriptions whose values make the channel's query fail, so that it runs for the others.

        A broker that subscribes to one of them again gets the reason. One that is postponed is granted again.
        """
        with self._lock:
            live.refused |= self._catalog.subscriptions.refuse(live.name, reasons, postponed)
            ended = [*reasons, *postponed]
            self.forget(live.name, ended)
            live.subscribers.remove(ended)

    def forget(self, channel: ChannelName, numbers: Sequence[int]) -> None:
        """Remove from memory the subscriptions that the catalog no longer has."""
        with self._lock:
            if unheld := self._unheld.get(channel):
                for number in numbers:
                    unheld.pop(number, None)
            self.book.remove(numbers)
            self._rates.forget(np.array(numbers, np.int64))

    def count_results(self, summary: pa.Table, now_s: float) -> None:
        """Add an execution's bytes to the data rates. A subscription that ended during the execution gets no rate."""
        with self._lock:
            numbers = summary["subscription"].to_numpy()
            is_current = self.book.known(numbers)
            self._rates.add(numbers[is_current], summary["bytes"].to_numpy()[is_current], now_s)

    def rates_of(self, numbers: Numbers, now_s: float) -> Amounts:
        """The data rate λ of each subscription in bytes per second; 0 for those that never had a result."""
        with self._lock:
            return self._rates.of(numbers, now_s)


def _bound_values(channel: Channel, given: Mapping[str, object], user: str | None) -> Mapping[str, object]:
    """The values with the user in each bound parameter. Raises if there is no user, or if a value names another."""
    if user is None:
        message = f"channel {channel.name} is bound to the session's user, and nothing proves this user"
        raise TocsinError(Code.UNPROVEN_USER, message)
    values = bind_user(channel.bound, given, user)
    if isinstance(values, ForeignUser):
        raise TocsinError(Code.FOREIGN_USER, f"channel {channel.name}: {values}")
    return values
