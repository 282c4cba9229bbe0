"""Single operators: exact results, late rows, and a snapshot at any point without effect on the results."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.edge.edge_readings import SECOND, alarms, in_seconds, reading_batches, readings
from tocsin.edge.operators.aggregate import Aggregation, WindowAggregateSpec
from tocsin.edge.operators.contract import BEGINNING_OF_TIME_US, END_OF_TIME_US, Operator, Specification
from tocsin.edge.operators.ordered import IntervalJoinSpec, SortSpec
from tocsin.edge.operators.stateless import Call, ColumnRef, Constant, Filter, Map, Union

ALL = (
    Aggregation("total", "sum", "kwh"),
    Aggregation("readings", "count"),
    Aggregation("known", "count", "kwh"),
    Aggregation("least", "min", "kwh"),
    Aggregation("most", "max", "kwh"),
)
TUMBLING = WindowAggregateSpec(("meter",), "ts", 10 * SECOND, 10 * SECOND, ALL)
SLIDING = WindowAggregateSpec(("meter",), "ts", 10 * SECOND, 4 * SECOND, ALL)
BEGINNING = BEGINNING_OF_TIME_US


def test_filter_keeps_true_and_drops_null() -> None:
    operator = Filter(Call(">", (ColumnRef("kwh"), Constant(1)))).create()
    batch = readings((0, "a", 2.0, 1), (1, "b", 1.0, 1), (2, "c", None, 1))
    assert in_seconds(operator.on_batch(0, batch, BEGINNING)) == [(0.0, "a", 2.0, 1)]


def test_map_computes_columns_and_division_by_zero_is_null() -> None:
    operator = Map((("name", ColumnRef("meter")), ("ratio", Call("/", (Constant(1), ColumnRef("kwh")))))).create()
    batch = readings((0, "a", 4.0, 1), (1, "b", 0.0, 1))
    assert in_seconds(operator.on_batch(0, batch, BEGINNING)) == [("a", 0.25), ("b", None)]


def test_union_passes_batches_of_every_port() -> None:
    operator = Union().create()
    batch = readings((0, "a", 4.0, 1))
    assert operator.on_batch(0, batch, BEGINNING) == operator.on_batch(1, batch, BEGINNING) == [batch]
    assert (operator.notify_at(), operator.state_bytes(), operator.snapshot()) == (None, 0, b"")


def test_tumbling_window_is_half_open_and_emitted_at_its_end() -> None:
    operator = TUMBLING.create()
    operator.on_batch(0, readings((0, "a", 1.0, 1), (9.999999, "a", 2.0, 1), (10, "a", 4.0, 1)), BEGINNING)
    operator.on_batch(0, readings((5, "b", None, 1)), BEGINNING)
    assert operator.notify_at() == 10 * SECOND
    assert in_seconds(operator.on_notify(10 * SECOND)) == [
        ("a", 3.0, 2, 2, 1.0, 2.0, 0.0, 10.0),
        ("b", None, 1, 0, None, None, 0.0, 10.0),
    ]
    assert operator.notify_at() == 20 * SECOND
    assert in_seconds(operator.on_notify(END_OF_TIME_US)) == [("a", 4.0, 1, 1, 4.0, 4.0, 10.0, 20.0)]
    assert (operator.notify_at(), operator.state_bytes()) == (None, 0)


def test_sliding_aggregate_counts_a_reading_in_each_of_its_windows() -> None:
    """Size 10 s, slide 4 s: a reading at 9 s is in [0, 10), [4, 14) and [8, 18); one at 3 s in [-4, 6) and [0, 10)."""
    operator = SLIDING.create()
    operator.on_batch(0, readings((9, "a", 1.0, 1), (3, "a", 2.0, 1)), BEGINNING)
    rows = in_seconds(operator.on_notify(END_OF_TIME_US))
    assert [(row[1], row[-2]) for row in rows] == [(2.0, -4.0), (3.0, 0.0), (1.0, 4.0), (1.0, 8.0)]


def test_late_reading_counts_in_open_windows_and_as_late_for_closed_ones() -> None:
    operator = SLIDING.create()
    operator.on_batch(0, readings((9, "a", 1.0, 1)), 12 * SECOND)
    assert operator.late_rows == 1  # [0, 10) is closed, [4, 14) and [8, 18) are not
    assert [row[-2] for row in in_seconds(operator.on_notify(END_OF_TIME_US))] == [4.0, 8.0]


def test_readings_without_a_time_are_in_no_window() -> None:
    operator = TUMBLING.create()
    operator.on_batch(0, readings((None, "a", 1.0, 1)), BEGINNING)
    assert operator.notify_at() is None


def test_distinct_count_of_nulls_alone_is_zero() -> None:
    for type_ in (pa.int64(), pa.float64(), pa.bool_(), pa.string(), pa.timestamp("us", "UTC")):
        distinct = (Aggregation("n", "distinct", "x"),)
        operator = WindowAggregateSpec(("k",), "t", 10 * SECOND, 10 * SECOND, distinct).create()
        times = pa.array([SECOND], pa.timestamp("us", "UTC"))
        batch = pa.RecordBatch.from_pydict({"k": ["a"], "t": times, "x": pa.array([None], type_)})
        assert operator.on_batch(0, batch, BEGINNING_OF_TIME_US) == []
        [result] = operator.on_notify(END_OF_TIME_US)
        assert result.column("n").to_pylist() == [0]


def test_aggregate_keeps_windows_and_not_readings() -> None:
    operator = TUMBLING.create()
    for start in range(0, 200_000, 10_000):
        rows = [(0.0 + (start + number) % 7, "a", 1.0, 1) for number in range(10_000)]
        operator.on_batch(0, readings(*rows), BEGINNING)
    assert operator.state_bytes() < 10_000
    assert in_seconds(operator.on_notify(END_OF_TIME_US))[0][1] == 200_000.0


JOIN = IntervalJoinSpec((("meter",), ("alarmed",)), ("ts", "at"), before_us=2 * SECOND, after_us=5 * SECOND)


def named_alarms(*rows: tuple[float, str | None, int | None]) -> pa.RecordBatch:
    return alarms(*rows).rename_columns(["at", "alarmed", "level"])


def test_join_matches_close_rows_in_either_order_and_drops_old_rows() -> None:
    operator = JOIN.create()
    assert operator.on_batch(0, readings((10, "a", 1.0, 1), (10, None, 1.0, 1)), BEGINNING) == []
    joined = operator.on_batch(1, named_alarms((8, "a", 1), (7.9, "a", 2), (15, "a", 3), (10, None, 4)), BEGINNING)
    assert sorted(row[-1] for row in in_seconds(joined)) == [1, 3]  # type: ignore[type-var]
    assert sorted(in_seconds(operator.on_batch(0, readings((9, "a", 7.0, 1)), BEGINNING))) == [
        (9.0, "a", 7.0, 1, 7.9, "a", 2),
        (9.0, "a", 7.0, 1, 8.0, "a", 1),
    ]
    assert operator.delay_us == 5 * SECOND
    operator.on_notify(15 * SECOND + 1)
    assert in_seconds(operator.on_batch(1, named_alarms((15.1, "a", 5)), 15 * SECOND + 1)) == []
    operator.on_notify(END_OF_TIME_US)
    assert operator.state_bytes() == 0


def test_join_drops_a_row_older_than_the_watermark() -> None:
    operator = JOIN.create()
    operator.on_batch(0, readings((10, "a", 1.0, 1)), 11 * SECOND)
    assert (operator.late_rows, operator.state_bytes()) == (1, 0)


def test_sort_emits_rows_in_order_when_no_earlier_row_can_arrive() -> None:
    operator = SortSpec(("ts", "meter")).create()
    operator.on_batch(0, readings((3, "b", 1.0, 1), (1, "z", 1.0, 1), (3, "a", 1.0, 1)), BEGINNING)
    assert operator.notify_at() == SECOND + 1
    assert [row[:2] for row in in_seconds(operator.on_notify(3 * SECOND))] == [(1.0, "z")]
    operator.on_batch(0, readings((2, "late", 1.0, 1)), 3 * SECOND)
    assert operator.late_rows == 1
    assert [row[:2] for row in in_seconds(operator.on_notify(END_OF_TIME_US))] == [(3.0, "a"), (3.0, "b")]


def through(
    spec: Specification, batches: list[pa.RecordBatch], moves: set[int], rising: bool
) -> list[tuple[object, ...]]:
    """Run an operator. Before each batch whose number is in `moves`, rebuild it from its snapshot."""
    operator: Operator = spec.create()
    out: list[pa.RecordBatch] = []
    watermark_us = BEGINNING
    for number, batch in enumerate(batches):
        if number in moves:
            state = operator.snapshot()
            operator = spec.create()
            operator.restore(state)
            assert operator.snapshot() == state
        out += operator.on_batch(0, batch, watermark_us)
        if rising:
            watermark_us = max(watermark_us, (number * 30 - 20) * SECOND)
            notify_at_us = operator.notify_at()
            if notify_at_us is not None and notify_at_us <= watermark_us:
                out += operator.on_notify(watermark_us)
    out += operator.on_notify(END_OF_TIME_US)
    return [*in_seconds(out), (operator.late_rows,)]


@settings(max_examples=60)
@given(
    reading_batches,
    st.sets(st.integers(0, 6)),
    st.booleans(),
    st.sampled_from([TUMBLING, SLIDING, SortSpec(("ts", "meter", "kwh", "zone"))]),
)
def test_snapshot_at_any_point_changes_no_result(
    batches: list[pa.RecordBatch], moves: set[int], rising: bool, spec: Specification
) -> None:
    assert through(spec, batches, moves, rising) == through(spec, batches, set(), rising)


@settings(max_examples=40)
@given(reading_batches, st.sampled_from([TUMBLING, SLIDING]))
def test_size_of_batches_changes_no_result(batches: list[pa.RecordBatch], spec: WindowAggregateSpec) -> None:
    single = [row for batch in batches for row in (batch.slice(number, 1) for number in range(batch.num_rows))]
    assert through(spec, batches, set(), False) == through(spec, single, set(), False)
