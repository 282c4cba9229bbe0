"""`tocsin bench fanout`: one hot subscription of many sessions, in bursts of results of about 300 bytes.

Timed: CPU time (user and system) of the real broker process, and the wall clock, from the end of the warm-up to the
last delivery. A burst is one execution of an emulated data cluster, which answers the broker's pull from memory:
Spark's cost is not measured here.
Compared with: nats-server and mosquitto, if installed, which get the same bursts as messages. The benchmark keeps all
three servers equally far ahead of the same sink.
Checked by: the sink, which counts the same mark in each result and checks the order on a few sockets.
Prints: deliveries per CPU second and per second, of the broker and of the peers, and their ratios.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from tocsin.benchmarks.shared.harness import announce, command, temporary_folder
from tocsin.benchmarks.shared.peers import PEERS, Publish
from tocsin.benchmarks.shared.processes import broker_process, cpu_time_s, sink_process
from tocsin.benchmarks.shared.sink import TOPIC

PUBLISH_AHEAD = 4
"""Bursts published but not yet delivered: enough to keep a server busy, too few to fill its buffers."""
WARM_UP = 0.1
"""Share of the results that is delivered before the clock starts."""
CPU_TICK_S = 0.01
"""The kernel counts CPU time in these steps."""


def fanout(
    sessions: Annotated[int, typer.Option(help="Subscribers of the one subscription.")] = 1000,
    results: Annotated[int, typer.Option(help="Results that each subscriber gets.")] = 2000,
    burst: Annotated[int, typer.Option(help="Results in one execution, messages in one publisher's write.")] = 20,
    size_bytes: Annotated[int, typer.Option(help="Bytes of a result.")] = 300,
) -> dict[str, Any]:
    """Deliveries per CPU second of a broker, nats-server and mosquitto."""
    return asyncio.run(measure(sessions, results, burst, size_bytes))


register = command(fanout)


async def measure(sessions: int, results: int, burst: int, size_bytes: int) -> dict[str, Any]:
    workload = Workload(sessions, results, burst, size_bytes)
    peers: dict[str, dict[str, Any]] = {}
    with temporary_folder() as root:
        folder = Path(root)
        broker = await _measure_broker(workload, folder)
        _announce_rates("broker", broker)
        for name, peer in PEERS.items():
            async with peer.run(folder) as server:
                if server is None:
                    announce(f"{name}: not installed")
                    continue
                process_id, port, publish = server
                async with sink_process(folder, kind=name, port=port, sessions=sessions) as delivered:
                    peers[name] = await workload.run(process_id, delivered, publish)
            _announce_rates(name, peers[name])
    ratios = {
        f"ratio_{name}": broker["deliveries_per_cpu_s"] / peers[name]["deliveries_per_cpu_s"] if name in peers else None
        for name in PEERS
    }
    sizes = {"sessions": sessions, "results": results, "burst": burst, "result_bytes": len(workload.row(0))}
    return broker | {"peers": peers} | ratios | sizes | {"correct": True}


async def _measure_broker(workload: Workload, folder: Path) -> dict[str, Any]:
    from tocsin.benchmarks.shared.data_cluster import EmulatedCluster

    hot = {"channel": TOPIC, "parameters": {"kind": "hot"}}
    async with (
        EmulatedCluster(TOPIC) as cluster,
        broker_process(folder, workload.sessions, cluster.url, id="bench") as (process_id, port),
        sink_process(folder, kind="broker", port=port, subscriptions=[[hot]]) as delivered,
    ):
        [subscription] = cluster.held["bench"]

        async def publish(rows: list[bytes]) -> None:
            cluster.execute(TOPIC, {subscription: rows})

        return await workload.run(process_id, delivered, publish)


def _announce_rates(server: str, measured: dict[str, Any]) -> None:
    rates = f"{measured['deliveries_per_cpu_s']:,.0f} deliveries/CPU s, {measured['deliveries_per_s']:,.0f}/s"
    announce(f"{server}: {rates}")


class Workload:
    """The bursts of results that every server delivers, and how they are timed."""

    def __init__(self, sessions: int, results: int, burst: int, size_bytes: int) -> None:
        self.sessions = sessions
        self.bursts = max(1, results // burst)
        self.burst = burst
        self._padding = b"x" * max(0, size_bytes - 33)

    def row(self, number: int) -> bytes:
        return b'{"mark":"%010d","text":"%b"}' % (number, self._padding)

    async def run(self, process_id: int, delivered: Callable[[], int], publish: Publish) -> dict[str, Any]:
        """Publish as fast as the sink counts, and time the deliveries after the warm-up."""
        import psutil

        server = psutil.Process(process_id)
        warm_up_bursts = max(1, int(self.bursts * WARM_UP))
        started_s = cpu_before_s = 0.0
        before = 0
        for burst in range(self.bursts):
            if burst == warm_up_bursts:
                await self._wait(delivered, warm_up_bursts)
                started_s, cpu_before_s, before = time.perf_counter(), cpu_time_s(server), delivered()
            await self._wait(delivered, max(0, burst - PUBLISH_AHEAD))
            await publish([self.row(burst * self.burst + place) for place in range(self.burst)])
        await self._wait(delivered, self.bursts)
        took_s, count = time.perf_counter() - started_s, delivered() - before
        cpu_s = max(CPU_TICK_S, cpu_time_s(server) - cpu_before_s)
        return {
            "deliveries_per_cpu_s": count / cpu_s,
            "deliveries_per_s": count / took_s,
            "cpu_s": cpu_s,
            "deliveries": count,
        }

    async def _wait(self, delivered: Callable[[], int], bursts: int) -> None:
        """Wait until every session has received this many bursts; fail after 120 s."""
        expected = bursts * self.burst * self.sessions
        deadline_s = time.perf_counter() + 120
        while (count := delivered()) < expected:
            if time.perf_counter() > deadline_s:
                raise RuntimeError(f"only {count:,} of {expected:,} deliveries arrived")
            await asyncio.sleep(0.0005)
