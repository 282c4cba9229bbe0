"""`tocsin bench edge`: filter → window aggregate on one edge node.

Timed: CPU seconds of this process, all its threads, from readings in memory to a dictionary of windows: for an edge
node that gets the readings as Python tuples and makes Arrow batches of them, and for one that gets Arrow batches.
Compared with: bytewax, from the same tuples; DuckDB and Arrow's own functions, from the same Arrow batches. Each engine
has one thread and the same batches. All engines run once before (in turn, on a part of the readings), and then in
turn in every round, in another order each time.
Checked by: all of them. The windows of all engines must be equal in every round.
Prints: readings per CPU second of each engine, the ratios (the median over the rounds of edge node ÷ peer in the same
round, and the lowest and highest), and the versions.
"""

from __future__ import annotations

import gc
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Annotated, Any

import typer

from tocsin.benchmarks.shared.harness import announce, command, timed
from tocsin.benchmarks.shared.window_engines import (
    BATCH_ROWS,
    Windows,
    make_readings,
    through_arrow,
    through_arrow_at_once,
    through_bytewax,
    through_duckdb,
    through_edge_node,
    through_edge_node_from_rows,
)

WARM_UP_BATCHES = 10
RATIOS = {
    "ratio_bytewax_rows": ("edge_from_rows", "bytewax"),
    "ratio_bytewax_batches": ("edge", "bytewax"),
    "ratio_arrow": ("edge", "arrow"),
    "ratio_arrow_at_once": ("edge", "arrow_at_once"),
    "ratio_duckdb": ("edge", "duckdb"),
}
"""The first is like for like: both engines get Python tuples. `ratio_bytewax_batches` leaves our conversion out."""
Engines = Mapping[str, Callable[[], Windows]]


def edge(
    readings: Annotated[int, typer.Option(min=1_000, help="How many readings each engine gets.")] = 500_000,
    repeat: Annotated[int, typer.Option(min=1, help="Rounds, in each of which every engine runs once.")] = 5,
) -> dict[str, Any]:
    """Measure an edge node: readings per CPU second through a filter and a window aggregate."""
    rows, batches = make_readings(readings)
    run_round(engines_for(rows[: WARM_UP_BATCHES * BATCH_ROWS], batches[:WARM_UP_BATCHES]), 0)
    rounds = [run_round(engines_for(rows, batches), number) for number in range(repeat)]
    cpu_s = [seconds for _, seconds, _ in rounds]
    figures: dict[str, Any] = {"readings": readings, "rounds": repeat, "windows": rounds[0][0]}
    for ratio, (ours, peer) in RATIOS.items():
        ratios = [seconds[peer] / seconds[ours] for seconds in cpu_s]
        figures[ratio] = round(statistics.median(ratios), 3)
        figures[f"{ratio.replace('ratio', 'ratios')}"] = [round(min(ratios), 3), round(max(ratios), 3)]
    for engine in cpu_s[0]:
        figures[f"{engine}_per_cpu_s"] = round(readings / statistics.median(seconds[engine] for seconds in cpu_s))
    packages = {package: version(package) for package in ("bytewax", "duckdb", "pyarrow", "numpy")}
    figures["versions"] = {"python": platform.python_version(), **packages}
    figures["correct"] = all(is_equal for _, _, is_equal in rounds)
    return figures


register = command(edge, needs=("bytewax", "duckdb"))


def engines_for(rows: Any, batches: Any) -> Engines:
    return {
        "edge": lambda: through_edge_node(batches),
        "arrow": lambda: through_arrow(batches),
        "arrow_at_once": lambda: through_arrow_at_once(batches),
        "duckdb": lambda: through_duckdb(batches),
        "edge_from_rows": lambda: through_edge_node_from_rows(rows),
        "bytewax": lambda: through_bytewax(rows),
    }


def run_round(engines: Engines, number: int) -> tuple[int, dict[str, float], bool]:
    """(windows of the edge node, CPU seconds of each engine, whether all windows are equal)."""
    names = list(engines)
    first = number % len(names)
    expected: Windows = {}
    cpu_s, is_equal = {}, True
    for name in [*names[first:], *names[:first]]:
        gc.collect()
        windows, cpu_s[name] = timed(engines[name], time.process_time)
        expected = expected or windows
        if windows != expected or not windows:
            differing = [key for key in windows.keys() | expected.keys() if windows.get(key) != expected.get(key)]
            announce(f"{name}: {len(differing)} of {len(expected)} windows differ, as {sorted(differing)[:3]}")
            is_equal = False
    return len(expected), {name: cpu_s[name] for name in names}, is_equal
