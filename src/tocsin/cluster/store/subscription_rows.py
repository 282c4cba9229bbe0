"""The subscriptions of a channel in memory, for a million of them: numbers and values as text, found by their values.

A change costs in proportion to the change. Not thread-safe.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tocsin.cluster.sql.result_columns import SUBSCRIPTION
from tocsin.cluster.store.codes import codes_of, has_null
from tocsin.cluster.store.slots import Coded, Coder, Slots, SlotTable
from tocsin.model.schema import Schema

COMPACT_LEAST = 50_000
"""Removed subscriptions that stay at least in memory before the table is made anew without them."""
_NUMBER = "number"
_TYPES = {
    "STRING": pa.string(),
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "DATE": pa.date32(),
}
"""The types of parameters that can be looked up."""

EqualTo = tuple[Sequence[str], Sequence[pa.ChunkedArray]]
"""Names of parameters, and as many columns of values: the parameters must equal one row of the values."""


class SubscriptionRows:
    def __init__(self, parameters: Schema) -> None:
        self._parameters = parameters
        names = [SUBSCRIPTION, *parameters.names]
        self._schema = pa.schema([(name, pa.string() if index else pa.int64()) for index, name in enumerate(names)])
        self._decode = msgspec.json.Decoder(list[Any]).decode
        self._table = SlotTable(self._schema.empty_table(), {_NUMBER: _number_coder})
        self.newest = 0
        """The highest number that was ever added."""

    def __len__(self) -> int:
        return len(self._table)

    def values_of(self, parameters: str) -> list[Any]:
        """The values of a subscription, from JSON."""
        return self._decode(parameters)

    def add(self, subscriptions: Iterable[tuple[int, str]]) -> None:
        """Add (number, canonical parameters as a JSON array), each number once."""
        numbers, rows = [], []
        for number, parameters in subscriptions:
            numbers.append(number)
            rows.append(self._decode(parameters))
        if not numbers:
            return
        columns = [pa.array(numbers, pa.int64())]
        columns += [
            pa.array([_as_text(row[index]) for row in rows], pa.string())
            for index in range(len(self._parameters.columns))
        ]
        self._table.append(pa.table(columns, schema=self._schema))
        self.newest = max(self.newest, *numbers)

    def remove(self, numbers: Iterable[int]) -> None:
        """Remove subscriptions. A number that is not there is ignored."""
        gone = np.fromiter(numbers, np.int64)
        if not len(gone):
            return
        found = self._table.find(_NUMBER, gone.view(np.uint64))
        assert found is not None
        self._table.remove(found[1])
        if self._table.removed > max(COMPACT_LEAST, len(self._table)):
            self._table = self._table.compacted()

    def after(self, number: int) -> pa.Table:
        """All subscriptions above this number, by number."""
        rows = self._table.take(self._table.slots())
        if number:
            rows = rows.filter(pc.greater(rows[SUBSCRIPTION], number))
        return rows.sort_by(SUBSCRIPTION).combine_chunks()

    def none(self) -> pa.Table:
        """The columns of `after`, without rows."""
        return self._table.take(self._table.slots()[:0]).combine_chunks()

    def matching(self, conditions: Sequence[EqualTo], most: int) -> pa.Table | None:
        """The subscriptions that meet all conditions, by number: see `SubscriptionFrames.matching`."""
        chosen: Slots | None = None
        for parameters, values in conditions:
            name: Hashable = tuple(parameters)
            self._table.add_index(name, self._value_coder(parameters))
            codes = np.unique(codes_of(values)[~has_null(values)])
            found = self._table.find(name, codes, most if chosen is None else None)
            if found is None:
                return None
            slots = np.unique(found[1])
            chosen = slots if chosen is None else np.intersect1d(chosen, slots, assume_unique=True)
        if chosen is None:
            raise ValueError("a choice needs a condition")
        return self._table.take(chosen).sort_by(SUBSCRIPTION).combine_chunks()

    def _value_coder(self, parameters: Sequence[str]) -> Coder:
        kinds = [_TYPES[self._parameters.type_of(name) or ""] for name in parameters]

        def code(rows: pa.Table) -> Coded:
            values = [rows[name].cast(kind) for name, kind in zip(parameters, kinds, strict=True)]
            return Coded(codes_of(values), np.ones(rows.num_rows, np.bool_))

        return code


def _number_coder(rows: pa.Table) -> Coded:
    return Coded(rows[SUBSCRIPTION].to_numpy().view(np.uint64), np.ones(rows.num_rows, np.bool_))


def _as_text(value: object) -> str:
    if isinstance(value, str):
        return value
    return msgspec.json.encode(value).decode()
