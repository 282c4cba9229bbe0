"""GROUP BY of a batch: one row per group.

For batches of some thousand rows Arrow's own `group_by` costs more than the rest of a node's path. Most queries group
by text and whole numbers, and sum or count values without nulls. For these the groups get numbers (Arrow's
dictionaries), and numpy adds up by number, row after row as Arrow does: the result is the same to the last bit. All
other groupings use Arrow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_VALID = pc.ScalarAggregateOptions(skip_nulls=True, min_count=1)
_OPTIONS = {"sum": _VALID, "count": pc.CountOptions(mode="only_valid"), "min": _VALID, "max": _VALID}
_EXACT_INTEGERS = 2**53
"""Doubles add whole numbers exactly as long as the sum stays within this."""
_SLOTS_PER_ROW = 4
"""Group numbers may be this sparse: adding up needs a slot for each number, used or not."""

_Numbers = np.ndarray[tuple[int], np.dtype[np.int64]]


def group(keys: Mapping[str, pa.Array], values: Sequence[pa.Array], functions: Sequence[str]) -> pa.Table:
    """The keys, and a column v0, v1, … for each value: `functions` are sum, count, min or max.

    Nulls do not count; a sum, min or max without any value is null.
    """
    table = _group_by_numbers(keys, values, functions)
    return _group_by_arrow(keys, values, functions) if table is None else table


def _group_by_arrow(keys: Mapping[str, pa.Array], values: Sequence[pa.Array], functions: Sequence[str]) -> pa.Table:
    """One thread: a node shares its processor, and the order of groups must not vary between runs."""
    table = pa.table(dict(keys) | {f"v{number}": value for number, value in enumerate(values)})
    calls = [(f"v{number}", function, _OPTIONS[function]) for number, function in enumerate(functions)]
    grouped = table.group_by(list(keys), use_threads=False).aggregate(calls)
    columns = [grouped.column(f"{name}_{function}") for name, function, _ in calls]
    return pa.table([*(grouped.column(key) for key in keys), *columns], names=[*keys, *(name for name, _, _ in calls)])


def _group_by_numbers(
    keys: Mapping[str, pa.Array], values: Sequence[pa.Array], functions: Sequence[str]
) -> pa.Table | None:
    """None if the grouping needs Arrow."""
    if not all(_has_numbers(key.type) for key in keys.values()):
        return None
    if not all(map(_can_add, values, functions)):
        return None
    numbers, slots = _numbered(list(keys.values()))
    first_rows = np.full(slots, -1, np.int64)
    first_rows[numbers[::-1]] = np.arange(len(numbers) - 1, -1, -1)  # the last assignment counts: the first row
    rows = np.sort(first_rows[first_rows >= 0])
    groups = numbers[rows]
    taken = pa.array(rows)
    columns = [key.take(taken) for key in keys.values()]
    for value, function in zip(values, functions, strict=True):
        weights = value.to_numpy(zero_copy_only=False) if function == "sum" else None
        totals = np.bincount(numbers, weights, slots)[groups]
        is_whole = function == "count" or pa.types.is_integer(value.type)
        columns.append(pa.array(totals.astype(np.int64) if is_whole else totals))
    return pa.Table.from_arrays(columns, names=[*keys, *(f"v{number}" for number in range(len(values)))])


def _has_numbers(type_: pa.DataType) -> bool:
    """Floats are left to Arrow, which decides how zeros and NaN are grouped."""
    return bool(pa.types.is_string(type_) or pa.types.is_signed_integer(type_))


def _can_add(value: pa.Array, function: str) -> bool:
    """True if numpy adds the values up without a difference to Arrow."""
    if value.null_count or not len(value) or function not in ("sum", "count"):
        return False
    if function == "count" or pa.types.is_float64(value.type):
        return True
    if not pa.types.is_signed_integer(value.type):
        return False
    integers = value.to_numpy(zero_copy_only=False)
    return max(-int(integers.min()), int(integers.max())) * len(integers) <= _EXACT_INTEGERS


def _numbered(keys: Sequence[pa.Array]) -> tuple[_Numbers, int]:
    """The number of each row's group, and an upper bound of the numbers."""
    numbers, slots = np.zeros(len(keys[0]), np.int64), 1
    for key in keys:
        codes, size = _encoded(key)
        numbers, slots = numbers * size + codes, slots * size
        if slots > _SLOTS_PER_ROW * len(numbers):
            numbers, slots = _encoded(pa.array(numbers))
    return numbers, slots


def _encoded(values: pa.Array) -> tuple[_Numbers, int]:
    encoded = values.dictionary_encode(null_encoding="encode")
    return encoded.indices.to_numpy().astype(np.int64), len(encoded.dictionary)
