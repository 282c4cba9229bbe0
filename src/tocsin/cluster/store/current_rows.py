"""The current rows of one KEYED dataset in memory: the latest record of each key, kept up to date batch by batch.

The rows are those that the dataset has at `version`. Each later version is added once and in order, so a new record
replaces the row of its key unless that row is later by the dataset's event order. The result is the same as that of
`merging.latest_per_key` over all records.

Executions use it to find the few rows that NEW records can join with (`cluster.narrowing`). Not thread-safe.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tocsin.cluster.sql.geo import level_of
from tocsin.cluster.sql.result_columns import SEQUENCE, VERSION
from tocsin.cluster.store.codes import can_code, codes_of, has_null
from tocsin.cluster.store.merging import latest_per_key
from tocsin.cluster.store.near_cells import are_near, are_places, cells_of, covers_of
from tocsin.cluster.store.slots import Coded, Coder, Slots, SlotTable
from tocsin.model.entities import Dataset, DatasetKind

COMPACT_LEAST = 50_000
"""Removed rows that a table has at least before it is made anew without them."""
MOST_PAIRS = 1_000_000
"""The most pairs of a NEW record and a row in its neighbourhood that are compared: about 100 MB for a moment."""
SAMPLED_PAIRS = 50_000
"""From so many pairs on, `near_to` first looks at a part of the rows: if far too many of them are near, it ends."""
_SAMPLE = 16
"""The part: one row in so many."""
_CERTAINLY = 1.25
"""How many times the allowed rows the part must promise. An error of the estimate costs time, never a result."""
_KEY = "key"


def can_hold(dataset: Dataset, schema: pa.Schema) -> bool:
    """True if the rows of this dataset can be kept in memory: KEYED, with keys and an order that compare like bits."""
    compared = [*dataset.key, *([] if dataset.order_by is None else [dataset.order_by])]
    return dataset.kind is DatasetKind.KEYED and all(can_code(schema.field(name).type) for name in compared)


class CurrentRows:
    def __init__(
        self, dataset: Dataset, rows: pa.Table, version: int, coders: Mapping[Hashable, Coder] | None = None
    ) -> None:
        """`rows` has the dataset's columns: the latest record of each key at `version`.

        `coders` are those of a former table of the same dataset, so that the new one has the same indexes.
        """
        self.dataset = dataset
        self.version = version
        self._all: pa.Table | None = None
        self._table = SlotTable(rows, {_KEY: equality_coder(dataset.key, with_null=True)} if coders is None else coders)

    def __len__(self) -> int:
        return len(self._table)

    @property
    def size_bytes(self) -> int:
        return self._table.size_bytes

    @property
    def coders(self) -> dict[Hashable, Coder]:
        return self._table.coders

    @property
    def schema(self) -> pa.Schema:
        return self._table.schema

    @property
    def needs_compacting(self) -> bool:
        return self._table.removed > max(COMPACT_LEAST, len(self._table))

    def advance(self, records: pa.Table, version: int) -> None:
        """Add the records of the versions up to `version`, in the order of their arrival."""
        if records.num_rows:
            self._all = None
            latest = _latest(records, self.dataset)
            found = self._table.find(_KEY, codes_of([latest[name] for name in self.dataset.key]))
            assert found is not None
            places, slots = self._same_keys(latest, *found)
            replaced, stale = self._compared(latest, places, slots)
            fresh = np.ones(latest.num_rows, np.bool_)
            fresh[stale] = False
            self._table.remove(replaced)
            self._table.append(latest.filter(pa.array(fresh)))
        self.version = version

    def _same_keys(self, records: pa.Table, places: Slots, slots: Slots) -> tuple[Slots, Slots]:
        """The pairs whose keys are equal: two keys may have one code."""
        order = np.argsort(slots, kind="stable")
        places, slots = places[order], slots[order]
        same = np.ones(len(slots), np.bool_)
        key = list(self.dataset.key)
        rows = self._table.take(slots, key)
        for name in key:
            old, new = rows[name], records[name].take(pa.array(places))
            both_null = pc.and_(pc.is_null(old), pc.is_null(new))
            equal = pc.or_(pc.fill_null(pc.equal(old, new), False), both_null)
            same &= equal.to_numpy()
        return places[same], slots[same]

    def _compared(self, records: pa.Table, places: Slots, slots: Slots) -> tuple[Slots, Slots]:
        """(slots of rows that a record replaces, places of records that are earlier than the row of their key)."""
        if self.dataset.order_by is None or not len(slots):
            return slots, np.zeros(0, np.int64)
        old = self._table.take(slots, [self.dataset.order_by])[0]
        new = records[self.dataset.order_by].take(pa.array(places))
        # NULL is earliest, and of two equal values the later arrival counts.
        later = pc.or_(pc.fill_null(pc.greater_equal(new, old), False), pc.is_null(old)).to_numpy()
        return slots[later], places[~later]

    def snapshot(self) -> Callable[[], pa.Table]:
        """A function that returns the rows of this moment, from any thread."""
        return self._table.snapshot()

    # -- looking up ------------------------------------------------------------------------------------------------

    def equal_to(self, columns: Sequence[str], values: Sequence[pa.ChunkedArray], most: int) -> Slots | None:
        """The slots of all rows whose columns equal a row of `values`, and perhaps a few others.

        None if they are more than `most`.
        """
        name: Hashable = _KEY if tuple(columns) == self.dataset.key else ("=", *columns)
        self._table.add_index(name, equality_coder(columns))
        codes = np.unique(codes_of(values)[~has_null(values)])
        found = self._table.find(name, codes, MOST_PAIRS)
        if found is None or len(found[1]) > most:
            return None
        return np.unique(found[1])

    def near_to(
        self, columns: tuple[str, str], places: Sequence[pa.ChunkedArray], radius_m: float, most: int
    ) -> Slots | None:
        """The slots of all rows with a place within `radius_m` of one of `places`, and perhaps a few others.

        `places` are latitudes and longitudes. None if the rows are more than `most`.
        """
        level = level_of(radius_m)
        name: Hashable = ("near", *columns, level)
        self._table.add_index(name, _cell_coder(columns, level))
        lat, lon = (_degrees(column) for column in places)
        in_range = are_places(lat, lon)
        lat, lon = lat[in_range], lon[in_range]
        covers = covers_of(lat, lon, level, radius_m)
        found = self._table.find(name, covers.cells, MOST_PAIRS)
        if found is None:
            return None
        owners, slots = covers.places[found[0]], found[1]

        def near_slots(owners: Slots, slots: Slots) -> Slots:
            distinct, entries = self._table.distinct(slots)
            rows = self._table.take(distinct, list(columns))
            row_lat, row_lon = (_degrees(rows[column])[entries] for column in columns)
            return slots[are_near(lat[owners], lon[owners], row_lat, row_lon, radius_m)]

        if len(slots) >= max(SAMPLED_PAIRS, most):
            sampled = slots % _SAMPLE == 0
            part = near_slots(owners[sampled], slots[sampled])
            if len(self._table.distinct(part)[0]) * _SAMPLE > most * _CERTAINLY:
                return None
        chosen = self._table.distinct(near_slots(owners, slots))[0]
        return None if len(chosen) > most else chosen

    def rows(self, slots: Slots) -> pa.Table:
        return self._table.take(slots).combine_chunks()

    def all_rows(self) -> pa.Table:
        """The same object until a record is added."""
        if self._all is None:
            self._all = self.rows(self._table.slots())
        return self._all


def _latest(records: pa.Table, dataset: Dataset) -> pa.Table:
    """The latest of these records for each key."""
    count = records.num_rows
    arrived = records.append_column(VERSION, pa.array(np.zeros(count, np.int64)))
    arrived = arrived.append_column(SEQUENCE, pa.array(np.arange(count)))
    return latest_per_key(arrived, dataset).select(records.column_names)


def equality_coder(columns: Sequence[str], *, with_null: bool = False) -> Coder:
    """Codes of the values in these columns. Without `with_null`, a row with a NULL is not in the index."""

    def code(rows: pa.Table) -> Coded:
        values = [rows[name] for name in columns]
        everywhere = np.ones(rows.num_rows, np.bool_)
        return Coded(codes_of(values), everywhere if with_null else ~has_null(values))

    return code


def _cell_coder(columns: tuple[str, str], level: int) -> Coder:
    def code(rows: pa.Table) -> Coded:
        lat, lon = (_degrees(rows[name]) for name in columns)
        present = are_places(lat, lon)
        cells = np.zeros(len(lat), np.uint64)
        cells[present] = cells_of(lat[present], lon[present], level)
        return Coded(cells, present)

    return code


def _degrees(column: pa.ChunkedArray) -> npt.NDArray[np.float64]:
    """The numbers of a FLOAT or DOUBLE column; NaN for NULL."""
    filled = pc.fill_null(column.cast(pa.float64()), float("nan"))
    return np.asarray(filled.to_numpy(), np.float64)
