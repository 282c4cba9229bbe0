"""Columns of values for a million numbered things, for example the rate of each subscription.

Adding, finding and removing some numbers takes time in proportion to those, not to all. A number that was removed is
never added again. Not thread-safe.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np
import numpy.typing as npt

from tocsin.cluster.store.slots import SlotIndex, Slots

Numbers = npt.NDArray[np.int64]

COMPACT_LEAST = 50_000
"""Removed rows that stay at least before the columns are copied without them."""
_NUMBER = "number"


class NumberedRows:
    def __init__(self) -> None:
        self._index = SlotIndex()
        self._used = 0
        self._count = 0
        self._columns: dict[Hashable, npt.NDArray[Any]] = {_NUMBER: np.zeros(0, np.int64)}
        self._present = np.zeros(0, np.bool_)

    def __len__(self) -> int:
        return self._count

    def add_column(self, name: Hashable, dtype: npt.DTypeLike, width: int | None = None) -> None:
        """Add a column of zeros; of `width` zeros in each row if it is given."""
        rows = len(self._present)
        self._columns[name] = np.zeros(rows if width is None else (rows, width), dtype)

    def has_column(self, name: Hashable) -> bool:
        return name in self._columns

    def column(self, name: Hashable) -> npt.NDArray[Any]:
        """The values by slot. The caller may change them. An addition or a removal may replace the array."""
        return self._columns[name]

    def add(self, numbers: Numbers) -> Slots:
        """Add rows of zeros for numbers that are not there, and return their slots."""
        slots = np.arange(self._used, self._used + len(numbers))
        self._used += len(numbers)
        self._count += len(numbers)
        if self._used > len(self._present):
            more = max(1024, self._used)
            self._present = _grown(self._present, more)
            self._columns = {name: _grown(values, more) for name, values in self._columns.items()}
        self._present[slots] = True
        self._columns[_NUMBER][slots] = numbers
        self._index.add(np.asarray(numbers, np.int64).view(np.uint64), slots)
        return slots

    def find(self, numbers: Numbers) -> Slots:
        """The slot of each number; -1 for numbers that are not there."""
        slots = np.full(len(numbers), -1)
        found = self._index.find(np.asarray(numbers, np.int64).view(np.uint64))
        assert found is not None
        present = self._present[found[1]]
        slots[found[0][present]] = found[1][present]
        return slots

    def remove(self, numbers: Numbers) -> None:
        """Remove these numbers, each given once. Numbers that are not there are ignored."""
        slots = self.find(numbers)
        slots = slots[slots >= 0]
        self._present[slots] = False
        self._count -= len(slots)
        if self._used - self._count > max(COMPACT_LEAST, self._count):
            self._compact()

    def numbers(self, slots: Slots) -> Numbers:
        return np.asarray(self._columns[_NUMBER][slots], np.int64)

    def slots(self) -> Slots:
        """All slots in use."""
        return np.flatnonzero(self._present)

    def _compact(self) -> None:
        kept = self.slots()
        self._columns = {name: values[kept] for name, values in self._columns.items()}
        self._present = np.ones(len(kept), np.bool_)
        self._used = len(kept)
        self._index = SlotIndex()
        self._index.add(self._columns[_NUMBER].view(np.uint64), np.arange(len(kept)))


def _grown(values: npt.NDArray[Any], more: int) -> npt.NDArray[Any]:
    return np.concatenate([values, np.zeros((more, *values.shape[1:]), values.dtype)])
