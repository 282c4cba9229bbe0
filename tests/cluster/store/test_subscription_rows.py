"""Subscriptions in memory: all of them, those above a number, and those with some values."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.cluster.sql.result_columns import SUBSCRIPTION
from tocsin.cluster.store import subscription_rows
from tocsin.cluster.store.subscription_rows import SubscriptionRows
from tocsin.model.schema import Schema

PARAMETERS = Schema.of(kind="STRING", n="INT", day="DATE", flag="BOOLEAN", radius_m="DOUBLE")
kinds = st.sampled_from(["fire", "flood", "it's", "", "7"])
steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.lists(st.tuples(kinds, st.integers(0, 2)), max_size=5)),
        st.tuples(st.just("remove"), st.lists(st.integers(1, 40), max_size=5)),
    ),
    max_size=20,
)


def column(values: list[object], kind: pa.DataType) -> pa.ChunkedArray:
    return pa.chunked_array([pa.array(values, kind)])


@given(steps, st.lists(st.tuples(st.none() | kinds, st.integers(0, 3)), max_size=4), st.integers(0, 3))
def test_rows_are_found_by_their_values(steps: list, asked: list, compact_least: int) -> None:  # type: ignore[type-arg]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subscription_rows, "COMPACT_LEAST", compact_least)
        rows, plain, newest = SubscriptionRows(PARAMETERS), dict[int, tuple[str, int]](), 0
        for step, values in steps:
            if step == "add":
                numbered = list(enumerate(values, newest + 1))
                rows.add((number, json.dumps([kind, n, "2026-11-17", True, 5.0])) for number, (kind, n) in numbered)
                plain.update(numbered)
                newest += len(values)
            else:
                rows.remove(set(values))
                plain = {number: value for number, value in plain.items() if number not in values}
        assert rows.newest == newest and len(rows) == len(plain)
        assert rows.after(0)[SUBSCRIPTION].to_pylist() == sorted(plain)
        assert rows.after(3)[SUBSCRIPTION].to_pylist() == sorted(number for number in plain if number > 3)
        values = [column([kind for kind, _ in asked], pa.string()), column([n for _, n in asked], pa.int32())]
        together = rows.matching([(("kind", "n"), values)], 100)
        apart = rows.matching([(("kind",), values[:1]), (("n",), values[1:])], 100)
        assert together is not None and apart is not None
        assert together[SUBSCRIPTION].to_pylist() == [n for n, value in sorted(plain.items()) if value in asked]
        expected = [
            number
            for number, (kind, n) in sorted(plain.items())
            if kind in [kind for kind, _ in asked] and n in [n for _, n in asked]
        ]
        assert apart[SUBSCRIPTION].to_pylist() == expected


def test_values_of_every_type_are_compared_as_values() -> None:
    rows = SubscriptionRows(PARAMETERS)
    rows.add([(1, json.dumps(["1", 1, "2026-11-17", True, 1.0])), (2, json.dumps(["0", 0, "2026-11-18", False, 2.0]))])
    kinds = {"kind": pa.string(), "n": pa.int32(), "day": pa.date32(), "flag": pa.bool_()}
    stored: dict[str, list[object]] = {"kind": ["1"], "n": [1], "day": ["2026-11-17"], "flag": [True]}
    for name, values in stored.items():
        chosen = column(values, pa.string()).cast(kinds[name]) if name == "day" else column(values, kinds[name])
        found = rows.matching([((name,), [chosen])], 10)
        assert found is not None and found.to_pylist() == [
            {SUBSCRIPTION: 1, "kind": "1", "n": "1", "day": "2026-11-17", "flag": "true", "radius_m": "1.0"}
        ]
    assert rows.matching([(("kind",), [column(["0", "1"], pa.string())])], 1) is None, "too many"
