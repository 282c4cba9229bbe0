"""`tocsin bench sessions`: what an idle session costs a broker in memory, and that one broker holds very many.

The broker is the real process; its resident memory is read before the first session and after the last, with all of
them logged in and idle. Sessions connect from a process of its own, over several loopback addresses so that no machine
runs out of ports. Each holds three subscriptions out of a pool, as people who want the same things do.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import typer

SUBSCRIPTIONS = 3
"""Of each session."""


def register(app: typer.Typer) -> None:
    @app.command("sessions")
    def sessions(
        sessions: int = typer.Option(15_000, help="Sessions on one broker."),
        pool: int = typer.Option(1_000, help="Different backend subscriptions they draw from."),
        as_json: bool = typer.Option(False, "--json", help="End with one JSON object."),
    ) -> None:
        """Memory of a broker per idle session with three subscriptions."""
        from tocsin.benchmarks.shared.harness import finish

        finish(asyncio.run(measure(sessions, pool)), as_json)


async def measure(sessions: int, pool: int, idle_s: float = 10.0) -> dict[str, Any]:
    import psutil

    from tocsin.benchmarks.fanout import broker_process, sink, write_tokens
    from tocsin.benchmarks.shared.data_cluster import EmulatedCluster
    from tocsin.benchmarks.shared.harness import announce
    from tocsin.benchmarks.shared.sink import TOPIC

    _raise_file_limit()
    kinds = [[(first * SUBSCRIPTIONS + place) % pool for place in range(SUBSCRIPTIONS)] for first in range(pool)]
    wanted = [[{"channel": TOPIC, "parameters": {"kind": kind}} for kind in own] for own in kinds]
    sources = [f"127.0.0.{number}" for number in range(2, 6)]
    with tempfile.TemporaryDirectory(prefix="tocsin-bench-") as name:
        folder = Path(name)
        tokens = write_tokens(folder, sessions)
        async with (
            EmulatedCluster(TOPIC) as cluster,
            broker_process(folder, cluster.url, id="bench", half_open=sessions) as (pid, port),
        ):
            process = psutil.Process(pid)
            before_bytes = process.memory_info().rss
            announce(f"broker: {before_bytes / 2**20:.1f} MiB before the first session")
            given = {"port": port, "tokens": str(tokens), "subscriptions": wanted, "sources": sources, "checked": 0}
            async with sink(folder, kind="broker", **given) as delivered:
                await asyncio.sleep(min(2.0, idle_s))  # answers to the last requests are on their way
                cpu_before_s = sum(process.cpu_times()[:2])
                await asyncio.sleep(idle_s)
                idle_cpu = (sum(process.cpu_times()[:2]) - cpu_before_s) / idle_s
                after_bytes = process.memory_info().rss
                announce(f"broker: {after_bytes / 2**20:.1f} MiB with {sessions:,} sessions")
                alive = await _alive(cluster, TOPIC, delivered, sessions)
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


async def _alive(cluster: Any, topic: str, delivered: Any, sessions: int) -> int:
    """One result for every backend subscription: each session gets one for each of its own."""
    rows = {identity: [b'{"mark":"0000000000"}'] for identity in cluster.held["bench"]}
    cluster.execute(topic, rows)
    for _ in range(600):
        if delivered() >= sessions * SUBSCRIPTIONS:
            break
        await asyncio.sleep(0.1)
    return int(delivered())


def _raise_file_limit() -> None:
    """As far as allowed, for this process and those it starts."""
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
