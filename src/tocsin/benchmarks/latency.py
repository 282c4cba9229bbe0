"""`tocsin bench latency`: from a publisher's record to its result, through a continuous channel, at a steady rate.

Timed: each record, from just before the gateway accepts it until a broker has pulled its result. On the way are the
gateway (fsync), the streaming query, the dataset file (fsync, commit), the execution, the result file (fsync, commit)
and the announcement.
Compared with: a bare micro-batch with the same feed log, the same streaming source, the same checkpoint manager, and a
foreachBatch that only collects its rows. Both run in the same Spark, one at a time: the other one's query is stopped.
Each round measures both, and the next round in the other order.
Timed besides: the whole way through real processes, from the publisher's HTTP request until a client has the result
from its broker.
Checked by: a count of lost records, which must be 0 everywhere.
Prints: p50 and p95 of all three, and the median of the rounds' ratios of medians.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer

from tocsin.benchmarks.shared.harness import announce, command, temporary_folder
from tocsin.benchmarks.shared.running_cluster import pulling, running_cluster
from tocsin.benchmarks.shared.whole_way import measure_whole_way

APPLICATION = """
CREATE STREAM DATASET Bare (id STRING, kind STRING, message STRING) KEY (id);
CREATE STREAM DATASET Reports (id STRING, kind STRING, message STRING) KEY (id);
CREATE CONTINUOUS CHANNEL OfKind (kind STRING) AS SELECT r.* FROM NEW Reports r WHERE r.kind = :kind;
"""
KINDS = ("fire", "flood", "storm", "crash")
AGAIN_S = 5.0
"""Warm-up of a side that has run before."""
LAST_S = 30.0
"""How long the last results may take."""


def latency(
    rate_per_s: Annotated[float, typer.Option(help="Records published each second, one request each.")] = 100.0,
    seconds: Annotated[float, typer.Option(help="How long each side is measured in a round.")] = 20.0,
    warm_up_s: Annotated[float, typer.Option(help="How long each side runs before it is measured.")] = 60.0,
    rounds: Annotated[int, typer.Option(help="Rounds; each measures both sides.", min=1)] = 4,
) -> dict[str, Any]:
    """Publish at a steady rate and time the results of a continuous channel."""
    from tocsin.runtime.http.logs import configure_logs

    configure_logs("error")
    return asyncio.run(measure(rate_per_s, seconds, warm_up_s, rounds))


register = command(latency)


@dataclass(slots=True)
class Side:
    """One of the two that are compared."""

    name: str
    dataset: str
    start: Callable[[], Awaitable[None]]
    stop: Callable[[], Awaitable[None]]
    arrived_at: dict[str, float] = field(default_factory=dict)
    latencies_s: list[float] = field(default_factory=list)
    medians_s: list[float] = field(default_factory=list)
    """One for each round."""
    lost: int = 0


async def measure(rate_per_s: float, seconds: float, warm_up_s: float, rounds: int) -> dict[str, Any]:
    whole, bare = await _compare(rate_per_s, seconds, warm_up_s, rounds)
    ratios = [ours / theirs for ours, theirs in zip(whole.medians_s, bare.medians_s, strict=True)]
    way = await measure_whole_way(rate_per_s, seconds, warm_up_s)
    announce(f"whole way: p50 {way.p50_s:.3f} s, p95 {way.p95_s:.3f} s")
    lost = whole.lost + bare.lost + way.lost
    return {
        "publish_to_result_s_p50": statistics.median(whole.latencies_s),
        "p95": _p95(whole.latencies_s),
        "bare_microbatch_s_p50": statistics.median(bare.latencies_s),
        "bare_microbatch_s_p95": _p95(bare.latencies_s),
        "ratio": statistics.median(ratios),
        "ratios": ratios,
        "publish_to_client_s_p50": way.p50_s,
        "publish_to_client_s_p95": way.p95_s,
        "records": len(whole.latencies_s),
        "lost": lost,
        "correct": lost == 0,
    }


async def _compare(rate_per_s: float, seconds: float, warm_up_s: float, rounds: int) -> tuple[Side, Side]:
    """Measure the channel and the bare micro-batch in turns."""
    from tocsin.model.ids import BrokerId

    with temporary_folder() as root:
        async with running_cluster(root, APPLICATION) as cluster:
            cluster.subscribe("OfKind", [{"kind": kind} for kind in KINDS], BrokerId("bench"))
            whole, bare = _channel_side(cluster), _bare_side(cluster, f"{root}/bare-checkpoint")

            def received(_channel: str, results: list[Any], now_s: float) -> None:
                for result in results:
                    whole.arrived_at.setdefault(result.result["id"], now_s)

            async with pulling(cluster, BrokerId("bench"), received):
                for number in range(rounds):
                    for side in (bare, whole) if number % 2 == 0 else (whole, bare):
                        await _run(cluster, side, number, rate_per_s, seconds, AGAIN_S if number else warm_up_s)
        cluster.spark.stop()
    return whole, bare


def _channel_side(cluster: Any) -> Side:
    async def start() -> None:
        await asyncio.to_thread(cluster.datasets.start_ingestion, "Reports")

    async def stop() -> None:
        await asyncio.to_thread(cluster.dataset("Reports").stop_query)

    return Side("channel", "Reports", start, stop)


def _bare_side(cluster: Any, checkpoint: str) -> Side:
    """A streaming query on the feed log of Bare; it notes the time at which it collects each record."""
    import msgspec

    from tocsin.cluster.spark.ingestion import CHECKPOINT_FILES, SCRATCH_FILES
    from tocsin.cluster.spark.source import FeedLogSource

    queries: list[Any] = []

    def collect(batch: Any, _number: int) -> None:
        rows = batch.collect()
        now_s = time.perf_counter()
        for row in rows:
            for line in row.lines.split("\n"):
                side.arrived_at.setdefault(msgspec.json.decode(line)["id"], now_s)

    async def start() -> None:
        cluster.spark.dataSource.register(FeedLogSource)
        directory = str(cluster.gateway("Bare").log_directory)
        frames = cluster.spark.readStream.format(FeedLogSource.name()).option("directory", directory).load()
        stream = frames.writeStream.option("checkpointLocation", checkpoint).foreachBatch(collect)
        # A query copies the session's settings when it starts: it gets the checkpoint manager of our own queries.
        cluster.spark.conf.set(CHECKPOINT_FILES, SCRATCH_FILES)
        try:
            queries.append(await asyncio.to_thread(stream.start))
        finally:
            cluster.spark.conf.unset(CHECKPOINT_FILES)

    async def stop() -> None:
        await asyncio.to_thread(queries[-1].stop)

    side = Side("bare micro-batch", "Bare", start, stop)
    return side


async def _run(cluster: Any, side: Side, number: int, rate_per_s: float, seconds: float, warm_up_s: float) -> None:
    """Run one side for a round: publish at the rate, wait for the last arrivals, add latencies after the warm-up."""
    from tocsin.cluster.feed.gateway import RecordForm
    from tocsin.cluster.server.group_commit import GroupCommit

    await side.start()
    commit = GroupCommit(cluster.gateway(side.dataset))
    sent_at: dict[str, float] = {}

    async def publish(name: str, kind: str) -> None:
        sent_at[name] = time.perf_counter()
        body = b'{"id": "%s", "kind": "%s", "message": "%s"}' % (name.encode(), kind.encode(), b"m" * 200)
        await commit.store(body, RecordForm.JSON, None)

    started_s = time.perf_counter()
    async with asyncio.TaskGroup() as publishing:
        for record in range(int((warm_up_s + seconds) * rate_per_s)):
            await asyncio.sleep(max(0.0, started_s + record / rate_per_s - time.perf_counter()))
            publishing.create_task(publish(f"{number}-{record}", KINDS[record % len(KINDS)]))
    deadline_s = time.perf_counter() + LAST_S
    while not sent_at.keys() <= side.arrived_at.keys() and time.perf_counter() < deadline_s:
        await asyncio.sleep(0.1)
    await side.stop()
    names = [name for name in sent_at if name in side.arrived_at]
    side.lost += len(sent_at) - len(names)
    measured = [side.arrived_at[name] - sent_at[name] for name in names if sent_at[name] >= started_s + warm_up_s]
    side.latencies_s += measured
    side.medians_s.append(statistics.median(measured))
    announce(f"round {number + 1}, {side.name}: p50 {side.medians_s[-1]:.3f} s, p95 {_p95(measured):.3f} s")


def _p95(latencies_s: list[float]) -> float:
    return sorted(latencies_s)[int(0.95 * len(latencies_s))]
