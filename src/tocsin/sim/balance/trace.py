"""The trace of a simulated run: the rows that the dashboard shows, in the order of events (`model.trace`).

Rows are kept in memory as Arrow batches and written once, at the end. Many rows of one instant are one batch: a run of
a million subscribers must not make a Python object of each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tocsin.model.trace import SCHEMA, Kind, encoded_detail, kind_column


class Trace:
    """`add` rows of one kind and one instant; `write` at the end."""

    def __init__(self) -> None:
        self._batches: list[pa.RecordBatch] = []

    def add(self, time_s: float, kind: Kind, count: int, columns: Mapping[str, Sequence[Any] | Any]) -> None:
        """`count` rows; a column is a sequence of that length, or one value for all; a detail is a mapping."""
        if not count:
            return
        arrays = []
        for one in SCHEMA:
            if one.name == "time_s":
                arrays.append(pa.repeat(pa.scalar(time_s, one.type), count))
            elif one.name == "kind":
                arrays.append(kind_column([kind] * count))
            else:
                arrays.append(pa.array(_values(columns.get(one.name), count), one.type))
        self._batches.append(pa.record_batch(arrays, schema=SCHEMA))

    def table(self) -> pa.Table:
        return pa.Table.from_batches(self._batches, schema=SCHEMA).unify_dictionaries()

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(self.table(), path, compression="zstd")


def _values(value: Any, count: int) -> Any:
    if value is None or isinstance(value, (str, int, float)):
        return [value] * count
    if isinstance(value, Mapping):
        return [encoded_detail(value)] * count
    if isinstance(value, list) and value and isinstance(value[0], Mapping):
        return [encoded_detail(one) for one in value]
    return value
