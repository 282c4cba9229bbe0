"""`tocsin bench sessions`: the memory that an idle session costs a broker, and very many sessions on one broker.

Measured: resident memory of the real broker process before the first session and after the last, with all sessions
logged in and idle, and its CPU time while they are idle. The sink connects all sessions from four loopback addresses,
so that the machine does not run out of ports. Each session holds three subscriptions out of a shared pool.
Checked by: one result for every backend subscription at the end, which must reach every session that holds it.
Prints: bytes per session, resident memory before and after, the share of a core while idle, and the results received.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any

import typer

from tocsin.benchmarks.shared.harness import announce, command, temporary_folder
from tocsin.benchmarks.shared.processes import broker_process, cpu_time_s, sink_process
from tocsin.benchmarks.shared.sink import TOPIC

SUBSCRIPTIONS = 3
"""Subscriptions of each session."""
SOURCES = tuple(f"127.0.0.{number}" for number in range(2, 6))


def sessions(
    sessions: Annotated[int, typer.Option(help="Sessions on one broker.")] = 15_000,
    pool: Annotated[int, typer.Option(help="Different backend subscriptions they draw from.")] = 1_000,
) -> dict[str, Any]:
    """Memory of a broker per idle session with three subscriptions."""
    return asyncio.run(measure(sessions, pool))


register = command(sessions)


async def measure(sessions: int, pool: int, idle_s: float = 10.0) -> dict[str, Any]:
    import resource

    import psutil

    from tocsin.benchmarks.shared.data_cluster import EmulatedCluster

    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))  # for the child processes too
    kinds = [[(first * SUBSCRIPTIONS + place) % pool for place in range(SUBSCRIPTIONS)] for first in range(pool)]
    subscriptions = [[{"channel": TOPIC, "parameters": {"kind": kind}} for kind in own] for own in kinds]
    with temporary_folder() as root:
        folder = Path(root)
        async with (
            EmulatedCluster(TOPIC) as cluster,
            broker_process(folder, sessions, cluster.url, id="bench", half_open=sessions) as (process_id, port),
        ):
            broker = psutil.Process(process_id)
            before_bytes = broker.memory_info().rss
            announce(f"broker: {before_bytes / 2**20:.1f} MiB before the first session")
            task = {"port": port, "subscriptions": subscriptions, "sources": SOURCES, "checked": 0}
            async with sink_process(folder, kind="broker", **task) as delivered:
                await asyncio.sleep(min(2.0, idle_s))  # the broker may still be answering the last requests
                cpu_before_s = cpu_time_s(broker)
                await asyncio.sleep(idle_s)
                idle_cpu = (cpu_time_s(broker) - cpu_before_s) / idle_s
                after_bytes = broker.memory_info().rss
                announce(f"broker: {after_bytes / 2**20:.1f} MiB with {sessions:,} sessions")
                cluster.execute(TOPIC, {identity: [b'{"mark":"0000000000"}'] for identity in cluster.held["bench"]})
                for _ in range(600):
                    if (alive := delivered()) >= sessions * SUBSCRIPTIONS:
                        break
                    await asyncio.sleep(0.1)
    per_session = (after_bytes - before_bytes) / sessions
    return {
        "sessions": sessions,
        "subscriptions_per_session": SUBSCRIPTIONS,
        "backend_subscriptions": pool,
        "bytes_per_session": per_session,
        "kib_per_session": per_session / 1024,
        "rss_before_mib": before_bytes / 2**20,
        "rss_after_mib": after_bytes / 2**20,
        "idle_cpu_share": idle_cpu,
        "alive": alive,
        "correct": alive == sessions * SUBSCRIPTIONS,
    }
