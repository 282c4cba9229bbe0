"""What JSON a column of each type takes, and the one spelling its values get in the feed log.

msgspec checks most of it while it parses (kinds, ranges, dates). The rest is `canonicaliser`: timestamps become UTC,
decimals get the column's scale, FLOATs are rounded to 32 bits. Spark's `from_json` then reads precisely the value that
was checked here. Pure functions; driven by `records.py`.
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

_FLOAT_END: Final = 2.0**128 - 2.0**103
"""From here on a number is rounded to infinity; 3.4028235e38, as the largest FLOAT is usually written, is not."""
_SCALARS: Final[dict[str, Any]] = {
    "STRING": str,
    "BOOLEAN": bool,
    "TINYINT": Annotated[int, msgspec.Meta(ge=-(1 << 7), le=(1 << 7) - 1)],
    "SMALLINT": Annotated[int, msgspec.Meta(ge=-(1 << 15), le=(1 << 15) - 1)],
    "INT": Annotated[int, msgspec.Meta(ge=-(1 << 31), le=(1 << 31) - 1)],
    "BIGINT": Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)],
    "FLOAT": Annotated[float, msgspec.Meta(gt=-_FLOAT_END, lt=_FLOAT_END)],
    "DOUBLE": float,
    "DATE": date,
    "TIMESTAMP": datetime,
}
_DECIMAL = re.compile(r"DECIMAL\((\d+),(\d+)\)")
HINTS: Final = {
    "TIMESTAMP": " (RFC 3339 text such as 2026-11-15T18:00:00Z)",
    "DATE": " (text such as 2026-11-15)",
}

Canonicaliser: TypeAlias = Callable[[Any], Any]


class NotStorable(Exception):
    """A value that parsed but does not fit its column. Never leaves `records.py`."""


def json_type(column_type: str) -> Any:
    """The Python type msgspec decodes a canonical column type to; elements of arrays may be null."""
    if element := _element_type(column_type):
        return list[json_type(element) | None]  # type: ignore[misc]
    return _SCALARS.get(column_type, Decimal)


def canonicaliser(column_type: str) -> Canonicaliser | None:
    """What still has to happen to a decoded value that is not null; None for a type that needs nothing."""
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
    """-0.0 and 0.0 are one key to SQL, so they must be one key here."""
    return value + 0.0


def canonical_timestamp(value: datetime) -> datetime:
    """The moment in UTC; a time without an offset is taken as UTC.

    msgspec writes it in one way only: with a Z, and with six digits of a second or none.
    """
    if value.tzinfo is None:
        return value.replace(tzinfo=UTC)
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise NotStorable("outside the years 0001 to 9999 in UTC") from None


def set_timestamps(records: list[Any], attribute: str) -> None:
    """`canonical_timestamp` for one column of many records. Most feeds send UTC: then one look at all is enough."""
    values = list(map(attrgetter(attribute), records))
    try:
        if {value.tzinfo for value in values} == {UTC}:
            return
    except AttributeError:
        pass  # some are null or missing
    for record, value in zip(records, values, strict=True):
        if value.__class__ is datetime and value.tzinfo is not UTC:
            setattr(record, attribute, canonical_timestamp(value))


def canonical_float(value: float) -> float:
    """The 32-bit value, spelled so that reading it as 32 or as 64 bits gives the same."""
    rounded: float = struct.unpack("<f", struct.pack("<f", value))[0]
    return rounded


def canonical_decimal(value: Decimal, precision: int, scale: int) -> Decimal:
    """Exactly `scale` digits after the point. Digits that would be lost are refused, not rounded away."""
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
