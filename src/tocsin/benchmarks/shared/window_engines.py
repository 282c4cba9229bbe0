"""The engines of `bench edge`: the same query, a filter and an aggregate per meter and minute, in several ways.

Each takes the readings in the same batches, from memory, and returns the same dictionary of windows. Each uses one
thread. Heavy imports are inside the functions, because `tocsin --help` imports this module.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_ROWS = 4_096
"""Readings in a batch of every engine."""
METERS = 500
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
WINDOW_S = 60
LATENESS_S = 10
LEAST_KWH = 0.25
QUERY = """
CREATE EDGE QUERY Use LATENESS 10 SECONDS AS
SELECT meter, window.start AS since, SUM(kwh) AS total, COUNT(*) AS readings
FROM Readings WHERE kwh > 0.25 GROUP BY meter, WINDOW(ts, '60 seconds')
"""
"""Repeats the three numbers above; a difference would fail the comparison of the windows."""
Readings = list[tuple[datetime, str, float]]
"""(time, meter, kWh)."""
Windows = dict[tuple[str, int], tuple[float, int]]
"""(meter, window start in seconds) → (total, readings)."""


def make_readings(count: int) -> tuple[Readings, list[pa.RecordBatch]]:
    """The same readings as tuples and as Arrow batches, up to 5 s out of order."""
    import numpy as np

    rng = np.random.default_rng(8)
    seconds = np.arange(count) / 1_000 + rng.uniform(0, 5, count)
    numbers = rng.integers(METERS, size=count)
    kwh = rng.integers(0, 17, size=count) / 8  # eighths: sums do not depend on the order of addition
    start = datetime(2026, 1, 1, tzinfo=UTC)
    rows = [
        (start + timedelta(seconds=float(at)), f"meter-{number:05d}", float(value))
        for at, number, value in zip(seconds, numbers, kwh, strict=True)
    ]
    return rows, [as_batch(chunk) for chunk in in_chunks(rows)]


def in_chunks(rows: Readings) -> list[Readings]:
    return [rows[first : first + BATCH_ROWS] for first in range(0, len(rows), BATCH_ROWS)]


def as_batch(rows: Readings) -> pa.RecordBatch:
    import pyarrow as pa

    times, meters, values = zip(*rows, strict=True)
    columns = [pa.array(times, pa.timestamp("us", "UTC")), pa.array(meters), pa.array(values)]
    return pa.RecordBatch.from_arrays(columns, names=["ts", "meter", "kwh"])


def through_edge_node(batches: list[pa.RecordBatch]) -> Windows:
    """A whole edge node, as it runs live: compile, read, aggregate, close windows by watermark, emit."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from tocsin.edge.layout import lay_out, lowest_placement, prepare
    from tocsin.edge.node import EdgeNode, EmitResult, ReadingsArrived, WatermarkAdvanced
    from tocsin.edge.operators.contract import END_OF_TIME_US
    from tocsin.edge.plan import Stream
    from tocsin.edge.query import QueryRejected
    from tocsin.model.edge import EdgeNodeId, Tree
    from tocsin.model.schema import Schema

    stream = Stream(Schema.of(ts="TIMESTAMP", meter="STRING", kwh="DOUBLE"), "ts")
    query = prepare(QUERY, {"Readings": stream})
    if isinstance(query, QueryRejected):
        raise RuntimeError(query.reason)
    tree = Tree({}, EdgeNodeId("alone"))
    plan = lay_out(query, {"Readings": [tree.root]}, tree)
    node = EdgeNode(tree.root, tree, [plan], lowest_placement(plan, tree), memory_bytes=1 << 30)
    windows: Windows = {}
    events: list[Any] = [ReadingsArrived("Readings", batch) for batch in batches]
    for event in (*events, WatermarkAdvanced("Readings", END_OF_TIME_US)):
        for effect in node.handle(event, 0.0):
            if isinstance(effect, EmitResult) and effect.batch is not None:
                meters, times, totals, counts = effect.batch.columns
                seconds = pc.divide(times.cast(pa.int64()), 1_000_000)
                keys = zip(meters.to_pylist(), seconds.to_pylist(), strict=True)
                windows.update(zip(keys, zip(totals.to_pylist(), counts.to_pylist(), strict=True), strict=True))
    return windows


def through_edge_node_from_rows(rows: Readings) -> Windows:
    return through_edge_node([as_batch(chunk) for chunk in in_chunks(rows)])


