"""The trace of a run: everything a dashboard needs to show it again, as one Parquet table in the order of events.

The schema is in docs/balancing.md; the live system may write the same. Columns that a kind of row does not use are
null. Rows are kept in memory as Arrow batches and written once, at the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

SCHEMA: Final = pa.schema(
    [
        ("time_s", pa.float64()),
        ("kind", pa.dictionary(pa.int8(), pa.string())),
        ("broker", pa.string()),
        ("subscriber", pa.string()),
        ("target", pa.string()),
        ("load_bytes_per_s", pa.float64()),
        ("subscribers", pa.int64()),
        ("cov", pa.float64()),
        ("moves", pa.int64()),
        ("note", pa.string()),
    ],
    metadata={"tocsin.trace": "1"},
)


class Trace:
    """`add` rows of one kind and one instant; `write` at the end."""

    def __init__(self) -> None:
        self._batches: list[pa.RecordBatch] = []

    def add(self, time_s: float, kind: str, count: int, columns: Mapping[str, Sequence[Any] | Any]) -> None:
        """`count` rows; a column is a sequence of that length, or one value for all."""
        if not count:
            return
        arrays = []
        for one in SCHEMA:
            if one.name == "time_s":
                arrays.append(pa.repeat(pa.scalar(time_s, one.type), count))
            elif one.name == "kind":
                arrays.append(pa.array([kind] * count).dictionary_encode().cast(one.type))
            else:
                value = columns.get(one.name)
                given = [value] * count if value is None or isinstance(value, (str, int, float)) else value
                arrays.append(pa.array(given, one.type))
        self._batches.append(pa.record_batch(arrays, schema=SCHEMA))

    def table(self) -> pa.Table:
        return pa.Table.from_batches(self._batches, schema=SCHEMA).unify_dictionaries()

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(self.table(), path, compression="zstd")
