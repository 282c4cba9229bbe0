"""`tocsin bench sessions`: the memory that a session costs a broker, and very many sessions on one broker.

Measured: resident memory of the real broker process before the first session, with all sessions logged in and idle,
and after each session has received results; and its CPU time while they are idle. Then the same with TLS. The sink
connects all sessions from four loopback addresses, so that the machine does not run out of ports. Each session holds
three subscriptions out of a shared pool.
Measured besides: what the kernel's memory (slabs and TCP buffers) grew by, for the whole machine. Both ends of each
connection are on this machine, so half of it counts as the broker's. Other programs change it too.
Checked by: the results, which must reach every session that holds their subscriptions.
Prints: KiB per session idle, after delivery, with TLS and in the kernel; the share of a core while idle.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tocsin.benchmarks.shared.harness import announce, command, temporary_folder
from tocsin.benchmarks.shared.machine import kernel_memory_bytes
from tocsin.benchmarks.shared.processes import broker_process, cpu_time_s, sink_process
from tocsin.benchmarks.shared.sink_connections import TOPIC

if TYPE_CHECKING:
    from tocsin.benchmarks.shared.data_cluster import EmulatedCluster
    from tocsin.benchmarks.shared.processes import SinkCounts

SUBSCRIPTIONS = 3
"""Subscriptions of each session."""
SOURCES = tuple(f"127.0.0.{number}" for number in range(2, 6))
RESULT = b'{"mark":"%010d","text":"' + b"x" * 267 + b'"}'
"""A result of 300 bytes."""
SETTLE_S = 2.0
"""Pause before a measurement: the broker may still be answering the last requests."""


def sessions(
    sessions: Annotated[int, typer.Option(help="Sessions on one broker.")] = 15_000,
    pool: Annotated[int, typer.Option(help="Different backend subscriptions they draw from.")] = 1_000,
    results: Annotated[int, typer.Option(help="Results for each subscription.", min=1)] = 20,
    tls: Annotated[bool, typer.Option(help="Measure sessions with TLS as well.")] = True,
) -> dict[str, Any]:
    """Memory of a broker per session with three subscriptions."""
    return asyncio.run(measure(sessions, pool, results, tls=tls))


register = command(sessions, needs=("psutil",))


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of the broker process, and of the kernel for the whole machine."""

    rss: int
    kernel: int | None


@dataclass(frozen=True, slots=True)
class Measured:
    before: Memory
    idle: Memory
    after_delivery: Memory
    idle_cpu_share: float
    delivered: int


async def measure(sessions: int, pool: int, results: int = 20, idle_s: float = 10.0, *, tls: bool) -> dict[str, Any]:
    import resource

    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))  # for the child processes too
    plain = await _measure(sessions, pool, results, idle_s, tls=False)
    figures = {
        "sessions": sessions,
        "subscriptions_per_session": SUBSCRIPTIONS,
        "backend_subscriptions": pool,
        "results_per_subscription": results,
        "bytes_per_session": (plain.idle.rss - plain.before.rss) / sessions,
        **_per_session(plain, sessions, ""),
        "rss_before_mib": plain.before.rss / 2**20,
        "rss_after_mib": plain.idle.rss / 2**20,
        "rss_after_delivery_mib": plain.after_delivery.rss / 2**20,
        "idle_cpu_share": plain.idle_cpu_share,
        "alive": plain.delivered,
        "correct": plain.delivered == sessions * SUBSCRIPTIONS * results,
    }
    if tls:
        secured = await _measure(sessions, pool, results, idle_s, tls=True)
        figures |= _per_session(secured, sessions, "tls_")
        figures["correct"] = figures["correct"] and secured.delivered == plain.delivered
    return figures


def _per_session(measured: Measured, sessions: int, prefix: str) -> dict[str, float | None]:
    before, idle, after = measured.before, measured.idle, measured.after_delivery
    kernel_bytes = None if before.kernel is None or idle.kernel is None else (idle.kernel - before.kernel) / 2
    return {
        f"{prefix}kib_per_session": (idle.rss - before.rss) / sessions / 1024,
        f"{prefix}kib_per_session_after_delivery": (after.rss - before.rss) / sessions / 1024,
        f"{prefix}kernel_kib_per_session": None if kernel_bytes is None else kernel_bytes / sessions / 1024,
    }


async def _measure(sessions: int, pool: int, results: int, idle_s: float, *, tls: bool) -> Measured:
    import psutil

    from tocsin.benchmarks.shared.certificate import make_certificate
    from tocsin.benchmarks.shared.data_cluster import EmulatedCluster

    kinds = [[(first * SUBSCRIPTIONS + place) % pool for place in range(SUBSCRIPTIONS)] for first in range(pool)]
    subscriptions = [[{"channel": TOPIC, "parameters": {"kind": kind}} for kind in own] for own in kinds]
    with temporary_folder() as root:
        folder = Path(root)
        certificate, key = make_certificate(folder) if tls else (None, None)
        flags = {"tls_cert": certificate, "tls_key": key} if tls else {}
        async with (
            EmulatedCluster(TOPIC) as cluster,
            broker_process(folder, sessions, cluster.url, id="bench", half_open=sessions, **flags) as (broker_id, port),
        ):
            broker = psutil.Process(broker_id)
            before = _memory(broker)
            task = {"port": port, "subscriptions": subscriptions, "sources": SOURCES, "checked": 0}
            async with sink_process(folder, kind="broker", certificate=certificate, **task) as counts:
                await asyncio.sleep(min(SETTLE_S, idle_s))
                cpu_before_s = cpu_time_s(broker)
                await asyncio.sleep(idle_s)
                idle_cpu = (cpu_time_s(broker) - cpu_before_s) / idle_s
                idle = _memory(broker)
                delivered = await _deliver(cluster, counts, sessions, results)
                await asyncio.sleep(min(SETTLE_S, idle_s))
                after = _memory(broker)
    announce(
        f"broker{' with TLS' if tls else ''}: {before.rss / 2**20:.1f} MiB before the first session, "
        f"{idle.rss / 2**20:.1f} MiB with {sessions:,}, {after.rss / 2**20:.1f} MiB after {delivered:,} deliveries"
    )
    return Measured(before, idle, after, idle_cpu, delivered)


async def _deliver(cluster: EmulatedCluster, counts: SinkCounts, sessions: int, results: int) -> int:
    """Deliver results of every backend subscription one by one; return how many arrived within a minute."""
    deadline_s = time.monotonic() + 60.0 + results
    for number in range(results):
        cluster.execute(TOPIC, {identity: [RESULT % number] for identity in cluster.held["bench"]})
        while counts.delivered() < sessions * SUBSCRIPTIONS * (number + 1) and time.monotonic() < deadline_s:
            await asyncio.sleep(0.02)
    if counts.delivered() == sessions * SUBSCRIPTIONS * results:
        counts.expect(each=SUBSCRIPTIONS * results, last=results - 1)
    return counts.delivered()


def _memory(broker: Any) -> Memory:
    return Memory(broker.memory_info().rss, kernel_memory_bytes())
