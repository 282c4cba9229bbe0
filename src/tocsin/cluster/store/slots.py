"""Rows in memory that can be found by codes: for a dataset of a million people and a thousand moves every second.

A row has a slot, a number that grows. Rows do not change: a new row gets a new slot, and the old one is removed. Rows
and index entries lie in runs. An addition makes a small run, and neighbouring runs of about the same size are merged,
so that each row is copied a logarithmic number of times and no addition rewrites all rows. Removed rows stay in the
runs until the owner makes a table without them (`compacted`). Not thread-safe.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tocsin.cluster.store.codes import Codes

Slots = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_SPARSE = 64
"""With fewer than one slot in so many rows, sorting the slots is quicker than marking them in an array of all rows."""


class Coded(NamedTuple):
    """The codes of some rows for one index."""

    codes: Codes
    present: Flags
    """Which of the rows the index has: a row without a place is in no cell, and a NULL equals nothing."""


Coder = Callable[[pa.Table], Coded]


class _Run(NamedTuple):
    codes: Codes
    """Sorted."""
    slots: Slots


class SlotIndex:
    """Finds slots by their codes. Several slots may have one code."""

    def __init__(self) -> None:
        self._runs: list[_Run] = []

    def add(self, codes: Codes, slots: Slots) -> None:
        if not len(codes):
            return
        self._runs.append(_sorted_run(codes, slots))
        while len(self._runs) > 1 and len(self._runs[-2].codes) <= 2 * len(self._runs[-1].codes):
            last, before = self._runs.pop(), self._runs.pop()
            self._runs.append(
                _sorted_run(np.concatenate([before.codes, last.codes]), np.concatenate([before.slots, last.slots]))
            )

    def find(self, codes: Codes, most: int | None = None) -> tuple[Slots, Slots] | None:
        """(place in `codes`, slot) of each entry with one of these codes; None if there are more than `most`."""
        bounds = [
            (run, np.searchsorted(run.codes, codes, "left"), np.searchsorted(run.codes, codes, "right"))
            for run in self._runs
        ]
        if most is not None and sum(int((right - left).sum()) for _, left, right in bounds) > most:
            return None
        places, slots = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for run, left, right in bounds:
            counts = right - left
            total = int(counts.sum())
            if total:
                before = np.cumsum(counts) - counts
                entries = np.arange(total) - np.repeat(before - left, counts)
                places.append(np.repeat(np.arange(len(codes)), counts))
                slots.append(run.slots[entries])
        return np.concatenate(places), np.concatenate(slots)

    @property
    def size_bytes(self) -> int:
        return sum(run.codes.nbytes + run.slots.nbytes for run in self._runs)


def _sorted_run(codes: Codes, slots: Slots) -> _Run:
    # Stable: numpy then merges two sorted halves in linear time.
    order = np.argsort(codes, kind="stable")
    return _Run(codes[order], slots[order])


class SlotTable:
    """Rows with slots, and the indexes over them."""

    def __init__(self, rows: pa.Table, coders: Mapping[Hashable, Coder] | None = None) -> None:
        self.schema = rows.schema
        self._runs: list[tuple[int, pa.RecordBatch]] = []
        """(first slot, rows), by slot."""
        self._present = np.zeros(0, np.bool_)
        self._used = 0
        self._count = 0
        self._coders: dict[Hashable, Coder] = dict(coders or {})
        self._indexes: dict[Hashable, SlotIndex] = {name: SlotIndex() for name in self._coders}
        self.append(rows)

    def __len__(self) -> int:
        """The number of rows that are not removed."""
        return self._count

    @property
    def removed(self) -> int:
        """The number of removed rows that still take memory."""
        return self._used - self._count

    @property
    def size_bytes(self) -> int:
        rows = sum(int(run.nbytes) for _, run in self._runs)
        return rows + self._present.nbytes + sum(index.size_bytes for index in self._indexes.values())

    def append(self, rows: pa.Table) -> Slots:
        """Add rows with the table's columns and return their slots."""
        slots = np.arange(self._used, self._used + rows.num_rows)
        if not len(slots):
            return slots
        for name, index in self._indexes.items():
            self._add_to(index, self._coders[name](rows), slots)
        self._runs.append((self._used, _batch(rows)))
        while len(self._runs) > 1 and self._runs[-2][1].num_rows <= 2 * self._runs[-1][1].num_rows:
            (_, last), (first, before) = self._runs.pop(), self._runs.pop()
            self._runs.append((first, _batch(pa.Table.from_batches([before, last]))))
        self._used += len(slots)
        self._count += len(slots)
        if self._used > len(self._present):
            self._present = np.concatenate([self._present, np.zeros(max(1024, self._used), np.bool_)])
        self._present[slots] = True
        return slots

    def remove(self, slots: Slots) -> None:
        """Remove rows; each slot at most once."""
        self._count -= int(self._present[slots].sum())
        self._present[slots] = False

    def add_index(self, name: Hashable, coder: Coder) -> None:
        """Index all rows by another code, unless the table has this index."""
        if name not in self._indexes:
            index = SlotIndex()
            for first, run in self._runs:
                slots = np.arange(first, first + run.num_rows)
                coded = coder(pa.Table.from_batches([run]))
                self._add_to(index, coded._replace(present=coded.present & self._present[slots]), slots)
            self._coders[name], self._indexes[name] = coder, index

    def find(self, name: Hashable, codes: Codes, most: int | None = None) -> tuple[Slots, Slots] | None:
        """(place in `codes`, slot) of the rows with one of these codes; None if there are more than `most` entries."""
        found = self._indexes[name].find(codes, most)
        if found is None:
            return None
        places, slots = found
        present = self._present[slots]
        return places[present], slots[present]

    def take(self, slots: Slots, columns: list[str] | None = None) -> pa.Table:
        """The rows of these slots, which are sorted."""
        parts = []
        for first, run in self._runs:
            low, high = np.searchsorted(slots, (first, first + run.num_rows))
            if high > low:
                chosen = run if columns is None else run.select(columns)
                parts.append(chosen.take(pa.array(slots[low:high] - first)))
        schema = self.schema if columns is None else pa.schema([self.schema.field(name) for name in columns])
        return pa.Table.from_batches(parts, schema)

    def slots(self) -> Slots:
        """All slots of rows that are not removed, sorted."""
        return np.flatnonzero(self._present)

    def distinct(self, slots: Slots) -> tuple[Slots, Slots]:
        """(each of these slots once, sorted; the place of every given slot among them)."""
        if len(slots) * _SPARSE < self._used:
            return np.unique(slots, return_inverse=True)
        found = np.zeros(self._used, np.bool_)
        found[slots] = True
        once = np.flatnonzero(found)
        places = np.empty(self._used, np.int64)
        places[once] = np.arange(len(once))
        return once, places[slots]

    def snapshot(self) -> Callable[[], pa.Table]:
        """A function that returns the rows of this moment, from any thread."""
        runs, present = list(self._runs), self._present.copy()
        return lambda: _rows(self.schema, runs, present)

    def compacted(self) -> SlotTable:
        """A table of the same rows and indexes, without the removed ones."""
        return SlotTable(self.snapshot()(), self._coders)

    @property
    def coders(self) -> dict[Hashable, Coder]:
        return dict(self._coders)

    @staticmethod
    def _add_to(index: SlotIndex, coded: Coded, slots: Slots) -> None:
        if coded.present.all():
            index.add(coded.codes, slots)
        else:
            index.add(coded.codes[coded.present], slots[coded.present])


def _rows(schema: pa.Schema, runs: list[tuple[int, pa.RecordBatch]], present: Flags) -> pa.Table:
    kept = [run.filter(pa.array(present[first : first + run.num_rows])) for first, run in runs]
    return pa.Table.from_batches(kept, schema)


def _batch(rows: pa.Table) -> pa.RecordBatch:
    return rows.combine_chunks().to_batches()[0]
