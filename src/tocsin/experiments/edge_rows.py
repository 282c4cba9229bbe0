"""Compares the rows that an edge tree published with those of the same SELECT over the raw readings, bit for bit.

Spark computes the reference. Times become microseconds and numbers their bits, so that two rows are equal only if every
value is the same number, not a close one. A test may pass another reference.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from tocsin.experiments.runner import spark_context

EXAMPLES: Final = 3
Reference = Callable[[Sequence["EdgeSelect"], Mapping[str, pa.Table]], dict[str, pa.Table]]
"""(queries, raw readings by stream) → the rows of each query."""


@dataclass(frozen=True, slots=True)
class EdgeSelect:
    name: str
    select: str
    """Spark SQL over the streams, as in `CREATE EDGE QUERY`."""
    keys: tuple[str, ...]
    """The columns that identify a row; one of them is `since`, the beginning of its window."""
    window_us: int

    def statement(self, lateness: str) -> str:
        return f"CREATE EDGE QUERY {self.name} LATENESS {lateness} AS {self.select};"


@dataclass(frozen=True, slots=True)
class Comparison:
    expected: int
    published: int
    lost: int
    """Expected rows that were not published."""
    repeated: int
    """Rows that were published again, by query, window and key."""
    wrong: int
    """Published rows with another value than the expected row, or for a key that is not expected."""
    examples: tuple[str, ...] = ()

    def __add__(self, other: Comparison) -> Comparison:
        return Comparison(
            self.expected + other.expected,
            self.published + other.published,
            self.lost + other.lost,
            self.repeated + other.repeated,
            self.wrong + other.wrong,
            (*self.examples, *other.examples)[:EXAMPLES],
        )


NOTHING: Final = Comparison(0, 0, 0, 0, 0)


def in_spark(queries: Sequence[EdgeSelect], readings: Mapping[str, pa.Table]) -> dict[str, pa.Table]:
    """Run each SELECT over all readings at once. They go to Spark as Parquet, which has the same values bit for bit."""
    from pyspark.sql import SparkSession

    with spark_context(), TemporaryDirectory(prefix="tocsin-readings-") as folder:
        spark = SparkSession.builder.getOrCreate()
        for stream, table in readings.items():
            path = Path(folder, f"{stream}.parquet")
            pq.write_table(table, path, coerce_timestamps="us")
            spark.read.parquet(str(path)).createOrReplaceTempView(stream)
        return {query.name: spark.sql(query.select).toArrow() for query in queries}


def compare(
    query: EdgeSelect, published: Iterable[Mapping[str, Any]], reference: pa.Table, until_us: int
) -> Comparison:
    """Compare the rows of all windows that end at `until_us` or before."""
    columns = reference.schema
    expected = _by_key(query, (_bits(row, columns) for row in _rows(reference)), until_us)
    rows = _by_key(query, (_bits(row, columns) for row in published), until_us)
    wrong = {key for key, values in rows.items() if any(value not in expected.get(key, ()) for value in values)}
    lost = expected.keys() - rows.keys()
    repeated = sum(len(values) - 1 for values in rows.values())
    examples = [f"{query.name} lost {key}" for key in sorted(lost)[:EXAMPLES]]
    examples += [f"{query.name} published {key} as {rows[key]}, not {expected.get(key)}" for key in sorted(wrong)]
    examples += [f"{query.name} published {key} {len(values)} times" for key, values in rows.items() if len(values) > 1]
    published_rows = sum(len(values) for values in rows.values())
    return Comparison(len(expected), published_rows, len(lost), repeated, len(wrong), tuple(examples[:EXAMPLES]))


_Values = tuple[object, ...]


def _by_key(query: EdgeSelect, rows: Iterable[Mapping[str, object]], until_us: int) -> dict[_Values, list[_Values]]:
    found: dict[_Values, list[_Values]] = {}
    for row in rows:
        since = row["since"]
        assert isinstance(since, int)
        if since + query.window_us <= until_us:
            key = tuple(row[name] for name in query.keys)
            found.setdefault(key, []).append(tuple(row[name] for name in row if name not in query.keys))
    return found


def _rows(table: pa.Table) -> Iterable[dict[str, Any]]:
    for batch in table.to_batches():
        yield from batch.to_pylist()


def _bits(row: Mapping[str, Any], columns: pa.Schema) -> dict[str, object]:
    """The row with values that are equal only if all their bits are, in the order of the reference's columns."""
    return {field.name: _exact(row[field.name], field.type) for field in columns}


def _exact(value: Any, type_: pa.DataType) -> object:
    if value is None:
        return None
    if pa.types.is_timestamp(type_):
        return time_us(value)
    return struct.pack(">d", value).hex() if pa.types.is_floating(type_) else value


def time_us(value: str | datetime) -> int:
    """A time in microseconds since 1970. A time without a zone is in UTC."""
    moment = datetime.fromisoformat(value) if isinstance(value, str) else value
    moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