def through_bytewax(rows: Readings) -> Windows:
    import bytewax.operators as op
    from bytewax.dataflow import Dataflow
    from bytewax.operators import windowing
    from bytewax.testing import TestingSink, TestingSource, run_main

    out: list[tuple[str, tuple[int, tuple[float, int]]]] = []
    # `ordered=False`: a sum needs no order, and bytewax need not sort the rows of a key.
    # bytewax also advances its watermark with the system's clock. That clock is stopped, because on a busy machine it
    # makes readings late. Wake-ups are off: windows of the past would be due at once, again and again, at a cost that
    # is not the query's.
    clock: Any = windowing.EventClock(
        lambda row: row[0], timedelta(seconds=LATENESS_S), now_getter=lambda: EPOCH, to_system_utc=lambda _: None
    )
    windower = windowing.TumblingWindower(length=timedelta(seconds=WINDOW_S), align_to=EPOCH)
    flow = Dataflow("bench")
    readings = op.input("readings", flow, TestingSource(rows, batch_size=BATCH_ROWS))
    large = op.filter("large", readings, lambda row: row[2] > LEAST_KWH)
    keyed = op.key_on("meter", large, lambda row: row[1])
    totals = windowing.fold_window(
        "total",
        keyed,
        clock,
        windower,
        builder=lambda: (0.0, 0),
        folder=lambda total, row: (total[0] + row[2], total[1] + 1),
        merger=lambda left, right: (left[0] + right[0], left[1] + right[1]),
        ordered=False,
    )
    op.output("out", totals.down, TestingSink(out))
    run: Any = run_main  # not typed by bytewax
    run(flow)
    return {(meter, number * WINDOW_S): total for meter, (number, total) in out}


def through_arrow(batches: list[pa.RecordBatch]) -> Windows:
    """Arrow's functions alone: group each batch, then group the groups. Less work than the edge node has: no watermark,
    no late readings, nothing is emitted before the end."""
    import pyarrow as pa

    return _as_windows(_grouped(pa.concat_tables(map(_grouped_batch, batches)), ("total", "sum"), ("readings", "sum")))


def through_arrow_at_once(batches: list[pa.RecordBatch]) -> Windows:
    """The same with all readings as one batch, which no stream allows."""
    import pyarrow as pa

    (whole,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return _as_windows(_grouped_batch(whole))


def _grouped_batch(batch: pa.RecordBatch) -> pa.Table:
    import pyarrow as pa
    import pyarrow.compute as pc

    rows = batch.filter(pc.greater(batch.column("kwh"), LEAST_KWH))
    windows = pc.divide(rows.column("ts").cast(pa.int64()), WINDOW_S * 1_000_000)
    columns = {"meter": rows.column("meter"), "window": windows, "total": rows.column("kwh")}
    columns["readings"] = columns["total"]
    return _grouped(pa.table(columns), ("total", "sum"), ("readings", "count"))


def _grouped(table: pa.Table, *calls: tuple[str, str]) -> pa.Table:
    grouped = table.group_by(["meter", "window"], use_threads=False).aggregate(list(calls))
    names = ["meter", "window", *(name for name, _ in calls)]
    return grouped.select([*names[:2], *("_".join(call) for call in calls)]).rename_columns(names)


def _as_windows(table: pa.Table) -> Windows:
    import pyarrow.compute as pc

    meters, windows, totals, counts = table.columns
    keys = zip(meters.to_pylist(), pc.multiply(windows, WINDOW_S).to_pylist(), strict=True)
    return dict(zip(keys, zip(totals.to_pylist(), counts.to_pylist(), strict=True), strict=True))


def through_duckdb(batches: list[pa.RecordBatch]) -> Windows:
    """DuckDB reads the batches one after another, in one query over all of them."""
    import duckdb
    import pyarrow as pa

    with duckdb.connect(config={"threads": 1}) as connection:
        connection.register("readings", pa.RecordBatchReader.from_batches(batches[0].schema, batches))
        answer = connection.execute(
            "SELECT meter, epoch_us(ts) // ? AS since, sum(kwh), count(*) FROM readings WHERE kwh > ? GROUP BY ALL",
            [WINDOW_S * 1_000_000, LEAST_KWH],
        )
        return {(meter, since * WINDOW_S): (total, count) for meter, since, total, count in answer.fetchall()}
