"""Codes, indexes and rows with slots: they find every row that a comparison of all rows finds."""

from __future__ import annotations

import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.cluster.sql.geo import ALL_LEVELS, cell_of, cover_of, distance_m
from tocsin.cluster.store import codes as codes_module
from tocsin.cluster.store.codes import can_code, codes_of, has_null
from tocsin.cluster.store.near_cells import are_near, are_places, cells_of, covers_of
from tocsin.cluster.store.slots import Coded, SlotTable

texts = st.lists(st.none() | st.text(max_size=6), min_size=1, max_size=30)
latitudes = st.floats(-90, 90) | st.sampled_from([-90.0, 90.0, 0.0, 89.9999])
longitudes = st.floats(-180, 180) | st.sampled_from([-180.0, 180.0, 0.0, 179.9999])
places = st.tuples(latitudes, longitudes)


@given(texts, st.integers(0, 3), st.integers(1, 40))
def test_equal_texts_have_equal_codes_and_others_differ(values: list[str | None], skipped: int, at_once: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(codes_module, "_BYTES_AT_ONCE", at_once)
        codes = codes_of([pa.array(["x", "yy", "zzz", *values], pa.string()).slice(3)])
        again = codes_of([pa.array(values, pa.string()).slice(min(skipped, len(values) - 1))])
    assert codes[min(skipped, len(values) - 1) :].tolist() == again.tolist()
    assert len(set(codes.tolist())) == len(set(values)), "a collision among so few texts would be an accident"


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.int8(), [-1, 0, 1, None]),
        (pa.int64(), [-(1 << 63), (1 << 63) - 1, 0, None]),
        (pa.bool_(), [True, False, None]),
        (pa.date32(), [datetime.date(2026, 11, 17), datetime.date(1, 1, 1), None]),
        (pa.timestamp("us", "UTC"), [0, 1, -1, None]),
        (pa.string(), ["", "\0", "\0\0", "a", "ab", "ba", "é", None]),
    ],
    ids=str,
)
def test_different_values_have_different_codes(kind: pa.DataType, values: list[Any]) -> None:
    column = pa.array(values, kind)
    assert can_code(kind)
    assert len(set(codes_of([column]).tolist())) == len(values)
    assert has_null([column]).tolist() == [value is None for value in values]


def test_codes_of_several_columns_depend_on_their_order() -> None:
    a, b = pa.array(["x", "y"]), pa.array(["y", "x"])
    assert codes_of([a, b])[0] == codes_of([b, a])[1] != codes_of([a, b])[1]


def test_floating_point_numbers_have_no_codes() -> None:
    assert not can_code(pa.float64()) and not can_code(pa.float32()) and not can_code(pa.decimal128(10, 2))


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.lists(st.integers(0, 9), max_size=8)),
            st.tuples(st.just("remove"), st.lists(st.integers(0, 60), max_size=8)),
            st.tuples(st.just("compact"), st.just(())),
        ),
        max_size=25,
    ),
    st.booleans(),
)
def test_slot_table_finds_the_rows_that_are_there(steps: list[tuple[str, Any]], late_index: bool) -> None:
    def coder(rows: pa.Table) -> Coded:
        values = rows["value"].to_numpy()
        return Coded(values.astype(np.uint64), values != 9)  # 9 is in no index

    schema = pa.schema([("row", pa.int64()), ("value", pa.int64())])
    table = SlotTable(schema.empty_table(), {} if late_index else {"value": coder})
    rows: dict[int, int] = {}
    for step, values in steps:
        if step == "add":
            first = max(rows, default=-1) + 1 if table.removed == 0 else 1_000 + len(rows) + table.removed
            numbers = [number for number in range(first, first + 500) if number not in rows][: len(values)]
            table.append(pa.table([numbers, values], schema=schema))
            rows.update(zip(numbers, values, strict=True))
        elif step == "remove":
            slots = table.slots()
            gone = np.unique([slots[place] for place in values if place < len(slots)]).astype(np.int64)
            for number in table.take(gone)["row"].to_pylist():
                del rows[number]
            table.remove(gone)
        else:
            table = table.compacted()
            assert table.removed == 0
    table.add_index("value", coder)
    found = table.find("value", np.arange(12, dtype=np.uint64))
    assert found is not None
    for value in range(12):
        own = table.take(np.sort(found[1][found[0] == value]))["row"].to_pylist()
        assert sorted(own) == sorted(number for number, its in rows.items() if its == value != 9)
    assert len(table) == len(rows)
    assert sorted(table.take(table.slots())["row"].to_pylist()) == sorted(rows)
    assert table.find("value", np.arange(9, dtype=np.uint64), most=-1) is None


@given(st.integers(0, 3).flatmap(lambda some: st.lists(st.integers(0, 199), max_size=4 * 10**some)))
def test_distinct_slots_are_sorted_and_place_each_given_slot(slots: list[int]) -> None:
    table = SlotTable(pa.table({"value": pa.array(range(200))}))
    once, places = table.distinct(np.array(slots, np.int64))
    assert once.tolist() == sorted(set(slots))
    assert once[places].tolist() == slots


@given(st.lists(places, min_size=1, max_size=8), st.sampled_from(ALL_LEVELS), st.floats(0.01, 1))
def test_cells_and_covers_equal_those_of_single_places(
    points: list[tuple[float, float]], level: int, share: float
) -> None:
    lat, lon = np.array(points).T
    assert cells_of(lat, lon, level).tolist() == [cell_of(*point, level) for point in points]
    covers = covers_of(lat, lon, level, share * 2.0**level)
    for index, point in enumerate(points):
        cells = covers.cells[covers.places == index].tolist()
        assert len(cells) == len(set(cells))
        assert set(cells) == cover_of(*point, level, share * 2.0**level)


@given(places, places)
def test_pair_is_near_at_its_own_distance(first: tuple[float, float], second: tuple[float, float]) -> None:
    away_m = distance_m(*first, *second)
    assert away_m is not None
    (lat1, lon1), (lat2, lon2) = (np.array([point]).T for point in (first, second))
    assert are_near(lat1, lon1, lat2, lon2, away_m).all()
    assert not are_near(lat1, lon1, lat2, lon2, 0.99 * away_m - 1).any()


def test_coordinates_out_of_range_are_no_places() -> None:
    lat = np.array([0.0, 91.0, 0.0, np.nan, -90.0])
    lon = np.array([0.0, 0.0, -181.0, 0.0, 180.0])
    assert are_places(lat, lon).tolist() == [True, False, False, False, True]
