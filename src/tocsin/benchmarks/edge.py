"""`tocsin bench edge`: filter → window aggregate on one edge node.

Timed: CPU seconds of this process, all its threads, for an edge node that takes its readings as Arrow batches from
memory. The cost of making Arrow batches from Python tuples first is measured too (`from_rows_tuples_per_cpu_s`).
Compared with: bytewax, which takes the same readings as Python tuples from memory, in the same run.
Checked by: bytewax. The windows of both engines must be equal before any figure is printed.
Prints: readings per CPU second of the edge node, of the edge node from tuples and of bytewax, and the ratios.
"""

from __future__ import annotations

import statistics
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tocsin.benchmarks.shared.harness import command, timed

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_ROWS = 4_096
"""Readings in a batch of the edge node, and in a batch of bytewax's source."""
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


def edge(
    readings: Annotated[int, typer.Option(min=1_000, help="How many readings each engine gets.")] = 500_000,
    repeat: Annotated[int, typer.Option(min=1, help="Rounds; the median of each engine counts.")] = 3,
) -> dict[str, Any]:
    """Measure an edge node: readings per CPU second through a filter and a window aggregate."""
    rows, batches = make_readings(readings)
    rounds = [measure(rows, batches) for _ in range(repeat)]
    edge_rate, rows_rate, bytewax_rate = (
        readings / statistics.median_high(cpu_s) for cpu_s in zip(*(cpu_s for _, cpu_s in rounds), strict=True)
    )
    return {
        "readings": readings,
        "rounds": repeat,
        "windows": rounds[0][0],
        "tuples_per_cpu_s": round(edge_rate),
        "from_rows_tuples_per_cpu_s": round(rows_rate),
        "bytewax_tuples_per_cpu_s": round(bytewax_rate),
        "ratio": round(edge_rate / bytewax_rate, 2),
        "from_rows_ratio": round(rows_rate / bytewax_rate, 2),
    }


register = command(edge, needs=("bytewax",))


def measure(rows: Readings, batches: list[pa.RecordBatch]) -> tuple[int, tuple[float, float, float]]:
    """Count of windows, and CPU seconds of edge node, edge node from tuples, bytewax. Raises if the windows differ."""
    chunks = [rows[first : first + BATCH_ROWS] for first in range(0, len(rows), BATCH_ROWS)]
    ours, ours_s = timed(lambda: through_edge_node(batches), time.process_time)
    converted, converted_s = timed(lambda: through_edge_node([as_batch(chunk) for chunk in chunks]), time.process_time)
    theirs, theirs_s = timed(lambda: through_bytewax(rows), time.process_time)
    if not ours == converted == theirs:
        differing = {key for key in ours.keys() | theirs.keys() if ours.get(key) != theirs.get(key)}
        raise RuntimeError(f"{len(differing)} of {len(ours)} windows differ, as {sorted(differing)[:3]}")
    return len(ours), (ours_s, converted_s, theirs_s)


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
    return rows, [as_batch(rows[first : first + BATCH_ROWS]) for first in range(0, count, BATCH_ROWS)]


def as_batch(rows: Readings) -> pa.RecordBatch:
    import pyarrow as pa

    times, meters, values = zip(*rows, strict=True)
    columns = [pa.array(times, pa.timestamp("us", "UTC")), pa.array(meters), pa.array(values)]
    return pa.RecordBatch.from_arrays(columns, names=["ts", "meter", "kwh"])


def through_edge_node(batches: list[pa.RecordBatch]) -> Windows:
    """A whole edge node, as it runs live: compile, read, aggregate, emit."""
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
                columns = effect.batch.to_pydict()
                for meter, since, total, count in zip(*columns.values(), strict=True):
                    windows[meter, int(since.timestamp())] = (total, count)
    return windows


def through_bytewax(rows: Readings) -> Windows:
    import bytewax.operators as op
    from bytewax.dataflow import Dataflow
    from bytewax.operators import windowing
    from bytewax.testing import TestingSink, TestingSource, run_main

    out: list[tuple[str, tuple[int, tuple[float, int]]]] = []
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
    )
    op.output("out", totals.down, TestingSink(out))
    run: Any = run_main  # not typed by bytewax
    run(flow)
    return {(meter, number * WINDOW_S): total for meter, (number, total) in out}
