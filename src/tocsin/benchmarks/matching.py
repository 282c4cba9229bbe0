"""`tocsin bench matching`: the capacity of one broker for topics on this machine, and settings that state it.

The thesis computes the matching capacity C_m of a broker by factorial experiments before it runs [ePEER §4.4.1.1,
§3.2.1]; it does not state the factors' levels. Here every combination of two levels of four factors is a cell: bytes of
a message (200 and 1,000, the range of sensor data in §4.5.1.2), topics, subscribers per topic, and the rate (one at
which the broker is nearly idle, or as fast as it acknowledges).
Timed: the CPU time (user and system) of the broker's process per message. A broker has one event loop, so it handles
`messages_per_cpu_s` messages in a second in which it gets a whole core. Other work on the machine changes this less
than it would change a throughput.
Checked by: the load, which expects every message in order at every subscriber.
Prints: for each cell messages, bytes in and bytes out per CPU second; the main effect of each factor (the figure at its
high level over that at its low level, geometric means over all other factors); and `suggested` settings, for the share
of a core given with `--share`. They come from the cells with the highest rate: matching from those with few
subscribers, where a message costs most by itself; output from those with many; input from those with few and large
messages. Each is the lowest of its cells, so that no other mix of the same sizes overloads the machine.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import typer

from tocsin.benchmarks.shared.harness import announce, command, temporary_folder
from tocsin.benchmarks.shared.processes import run_load
from tocsin.benchmarks.shared.topic_servers import matching_broker

WARM_UP_S = 0.3
LIMIT_S = 180.0


@dataclass(frozen=True, slots=True)
class Cell:
    payload_bytes: int
    topics: int
    subscribers: int
    """Of each topic."""
    rate_per_s: int
    """Messages per second over all topics; 0: as fast as the broker acknowledges."""

    def __str__(self) -> str:
        rate = f"{self.rate_per_s:,}/s" if self.rate_per_s else "saturated"
        return f"{self.payload_bytes:,} B, {self.topics} topics of {self.subscribers} subscribers, {rate}"


def matching(
    payloads: Annotated[str, typer.Option(help="Bytes of a message: two levels, separated by a comma.")] = "200,1000",
    topics: Annotated[str, typer.Option(help="Topics: two levels.")] = "1,20",
    subscribers: Annotated[str, typer.Option(help="Subscribers per topic: two levels.")] = "1,10",
    rates: Annotated[str, typer.Option(help="Messages per second: two levels; 0 saturates the broker.")] = "200,0",
    seconds: Annotated[float, typer.Option(help="Seconds of each cell, after the warm-up.")] = 2.0,
    rounds: Annotated[int, typer.Option(help="Rounds over all cells; each figure is a median.", min=1)] = 1,
    share: Annotated[float, typer.Option(help="Share of a core for topics, for the suggested settings.")] = 0.7,
) -> dict[str, Any]:
    """Capacity of one broker for topics: input and output in bytes/s, matching in messages/s (factorial)."""
    levels = [[int(level) for level in text.split(",")] for text in (payloads, topics, subscribers, rates)]
    return asyncio.run(measure(levels, seconds, rounds, share))


register = command(matching)


async def measure(levels: Sequence[Sequence[int]], seconds: float, rounds: int, share: float) -> dict[str, Any]:
    cells = [Cell(*combination) for combination in itertools.product(*levels)]
    names = [f"bench/{number}" for number in range(max(cell.topics for cell in cells))]
    measured: dict[Cell, list[float]] = {cell: [] for cell in cells}
    with temporary_folder() as name:
        folder = Path(name)
        async with matching_broker(folder / "broker", names) as server:
            for _ in range(rounds):
                for cell in cells:
                    task = asdict(server) | asdict(cell) | {"topics": names[: cell.topics], "seconds": seconds}
                    figures = await _run_load(task | {"warm_up_s": WARM_UP_S}, folder)
                    measured[cell].append(figures["messages_per_cpu_s"])
                    announce(f"{cell}: {measured[cell][-1]:,.0f} messages per CPU second")
    rows = [row_of(cell, statistics.median(values)) for cell, values in measured.items()]
    return {
        "suggested": suggested(rows, share),
        "effects": effects(rows),
        "rows": rows,
        "share": share,
        "seconds": seconds,
        "rounds": rounds,
        "load_after": round(os.getloadavg()[0], 2),
        "correct": True,
    }


async def _run_load(task: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Raises if a message is missing or out of order."""
    figures = await run_load("matching_load", task, folder, LIMIT_S)
    if figures is None:
        raise RuntimeError("the broker did not deliver every message in order; see above")
    return figures


def row_of(cell: Cell, messages_per_cpu_s: float) -> dict[str, Any]:
    in_bytes = messages_per_cpu_s * cell.payload_bytes
    return asdict(cell) | {
        "messages_per_cpu_s": messages_per_cpu_s,
        "in_bytes_per_cpu_s": in_bytes,
        "out_bytes_per_cpu_s": in_bytes * cell.subscribers,
    }


def effects(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Factor → its main effect on messages per CPU second. A factor with one level has none."""
    found = {}
    for factor in (field.name for field in fields(Cell)):
        levels = _levels(rows, factor)
        if len(levels) > 1:
            low, high = (_mean(rows, factor, level) for level in (levels[0], levels[-1]))
            found[factor] = high / low
    return found


def _levels(rows: Sequence[dict[str, Any]], factor: str) -> list[int]:
    """The levels of a factor, in order. The rate 0 saturates the broker: it is the highest."""
    return sorted({row[factor] for row in rows}, key=lambda level: (factor == "rate_per_s" and not level, level))


def _mean(rows: Sequence[dict[str, Any]], factor: str, level: int) -> float:
    return statistics.geometric_mean(row["messages_per_cpu_s"] for row in rows if row[factor] == level)


def suggested(rows: Sequence[dict[str, Any]], share: float) -> dict[str, int]:
    """Settings of a broker on this machine, rounded down to two digits.

    Only the cells with the highest rate count: in a broker that is nearly idle, each message wakes the process up, and
    costs many times as much as in one that is not.
    """
    highest = _levels(rows, "rate_per_s")[-1]
    rows = [row for row in rows if row["rate_per_s"] == highest]
    few, many = (choose(row["subscribers"] for row in rows) for choose in (min, max))
    large = max(row["payload_bytes"] for row in rows)
    lowest = {
        "topic_in_bytes_per_s": _lowest(rows, "in_bytes_per_cpu_s", subscribers=few, payload_bytes=large),
        "topic_out_bytes_per_s": _lowest(rows, "out_bytes_per_cpu_s", subscribers=many),
        "topic_matched_per_s": _lowest(rows, "messages_per_cpu_s", subscribers=few),
    }
    return {name: _rounded(share * value) for name, value in lowest.items()}


def _lowest(rows: Sequence[dict[str, Any]], figure: str, **levels: int) -> float:
    return min(float(row[figure]) for row in rows if all(row[name] == level for name, level in levels.items()))


def _rounded(value: float) -> int:
    unit = int(10 ** max(0, len(str(int(value))) - 2))
    return int(value) // unit * unit
