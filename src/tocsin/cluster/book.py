"""Who holds which backend subscription, in memory: numbers, ids and brokers, for a million of them.

Derived from the catalog at start and kept in step with it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt

from tocsin.model.ids import BrokerId, SubscriptionId

Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


class NumberSet:
    """A set of numbers as a sorted array; recent changes wait in small sets until somebody looks or there are many."""

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
        """Never changed once it was given out."""
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
    """Thread-safe by itself: also those who only look settle what changed before. That it agrees with the catalog is
    up to the engine, which changes both under its guard."""

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
        """Nobody holds these any more."""
        numbers = list(numbers)
        with self._lock:
            for held in self._brokers.values():
                held.discard(numbers)
            keep = ~np.isin(self._settled(), np.array(numbers, np.int64))
            self._numbers, self._ids = self._numbers[keep], self._ids[keep]

    def held_by(self, broker: BrokerId) -> Numbers:
        """Sorted."""
        with self._lock:
            return self._brokers[broker].array() if broker in self._brokers else np.empty(0, np.int64)

    def held(self, numbers: Numbers, by: Callable[[BrokerId], bool]) -> Flags:
        """Which of `numbers` are held by at least one of these brokers."""
        held = np.zeros(len(numbers), np.bool_)
        with self._lock:
            for broker, mine in self._brokers.items():
                if by(broker):
                    held |= mine.among(numbers)
        return held

    def named(self, numbers: Numbers, broker: BrokerId) -> tuple[Flags, list[SubscriptionId]]:
        """Which of `numbers` this broker holds, and the ids of those."""
        with self._lock:
            mine = self._brokers.get(broker)
            held = np.zeros(len(numbers), np.bool_) if mine is None else mine.among(numbers)
            places = np.searchsorted(self._settled(), numbers[held])
            return held, [SubscriptionId(key.tobytes().hex()) for key in self._ids[places]]

    def fingerprint(self, broker: BrokerId) -> tuple[int, str]:
        """How many this broker holds, and all their ids in one: the same for the same set, in any order."""
        with self._lock:
            mine = self._brokers.get(broker)
            places = np.searchsorted(self._settled(), [] if mine is None else mine.array())
            return len(places), np.bitwise_xor.reduce(self._ids[places], axis=0).tobytes().hex()

    def known(self, numbers: Numbers) -> Flags:
        with self._lock:
            return _among(self._settled(), numbers)

    def __len__(self) -> int:
        with self._lock:
            return len(self._settled())

    def _settled(self) -> Numbers:
        if self._new:
            numbers = np.fromiter(self._new.keys(), np.int64)
            ids = np.frombuffer(b"".join(self._new.values()), np.uint8).reshape(-1, 16)
            order = np.argsort(merged := np.concatenate([self._numbers, numbers]), kind="stable")
            self._numbers, self._ids = merged[order], np.concatenate([self._ids, ids])[order]
            self._new = {}
        return self._numbers


def _among(mine: Numbers, numbers: Numbers) -> Flags:
    """Which of `numbers` are in `mine`, which is sorted."""
    if not len(mine):
        return np.zeros(len(numbers), np.bool_)
    inside: Flags = mine[np.minimum(np.searchsorted(mine, numbers), len(mine) - 1)] == numbers
    return inside
