"""Sizes of rows: as JSON, which subscribers get, and in memory. Counted column by column, without a loop over rows."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_NULL = 4
"""The length of `null`."""


def json_sizes(batch: pa.RecordBatch) -> np.ndarray:
    """The length in bytes of each row as a JSON object.

    Escapes inside strings are not counted. Binary values count with their own length, though JSON needs more.
    """
    return _object_lengths(batch.schema.names, batch.columns, batch.num_rows)


def _object_lengths(names: list[str], columns: list[pa.Array], rows: int) -> np.ndarray:
    sizes = np.full(rows, 1 if columns else 2, dtype=np.int64)  # braces, minus the comma that the first field lacks
    for name, column in zip(names, columns, strict=True):
        sizes += len(name.encode()) + 4 + _json_lengths(column)
    return sizes


def _json_lengths(values: pa.Array) -> np.ndarray:
    """The length of each value as JSON."""
    kind = values.type
    if pa.types.is_struct(kind):
        names = [kind.field(place).name for place in range(kind.num_fields)]
        lengths = _object_lengths(names, values.flatten(), len(values))
    elif _is_list(kind):
        # A comma after each element but the last: the brackets of a list that is not empty count as one.
        inside, elements = _within(values, _json_lengths(values.values) + 1)
        lengths = inside + np.where(elements > 0, 1, 2)
    elif pa.types.is_map(kind):
        inside, elements = _within(values, _json_lengths(values.keys) + _json_lengths(values.items) + 2)
        lengths = inside + np.where(elements > 0, 1, 2)
    else:
        quotes = 0 if _is_bare(kind) else 2
        text = values if _has_length(kind) else values.cast(pa.string())
        filled = pc.fill_null(pc.add(pc.binary_length(text), quotes), _NULL)
        return np.asarray(filled.to_numpy(zero_copy_only=False), np.int64)
    return np.where(values.is_null().to_numpy(zero_copy_only=False), _NULL, lengths)


def widest_row(rows: pa.RecordBatch | pa.Table) -> int:
    """An upper bound of the bytes of one row in memory. Exact for the columns whose values have different lengths."""
    fixed, lengths = _fixed_and_own_widths(rows)
    return fixed + (0 if lengths is None or not len(lengths) else int(lengths.max()))


def row_widths(rows: pa.RecordBatch | pa.Table) -> np.ndarray:
    """The bytes of each row, of which `widest_row` is the largest."""
    fixed, lengths = _fixed_and_own_widths(rows)
    return np.full(rows.num_rows, fixed, np.int64) if lengths is None else lengths + fixed


def _fixed_and_own_widths(rows: pa.RecordBatch | pa.Table) -> tuple[int, np.ndarray | None]:
    """The bytes of the columns that are alike in all rows, and those of the others in each row."""
    fixed, lengths = 0, None
    for column in rows.columns:
        if _has_length(column.type) or pa.types.is_nested(column.type):
            parts = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
            own = np.concatenate([_widths(part) for part in parts]) if parts else np.zeros(0, np.int64)
            lengths = own if lengths is None else lengths + own
        else:
            fixed += _fixed_width(column.type)
    return fixed, lengths


def _widths(values: pa.Array) -> np.ndarray:
    """The bytes of each value, those inside lists, structs and maps included."""
    kind = values.type
    if _has_length(kind):
        filled = pc.fill_null(pc.binary_length(values), 0)
        return np.asarray(filled.to_numpy(zero_copy_only=False), np.int64)
    if pa.types.is_struct(kind):
        return sum((_widths(part) for part in values.flatten()), np.zeros(len(values), np.int64))
    if pa.types.is_map(kind):
        return _within(values, _widths(values.keys) + _widths(values.items))[0] + _fixed_width(kind)
    if _is_list(kind):
        return _within(values, _widths(values.values))[0] + _fixed_width(kind)
    return np.full(len(values), _fixed_width(kind), np.int64)


def _within(values: pa.Array, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The sum of the elements' sizes in each list or map, and the number of elements."""
    offsets = values.offsets.to_numpy()
    before = np.concatenate([[0], np.cumsum(sizes)])
    return np.diff(before[offsets]), np.diff(offsets)


def _fixed_width(kind: pa.DataType) -> int:
    """The bytes of one value besides those of different lengths."""
    return 8 if pa.types.is_nested(kind) or _has_length(kind) else max(1, kind.bit_width // 8)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _has_length(kind: pa.DataType) -> bool:
    """Whether Arrow gives the length without a cast to text, which fails for some binary values."""
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def _is_bare(kind: pa.DataType) -> bool:
    """Whether JSON writes the value without quotes."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))
