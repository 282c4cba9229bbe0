"""Backend subscriptions in memory, for a million of them: numbers, ids, the brokers that hold them, data rates.

Loaded from the catalog at start. `cluster.subscriptions` keeps the book in step with the catalog.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt

from tocsin.cluster.store.numbered_rows import NumberedRows, Numbers
from tocsin.cluster.store.slots import Slots
from tocsin.model.ids import BrokerId, ChannelName, SubscriptionId

Flags = npt.NDArray[np.bool_]
Amounts = npt.NDArray[np.float64]
_ID, _RATE, _AT_S = "id", "rate", "at_s"
MOST_ANNOUNCED = 50_000
"""The most numbers of announced subscriptions that are kept by id. A pull of others reads the catalog."""


class SubscriptionBook:
    """Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rows = NumberedRows()
        self._rows.add_column(_ID, np.uint8, 16)
        self._new: dict[int, bytes] = {}
        """Subscriptions that the next reader moves into the rows, all at once."""
        self._announced: dict[tuple[ChannelName, SubscriptionId], int] = {}
        """The numbers of the subscriptions that were announced last."""
        self._brokers: set[BrokerId] = set()
        """Each of them has a column of flags, which is named by a tuple with the broker."""

    def load(self, subscriptions: Iterable[tuple[int, bytes]], holders: Iterable[tuple[int, BrokerId]]) -> None:
        by_broker: dict[BrokerId, list[int]] = {}
        for number, broker in holders:
            by_broker.setdefault(broker, []).append(number)
        with self._lock:
            self._new.update(subscriptions)
        for broker, numbers in by_broker.items():
            self.hold(broker, numbers)

    def add(self, number: int, subscription: SubscriptionId) -> None:
        with self._lock:
            self._new[number] = bytes.fromhex(subscription)

    def hold(self, broker: BrokerId, numbers: Iterable[int]) -> None:
        """Make a broker the holder of subscriptions. Those that are not in the book are ignored."""
        self._set_holder(broker, numbers, held=True)

    def release(self, broker: BrokerId, numbers: Iterable[int]) -> None:
        self._set_holder(broker, numbers, held=False)

    def _set_holder(self, broker: BrokerId, numbers: Iterable[int], *, held: bool) -> None:
        with self._lock:
            rows = self._settled()
            if broker not in self._brokers:
                if not held:
                    return
                self._brokers.add(broker)
                rows.add_column((broker,), np.bool_)
            slots = rows.find(np.fromiter(numbers, np.int64))
            rows.column((broker,))[slots[slots >= 0]] = held

    def remove(self, numbers: Iterable[int]) -> None:
        """Delete subscriptions, whichever brokers hold them."""
        with self._lock:
            self._settled().remove(np.unique(np.fromiter(numbers, np.int64)))

    def held_by(self, broker: BrokerId) -> Numbers:
        """The numbers of the subscriptions that this broker holds, sorted."""
        with self._lock:
            return np.sort(self._rows.numbers(self._slots_held_by(broker)))

    def held(self, numbers: Numbers, by: Callable[[BrokerId], bool]) -> Flags:
        """Which of `numbers` are held by at least one of the brokers for which `by` is true."""
        flags = np.zeros(len(numbers), np.bool_)
        with self._lock:
            rows = self._settled()
            slots = rows.find(numbers)
            for broker in self._brokers:
                if by(broker):
                    flags |= self._held(broker, slots)
        return flags

    def named(self, numbers: Numbers, broker: BrokerId) -> tuple[Flags, list[SubscriptionId]]:
        """Which of `numbers` this broker holds, and the ids of those."""
        with self._lock:
            rows = self._settled()
            slots = rows.find(numbers)
            held = self._held(broker, slots)
            return held, [SubscriptionId(key.tobytes().hex()) for key in rows.column(_ID)[slots[held]]]

    def announced(self, channel: ChannelName, ids: Sequence[SubscriptionId], numbers: Numbers) -> None:
        """Keep the numbers of subscriptions of a channel: a broker will pull their results next."""
        with self._lock:
            if len(self._announced) + len(ids) > MOST_ANNOUNCED:
                self._announced.clear()
            if len(ids) <= MOST_ANNOUNCED:
                self._announced.update(zip(((channel, identity) for identity in ids), numbers.tolist(), strict=True))

    def announced_numbers(
        self, channel: ChannelName, ids: Iterable[SubscriptionId]
    ) -> dict[SubscriptionId, int] | None:
        """The numbers of a channel's subscriptions if all were announced lately and still exist, else None."""
        with self._lock:
            found: dict[SubscriptionId, int] = {}
            for identity in ids:
                number = self._announced.get((channel, identity))
                if number is None:
                    return None
                found[identity] = number
            slots = self._settled().find(np.fromiter(found.values(), np.int64))
            return found if bool((slots >= 0).all()) else None

    def fingerprint(self, broker: BrokerId) -> tuple[int, str]:
        """How many subscriptions this broker holds, and the XOR of their ids: equal for equal sets."""
        with self._lock:
            slots = self._slots_held_by(broker)
            return len(slots), np.bitwise_xor.reduce(self._rows.column(_ID)[slots], axis=0).tobytes().hex()

    def known(self, numbers: Numbers) -> Flags:
        """Which of `numbers` are in the book."""
        with self._lock:
            return self._settled().find(numbers) >= 0

    def __len__(self) -> int:
        with self._lock:
            return len(self._settled())

    def _settled(self) -> NumberedRows:
        """The rows, with the new subscriptions among them. The caller holds the lock."""
        if self._new:
            slots = self._rows.add(np.fromiter(self._new.keys(), np.int64))
            self._rows.column(_ID)[slots] = np.frombuffer(b"".join(self._new.values()), np.uint8).reshape(-1, 16)
            self._new = {}
        return self._rows

    def _held(self, broker: BrokerId, slots: Slots) -> Flags:
        """Which of these slots, -1 for none, the broker holds. The caller holds the lock."""
        if broker not in self._brokers:
            return np.zeros(len(slots), np.bool_)
        held: Flags = (slots >= 0) & self._rows.column((broker,))[slots] if len(self._rows) else slots >= 0
        return held

    def _slots_held_by(self, broker: BrokerId) -> Slots:
        slots = self._settled().slots()
        return slots[self._held(broker, slots)]


