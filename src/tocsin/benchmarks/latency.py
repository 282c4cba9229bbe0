"""`tocsin bench latency`: from a publisher's record to its result, through a continuous channel, at a steady rate.

Timed: each record, from just before the gateway accepts it until a broker has pulled its result. On the way are the
gateway (fsync), the streaming query, the dataset file (fsync, commit), the execution, the result file (fsync, commit)
and the announcement.
Compared with: a bare micro-batch with the same feed log, the same streaming source, Spark's own checkpoint, and a
foreachBatch that only collects its rows. It is measured first.
Checked by: a count of lost records, which must be 0 for both.
Prints: p50 and p95 of both, and the ratio of the medians.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import Annotated, Any

import typer

from tocsin.benchmarks.shared.harness import announce, command, declare, temporary_folder

APPLICATION = """
CREATE STREAM DATASET Bare (id STRING, kind STRING, message STRING) KEY (id);
CREATE STREAM DATASET Reports (id STRING, kind STRING, message STRING) KEY (id);
CREATE CONTINUOUS CHANNEL OfKind (kind STRING) AS SELECT r.* FROM NEW Reports r WHERE r.kind = :kind;
"""
KINDS = ("fire", "flood", "storm", "crash")


def latency(
    rate_per_s: Annotated[float, typer.Option(help="Records published each second, one request each.")] = 100.0,
    seconds: Annotated[float, typer.Option(help="How long each of the two is measured.")] = 20.0,
    warm_up_s: Annotated[float, typer.Option(help="How long each runs before it is measured.")] = 60.0,
) -> dict[str, Any]:
    """Publish at a steady rate and time the results of a continuous channel."""
    from tocsin.runtime.http.logs import configure_logs

    configure_logs("error")
    return asyncio.run(measure(rate_per_s, seconds, warm_up_s))


register = command(latency)


async def measure(rate_per_s: float, seconds: float, warm_up_s: float) -> dict[str, Any]:
    from tocsin.cluster.engine import DataCluster
    from tocsin.cluster.server.group_commit import GroupCommit
    from tocsin.cluster.server.metrics import ClusterMetrics
    from tocsin.cluster.server.process import ClusterProcess
    from tocsin.cluster.settings import ClusterSettings
    from tocsin.cluster.spark.session import make_session
    from tocsin.model.ids import BrokerId

    with temporary_folder() as root:
        process = ClusterProcess(
            lambda arrived: DataCluster(make_session(), ClusterSettings(root=root), time.time, arrived),
            ClusterMetrics(),
        )
        cluster = await process.start()
        try:
            declare(cluster, APPLICATION)
            await process.refresh()
            cluster.subscribe("OfKind", [{"kind": kind} for kind in KINDS], BrokerId("bench"))

            collected_at: dict[str, float] = {}
            query = _start_bare_query(cluster, f"{root}/bare-checkpoint", collected_at)
            bare = await _run(GroupCommit(cluster.gateway("Bare")), collected_at, rate_per_s, seconds, warm_up_s)
            query.stop()
            announce(f"bare micro-batch: p50 {bare['p50']:.3f} s, p95 {bare['p95']:.3f} s")

            pulled_at: dict[str, float] = {}
            await asyncio.to_thread(cluster.datasets.start_ingestion, "Reports")
            pulling = asyncio.create_task(_pull_results(cluster, BrokerId("bench"), pulled_at))
            whole = await _run(GroupCommit(cluster.gateway("Reports")), pulled_at, rate_per_s, seconds, warm_up_s)
            pulling.cancel()
        finally:
            await process.stop()
            cluster.spark.stop()
    lost = whole["lost"] + bare["lost"]
    return {
        "publish_to_result_s_p50": whole["p50"],
        "p95": whole["p95"],
        "bare_microbatch_s_p50": bare["p50"],
        "bare_microbatch_s_p95": bare["p95"],
        "ratio": whole["p50"] / bare["p50"],
        "records": whole["records"],
        "lost": lost,
        "correct": lost == 0,
    }


def _start_bare_query(cluster: Any, checkpoint: str, collected_at: dict[str, float]) -> Any:
    """Start a streaming query on the feed log of Bare; it notes the time at which it collects each record."""
    import msgspec

    from tocsin.cluster.spark.source import FeedLogSource

    def collect(batch: Any, _number: int) -> None:
        rows = batch.collect()
        now_s = time.perf_counter()
        for row in rows:
            for line in row.lines.split("\n"):
                collected_at[msgspec.json.decode(line)["id"]] = now_s

    cluster.spark.dataSource.register(FeedLogSource)
    directory = str(cluster.gateway("Bare").log_directory)
    frames = cluster.spark.readStream.format(FeedLogSource.name()).option("directory", directory).load()
    return frames.writeStream.option("checkpointLocation", checkpoint).foreachBatch(collect).start()


async def _pull_results(cluster: Any, broker: Any, pulled_at: dict[str, float]) -> None:
    """Act as a broker: wait for announcements, pull the results, note the time at which each record's result came."""
    loop = asyncio.get_running_loop()
    announced = asyncio.Event()
    cluster.announcements.listen(lambda: loop.call_soon_threadsafe(announced.set))
    sequence, offset = cluster.announcements.sequence, 0
    epoch = cluster.channel("OfKind").epoch
    numbers = cluster.subscriptions.book.held_by(broker).tolist()

    def pull(start: int) -> list[str]:
        tables = cluster.results.read("OfKind", epoch, dict.fromkeys(numbers, start))
        return [row["id"] for table in tables for row in table.select(["id", "_tocsin_offset"]).to_pylist()]

    while True:
        announced.clear()
        news = await asyncio.to_thread(cluster.announcements.since, broker, sequence)
        if news.sequence == sequence:
            await announced.wait()
            continue
        sequence = news.sequence
        records = await asyncio.to_thread(pull, offset)
        now_s = time.perf_counter()
        for record in records:
            pulled_at.setdefault(record, now_s)
        if news.announcements:
            offset = (news.announcements[-1].execution + 1) << 20


async def _run(
    commit: Any, arrived_at: dict[str, float], rate_per_s: float, seconds: float, warm_up_s: float
) -> dict[str, Any]:
    """Publish at the rate, wait up to 30 s for the last arrivals, and return quantiles without the warm-up."""
    from tocsin.cluster.feed.gateway import RecordForm

    sent_at: dict[str, float] = {}

    async def publish(name: str, kind: str) -> None:
        sent_at[name] = time.perf_counter()
        body = b'{"id": "%s", "kind": "%s", "message": "%s"}' % (name.encode(), kind.encode(), b"m" * 200)
        await commit.store(body, RecordForm.JSON, None)

    started_s = time.perf_counter()
    count = int((warm_up_s + seconds) * rate_per_s)
    async with asyncio.TaskGroup() as publishing:
        for number in range(count):
            await asyncio.sleep(max(0.0, started_s + number / rate_per_s - time.perf_counter()))
            publishing.create_task(publish(f"r{number}", KINDS[number % len(KINDS)]))
    deadline_s = time.perf_counter() + 30
    while len(arrived_at) < count and time.perf_counter() < deadline_s:
        await asyncio.sleep(0.1)
    names = [name for name, at_s in sent_at.items() if at_s >= started_s + warm_up_s]
    latencies_s = sorted(arrived_at[name] - sent_at[name] for name in names if name in arrived_at)
    return {
        "p50": statistics.median(latencies_s),
        "p95": latencies_s[int(0.95 * len(latencies_s))],
        "records": len(names),
        "lost": count - len(arrived_at),
    }
