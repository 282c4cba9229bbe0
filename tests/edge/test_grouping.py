"""GROUP BY of a batch: numpy and Arrow return the same groups, bit for bit. (Arrow's order follows its hashes.)"""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.edge.operators import grouping

texts = st.sampled_from(["", "a", "b", "a much longer name of a meter", "ü", None])
wholes = st.one_of(st.integers(-3, 3), st.sampled_from([2**62, -(2**62), 2**40]))
doubles = st.floats(allow_nan=False, width=64) | st.sampled_from([0.1, 0.2, -0.0, 1e300])
rows_ = st.lists(st.tuples(wholes, texts, wholes, doubles, st.integers(-5, 5)), min_size=1, max_size=60)
Row = tuple[int, str | None, int, float, int]


def columns(rows: list[Row]) -> tuple[dict[str, pa.Array], list[pa.Array]]:
    window, meter, zone, kwh, count = zip(*rows, strict=True)
    keys = {"window": pa.array(window, pa.int64()), "meter": pa.array(meter, pa.string()), "zone": pa.array(zone)}
    return keys, [pa.array(kwh, pa.float64()), pa.array(count, pa.int32()), pa.array(zone, pa.int64())]


def assert_same(table: pa.Table, other: pa.Table) -> None:
    assert table.schema.equals(other.schema)
    assert sorted(map(repr, table.to_pylist())) == sorted(map(repr, other.to_pylist()))


@given(rows=rows_)
def test_groups_by_numbers_equal_those_of_arrow(rows: list[Row]) -> None:
    keys, (kwh, count, _) = columns(rows)
    values, functions = [kwh, count, count], ["sum", "sum", "count"]
    fast = grouping._group_by_numbers(keys, values, functions)
    assert fast is not None
    assert_same(fast, grouping._group_by_arrow(keys, values, functions))
    first_rows = list(dict.fromkeys(zip(*(key.to_pylist() for key in keys.values()), strict=True)))
    assert list(zip(*(fast.column(key).to_pylist() for key in keys), strict=True)) == first_rows


@given(rows=rows_)
def test_every_grouping_equals_that_of_arrow(rows: list[Row]) -> None:
    keys, values = columns(rows)
    functions = ["sum", "max", "sum"]
    assert_same(grouping.group(keys, values, functions), grouping._group_by_arrow(keys, values, functions))
    assert_same(grouping.group(keys, values[2:], ["sum"]), grouping._group_by_arrow(keys, values[2:], ["sum"]))


@pytest.mark.parametrize(
    ("values", "function"),
    [
        (pa.array([1.0, None]), "sum"),
        (pa.array([2**53, 1]), "sum"),
        (pa.array([True, False]), "sum"),
        (pa.array([1, 2]), "min"),
    ],
)
def test_values_that_numpy_could_add_up_differently_are_left_to_arrow(values: pa.Array, function: str) -> None:
    keys = {"meter": pa.array(["a", "b"])}
    assert grouping._group_by_numbers(keys, [values], [function]) is None
    assert grouping.group(keys, [values], [function]).num_rows == 2


def test_many_sparse_groups_need_few_slots() -> None:
    keys = {name: pa.array(range(place, place + 1_000)) for place, name in enumerate("abcd")}
    _, slots = grouping._numbered(list(keys.values()))
    assert slots == 1_000
    assert grouping.group(keys, [pa.array([1.5] * 1_000)], ["sum"]).num_rows == 1_000
