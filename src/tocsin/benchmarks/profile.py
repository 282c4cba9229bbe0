"""`tocsin bench profile`: how many messages a second a broker can send, as [ePulsar §5.4] finds it.

Timed: each delivery from its due time, and the CPU time (user and system) of the broker's process, at rates that rise
by half from step to step. A coordinator and a broker run as real processes; `shared/topic_load.py` is the publisher and
the subscribers, in an open loop.
Rows: messages of 128 B to 1, 10 and 100 subscribers. At most 1,000 frames a second are published; at higher rates
several messages share a frame.
A step passes if the broker uses at most `cpu` of a core and the 99th percentile stays within `latency_ms`. The knee is
the output rate of the last step that passes. If the load itself is late, the knee is a lower bound: `limited_by: load`.
Checked by: the load, which expects every message in order on every socket.
Prints: for each row the knee in messages/s (`output_per_s`), and the broker's CPU as base + slope per message sent, by
least squares over its steps. `topic_output_per_s`, the setting of the coordinator, is the lowest knee that the broker
itself set. If the load was the limit in every row, it is where the line of the row with most subscribers reaches the
limit of the CPU, and `extrapolated` is true: in that row most frames have one message.
"""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from tocsin.benchmarks.shared.harness import announce, command, temporary_folder
from tocsin.benchmarks.shared.processes import run_load
from tocsin.benchmarks.shared.topic_servers import TopicServer, topic_servers

FIRST_PER_S = 2_000.0
"""Output rate of the first step."""
STEP = 1.5
FRAMES_PER_S = 1_000
MOST_IN_PER_S = 45_000
"""One connection may publish 50,000 messages a second (`topic_rate_per_s`)."""
WARM_UP_S = 0.5
_OWN = ("cpu", "latency", "loss")
"""Limits that the broker itself sets; the others are limits of the benchmark."""
LIMIT_S = 60.0


@dataclass(frozen=True, slots=True)
class Step:
    """One measurement."""

    subscribers: int
    in_per_s: float
    out_per_s: float
    cpu: float
    """Cores that the broker used."""
    p50_s: float
    p99_s: float
    late_p99_s: float
    """How late the load sent, 99th percentile."""


def profile(
    seconds: Annotated[float, typer.Option(help="Seconds of each step, after the warm-up.")] = 2.0,
    subscribers: Annotated[str, typer.Option(help="Numbers of subscribers, separated by commas.")] = "1,10,100",
    payload: Annotated[int, typer.Option(help="Bytes of a message.", min=12)] = 128,
    latency_ms: Annotated[float, typer.Option(help="Largest 99th percentile of the latency.", min=0.1)] = 20.0,
    cpu: Annotated[float, typer.Option(help="Largest share of a core that the broker may use.", min=0.05)] = 0.85,
) -> dict[str, Any]:
    """Messages per second that a broker can send: the source of `topic_output_per_s`."""
    counts = [int(count) for count in subscribers.split(",")]
    return asyncio.run(measure(counts, seconds, payload, 1e-3 * latency_ms, cpu))


register = command(profile)


async def measure(counts: Sequence[int], seconds: float, payload: int, latency_s: float, cpu: float) -> dict[str, Any]:
    knees: list[dict[str, Any]] = []
    with temporary_folder() as name:
        async with topic_servers(Path(name)) as servers:
            for count in counts:
                steps, limited_by = await _raise_rate(servers[0], count, seconds, payload, latency_s, cpu, Path(name))
                last = steps[-1] if steps else None
                knees.append(
                    {
                        "subscribers": count,
                        "output_per_s": None if last is None else round(last.out_per_s),
                        "limited_by": limited_by,
                        **fitted(steps, cpu),
                        "steps": [asdict(step) for step in steps],
                    }
                )
    return {
        **threshold(knees),
        "knees": knees,
        "payload_bytes": payload,
        "latency_limit_s": latency_s,
        "cpu_limit": cpu,
        "seconds": seconds,
        "load_after": round(os.getloadavg()[0], 2),
        "correct": all(knee["output_per_s"] is not None for knee in knees),
    }


async def _raise_rate(
    server: TopicServer, count: int, seconds: float, payload: int, latency_s: float, cpu: float, folder: Path
) -> tuple[list[Step], str]:
    """The steps that pass, and what ended the rise."""
    steps: list[Step] = []
    in_per_s = max(1.0, FIRST_PER_S / count)
    while in_per_s <= MOST_IN_PER_S:
        step = await _measure(server, count, in_per_s, seconds, payload, folder)
        problem = verdict(step, latency_s, cpu)
        announce(f"{count} subscribers, {count * in_per_s:,.0f} messages/s: {problem or 'passes'}; {step}")
        if step is None or problem is not None:
            return steps, problem or "loss"
        steps.append(step)
        in_per_s *= STEP
    return steps, "input"


def verdict(step: Step | None, latency_s: float, cpu: float) -> str | None:
    """Why a step does not pass: loss, load, cpu or latency; None if it does."""
    if step is None:
        return "loss"
    if step.cpu > cpu:
        return "cpu"
    if step.late_p99_s > latency_s / 2:
        return "load"
    return "latency" if step.p99_s > latency_s else None


async def _measure(
    server: TopicServer, count: int, in_per_s: float, seconds: float, payload: int, folder: Path
) -> Step | None:
    """One step; None if the broker did not deliver every message in order."""
    task = asdict(server) | {"payload_bytes": payload, "subscribers": count, "acknowledged": False}
    task |= {"burst": math.ceil(in_per_s / FRAMES_PER_S), "rate_per_s": in_per_s}
    task |= {"seconds": seconds, "warm_up_s": WARM_UP_S}
    try:
        found = await run_load("topic_load", task, folder, LIMIT_S)
    except TimeoutError:
        return None
    if found is None:
        return None
    took_s = found["took_s"]
    rates = found["messages"] / took_s, found["deliveries"] / took_s, found["cpu_s"] / took_s
    return Step(count, *rates, found["p50_s"], found["p99_s"], found["late_s_p99"])


def fitted(steps: Sequence[Step], cpu: float) -> dict[str, float | None]:
    """CPU = base + slope · messages sent, by least squares, and where that line reaches the limit `cpu`.

    None with fewer than three steps; no end of a line that does not rise.
    """
    import numpy as np

    names = ("base_cpu", "cpu_us_per_message", "line_ends_per_s")
    if len(steps) < 3:
        return dict.fromkeys(names)
    slope, base = np.polyfit([step.out_per_s for step in steps], [step.cpu for step in steps], 1)
    end_per_s = float((cpu - base) / slope) if slope > 0.0 else None
    return dict(zip(names, (float(base), 1e6 * float(slope), end_per_s), strict=True))


def threshold(knees: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """`topic_output_per_s` from the rows; None if nothing was measured."""
    own = [knee["output_per_s"] for knee in knees if knee["limited_by"] in _OWN and knee["output_per_s"]]
    if own:
        return {"topic_output_per_s": rounded_down(min(own)), "extrapolated": False}
    widest = max(knees, key=lambda knee: knee["subscribers"])
    end_per_s = widest["line_ends_per_s"]
    return {"topic_output_per_s": None if end_per_s is None else rounded_down(end_per_s), "extrapolated": True}


def rounded_down(rate_per_s: float) -> int:
    """Two significant digits."""
    unit = int(10 ** max(0, len(str(int(rate_per_s))) - 2))
    return int(rate_per_s) // unit * unit
