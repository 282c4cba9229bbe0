"""Who holds which backend subscription, in memory: numbers, ids and brokers, for a million of them.

Derived from the catalog at start and kept in step with it. Not thread-safe: the engine guards it.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from tocsin.model.ids import BrokerId, SubscriptionId

Numbers = npt.NDArray[np.int64]


class NumberSet:
    """A set of numbers as a sorted array; recent changes wait in small sets until there are many."""

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
        if self._added or self._removed:
            kept = np.setdiff1d(self._sorted, np.fromiter(self._removed, np.int64), assume_unique=True)
            self._sorted = np.union1d(kept, np.fromiter(self._added, np.int64))
            self._added, self._removed = set(), set()
        return self._sorted

    def among(self, numbers: Numbers) -> npt.NDArray[np.bool_]:
        """Which of `numbers` are in the set."""
        mine = self.array()
        if not len(mine):
            return np.zeros(len(numbers), np.bool_)
        places = np.minimum(np.searchsorted(mine, numbers), len(mine) - 1)
        inside: npt.NDArray[np.bool_] = mine[places] == numbers
        return inside

    def _settle_if_many(self) -> None:
        if len(self._added) + len(self._removed) > self._PENDING:
            self.array()


class SubscriptionBook:
    def __init__(self) -> None:
        self._numbers: Numbers = np.empty(0, np.int64)
        self._ids: npt.NDArray[np.uint8] = np.empty((0, 16), np.uint8)
        self._new: dict[int, bytes] = {}
        self._brokers: dict[BrokerId, NumberSet] = {}

    def load(self, subscriptions: Iterable[tuple[int, bytes]], holders: Iterable[tuple[int, BrokerId]]) -> None:
        for number, key in subscriptions:
            self._new[number] = key
        by_broker: dict[BrokerId, list[int]] = {}
        for number, broker in holders:
            by_broker.setdefault(broker, []).append(number)
        for broker, numbers in by_broker.items():
            self.hold(broker, numbers)

    def add(self, number: int, subscription: SubscriptionId) -> None:
        self._new[number] = bytes.fromhex(subscription)

    def hold(self, broker: BrokerId, numbers: Iterable[int]) -> None:
        self._brokers.setdefault(broker, NumberSet()).add(numbers)

    def release(self, broker: BrokerId, numbers: Iterable[int]) -> None:
        if broker in self._brokers:
            self._brokers[broker].discard(numbers)

    def remove(self, numbers: Iterable[int]) -> None:
        """Nobody holds these any more."""
        numbers = list(numbers)
        for held in self._brokers.values():
            held.discard(numbers)
        keep = ~np.isin(self._settled(), np.array(numbers, np.int64))
        self._numbers, self._ids = self._numbers[keep], self._ids[keep]

    def ids(self, numbers: Numbers) -> list[SubscriptionId]:
        """The ids of numbers that are in the book."""
        places = np.searchsorted(self._settled(), numbers)
        return [SubscriptionId(key.tobytes().hex()) for key in self._ids[places]]

    def known(self, numbers: Numbers) -> npt.NDArray[np.bool_]:
        mine = self._settled()
        if not len(mine):
            return np.zeros(len(numbers), np.bool_)
        inside: npt.NDArray[np.bool_] = mine[np.minimum(np.searchsorted(mine, numbers), len(mine) - 1)] == numbers
        return inside

    def held_by(self, broker: BrokerId) -> NumberSet:
        return self._brokers.get(broker) or NumberSet()

    def brokers(self) -> list[BrokerId]:
        return sorted(broker for broker, held in self._brokers.items() if len(held))

    def __len__(self) -> int:
        return len(self._settled())

    def _settled(self) -> Numbers:
        if self._new:
            numbers = np.fromiter(self._new.keys(), np.int64)
            ids = np.frombuffer(b"".join(self._new.values()), np.uint8).reshape(-1, 16)
            order = np.argsort(merged := np.concatenate([self._numbers, numbers]), kind="stable")
            self._numbers, self._ids = merged[order], np.concatenate([self._ids, ids])[order]
            self._new = {}
        return self._numbers