class Rates:
    """The data rate λ of every backend subscription: bytes of results per second, a moving average [BAD §4, §6.1.2].

    An exponential average with time constant `window_s`: an execution adds its bytes spread over the window, and the
    sum decays. A million subscriptions take about 40 MB, and an update takes a few vector operations. Not thread-safe.
    """

    def __init__(self, window_s: float = 60.0) -> None:
        self.window_s = window_s
        self._rows = NumberedRows()
        self._rows.add_column(_RATE, np.float64)
        self._rows.add_column(_AT_S, np.float64)

    def add(self, numbers: Numbers, size_bytes: npt.NDArray[np.int64], now_s: float) -> None:
        """Count the bytes that one execution gave these subscriptions. `numbers` are distinct."""
        slots = self._rows.find(numbers)
        slots[slots < 0] = self._rows.add(numbers[slots < 0])
        self._rows.column(_RATE)[slots] = self._decayed(slots, now_s) + size_bytes / self.window_s
        self._rows.column(_AT_S)[slots] = now_s

    def of(self, numbers: Numbers, now_s: float) -> Amounts:
        """λ of each subscription in bytes per second; 0 for those that never had a result."""
        rates = np.zeros(len(numbers))
        slots = self._rows.find(numbers)
        rates[slots >= 0] = self._decayed(slots[slots >= 0], now_s)
        return rates

    def forget(self, numbers: Numbers) -> None:
        self._rows.remove(np.unique(numbers))

    def _decayed(self, slots: Slots, now_s: float) -> Amounts:
        # A clock that steps back must not make rates grow.
        age_s = np.maximum(0.0, now_s - self._rows.column(_AT_S)[slots])
        decayed: Amounts = self._rows.column(_RATE)[slots] * np.exp(-age_s / self.window_s)
        return decayed
