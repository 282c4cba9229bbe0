"""`tocsin bench fanout`: one hot subscription of many sessions, in bursts of results of about 300 bytes.

Timed: CPU time (user and system) of the real broker process, and the wall clock, from the end of the warm-up to the
last delivery. A burst is one execution of an emulated data cluster, which answers the broker's pull from memory:
Spark's cost is not measured here.
Compared with: nats-server and mosquitto, if installed. A publisher sends them the same bursts, each in one write: as
one message per result, and as one message for the whole burst (`_one_message`). With `_acknowledged`, the sink
acknowledges: to the broker the last cursor of each read, to mosquitto each message (quality of service 1).
Core NATS has no acknowledgements. The benchmark keeps all servers equally far ahead of the same sink. Each round
measures every server once, and the next round starts with another one.
Checked by: the sink, which counts the same mark in each result, checks the order on a few sockets, and at the end the
count and the last mark on every socket.
Prints: deliveries per CPU second and per second of each server (medians), the ratios of the broker's figure to the
peers' of the same round (median, lowest, highest), results per write of the server and per read of the sink, versions.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from tocsin.benchmarks.shared.harness import announce, command, temporary_folder
from tocsin.benchmarks.shared.machine import described_machine, program_version
from tocsin.benchmarks.shared.peers import PEERS, Publish
from tocsin.benchmarks.shared.processes import SinkCounts, broker_process, cpu_time_s, sink_process
from tocsin.benchmarks.shared.sink_connections import TOPIC

PUBLISH_AHEAD = 4
"""Bursts published but not yet delivered: enough to keep a server busy, too few to fill its buffers."""
WARM_UP = 0.1
"""Share of the results that is delivered before the clock starts."""
CPU_TICK_S = 0.01
"""The kernel counts CPU time in these steps."""
BROKER = "broker"


@dataclass(frozen=True, slots=True)
class Row:
    """One measured server."""

    server: str
    """`broker`, or a key of `PEERS`."""
    one_message: bool = False
    """Whether a peer gets a burst as one message."""
    acknowledged: bool = False

    @property
    def name(self) -> str:
        return self.server + "_one_message" * self.one_message + "_acknowledged" * self.acknowledged


ROWS = (
    Row(BROKER),
    Row("nats"),
    Row("mosquitto"),
    Row("nats", one_message=True),
    Row("mosquitto", one_message=True),
    Row(BROKER, acknowledged=True),
    Row("mosquitto", acknowledged=True),
)


def fanout(
    sessions: Annotated[int, typer.Option(help="Subscribers of the one subscription.")] = 1000,
    results: Annotated[int, typer.Option(help="Results that each subscriber gets.")] = 1000,
    burst: Annotated[int, typer.Option(help="Results in one execution, and in one publisher's write.")] = 20,
    size_bytes: Annotated[int, typer.Option(help="Bytes of a result.")] = 300,
    rounds: Annotated[int, typer.Option(help="Rounds; each measures every server once.", min=1)] = 5,
) -> dict[str, Any]:
    """Deliveries per CPU second of a broker, nats-server and mosquitto."""
    return asyncio.run(measure(sessions, results, burst, size_bytes, rounds))


register = command(fanout, needs=("psutil",))


async def measure(sessions: int, results: int, burst: int, size_bytes: int, rounds: int = 5) -> dict[str, Any]:
    machine = described_machine() | {peer.program: program_version(peer.program) for peer in PEERS.values()}
    workload = Workload(sessions, results, burst, size_bytes)
    measured: dict[str, list[dict[str, Any]]] = {}
    for number in range(rounds):
        start = number % len(ROWS)
        for row in (*ROWS[start:], *ROWS[:start]):
            with temporary_folder() as root:
                figures = await _measure(row, workload, Path(root))
            if figures is None:
                announce(f"{row.server}: not installed")
                continue
            measured.setdefault(row.name, []).append(figures)
            rate = f"{figures['deliveries_per_cpu_s']:,.0f} deliveries/CPU s, {figures['deliveries_per_s']:,.0f}/s"
            announce(f"round {number + 1}, {row.name}: {rate}, {figures['results_per_write']:.1f} results per write")
    rows = {name: _medians(own) for name, own in measured.items()}
    sizes = {"sessions": sessions, "results": results, "burst": burst, "result_bytes": len(workload.result(0))}
    peers = {name: figures for name, figures in rows.items() if not name.startswith(BROKER)}
    return (
        rows[BROKER]
        | {"peers": peers, f"{BROKER}_acknowledged": rows[f"{BROKER}_acknowledged"]}
        | _ratios(measured)
        | sizes
        | {"rounds": rounds, "machine": machine, "correct": True}
    )


def _medians(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    return {name: statistics.median(figures[name] for figures in rounds) for name in rounds[0]}


def _ratios(measured: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """The broker's deliveries per CPU second over each peer's, of the same round: median, and lowest and highest."""
    found: dict[str, Any] = {}
    for row in ROWS:
        if row.server == BROKER:
            continue
        own = measured[Row(BROKER, acknowledged=row.acknowledged).name]
        ratios = [
            ours["deliveries_per_cpu_s"] / theirs["deliveries_per_cpu_s"]
            for ours, theirs in zip(own, measured.get(row.name, []), strict=False)
        ]
        found[f"ratio_{row.name}"] = statistics.median(ratios) if ratios else None
        found[f"ratios_{row.name}"] = [min(ratios), max(ratios)] if ratios else None
    return found


async def _measure(row: Row, workload: Workload, folder: Path) -> dict[str, Any] | None:
    """The figures of one server, or None if it is not installed."""
    if row.server == BROKER:
        return await _measure_broker(row, workload, folder)
    async with PEERS[row.server].run(folder, acknowledged=row.acknowledged) as server:
        if server is None:
            return None
        process_id, port, publish = server
        task = {"kind": row.server, "port": port, "sessions": workload.sessions, "acknowledged": row.acknowledged}

        async def publish_burst(results: list[bytes]) -> None:
            await publish([b"[" + b",".join(results) + b"]"] if row.one_message else results)

        async with sink_process(folder, **task) as counts:
            return await workload.run(process_id, counts, publish_burst)


async def _measure_broker(row: Row, workload: Workload, folder: Path) -> dict[str, Any]:
    from tocsin.benchmarks.shared.data_cluster import EmulatedCluster

    hot = {"channel": TOPIC, "parameters": {"kind": "hot"}}
    async with (
        EmulatedCluster(TOPIC) as cluster,
        broker_process(folder, workload.sessions, cluster.url, id="bench") as (process_id, port),
        sink_process(folder, kind=BROKER, port=port, subscriptions=[[hot]], acknowledged=row.acknowledged) as counts,
    ):
        [subscription] = cluster.held["bench"]

        async def publish(results: list[bytes]) -> None:
            cluster.execute(TOPIC, {subscription: results})

        return await workload.run(process_id, counts, publish)


class Workload:
    """The bursts of results that every server delivers, and how they are timed."""

    def __init__(self, sessions: int, results: int, burst: int, size_bytes: int) -> None:
        self.sessions = sessions
        self.bursts = max(2, results // burst)
        self.burst = burst
        self._padding = b"x" * max(0, size_bytes - 33)

    def result(self, number: int) -> bytes:
        return b'{"mark":"%010d","text":"%b"}' % (number, self._padding)

    async def run(self, process_id: int, counts: SinkCounts, publish: Publish) -> dict[str, Any]:
        """Publish as fast as the sink counts, and time the deliveries after the warm-up."""
        import psutil

        server = psutil.Process(process_id)
        warm_up_bursts = max(1, int(self.bursts * WARM_UP))
        started_s = cpu_before_s = 0.0
        before = reads_before = writes_before = 0
        counts.expect(each=self.bursts * self.burst, last=self.bursts * self.burst - 1)
        for burst in range(self.bursts):
            if burst == warm_up_bursts:
                await self._wait(counts, warm_up_bursts)
                started_s, cpu_before_s = time.perf_counter(), cpu_time_s(server)
                before, reads_before, writes_before = counts.delivered(), counts.reads(), _writes(server)
            await self._wait(counts, max(0, burst - PUBLISH_AHEAD))
            await publish([self.result(burst * self.burst + place) for place in range(self.burst)])
        await self._wait(counts, self.bursts)
        took_s, count = time.perf_counter() - started_s, counts.delivered() - before
        cpu_s = max(CPU_TICK_S, cpu_time_s(server) - cpu_before_s)
        return {
            "deliveries_per_cpu_s": count / cpu_s,
            "deliveries_per_s": count / took_s,
            "cpu_s": cpu_s,
            "deliveries": count,
            "results_per_read": count / max(1, counts.reads() - reads_before),
            "results_per_write": count / max(1, _writes(server) - writes_before),
        }

    async def _wait(self, counts: SinkCounts, bursts: int) -> None:
        """Wait until all sessions together have received this many bursts; fail after 120 s."""
        expected = bursts * self.burst * self.sessions
        deadline_s = time.perf_counter() + 120
        while (count := counts.delivered()) < expected:
            if time.perf_counter() > deadline_s:
                raise RuntimeError(f"only {count:,} of {expected:,} deliveries arrived")
            await asyncio.sleep(0.0005)


def _writes(server: Any) -> int:
    """Write calls of a process so far. The kernel does not count `send`."""
    return int(server.io_counters().write_count)
