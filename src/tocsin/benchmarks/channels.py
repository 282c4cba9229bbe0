"""`tocsin bench channels`: execute one channel for a million subscriptions at once.

Timed: one execution as the engine runs it: Spark job, results written by executors and synced, commit. Subscriptions
cover every pair of (kind, area). Before each execution, new records spread evenly over those pairs pass the gateway.
Compared with: DuckDB, which creates the same results in memory; a query for each subscription, estimated from the query
of one; a tenth of the subscriptions.
Checked by: DuckDB, against the stored results of every execution. Every subscription must survive a restart.
Prints: medians of both engines, the three factors, times to subscribe and restart, peak memory.
"""

from __future__ import annotations

import statistics
import time
from typing import Annotated, Any

import typer

from tocsin.benchmarks.shared.harness import announce, benchmark_cluster, command, publish, stored_results, timed
from tocsin.benchmarks.shared.processes import MemoryWatch

KINDS = ("fire", "flood", "storm", "crash", "outage", "quake", "spill", "riot")
APPLICATION = """
CREATE STREAM DATASET Reports (report_id STRING, kind STRING, area INT, severity INT, message STRING);
CREATE REPETITIVE CHANNEL OfKindInArea (kind STRING, area INT) EVERY 10 SECONDS AS
  SELECT r.* FROM NEW Reports r WHERE r.kind = :kind AND r.area = :area;
"""


def channels(
    subscriptions: Annotated[int, typer.Option(help="Backend subscriptions of the channel.")] = 1_000_000,
    records: Annotated[int, typer.Option(help="New records in each execution.")] = 10_000,
    rounds: Annotated[int, typer.Option(help="Timed executions, after as many that warm up.")] = 11,
) -> dict[str, Any]:
    """Execute a channel for all its subscriptions at once and compare."""
    with MemoryWatch() as memory, benchmark_cluster(APPLICATION) as cluster:
        small = measure(cluster, subscriptions // 10, records, rounds)
        announce(f"{subscriptions // 10:,} subscriptions: {small['spark_s_p50']:.3f} s")
    with memory, benchmark_cluster(APPLICATION) as cluster:
        large = measure(cluster, subscriptions, records, rounds)
        restart_s, survived = _restart(cluster)
        announce(f"{survived:,} subscriptions after a restart of {restart_s:.1f} s")
    return {
        **large,
        "subscriptions": subscriptions,
        "records": records,
        "spark_over_duckdb": large["spark_s_p50"] / large["duckdb_s_p50"],
        "speed_up_over_per_subscription": large["per_subscription_s_estimate"] / large["spark_s_p50"],
        "peak_rss_mib": memory.peak_mib,
        "growth": large["spark_s_p50"] / small["spark_s_p50"],
        "restart_s": restart_s,
        "correct": large["correct"] and small["correct"] and survived == subscriptions,
    }


register = command(channels, needs=("psutil", "duckdb"))


def measure(cluster: Any, subscriptions: int, records: int, rounds: int) -> dict[str, Any]:
    import duckdb
    import numpy as np

    areas = -(-subscriptions // len(KINDS))
    pairs = [{"kind": KINDS[number % len(KINDS)], "area": number // len(KINDS)} for number in range(subscriptions)]
    _, subscribe_s = timed(lambda: _subscribe(cluster, pairs))
    announce(f"{subscriptions:,} subscriptions made in {subscribe_s:.1f} s")

    engine = duckdb.connect()
    engine.execute("SET threads = 2")
    engine.register("made", _subscription_table(cluster))
    engine.execute("CREATE TABLE s AS FROM made")
    generator = np.random.default_rng(subscriptions)
    spark_s: list[float] = []
    duckdb_s: list[float] = []
    correct = True
    for round_number in range(2 * rounds):
        batch = _batch(generator, round_number, areas, records)
        publish(cluster, "Reports", batch)
        execution, took_s = timed(lambda: cluster.execute("OfKindInArea"))
        expected, duck_s = _execute_in_duckdb(engine, batch)
        if round_number >= rounds:
            spark_s.append(took_s)
            duckdb_s.append(duck_s)
        correct = correct and expected == stored_results(cluster, "OfKindInArea", execution.execution)
    return {
        "spark_s_p50": statistics.median(spark_s),
        "duckdb_s_p50": statistics.median(duckdb_s),
        "per_subscription_s_estimate": _single_query_s(cluster, pairs[0]) * subscriptions,
        "results": execution.results,
        "subscribe_s": subscribe_s,
        "correct": correct,
    }


def _subscribe(cluster: Any, pairs: list[dict[str, Any]]) -> None:
    from tocsin.model.ids import BrokerId

    for start in range(0, len(pairs), 50_000):
        cluster.subscribe("OfKindInArea", pairs[start : start + 50_000], BrokerId("bench"))


def _batch(generator: Any, round_number: int, areas: int, records: int) -> list[dict[str, Any]]:
    kinds, places, severities = (
        generator.integers(low, high, records).tolist() for low, high in ((0, len(KINDS)), (0, areas), (1, 6))
    )
    return [
        {
            "report_id": f"{round_number}-{index}",
            "kind": KINDS[kind],
            "area": area,
            "severity": severity,
            "message": "m" * 200,
        }
        for index, (kind, area, severity) in enumerate(zip(kinds, places, severities, strict=True))
    ]


def _restart(cluster: Any) -> tuple[float, int]:
    """Close the cluster and open its root again; return the seconds until it is ready and its subscriptions."""
    from tocsin.cluster.engine import DataCluster

    cluster.close()
    restarted, restart_s = timed(lambda: DataCluster(cluster.spark, cluster.settings, time.time))
    survived = len(restarted.subscriptions.book)
    restarted.close()
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


def _execute_in_duckdb(engine: Any, batch: list[dict[str, Any]]) -> tuple[set[tuple[int, str]], float]:
    """Return DuckDB's results as (subscription number, report id), and the seconds of its join."""
    import pyarrow as pa

    columns = {name: [row[name] for row in batch] for name in batch[0]}
    engine.register("arrived", pa.table({**columns, "area": pa.array(columns["area"], pa.int32())}))
    engine.execute("CREATE OR REPLACE TABLE r AS FROM arrived")
    join = "CREATE OR REPLACE TABLE o AS SELECT s.number, r.* FROM s JOIN r ON r.kind = s.kind AND r.area = s.area"
    _, took_s = timed(lambda: engine.execute(join))
    return set(engine.execute("SELECT number, report_id FROM o").fetchall()), took_s


def _single_query_s(cluster: Any, parameters: dict[str, Any]) -> float:
    """Median seconds of one subscription's query when it runs alone, on the records of the last execution."""
    from tocsin.cluster.catalog import dataset_owner
    from tocsin.cluster.spark.frames import dataset_frame
    from tocsin.cluster.sql.query_sql import to_single_sql

    reports = cluster.dataset("Reports")
    files = cluster.catalog.files.of(dataset_owner("Reports"), reports.writer.version - 1)
    frame = dataset_frame(cluster.spark, cluster.storage, reports.dataset, files)
    frame.createOrReplaceTempView("one_by_one")
    query = to_single_sql(cluster.channel("OfKindInArea").prepared.query, lambda _name, _new: "one_by_one")
    times = [timed(lambda: cluster.spark.sql(query, parameters).collect())[1] for _ in range(7)]
    return statistics.median(times[2:])  # two warm up
