"""Column types in JSON and in Arrow: which JSON values a column accepts, and how the feed log spells them.

msgspec checks kinds, ranges and dates while it parses. `canonicaliser` makes the other checks and conversions:
timestamps become UTC, decimals get the column's scale, FLOATs are rounded to 32 bits. Spark's `from_json` then reads
exactly the value that was checked here. `records.py` calls these functions.

`LineReader` reads canonical lines into an Arrow table, as `from_json` does, but without Spark: for micro-batches so
small that a Spark job would cost more than the work. A test compares both. `cluster.spark.ingestion` calls it.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from operator import attrgetter
from typing import Annotated, Any, Final, TypeAlias

import msgspec
import pyarrow as pa

from tocsin.model.schema import Schema

_FLOAT_END: Final = 2.0**128 - 2.0**103
"""Numbers from here on would be rounded to infinity. 3.4028235e38, the usual text of the largest FLOAT, is below."""
_SCALARS: Final[dict[str, tuple[Any, pa.DataType]]] = {
    "STRING": (str, pa.string()),
    "BOOLEAN": (bool, pa.bool_()),
    "TINYINT": (Annotated[int, msgspec.Meta(ge=-(1 << 7), le=(1 << 7) - 1)], pa.int8()),
    "SMALLINT": (Annotated[int, msgspec.Meta(ge=-(1 << 15), le=(1 << 15) - 1)], pa.int16()),
    "INT": (Annotated[int, msgspec.Meta(ge=-(1 << 31), le=(1 << 31) - 1)], pa.int32()),
    "BIGINT": (Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)], pa.int64()),
    "FLOAT": (Annotated[float, msgspec.Meta(gt=-_FLOAT_END, lt=_FLOAT_END)], pa.float32()),
    "DOUBLE": (float, pa.float64()),
    "DATE": (date, pa.date32()),
    "TIMESTAMP": (datetime, pa.timestamp("us", "UTC")),
}
"""Column type → (type that msgspec decodes, Arrow type)."""
_DECIMAL = re.compile(r"DECIMAL\((\d+),(\d+)\)")
HINTS: Final = {
    "TIMESTAMP": " (RFC 3339 text such as 2026-11-15T18:00:00Z)",
    "DATE": " (text such as 2026-11-15)",
}

Canonicaliser: TypeAlias = Callable[[Any], Any]


class NotStorable(Exception):
    """A value that msgspec accepts but that does not fit its column. `records.py` always catches it."""


def json_type(column_type: str) -> Any:
    """The Python type into which msgspec decodes a canonical column type. Elements of arrays may be null."""
    if element := _element_type(column_type):
        return list[json_type(element) | None]  # type: ignore[misc]
    return _SCALARS[column_type][0] if column_type in _SCALARS else Decimal


def canonicaliser(column_type: str) -> Canonicaliser | None:
    """The function that makes a decoded, non-null value canonical; None for a type that needs none."""
    if element := _element_type(column_type):
        inner = canonicaliser(element)
        return None if inner is None else lambda values: [None if v is None else inner(v) for v in values]
    if match := _DECIMAL.fullmatch(column_type):
        precision, scale = int(match[1]), int(match[2])
        return lambda value: canonical_decimal(value, precision, scale)
    if column_type == "TIMESTAMP":
        return canonical_timestamp
    return canonical_float if column_type == "FLOAT" else None


def positive_zero(value: float) -> float:
    """Turn -0.0 into 0.0: SQL treats both as the same key."""
    return value + 0.0


def canonical_timestamp(value: datetime) -> datetime:
    """The time in UTC. A time without an offset counts as UTC.

    msgspec writes it in only one way: with a Z, and with six or no digits after the second.
    """
    if value.tzinfo is None:
        return value.replace(tzinfo=UTC)
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise NotStorable("outside the years 0001 to 9999 in UTC") from None


def set_timestamps(records: list[Any], attribute: str) -> None:
    """`canonical_timestamp` for one column of many records. Most feeds send UTC: then one check covers all records."""
    try:
        if list(map(attrgetter(f"{attribute}.tzinfo"), records)).count(UTC) == len(records):
            return
    except AttributeError:
        pass  # some are null or missing
    for record in records:
        value = getattr(record, attribute)
        if value.__class__ is datetime and value.tzinfo is not UTC:
            setattr(record, attribute, canonical_timestamp(value))


def canonical_float(value: float) -> float:
    """The value rounded to 32 bits. Its text means the same number when read as 32 or as 64 bits."""
    rounded: float = struct.unpack("<f", struct.pack("<f", value))[0]
    return rounded


def canonical_decimal(value: Decimal, precision: int, scale: int) -> Decimal:
    """The value with exactly `scale` digits after the point. A value with more digits is refused, not rounded."""
    if not value.is_finite():
        raise NotStorable("not a finite number")
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    significant = "".join(map(str, digits)).lstrip("0")
    trailing = len(significant) - len(significant.rstrip("0"))
    if not significant:
        return Decimal((0, (0,), -scale))
    if exponent + trailing < -scale:
        raise NotStorable(f"more than {scale} digits after the point")
    if len(significant) + exponent > precision - scale:
        raise NotStorable(f"more than {precision - scale} digits before the point")
    shift = exponent + scale
    text = significant + "0" * shift if shift >= 0 else significant[:shift]
    return Decimal((sign, tuple(map(int, text)), -scale))


def _element_type(column_type: str) -> str | None:
    return column_type[6:-1] if column_type.startswith("ARRAY<") else None


def _arrow_type(column_type: str) -> pa.DataType:
    if element := _element_type(column_type):
        return pa.list_(_arrow_type(element))
    if match := _DECIMAL.fullmatch(column_type):
        return pa.decimal128(int(match[1]), int(match[2]))
    return _SCALARS[column_type][1]


def arrow_schema(schema: Schema) -> pa.Schema:
    """The columns of a dataset as `LineReader` reads them."""
    return pa.schema([(column.name, _arrow_type(column.type)) for column in schema.columns])


def to_json_line(record: dict[str, Any]) -> str:
    """A stored record as a line that `LineReader` reads again."""
    return msgspec.json.encode(record).decode()


class LineReader:
    """Reads canonical JSON lines of one dataset into Arrow tables."""

    def __init__(self, schema: Schema) -> None:
        self._schema = arrow_schema(schema)
        # Numbered attributes: a column may have a name that Python reserves.
        record: Any = msgspec.defstruct(
            "Record",
            [
                (f"c{index}", json_type(column.type) | None, msgspec.field(default=None, name=column.name))
                for index, column in enumerate(schema.columns)
            ],
        )
        self._decoder = msgspec.json.Decoder(record)

    def read(self, lines: bytes) -> pa.Table:
        rows = self._decoder.decode_lines(lines)
        return pa.table(
            [
                pa.array([getattr(row, f"c{index}") for row in rows], kind)
                for index, kind in enumerate(self._schema.types)
            ],
            schema=self._schema,
        )
