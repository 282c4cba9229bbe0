"""`tocsin bench many-channels`: many continuous channels on one dataset, and the start of a data cluster with more.

Timed: each result, from the time its record is due at the gateway until a broker has pulled the result, at a steady
rate of records. Every channel has its own query, and every record has a result in most channels. Then the start of a
data cluster as a process of its own, from its launch until it is ready, Spark's start included.
Checked by: a computation of all results in plain Python; none may be missing, repeated or unexpected.
Prints: p50 and p95 in seconds, the seconds of the start, and how long the declarations took.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
from collections import Counter
from typing import Annotated, Any

import typer

from tocsin.benchmarks.shared.harness import announce, command, declare, temporary_folder, timed
from tocsin.benchmarks.shared.processes import child_process
from tocsin.benchmarks.shared.running_cluster import pulling, running_cluster

DATASET = "CREATE STREAM DATASET Reports (id STRING, kind STRING, severity INT, message STRING) KEY (id);\n"
SEVERITIES = 5
LAST_S = 120.0
"""How long the last results may take."""
READY_S = 600.0


def many_channels(
    channels: Annotated[int, typer.Option(help="Continuous channels while records arrive.", min=1)] = 200,
    subscriptions: Annotated[int, typer.Option(help="Subscriptions of each channel.", min=1)] = 10,
    rate_per_s: Annotated[float, typer.Option(help="Records each second, one request each.")] = 20.0,
    seconds: Annotated[float, typer.Option(help="How long results are measured.")] = 60.0,
    warm_up_s: Annotated[float, typer.Option(help="How long records arrive before.")] = 60.0,
    started_channels: Annotated[int, typer.Option(help="Channels of the measured start.", min=1)] = 500,
) -> dict[str, Any]:
    """Delivery times of many channels on one dataset, and the start with many channels."""
    from tocsin.runtime.http.logs import configure_logs

    configure_logs("error")
    return asyncio.run(measure(channels, subscriptions, rate_per_s, seconds, warm_up_s, started_channels))


register = command(many_channels)


def application(channels: range) -> str:
    """Channel n has the reports of a kind with at least severity n modulo 5, and a column of its own."""
    return DATASET * (channels.start == 0) + "".join(
        f"CREATE CONTINUOUS CHANNEL C{number} (kind STRING) AS SELECT r.*, {number} AS channel FROM NEW Reports r "  # noqa: S608
        f"WHERE r.kind = :kind AND r.severity >= {number % SEVERITIES + 1};\n"
        for number in channels
    )


async def measure(
    channels: int, subscriptions: int, rate_per_s: float, seconds: float, warm_up_s: float, started_channels: int
) -> dict[str, Any]:
    with temporary_folder() as root:
        began_s = time.perf_counter()
        async with running_cluster(root, application(range(channels))) as cluster:
            declare_s = time.perf_counter() - began_s
            announce(f"{channels} channels declared in {declare_s:.1f} s")
            load = await run_load(cluster, channels, subscriptions, rate_per_s, warm_up_s + seconds)
            latencies_s = load.latencies_s(warm_up_s)
            p95_s = latencies_s[int(0.95 * len(latencies_s))]
            announce(f"p95 {p95_s:.2f} s, {load.lost} lost; declaring {started_channels - channels} more channels")
            if more := application(range(channels, started_channels)):
                _, more_s = timed(lambda: declare(cluster, more))
                declare_s += more_s
        cluster.spark.stop()
        start_s = await _start(root)
    announce(f"start with {max(channels, started_channels)} channels: {start_s:.1f} s")
    return {
        "p50_s": statistics.median(latencies_s),
        "p95_s": p95_s,
        "start_s": start_s,
        "declare_s": declare_s,
        "channels": channels,
        "started_channels": max(channels, started_channels),
        "results": len(load.received_at),
        "lost": load.lost,
        "correct": load.is_correct,
    }


async def run_load(cluster: Any, channels: int, subscriptions: int, rate_per_s: float, seconds: float) -> Load:
    """Subscribe, publish at the rate, and wait for all results."""
    from tocsin.model.ids import BrokerId

    load, broker = Load(channels, subscriptions), BrokerId("bench")
    kinds = [{"kind": f"k{number}"} for number in range(subscriptions)]
    for number in range(channels):
        cluster.subscribe(f"C{number}", kinds, broker)
    async with pulling(cluster, broker, load.receive):
        await load.publish(cluster, rate_per_s, seconds)
        await load.wait()
    return load


class Load:
    """Publishes records, and compares what arrives with what must arrive."""

    def __init__(self, channels: int, subscriptions: int) -> None:
        self._channels = channels
        self._subscriptions = subscriptions
        self._sent_at: dict[int, float] = {}
        self.received_at: dict[tuple[str, int], float] = {}
        """(channel, record) → when its result arrived."""
        self._counts: Counter[tuple[str, int]] = Counter()

    async def publish(self, cluster: Any, rate_per_s: float, seconds: float) -> None:
        from tocsin.cluster.feed.gateway import RecordForm
        from tocsin.cluster.server.group_commit import GroupCommit

        commit = GroupCommit(cluster.gateway("Reports"))
        await asyncio.to_thread(cluster.datasets.start_ingestion, "Reports")
        started_s = time.perf_counter()
        for number in range(int(rate_per_s * seconds)):
            self._sent_at[number] = started_s + number / rate_per_s
            await asyncio.sleep(max(0.0, self._sent_at[number] - time.perf_counter()))
            await commit.store(json.dumps(self._record(number)).encode(), RecordForm.JSON, None)

    def _record(self, number: int) -> dict[str, Any]:
        kind = f"k{number % self._subscriptions}"
        return {"id": str(number), "kind": kind, "severity": _severity(number), "message": "m" * 200}

    def receive(self, channel: str, results: list[Any], now_s: float) -> None:
        for result in results:
            pair = (channel, int(result.result["id"]))
            self.received_at.setdefault(pair, now_s)
            self._counts[pair] += 1

    def _expected(self) -> set[tuple[str, int]]:
        return {
            (f"C{channel}", number)
            for number in self._sent_at
            for channel in range(self._channels)
            if _severity(number) > channel % SEVERITIES
        }

    async def wait(self) -> None:
        """Wait until all results have arrived, or the limit has passed."""
        expected, deadline_s = len(self._expected()), time.perf_counter() + LAST_S
        while len(self.received_at) < expected and time.perf_counter() < deadline_s:
            await asyncio.sleep(0.1)
        await asyncio.sleep(1.0)  # a repeat would arrive now

    @property
    def lost(self) -> int:
        return len(self._expected() - self.received_at.keys())

    @property
    def is_correct(self) -> bool:
        return self._counts == Counter(self._expected())

    def latencies_s(self, warm_up_s: float) -> list[float]:
        """Sorted seconds of all results whose records were sent after the warm-up."""
        from_s = min(self._sent_at.values()) + warm_up_s
        pairs = ((at_s, self._sent_at[number]) for (_, number), at_s in self.received_at.items())
        return sorted(at_s - sent_s for at_s, sent_s in pairs if sent_s >= from_s)


def _severity(number: int) -> int:
    """One to five, in an order that has nothing to do with the kind."""
    return number * 7 // 3 % SEVERITIES + 1


async def _start(root: str) -> float:
    """Seconds from the launch of `tocsin cluster` on this root until it is ready."""
    import httpx

    command = [sys.executable, "-c", "from tocsin.cli.main import main; main()", "cluster", "--root", root]
    command += ["--port", "0", "--log-level", "error", "--json"]
    began_s = time.perf_counter()
    async with child_process(*command, stdout=asyncio.subprocess.PIPE) as process:
        assert process.stdout is not None
        address = json.loads(await process.stdout.readline())["address"]
        async with httpx.AsyncClient(base_url=address, timeout=10.0) as client, asyncio.timeout(READY_S):
            while (await client.get("/readyz")).status_code != 200:
                await asyncio.sleep(0.1)
        return time.perf_counter() - began_s
