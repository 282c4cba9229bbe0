"""`tocsin bench edge`: one node, filter → window aggregate, beside bytewax on the same readings in the same run.

Each engine gets the readings in memory in the form it takes: Arrow batches for an edge node, Python tuples for bytewax.
What it costs to make Arrow batches from Python tuples first is measured too (`from_rows_tuples_per_cpu_s`). The answers
of both are compared before anything is reported. CPU seconds are those of this process, all its threads.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_ROWS = 4_096
"""Readings an edge node takes at once, and the batch size of bytewax's source: the same."""
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
"""With the three numbers above; a difference would show, because answers are compared."""
Answer = dict[tuple[str, int], tuple[float, int]]
"""(meter, window start in seconds) → (total, readings)."""


def register(app: typer.Typer) -> None:
    app.command()(edge)


def edge(
    readings: Annotated[int, typer.Option(min=1_000, help="How many readings each engine gets.")] = 500_000,
    repeat: Annotated[int, typer.Option(min=1, help="Rounds; the median of each engine counts.")] = 3,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line.")] = False,
) -> None:
    """Measure an edge node: readings per CPU second through a filter and a window aggregate."""
    try:
        import bytewax  # noqa: F401
    except ImportError:
        typer.echo("tocsin bench edge: bytewax is a development dependency and is not installed", err=True)
        raise typer.Exit(2) from None
    rows, batches = make_readings(readings)
    found = [measure(rows, batches) for _ in range(repeat)]
    middle = [sorted(costs)[repeat // 2] for costs in zip(*(one.cpu_s for one in found), strict=True)]
    edge_rate, rows_rate, bytewax_rate = (readings / cost_s for cost_s in middle)
    answer = {
        "readings": readings,
        "rounds": repeat,
        "windows": found[0].windows,
        "tuples_per_cpu_s": round(edge_rate),
        "from_rows_tuples_per_cpu_s": round(rows_rate),
        "bytewax_tuples_per_cpu_s": round(bytewax_rate),
        "ratio": round(edge_rate / bytewax_rate, 2),
        "from_rows_ratio": round(rows_rate / bytewax_rate, 2),
    }
    if as_json:
        typer.echo(json.dumps(answer))
        return
    typer.echo(
        f"filter → window aggregate of {readings:,} readings, {found[0].windows:,} equal results, per CPU second:"
    )
    typer.echo(f"  edge node      {edge_rate:>12,.0f}   ({answer['ratio']} × bytewax)")
    typer.echo(f"  … from tuples  {rows_rate:>12,.0f}   ({answer['from_rows_ratio']} × bytewax)")
    typer.echo(f"  bytewax        {bytewax_rate:>12,.0f}")


@dataclass(frozen=True, slots=True)
class Measured:
    cpu_s: tuple[float, float, float]
    """Edge node, edge node from tuples, bytewax."""
    windows: int


def make_readings(count: int) -> tuple[list[tuple[datetime, str, float]], list[pa.RecordBatch]]:
    """Meters report in turn, up to 5 s out of order. The same readings as tuples and as Arrow batches."""
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


def as_batch(rows: list[tuple[datetime, str, float]]) -> pa.RecordBatch:
    import pyarrow as pa

    times, meters, values = zip(*rows, strict=True)
    columns = [pa.array(times, pa.timestamp("us", "UTC")), pa.array(meters), pa.array(values)]
    return pa.RecordBatch.from_arrays(columns, names=["ts", "meter", "kwh"])


def measure(rows: list[tuple[datetime, str, float]], batches: list[pa.RecordBatch]) -> Measured:
    """One round of all three; raises if the answers differ."""
    chunks = [rows[first : first + BATCH_ROWS] for first in range(0, len(rows), BATCH_ROWS)]
    ours, ours_s = _timed(lambda: through_edge_node(batches))
    converted, converted_s = _timed(lambda: through_edge_node([as_batch(chunk) for chunk in chunks]))
    theirs, theirs_s = _timed(lambda: through_bytewax(rows))
    if not ours == converted == theirs:
        differing = {key for key in ours.keys() | theirs.keys() if ours.get(key) != theirs.get(key)}
        raise RuntimeError(f"{len(differing)} of {len(ours)} windows differ, as {sorted(differing)[:3]}")
    return Measured((ours_s, converted_s, theirs_s), len(ours))


def _timed(work: Callable[[], Answer]) -> tuple[Answer, float]:
    before_s = time.process_time()
    answer = work()
    return answer, time.process_time() - before_s


def through_edge_node(batches: list[pa.RecordBatch]) -> Answer:
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
    plan = lay_out(query, {"Readings": [tree.root]})
    node = EdgeNode(tree.root, tree, [plan], lowest_placement(plan, tree), memory_bytes=1 << 30)
    answer: Answer = {}
    events: list[Any] = [ReadingsArrived("Readings", batch) for batch in batches]
    for event in (*events, WatermarkAdvanced("Readings", END_OF_TIME_US)):
        for effect in node.handle(event, 0.0):
            if isinstance(effect, EmitResult):
                columns = effect.batch.to_pydict()
                for meter, since, total, count in zip(*columns.values(), strict=True):
                    answer[meter, int(since.timestamp())] = (total, count)
    return answer


def through_bytewax(rows: list[tuple[datetime, str, float]]) -> Answer:
    import bytewax.operators as op
    from bytewax.dataflow import Dataflow
    from bytewax.operators import windowing
    from bytewax.testing import TestingSink, TestingSource, run_main

    out: list[tuple[str, tuple[int, tuple[float, int]]]] = []
    # Its watermark also moves with the system's clock. Stop that clock: on a busy machine it makes readings late. And
    # ask for no wake-ups: windows of the past would be due at once, again and again, at a cost that is not the query's.
    clock = windowing.EventClock(
        _time_of, timedelta(seconds=LATENESS_S), now_getter=lambda: EPOCH, to_system_utc=lambda _: None
    )
    windower = windowing.TumblingWindower(length=timedelta(seconds=WINDOW_S), align_to=EPOCH)
    flow = Dataflow("bench")
    readings = op.input("readings", flow, TestingSource(rows, batch_size=BATCH_ROWS))
    large = op.filter("large", readings, lambda row: row[2] > LEAST_KWH)
    keyed = op.key_on("meter", large, lambda row: row[1])
    totals = windowing.fold_window(
        "total", keyed, clock, windower, lambda: (0.0, 0), lambda sofar, row: (sofar[0] + row[2], sofar[1] + 1),
        lambda one, other: (one[0] + other[0], one[1] + other[1]),
    )  # fmt: skip
    op.output("out", totals.down, TestingSink(out))
    run: Any = run_main  # not typed by bytewax
    run(flow)
    return {(meter, number * WINDOW_S): total for meter, (number, total) in out}


def _time_of(row: tuple[datetime, str, float]) -> datetime:
    return row[0]
