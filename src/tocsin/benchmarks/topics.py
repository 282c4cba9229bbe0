"""`tocsin bench topics`: messages through one topic, beside nats-server and mosquitto, in an open loop.

Timed: each delivery, from the moment at which its message was due to the moment at which the subscriber's socket had
the whole message; and the CPU time (user and system) of the server process. A coordinator, a broker and the peers run
as real processes; `shared/topic_load.py` is publisher and subscribers of each in turn, with raw sockets.
Rows: messages of 128 B and 1 KiB; 1 and 100 subscribers; without and with acknowledgements to the publisher (for
nats-server its verbose mode, for mosquitto quality of service 1); single messages, each with its own due time, and
bursts of 20 messages that are due at the same time and leave in one write.
Compared with: nats-server and mosquitto. Each round measures every server once, and the next starts with another one.
Checked by: the load, which expects every message in order on every socket, and every acknowledgement.
Prints: for each row p50, p99, p99.9 and deliveries per CPU second of each server (medians of the rounds), and the
broker's figure over the peer's of the same round. The ratios at the top are those of the worst row; `worst_rows` has
them for single messages and for bursts.
Persistent topics have rows of their own, with a fixed number of messages in flight: `shared/persistent_topics.py`.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import statistics
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from tocsin.benchmarks.shared.harness import announce, command, temporary_folder
from tocsin.benchmarks.shared.machine import described_machine, program_version
from tocsin.benchmarks.shared.persistent_topics import PersistentRow, measure_persistent
from tocsin.benchmarks.shared.processes import run_load
from tocsin.benchmarks.shared.topic_servers import TopicServer, topic_servers

BURST = 20
RATES_PER_S = {(1, 1): 1_000, (1, BURST): 20_000, (100, 1): 100, (100, BURST): 500}
"""(subscribers, burst) → messages per second that are due: far below what any of the three can do."""
WARM_UP_S = 0.5
LIMIT_S = 90.0
OURS = "tocsin"
RATIOS = ("ratio_p50_nats", "ratio_rate_nats", "ratio_rate_mosquitto")
FIGURES = ("p50_s", "p99_s", "p999_s", "deliveries_per_cpu_s", "cpu_s", "late_s_p99")


@dataclass(frozen=True, slots=True)
class Row:
    payload_bytes: int
    subscribers: int
    acknowledged: bool
    burst: int

    @property
    def rate_per_s(self) -> int:
        return RATES_PER_S[1 if self.subscribers == 1 else 100, self.burst]

    def __str__(self) -> str:
        ending = "acknowledged" if self.acknowledged else "unacknowledged"
        return f"{self.payload_bytes} B, {self.subscribers} subscribers, bursts of {self.burst}, {ending}"


def topics(
    seconds: Annotated[float, typer.Option(help="Seconds of each measurement, after the warm-up.")] = 2.0,
    rounds: Annotated[int, typer.Option(help="Rounds; each measures every server once in each row.", min=1)] = 5,
    subscribers: Annotated[str, typer.Option(help="Numbers of subscribers, separated by commas.")] = "1,100",
    payloads: Annotated[str, typer.Option(help="Bytes of a message, separated by commas.")] = "128,1024",
    in_flight: Annotated[
        str, typer.Option(help="Messages in flight of a persistent topic, separated by commas; empty for no such rows.")
    ] = "1,100",
) -> dict[str, Any]:
    """Latency and deliveries per CPU second of a topic, nats-server and mosquitto."""
    rows = [
        Row(int(payload), int(count), acknowledged, burst)
        for payload, count, acknowledged, burst in itertools.product(
            payloads.split(","), subscribers.split(","), (False, True), (1, BURST)
        )
    ]
    persistent = [
        PersistentRow(int(payload), int(count))
        for payload, count in itertools.product(payloads.split(","), in_flight.split(",") if in_flight else ())
    ]
    return asyncio.run(measure(rows, seconds, rounds, persistent))


register = command(topics)


async def measure(
    rows: Sequence[Row], seconds: float, rounds: int, persistent_rows: Sequence[PersistentRow] = ()
) -> dict[str, Any]:
    machine = described_machine() | {name: program_version(name) for name in ("nats-server", "mosquitto")}
    figures: list[dict[str, Any]] = []
    with temporary_folder() as name:
        folder = Path(name)
        async with AsyncExitStack() as stack:
            servers = await stack.enter_async_context(topic_servers(folder)) if rows else []
            for row in rows:
                measured: dict[str, list[dict[str, Any]]] = {server.server: [] for server in servers}
                for number in range(rounds):
                    start = number % len(servers)
                    for server in (*servers[start:], *servers[:start]):
                        measured[server.server].append(await _measure(row, server, seconds, folder))
                figures.append(summary(row, measured))
                announce(_line(figures[-1]))
        persistent: list[dict[str, Any]] = []
        if persistent_rows:

            async def run(load: str, task: dict[str, Any]) -> dict[str, Any]:
                return await _run_load(load, task | {"seconds": seconds, "warm_up_s": WARM_UP_S}, folder)

            persistent = await measure_persistent(persistent_rows, rounds, folder, run, announce)
    peers = {name: machine[program] for name, program in {"nats": "nats-server", "mosquitto": "mosquitto"}.items()}
    loads = {"single": [row for row in figures if row["burst"] == 1], "bursts": [r for r in figures if r["burst"] > 1]}
    return {
        **worst(figures),
        "worst_rows": {load: worst(own) for load, own in loads.items()},
        "peers": peers,
        "rows": figures,
        "persistent": persistent,
        "rounds": rounds,
        "seconds": seconds,
        "load_after": round(os.getloadavg()[0], 2),
        "machine": machine,
        "correct": True,
    }


async def _measure(row: Row, server: TopicServer, seconds: float, folder: Path) -> dict[str, Any]:
    """One server once."""
    task = asdict(row) | asdict(server) | {"rate_per_s": row.rate_per_s, "seconds": seconds, "warm_up_s": WARM_UP_S}
    return await _run_load("topic_load", task, folder)


async def _run_load(load: str, task: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Raises if a message or an acknowledgement is missing, or a message is out of order."""
    figures = await run_load(load, task, folder, LIMIT_S)
    if figures is None:
        raise RuntimeError(f"{task['server']} did not deliver or acknowledge every message in order; see above")
    return figures


