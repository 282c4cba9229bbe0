"""`tocsin bench latency`: from a publisher's record to its result, through a continuous channel, at a steady rate.

First a bare micro-batch: the same feed log, the same streaming source, and a foreachBatch that only collects its rows,
with a checkpoint as Spark writes it by itself.
Then the whole way: gateway with fsync, streaming query, dataset file with fsync and commit, execution, result file with
fsync and commit, announcement to a broker. Both are timed from just before the gateway is asked to accept a record.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from typing import Any

import typer

APPLICATION = """
CREATE STREAM DATASET Bare (id STRING, kind STRING, message STRING) KEY (id);
CREATE STREAM DATASET Reports (id STRING, kind STRING, message STRING) KEY (id);
CREATE CONTINUOUS CHANNEL OfKind (kind STRING) AS SELECT r.* FROM NEW Reports r WHERE r.kind = :kind;
"""
KINDS = ("fire", "flood", "storm", "crash")


def register(app: typer.Typer) -> None:
    @app.command("latency")
    def latency(
        rate_per_s: float = typer.Option(100.0, help="Records published each second, one request each."),
        seconds: float = typer.Option(20.0, help="How long each of the two is measured."),
        warm_up_s: float = typer.Option(60.0, help="How long each runs before that."),
        as_json: bool = typer.Option(False, "--json", help="End with one JSON object."),
    ) -> None:
        """Publish at a steady rate and time the results of a continuous channel."""
        from tocsin.benchmarks.shared.harness import finish
        from tocsin.runtime.http.logs import configure_logs

        configure_logs("error")
        finish(asyncio.run(measure(rate_per_s, seconds, warm_up_s)), as_json)


async def measure(rate_per_s: float, seconds: float, warm_up_s: float) -> dict[str, Any]:
    from tocsin.benchmarks.shared.harness import announce, declare
    from tocsin.cluster.engine import DataCluster
    from tocsin.cluster.server.group_commit import GroupCommit
    from tocsin.cluster.server.metrics import ClusterMetrics
    from tocsin.cluster.server.process import ClusterProcess
    from tocsin.cluster.settings import ClusterSettings
    from tocsin.cluster.spark.session import make_session
    from tocsin.model.ids import BrokerId

    with tempfile.TemporaryDirectory(prefix="tocsin-bench-") as root:
        process = ClusterProcess(
            lambda arrived: DataCluster(make_session(), ClusterSettings(root=root), time.time, arrived),
            ClusterMetrics(),
        )
        cluster = await process.start()
        try:
            declare(cluster, APPLICATION)
            await process.refresh()
            cluster.subscribe("OfKind", [{"kind": kind} for kind in KINDS], BrokerId("bench"))

            bare_done: dict[str, float] = {}
            query = _bare_query(cluster, f"{root}/bare-checkpoint", bare_done)
            bare = await _run(GroupCommit(cluster.gateway("Bare")), bare_done, rate_per_s, seconds, warm_up_s)
            query.stop()
            announce(f"bare micro-batch: p50 {bare['p50']:.3f} s, p95 {bare['p95']:.3f} s")

            done: dict[str, float] = {}
            await asyncio.to_thread(cluster.datasets.start_ingestion, "Reports")
            listening = asyncio.create_task(_listen(cluster, BrokerId("bench"), done))
            whole = await _run(GroupCommit(cluster.gateway("Reports")), done, rate_per_s, seconds, warm_up_s)
            listening.cancel()
        finally:
            await process.stop()
            cluster.spark.stop()
    return {
        "publish_to_result_s_p50": whole["p50"],
        "p95": whole["p95"],
        "bare_microbatch_s_p50": bare["p50"],
        "bare_microbatch_s_p95": bare["p95"],
        "ratio": whole["p50"] / bare["p50"],
        "records": whole["records"],
        "lost": whole["lost"] + bare["lost"],
        "correct": whole["lost"] + bare["lost"] == 0,
    }


def _bare_query(cluster: Any, checkpoint: str, done: dict[str, float]) -> Any:
    import msgspec

    from tocsin.cluster.spark.source import FeedLogSource

    def collect(batch: Any, _number: int) -> None:
        rows = batch.collect()
        now_s = time.perf_counter()
        for row in rows:
            for line in row.lines.split("\n"):
                done[msgspec.json.decode(line)["id"]] = now_s

    cluster.spark.dataSource.register(FeedLogSource)
    directory = str(cluster.gateway("Bare").log_directory)
    frames = cluster.spark.readStream.format(FeedLogSource.name()).option("directory", directory).load()
    return frames.writeStream.option("checkpointLocation", checkpoint).foreachBatch(collect).start()


async def _listen(cluster: Any, broker: Any, done: dict[str, float]) -> None:
    """A broker: waits for announcements and pulls what they announce."""
    loop = asyncio.get_running_loop()
    news = asyncio.Event()
    cluster.announcements.listen(lambda: loop.call_soon_threadsafe(news.set))
    sequence, offset = cluster.announcements.sequence, 0
    live = cluster.channel("OfKind")
    numbers = cluster.subscriptions.book.held_by(broker).tolist()
    while True:
        news.clear()
        heard = await asyncio.to_thread(cluster.announcements.since, broker, sequence)
        if heard.sequence == sequence:
            await news.wait()
            continue
        sequence = heard.sequence
        rows = await asyncio.to_thread(
            lambda start: [
                (row["id"], row["_tocsin_offset"])
                for table in cluster.results.read("OfKind", live.epoch, dict.fromkeys(numbers, start))
                for row in table.select(["id", "_tocsin_offset"]).to_pylist()
            ],
            offset,
        )
        now_s = time.perf_counter()
        for name, _ in rows:
            done.setdefault(name, now_s)
        if heard.announcements:
            offset = (heard.announcements[-1].execution + 1) << 20


async def _run(
    commit: Any, done: dict[str, float], rate_per_s: float, seconds: float, warm_up_s: float
) -> dict[str, Any]:
    from tocsin.cluster.feed.gateway import RecordForm

    sent: dict[str, float] = {}
    publishing: set[asyncio.Task[None]] = set()

    async def publish(name: str, kind: str) -> None:
        sent[name] = time.perf_counter()
        body = b'{"id": "%s", "kind": "%s", "message": "%s"}' % (name.encode(), kind.encode(), b"m" * 200)
        await commit.store(body, RecordForm.JSON, None)

    began = time.perf_counter()
    count = int((warm_up_s + seconds) * rate_per_s)
    for number in range(count):
        await asyncio.sleep(max(0.0, began + number / rate_per_s - time.perf_counter()))
        task = asyncio.create_task(publish(f"r{number}", KINDS[number % len(KINDS)]))
        publishing.add(task)
        task.add_done_callback(publishing.discard)
    await asyncio.gather(*publishing)
    deadline = time.perf_counter() + 30
    while len(done) < count and time.perf_counter() < deadline:
        await asyncio.sleep(0.1)
    timed = [name for name, at_s in sent.items() if at_s >= began + warm_up_s]
    taken = sorted(done[name] - sent[name] for name in timed if name in done)
    return {
        "p50": statistics.median(taken),
        "p95": taken[int(0.95 * len(taken))],
        "records": len(timed),
        "lost": count - len(done),
    }
