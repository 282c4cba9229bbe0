"""Backend subscriptions in memory, for a million of them: numbers, ids, the brokers that hold them, data rates.

Loaded from the catalog at start. `cluster.subscriptions` keeps the book in step with the catalog.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt

from tocsin.model.ids import BrokerId, SubscriptionId

Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Amounts = npt.NDArray[np.float64]


class NumberSet:
    """A set of numbers as a sorted array.

    Additions and removals wait in two small sets. Reading the array merges them into it, and so does an addition or
    removal that makes them more than `_PENDING`.
    """

    _PENDING = 4096

    def __init__(self, numbers: Iterable[int] = ()) -> None:
        self._sorted: Numbers = np.unique(np.fromiter(numbers, np.int64))
        self._added: set[int] = set()
        self._removed: set[int] = set()

    def __len__(self) -> int:
        return len(self.array())

    def add(self, numbers: Iterable[int]) -> None:
        numbers = set(numbers)
        self._removed -= numbers
        self._added |= numbers
        self._settle_if_many()

    def discard(self, numbers: Iterable[int]) -> None:
        numbers = set(numbers)
        self._added -= numbers
        self._removed |= numbers
        self._settle_if_many()

    def array(self) -> Numbers:
        """The numbers of the set, sorted. A returned array never changes."""
        if self._added or self._removed:
            kept = np.setdiff1d(self._sorted, np.fromiter(self._removed, np.int64), assume_unique=True)
            self._sorted = np.union1d(kept, np.fromiter(self._added, np.int64))
            self._added, self._removed = set(), set()
        return self._sorted

    def among(self, numbers: Numbers) -> Flags:
        """Which of `numbers` are in the set."""
        return _among(self.array(), numbers)

    def _settle_if_many(self) -> None:
        if len(self._added) + len(self._removed) > self._PENDING:
            self.array()


class SubscriptionBook:
    """Thread-safe. Readers take the lock too, because reading applies pending changes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers: Numbers = np.empty(0, np.int64)
        self._ids: npt.NDArray[np.uint8] = np.empty((0, 16), np.uint8)
        self._new: dict[int, bytes] = {}
        self._brokers: dict[BrokerId, NumberSet] = {}

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
        with self._lock:
            self._brokers.setdefault(broker, NumberSet()).add(numbers)

    def release(self, broker: BrokerId, numbers: Iterable[int]) -> None:
        with self._lock:
            if broker in self._brokers:
                self._brokers[broker].discard(numbers)

    def remove(self, numbers: Iterable[int]) -> None:
        """Delete subscriptions, whichever brokers hold them."""
        numbers = list(numbers)
        with self._lock:
            for held_numbers in self._brokers.values():
                held_numbers.discard(numbers)
            keep = ~np.isin(self._settled(), np.array(numbers, np.int64))
            self._numbers, self._ids = self._numbers[keep], self._ids[keep]

    def held_by(self, broker: BrokerId) -> Numbers:
        """The numbers of the subscriptions that this broker holds, sorted."""
        with self._lock:
            return self._brokers[broker].array() if broker in self._brokers else np.empty(0, np.int64)

    def held(self, numbers: Numbers, by: Callable[[BrokerId], bool]) -> Flags:
        """Which of `numbers` are held by at least one of the brokers for which `by` is true."""
        flags = np.zeros(len(numbers), np.bool_)
        with self._lock:
            for broker, own in self._brokers.items():
                if by(broker):
                    flags |= own.among(numbers)
        return flags

    def named(self, numbers: Numbers, broker: BrokerId) -> tuple[Flags, list[SubscriptionId]]:
        """Which of `numbers` this broker holds, and the ids of those."""
        with self._lock:
            own = self._brokers.get(broker)
            held = np.zeros(len(numbers), np.bool_) if own is None else own.among(numbers)
            places = np.searchsorted(self._settled(), numbers[held])
            return held, [SubscriptionId(key.tobytes().hex()) for key in self._ids[places]]

    def fingerprint(self, broker: BrokerId) -> tuple[int, str]:
        """How many subscriptions this broker holds, and the XOR of their ids: equal for equal sets."""
        with self._lock:
            own = self._brokers.get(broker)
            places = np.searchsorted(self._settled(), [] if own is None else own.array())
            return len(places), np.bitwise_xor.reduce(self._ids[places], axis=0).tobytes().hex()

    def known(self, numbers: Numbers) -> Flags:
        """Which of `numbers` are in the book."""
        with self._lock:
            return _among(self._settled(), numbers)

    def __len__(self) -> int:
        with self._lock:
            return len(self._settled())

    def _settled(self) -> Numbers:
        """All numbers, sorted, with the new subscriptions merged in. The caller holds the lock."""
        if self._new:
            numbers = np.fromiter(self._new.keys(), np.int64)
            ids = np.frombuffer(b"".join(self._new.values()), np.uint8).reshape(-1, 16)
            order = np.argsort(merged := np.concatenate([self._numbers, numbers]), kind="stable")
            self._numbers, self._ids = merged[order], np.concatenate([self._ids, ids])[order]
            self._new = {}
        return self._numbers