def summary(row: Row, measured: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """The medians of each server in a row, and the ratios of the same round: median, lowest and highest."""
    servers = {
        name: {figure: statistics.median(one[figure] for one in own) for figure in FIGURES}
        for name, own in measured.items()
    }
    ratios: dict[str, Any] = {}
    for name in measured:
        if name == OURS:
            continue
        for short, figure in {"p50": "p50_s", "p99": "p99_s", "rate": "deliveries_per_cpu_s"}.items():
            pairs = zip(measured[OURS], measured[name], strict=True)
            found = [ours[figure] / theirs[figure] for ours, theirs in pairs]
            ratios[f"ratio_{short}_{name}"] = statistics.median(found)
            ratios[f"ratios_{short}_{name}"] = [min(found), max(found)]
    return asdict(row) | {"rate_per_s": row.rate_per_s, "servers": servers} | ratios


def worst(figures: Sequence[dict[str, Any]]) -> dict[str, float | None]:
    """The ratios of the worst rows; None if the peer is not installed."""
    found: dict[str, float | None] = {}
    for name in RATIOS:
        values = [row[name] for row in figures if name in row]
        choose = max if name == "ratio_p50_nats" else min
        found[name] = choose(values) if values else None
    return found


def _line(figures: dict[str, Any]) -> str:
    """One row for a reader."""
    row = Row(*(figures[name] for name in ("payload_bytes", "subscribers", "acknowledged", "burst")))
    servers = "; ".join(
        f"{name} p50 {own['p50_s'] * 1e6:,.0f} µs, p99 {own['p99_s'] * 1e6:,.0f} µs, "
        f"p99.9 {own['p999_s'] * 1e6:,.0f} µs, {own['deliveries_per_cpu_s']:,.0f}/CPU s"
        for name, own in figures["servers"].items()
    )
    ratios = ", ".join(f"{name} {figures[name]:.2f}" for name in RATIOS if name in figures)
    return f"{row}: {servers}; {ratios}; load {os.getloadavg()[0]:.1f}"
