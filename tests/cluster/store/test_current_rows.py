"""The current rows of a KEYED dataset equal the latest record of each key, and its indexes find them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.cluster.sql.geo import distance_m
from tocsin.cluster.store import current_rows
from tocsin.cluster.store.current_rows import CurrentRows, can_hold
from tocsin.cluster.store.near_cells import are_near
from tocsin.model.entities import Dataset, DatasetKind
from tocsin.model.ids import DatasetName
from tocsin.model.schema import Schema

SCHEMA = Schema.of(name="STRING", part="INT", kind="STRING", lat="DOUBLE", lon="DOUBLE", at="BIGINT")
ARROW = pa.schema(
    [
        ("name", pa.string()),
        ("part", pa.int32()),
        ("kind", pa.string()),
        ("lat", pa.float64()),
        ("lon", pa.float64()),
        ("at", pa.int64()),
    ]
)
ORDERED = Dataset(DatasetName("Places"), DatasetKind.KEYED, SCHEMA, ("name", "part"), order_by="at")
ARRIVED = Dataset(DatasetName("Places"), DatasetKind.KEYED, SCHEMA, ("name", "part"))

kinds = st.none() | st.sampled_from(["fire", "flood", ""])
degrees = st.none() | st.sampled_from([60.0, 60.001, 60.02, 200.0, float("nan")])
records = st.tuples(
    st.sampled_from(["a", "b", "c", ""]), st.integers(0, 1), kinds, degrees, degrees, st.none() | st.integers(0, 3)
)
batches = st.lists(st.lists(records, max_size=6), max_size=8)


def table(rows: list[Any]) -> pa.Table:
    columns = zip(*rows, strict=True) if rows else [()] * len(ARROW)
    return pa.table([pa.array(column, kind) for column, kind in zip(columns, ARROW.types, strict=True)], schema=ARROW)


def latest(batches: list[list[Any]], ordered: bool) -> list[Any]:
    """The latest record of each key: the largest `at`, where None is smallest; of equal ones the last."""
    rows: dict[Any, Any] = {}
    for row in (row for batch in batches for row in batch):
        old = rows.get(row[:2])
        if old is None or not ordered or (-1 if row[5] is None else row[5]) >= (-1 if old[5] is None else old[5]):
            rows[row[:2]] = row
    return list(rows.values())


def shown(rows: list[Any]) -> list[str]:
    return sorted(map(repr, rows))


def found(current: CurrentRows, slots: Any) -> list[Any]:
    return [tuple(row.values()) for row in current.rows(slots).to_pylist()]


@given(batches, st.booleans(), st.booleans())
def test_rows_are_the_latest_of_each_key_after_every_batch(
    batches: list[list[Any]], ordered: bool, compact: bool
) -> None:
    dataset = ORDERED if ordered else ARRIVED
    current = CurrentRows(dataset, ARROW.empty_table(), 0)
    for version, batch in enumerate(batches, 1):
        current.advance(table(batch), version)
        if compact and version % 2:
            current = CurrentRows(dataset, current.snapshot()(), current.version, current.coders)
        expected = latest(batches[:version], ordered)
        assert shown([tuple(row.values()) for row in current.all_rows().to_pylist()]) == shown(expected)
        assert (len(current), current.version) == (len(expected), version)


@given(batches, st.lists(kinds, max_size=3), st.booleans())
def test_equality_finds_every_row_with_one_of_the_values(
    batches: list[list[Any]], values: list[str | None], early: bool
) -> None:
    current = CurrentRows(ARRIVED, ARROW.empty_table(), 0)
    asked = [pa.chunked_array([pa.array(values, pa.string())])]
    if early:
        assert current.equal_to(["kind"], asked, 10) is not None, "an index of no rows"
    for version, batch in enumerate(batches, 1):
        current.advance(table(batch), version)
    slots = current.equal_to(["kind"], asked, 100)
    assert slots is not None
    expected = [row for row in latest(batches, ordered=False) if row[2] is not None and row[2] in values]
    assert shown(found(current, slots)) == shown(expected)


@given(batches, st.lists(st.tuples(degrees, degrees), max_size=3), st.sampled_from([1.0, 150.0, 3_000.0]))
def test_near_finds_every_row_within_the_radius(batches: list[list[Any]], points: list[Any], radius_m: float) -> None:
    current = CurrentRows(ARRIVED, ARROW.empty_table(), 0)
    for version, batch in enumerate(batches, 1):
        current.advance(table(batch), version)
    columns = [pa.chunked_array([pa.array([point[side] for point in points], pa.float64())]) for side in (0, 1)]
    slots = current.near_to(("lat", "lon"), columns, radius_m, 100)
    assert slots is not None

    def near(row: Any) -> bool:
        pairs = [(*row[3:5], *point) for point in points]
        away = [distance_m(*pair) for pair in pairs if None not in pair]
        return any(away_m is not None and away_m <= radius_m for away_m in away)

    expected = [row for row in latest(batches, ordered=False) if near(row)]
    assert shown(found(current, slots)) == shown(expected)


def test_all_rows_are_the_same_object_until_a_record_arrives() -> None:
    current = CurrentRows(ARRIVED, table([("a", 0, "fire", 60.0, 60.0, 1)]), 1)
    before = current.all_rows()
    current.advance(table([]), 2)
    assert current.all_rows() is before
    current.advance(table([("a", 0, "flood", 60.0, 60.0, 1)]), 3)
    assert current.all_rows()["kind"].to_pylist() == ["flood"]


def test_too_many_rows_are_not_returned() -> None:
    current = CurrentRows(ARRIVED, table([(name, 0, "fire", 60.0, 60.0, 1) for name in "abc"]), 1)
    point = [pa.chunked_array([[60.0]]), pa.chunked_array([[60.0]])]
    fire = [pa.chunked_array([["fire"]])]
    assert current.near_to(("lat", "lon"), point, 10.0, 2) is None is current.equal_to(["kind"], fire, 2)
    near, equal = current.near_to(("lat", "lon"), point, 10.0, 3), current.equal_to(["kind"], fire, 3)
    assert near is not None and equal is not None and near.tolist() == equal.tolist() == [0, 1, 2]


@pytest.mark.parametrize(("most", "compared"), [(2_000, [500]), (7_500, [500, 8_000]), (8_000, [500, 8_000])])
def test_look_at_a_part_of_the_rows_ends_hopeless_searches(
    most: int, compared: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = []

    def counted(*columns: Any) -> Any:
        pairs.append(len(columns[0]))
        return are_near(*columns)

    monkeypatch.setattr(current_rows, "are_near", counted)
    monkeypatch.setattr(current_rows, "SAMPLED_PAIRS", 0)
    current = CurrentRows(ARRIVED, table([(f"p{n}", 0, "fire", 60.0, 60.0, 1) for n in range(8_000)]), 1)
    point = [pa.chunked_array([[60.0]]), pa.chunked_array([[60.0]])]
    slots = current.near_to(("lat", "lon"), point, 10.0, most)
    assert pairs == compared
    assert (slots is not None and len(slots) == 8_000) if most == 8_000 else slots is None


@pytest.mark.parametrize("key", ["lat", "kind"])
def test_datasets_with_keys_that_do_not_compare_like_bits_are_not_held(key: str) -> None:
    dataset = Dataset(DatasetName("Places"), DatasetKind.KEYED, SCHEMA, (key,))
    assert can_hold(dataset, ARROW) == (key == "kind")
    by_degrees = Dataset(DatasetName("Places"), DatasetKind.KEYED, SCHEMA, ("name",), order_by="lat")
    assert not can_hold(by_degrees, ARROW)
    assert not can_hold(Dataset(DatasetName("Teams"), DatasetKind.STATIC, SCHEMA), ARROW)