class Rates:
    """The data rate λ of every backend subscription: bytes of results per second, a moving average [BAD §4, §6.1.2].

    An exponential average with time constant `window_s`: an execution adds its bytes spread over the window, and the
    sum decays. The class keeps arrays sorted by subscription number: a million subscriptions take 24 MB, and an update
    takes a few vector operations. Not thread-safe.
    """

    def __init__(self, window_s: float = 60.0) -> None:
        self.window_s = window_s
        self._numbers: Numbers = np.empty(0, np.int64)
        self._rates: Amounts = np.empty(0)
        self._at_s: Amounts = np.empty(0)

    def add(self, numbers: Numbers, size_bytes: npt.NDArray[np.int64], now_s: float) -> None:
        """Count the bytes that one execution gave these subscriptions. `numbers` are distinct."""
        self._insert_new(numbers)
        places = np.searchsorted(self._numbers, numbers)
        self._rates[places] = self._decayed(places, now_s) + size_bytes / self.window_s
        self._at_s[places] = now_s

    def of(self, numbers: Numbers, now_s: float) -> Amounts:
        """λ of each subscription in bytes per second; 0 for those that never had a result."""
        rates = np.zeros(len(numbers))
        if len(self._numbers):
            places = np.minimum(np.searchsorted(self._numbers, numbers), len(self._numbers) - 1)
            has_rate = self._numbers[places] == numbers
            rates[has_rate] = self._decayed(places[has_rate], now_s)
        return rates

    def forget(self, numbers: Numbers) -> None:
        keep = ~np.isin(self._numbers, numbers)
        self._numbers, self._rates, self._at_s = self._numbers[keep], self._rates[keep], self._at_s[keep]

    def _decayed(self, places: npt.NDArray[np.intp], now_s: float) -> Amounts:
        # A clock that steps back must not make rates grow.
        age_s = np.maximum(0.0, now_s - self._at_s[places])
        decayed: Amounts = self._rates[places] * np.exp(-age_s / self.window_s)
        return decayed

    def _insert_new(self, numbers: Numbers) -> None:
        new = np.setdiff1d(numbers, self._numbers, assume_unique=True)
        if len(new):
            order = np.argsort(merged := np.concatenate([self._numbers, new]), kind="stable")
            self._numbers = merged[order]
            self._rates = np.concatenate([self._rates, np.zeros(len(new))])[order]
            self._at_s = np.concatenate([self._at_s, np.zeros(len(new))])[order]


def _among(members: Numbers, numbers: Numbers) -> Flags:
    """Which of `numbers` are in `members`, which is sorted."""
    if not len(members):
        return np.zeros(len(numbers), np.bool_)
    inside: Flags = members[np.minimum(np.searchsorted(members, numbers), len(members) - 1)] == numbers
    return inside
