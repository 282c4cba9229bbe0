"""`tocsin bench near`: find all users within a kilometre of new records, for every user at once.

Timed: one execution that joins subscriptions, positions and new records through the grid and writes the results. Users
are spread over a square, each with a position in a KEYED dataset and a subscription of its own. The records are spread
over the same square.
Compared with: DuckDB, which creates the same results in memory with a plain lattice; the cells of the users are
computed before.
Checked by: DuckDB, in the first and in the last execution.
Prints: the medians of both engines and their ratio, the pairs of the last execution, peak memory.
"""

from __future__ import annotations

import statistics
from typing import Annotated, Any

import typer

from tocsin.benchmarks.shared.harness import announce, benchmark_cluster, command, publish, stored_results, timed
from tocsin.benchmarks.shared.near_pairs import NearPairs, spread
from tocsin.benchmarks.shared.processes import MemoryWatch

SIDE_KM = 100.0
APPLICATION = """
CREATE STREAM DATASET Reports (report_id STRING, lat DOUBLE, lon DOUBLE, message STRING);
CREATE KEYED DATASET Places (user_id STRING, lat DOUBLE, lon DOUBLE) KEY (user_id);
CREATE REPETITIVE CHANNEL NearMe (user STRING, radius_m DOUBLE) EVERY 10 SECONDS AS
  SELECT r.*, distance_m(r.lat, r.lon, u.lat, u.lon) AS away_m
  FROM NEW Reports r JOIN Places u ON near(r.lat, r.lon, u.lat, u.lon, :radius_m) WHERE u.user_id = :user;
"""


def near(
    users: Annotated[int, typer.Option(help="People, each with a place and a subscription.")] = 100_000,
    records: Annotated[int, typer.Option(help="New records in each execution.")] = 10_000,
    radius_m: Annotated[float, typer.Option(help="Radius of every subscription.")] = 1_000.0,
    rounds: Annotated[int, typer.Option(help="Timed executions, after as many that warm up.")] = 7,
) -> dict[str, Any]:
    """Join people and events by distance."""
    with MemoryWatch() as memory, benchmark_cluster(APPLICATION) as cluster:
        measured = measure(cluster, users, records, radius_m, rounds)
    return {**measured, "users": users, "records": records, "peak_rss_mib": memory.peak_mib}


register = command(near, needs=("psutil", "duckdb"))


def measure(cluster: Any, users: int, records: int, radius_m: float, rounds: int) -> dict[str, Any]:
    import numpy as np

    from tocsin.model.ids import BrokerId

    generator = np.random.default_rng(users)
    places = spread(generator, users, SIDE_KM)
    for start in range(0, users, 20_000):
        part = list(enumerate(places[start : start + 20_000].tolist(), start))
        publish(cluster, "Places", [{"user_id": f"u{number}", "lat": lat, "lon": lon} for number, (lat, lon) in part])
        parameters = [{"user": f"u{number}", "radius_m": radius_m} for number, _ in part]
        cluster.subscribe("NearMe", parameters, BrokerId("bench"))
    announce(f"{users:,} users placed and subscribed")
    engine = NearPairs(places, radius_m, float(places[:, 0].max()) + 1.0)
    spark_s, duckdb_s = [], []
    correct = True
    for round_number in range(2 * rounds):
        events = spread(generator, records, SIDE_KM)
        reports = [
            {"report_id": f"{round_number}-{index}", "lat": lat, "lon": lon, "message": "m" * 100}
            for index, (lat, lon) in enumerate(events.tolist())
        ]
        publish(cluster, "Reports", reports)
        execution, took_s = timed(lambda: cluster.execute("NearMe"))
        expected, duck_s = engine.with_events(events)
        announce(f"execution of {execution.results:,} results: {took_s:.2f} s, DuckDB {duck_s:.3f} s")
        if round_number >= rounds:
            spark_s.append(took_s)
            duckdb_s.append(duck_s)
        if round_number in (0, 2 * rounds - 1):
            correct = correct and expected == _stored(cluster, execution.execution)
    spark_s_p50, duckdb_s_p50 = statistics.median(spark_s), statistics.median(duckdb_s)
    return {
        "spark_s_p50": spark_s_p50,
        "duckdb_s_p50": duckdb_s_p50,
        "spark_over_duckdb": spark_s_p50 / duckdb_s_p50,
        "pairs": execution.results,
        "correct": correct,
    }


def _stored(cluster: Any, execution: int) -> set[tuple[int, int]]:
    """Pairs (user, event) of the stored results: users are called u0, u1, …, reports ROUND-EVENT."""
    import msgspec

    users = {
        number: int(msgspec.json.decode(parameters)[0][1:])
        for number, _, parameters in cluster.catalog.subscriptions.of_channel("NearMe")
    }
    results = stored_results(cluster, "NearMe", execution)
    return {(users[number], int(report.partition("-")[2])) for number, report in results}
