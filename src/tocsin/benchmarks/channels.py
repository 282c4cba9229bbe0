"""`tocsin bench channels`: one execution for a million subscriptions, beside DuckDB and one query per subscription.

The workload: subscriptions to every pair of (kind, area), records spread evenly over those pairs. Each round publishes
new records through the gateway and times one execution as the engine runs it: Spark job, results written by executors
and synced, commit. DuckDB holds the same tables in memory and creates the result table. The answers must be equal.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import typer

KINDS = ("fire", "flood", "storm", "crash", "outage", "quake", "spill", "riot")
APPLICATION = """
CREATE STREAM DATASET Reports (report_id STRING, kind STRING, area INT, severity INT, message STRING);
CREATE REPETITIVE CHANNEL OfKindInArea (kind STRING, area INT) EVERY 10 SECONDS AS
  SELECT r.* FROM NEW Reports r WHERE r.kind = :kind AND r.area = :area;
"""


def register(app: typer.Typer) -> None:
    @app.command("channels")
    def channels(
        subscriptions: int = typer.Option(1_000_000, help="Backend subscriptions of the channel."),
        records: int = typer.Option(10_000, help="New records in each execution."),
        rounds: int = typer.Option(11, help="Timed executions, after as many that warm up."),
        as_json: bool = typer.Option(False, "--json", help="End with one JSON object."),
    ) -> None:
        """Execute a channel for all its subscriptions at once and compare."""
        from tocsin.benchmarks.shared.harness import announce, benchmark_cluster, finish, memory_watch

        with memory_watch() as memory, benchmark_cluster(APPLICATION) as cluster:
            small = measure(cluster, subscriptions // 10, records, rounds)
            announce(f"{subscriptions // 10:,} subscriptions: {small['spark_s_p50']:.3f} s")
        with memory, benchmark_cluster(APPLICATION) as cluster:
            large = measure(cluster, subscriptions, records, rounds)
            restart_s, survived = restart(cluster)
            announce(f"{survived:,} subscriptions after a restart of {restart_s:.1f} s")
        finish(
            {
                **large,
                "subscriptions": subscriptions,
                "records": records,
                "spark_over_duckdb": large["spark_s_p50"] / large["duckdb_s_p50"],
                "speed_up_over_per_subscription": large["per_subscription_s_estimate"] / large["spark_s_p50"],
                "peak_rss_mib": memory.peak_mib,
                "growth": large["spark_s_p50"] / small["spark_s_p50"],
                "restart_s": restart_s,
                "correct": large["correct"] and small["correct"] and survived == subscriptions,
            },
            as_json,
        )


def measure(cluster: Any, subscriptions: int, records: int, rounds: int) -> dict[str, Any]:
    import duckdb
    import numpy as np

    from tocsin.benchmarks.shared.harness import announce, publish
    from tocsin.model.ids import BrokerId

    areas = -(-subscriptions // len(KINDS))
    pairs = [{"kind": KINDS[number % len(KINDS)], "area": number // len(KINDS)} for number in range(subscriptions)]
    began = time.perf_counter()
    for start in range(0, subscriptions, 50_000):
        cluster.subscribe("OfKindInArea", pairs[start : start + 50_000], BrokerId("bench"))
    subscribe_s = time.perf_counter() - began
    announce(f"{subscriptions:,} subscriptions made in {subscribe_s:.1f} s")

    engine = duckdb.connect()
    engine.execute("SET threads = 2")
    engine.execute("CREATE TABLE s (number BIGINT, kind VARCHAR, area INTEGER)")
    engine.register("made", _subscription_table(cluster))
    engine.execute("INSERT INTO s SELECT * FROM made")
    generator = np.random.default_rng(subscriptions)
    spark_s: list[float] = []
    duckdb_s: list[float] = []
    correct = True
    results = 0
    for round_number in range(2 * rounds):
        batch = [
            {
                "report_id": f"{round_number}-{index}",
                "kind": KINDS[kind],
                "area": area,
                "severity": severity,
                "message": "m" * 200,
            }
            for index, (kind, area, severity) in enumerate(
                zip(
                    generator.integers(0, len(KINDS), records).tolist(),
                    generator.integers(0, areas, records).tolist(),
                    generator.integers(1, 6, records).tolist(),
                    strict=True,
                )
            )
        ]
        publish(cluster, "Reports", batch)
        began = time.perf_counter()
        execution = cluster.execute("OfKindInArea")
        took_s = time.perf_counter() - began
        duck_s, expected = _in_duckdb(engine, batch)
        if round_number >= rounds:
            spark_s.append(took_s)
            duckdb_s.append(duck_s)
        results = execution.results
        correct = correct and expected == _stored(cluster, execution.execution)
    return {
        "spark_s_p50": statistics.median(spark_s),
        "duckdb_s_p50": statistics.median(duckdb_s),
        "per_subscription_s_estimate": _one_by_one_s(cluster, pairs[0]) * subscriptions,
        "results": results,
        "subscribe_s": subscribe_s,
        "correct": correct,
    }


def restart(cluster: Any) -> tuple[float, int]:
    """Close the cluster and open its root again: seconds until it is ready, and how many subscriptions are there."""
    from tocsin.cluster.engine import DataCluster

    cluster.close()
    began = time.perf_counter()
    again = DataCluster(cluster.spark, cluster.settings, time.time)
    restart_s = time.perf_counter() - began
    survived = len(again.subscriptions.book)
    again.close()
    return restart_s, survived


def _subscription_table(cluster: Any) -> Any:
    import msgspec
    import pyarrow as pa

    rows = [
        (number, *msgspec.json.decode(parameters))
        for number, _, parameters in cluster.catalog.subscriptions.of_channel("OfKindInArea")
    ]
    numbers, kinds, areas = zip(*rows, strict=True)
    return pa.table({"number": numbers, "kind": kinds, "area": pa.array(areas, pa.int32())})


def _in_duckdb(engine: Any, batch: list[dict[str, Any]]) -> tuple[float, set[tuple[int, str]]]:
    import pyarrow as pa

    columns = {name: [row[name] for row in batch] for name in batch[0]}
    engine.register("arrived", pa.table({**columns, "area": pa.array(columns["area"], pa.int32())}))
    engine.execute("CREATE OR REPLACE TABLE r AS FROM arrived")
    began = time.perf_counter()
    engine.execute(
        "CREATE OR REPLACE TABLE o AS SELECT s.number, r.* FROM s JOIN r ON r.kind = s.kind AND r.area = s.area"
    )
    took_s = time.perf_counter() - began
    return took_s, set(engine.execute("SELECT number, report_id FROM o").fetchall())


def _stored(cluster: Any, execution: int) -> set[tuple[int, str]]:
    """What the files say, not what the memory of the last execution says."""
    import pyarrow.parquet as pq

    from tocsin.cluster.catalog import results_owner

    live = cluster.channel("OfKindInArea")
    found: set[tuple[int, str]] = set()
    rows = 0
    for file in cluster.catalog.files.of(results_owner("OfKindInArea", live.epoch), execution - 1, execution):
        with cluster.storage.open(file.path) as stream:
            table = pq.read_table(stream, columns=["_tocsin_subscription", "report_id"])
        rows += table.num_rows
        found |= set(zip(*(column.to_pylist() for column in table.columns), strict=True))
    return found if rows == len(found) else set()


def _one_by_one_s(cluster: Any, parameters: dict[str, Any]) -> float:
    """What one subscription costs when its query runs alone, on the records of the last execution."""
    from tocsin.cluster.catalog import dataset_owner
    from tocsin.cluster.spark.frames import dataset_frame
    from tocsin.cluster.sql.query_sql import to_single_sql

    live = cluster.dataset("Reports")
    files = cluster.catalog.files.of(dataset_owner("Reports"), live.writer.version - 1)
    frame = dataset_frame(cluster.spark, cluster.storage, live.dataset, files)
    frame.createOrReplaceTempView("one_by_one")
    query = to_single_sql(cluster.channel("OfKindInArea").prepared.query, lambda _name, _new: "one_by_one")
    times = []
    for _ in range(7):
        began = time.perf_counter()
        cluster.spark.sql(query, parameters).collect()
        times.append(time.perf_counter() - began)
    return statistics.median(times[2:])
