"""64-bit codes of rows: equal values have equal codes, so an index over codes finds every row with a value.

Different values may share a code. Callers use codes only to leave out rows that certainly differ, or compare the values
of the rows that an index found.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Codes = npt.NDArray[np.uint64]

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_NULL = np.uint64(0xD1B54A32D192ED03)
_BYTES_AT_ONCE = 4 << 20
"""Texts are hashed in parts of about as many bytes: a part needs some ten times its size in memory."""


def can_code(kind: pa.DataType) -> bool:
    """True for types whose equality in SQL is that of their bits.

    Not for FLOAT and DOUBLE (NaN, -0.0), and not for DECIMAL.
    """
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_integer(kind)
        or pa.types.is_date(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_timestamp(kind)
    )


def codes_of(columns: Sequence[pa.Array | pa.ChunkedArray]) -> Codes:
    """One code for each row of these columns, which have equal lengths and types that `can_code` accepts."""
    combined: Codes | None = None
    for column in columns:
        own = _column_codes(column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column)
        combined = own if combined is None else _mixed(combined * _MULTIPLIER + own)
    if combined is None:
        raise ValueError("a code needs at least one column")
    return combined


def has_null(columns: Sequence[pa.Array | pa.ChunkedArray]) -> npt.NDArray[np.bool_]:
    """Which rows have a NULL in one of these columns: they equal nothing in SQL."""
    flags = [np.asarray(pc.is_null(column).to_numpy(zero_copy_only=False)) for column in map(_plain, columns)]
    null: npt.NDArray[np.bool_] = np.logical_or.reduce(flags)
    return null


def _plain(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _column_codes(values: pa.Array) -> Codes:
    if pa.types.is_string(values.type):
        codes = _text_codes(values)
    else:
        if pa.types.is_date32(values.type):
            values = values.view(pa.int32())
        elif pa.types.is_timestamp(values.type):
            values = values.view(pa.int64())
        numbers = pc.fill_null(values.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
        codes = _mixed(numbers.view(np.uint64) + _MULTIPLIER)
    if values.null_count:
        codes[values.is_null().to_numpy(zero_copy_only=False)] = _NULL
    return codes


def _text_codes(texts: pa.Array) -> Codes:
    """A polynomial of the bytes of each text and its length, mixed."""
    _, offset_buffer, data = texts.buffers()
    count = len(texts)
    if not count:
        return np.zeros(0, np.uint64)
    offsets = np.frombuffer(offset_buffer, np.int32, count + 1, 4 * texts.offset).astype(np.int64)
    content = np.zeros(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    codes = np.empty(count, np.uint64)
    start = 0
    while start < count:
        end = int(np.searchsorted(offsets, offsets[start] + _BYTES_AT_ONCE, side="right")) - 1
        end = min(count, max(end, start + 1))
        codes[start:end] = _part_codes(content, offsets[start : end + 1])
        start = end
    return codes


def _part_codes(content: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64]) -> Codes:
    lengths = np.diff(offsets)
    longest = int(lengths.max())
    powers = np.full(longest + 1, _MULTIPLIER, np.uint64)
    powers[0] = 1
    np.multiply.accumulate(powers, out=powers)
    first = int(offsets[0])
    places = np.arange(first, int(offsets[-1])) - np.repeat(offsets[:-1], lengths)
    terms = (content[first : int(offsets[-1])].astype(np.uint64) + np.uint64(1)) * powers[places]
    sums = np.zeros(len(terms) + 1, np.uint64)
    np.cumsum(terms, out=sums[1:])
    starts = offsets - first
    return _mixed(sums[starts[1:]] - sums[starts[:-1]] + lengths.astype(np.uint64))


def _mixed(values: Codes) -> Codes:
    """Spread the differences over all bits (the end of splitmix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
