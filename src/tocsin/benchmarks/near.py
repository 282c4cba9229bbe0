"""`tocsin bench near`: who is within a kilometre of what happened, for everybody at once.

Users are spread over a square, each with a place in a KEYED dataset and a subscription of their own; records happen
anywhere in it. The timed execution joins subscriptions, places and new records through the grid and writes the results.
DuckDB finds the same pairs with a plain lattice of its own.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import typer

SIDE_KM = 100.0
SOUTH_WEST = (60.0, 24.0)
APPLICATION = """
CREATE STREAM DATASET Reports (report_id STRING, lat DOUBLE, lon DOUBLE, message STRING);
CREATE KEYED DATASET Places (user_id STRING, lat DOUBLE, lon DOUBLE) KEY (user_id);
CREATE REPETITIVE CHANNEL NearMe (user STRING, radius_m DOUBLE) EVERY 10 SECONDS AS
  SELECT r.*, distance_m(r.lat, r.lon, u.lat, u.lon) AS away_m
  FROM NEW Reports r JOIN Places u ON near(r.lat, r.lon, u.lat, u.lon, :radius_m) WHERE u.user_id = :user;
"""


def register(app: typer.Typer) -> None:
    @app.command("near")
    def near(
        users: int = typer.Option(100_000, help="People, each with a place and a subscription."),
        records: int = typer.Option(10_000, help="New records in each execution."),
        radius_m: float = typer.Option(1_000.0, help="Radius of every subscription."),
        rounds: int = typer.Option(5, help="Timed executions, after two that warm up."),
        as_json: bool = typer.Option(False, "--json", help="End with one JSON object."),
    ) -> None:
        """Join people and events by distance."""
        from tocsin.benchmarks.shared.harness import benchmark_cluster, finish, memory_watch

        with memory_watch() as memory, benchmark_cluster(APPLICATION) as cluster:
            measured = measure(cluster, users, records, radius_m, rounds)
        finish({**measured, "users": users, "records": records, "peak_rss_mib": memory.peak_mib}, as_json)


def measure(cluster: Any, users: int, records: int, radius_m: float, rounds: int) -> dict[str, Any]:
    import numpy as np

    from tocsin.benchmarks.shared.harness import announce, publish
    from tocsin.model.ids import BrokerId

    generator = np.random.default_rng(users)
    places = _spread(generator, users)
    for start in range(0, users, 20_000):
        publish(
            cluster,
            "Places",
            [
                {"user_id": f"u{start + index}", "lat": lat, "lon": lon}
                for index, (lat, lon) in enumerate(places[start : start + 20_000].tolist())
            ],
        )
        cluster.subscribe(
            "NearMe",
            [{"user": f"u{number}", "radius_m": radius_m} for number in range(start, min(users, start + 20_000))],
            BrokerId("bench"),
        )
    announce(f"{users:,} users placed and subscribed")
    times = []
    pairs = 0
    correct = True
    for round_number in range(rounds + 2):
        events = _spread(generator, records)
        publish(
            cluster,
            "Reports",
            [
                {"report_id": f"{round_number}-{index}", "lat": lat, "lon": lon, "message": "m" * 100}
                for index, (lat, lon) in enumerate(events.tolist())
            ],
        )
        began = time.perf_counter()
        execution = cluster.execute("NearMe")
        took_s = time.perf_counter() - began
        announce(f"execution of {execution.results:,} results: {took_s:.2f} s")
        if round_number >= 2:
            times.append(took_s)
        pairs = execution.results
        if round_number in (0, rounds + 1):
            correct = correct and _expected(places, events, radius_m) == _stored(cluster, execution.execution)
    return {"spark_s_p50": statistics.median(times), "pairs": pairs, "correct": correct}


def _spread(generator: Any, count: int) -> Any:
    """Even over a square of SIDE_KM, as (lat, lon)."""
    import numpy as np

    degrees = SIDE_KM / 111.195
    lat = SOUTH_WEST[0] + generator.random(count) * degrees
    lon = SOUTH_WEST[1] + generator.random(count) * degrees / np.cos(np.radians(SOUTH_WEST[0]))
    return np.column_stack([lat, lon])


def _expected(places: Any, events: Any, radius_m: float) -> set[tuple[int, int]]:
    """Pairs (user, event) by DuckDB: a lattice of degrees finds candidates, the haversine decides."""
    import duckdb
    import pyarrow as pa

    engine = duckdb.connect()
    for name, points in (("u", places), ("r", events)):
        engine.register(f"{name}_", pa.table({"lat": points[:, 0], "lon": points[:, 1]}))
        engine.execute(f"CREATE TABLE {name} AS SELECT row_number() OVER () - 1 AS id, lat, lon FROM {name}_")  # noqa: S608
    step_lat = radius_m / 111_000 * 1.01
    step_lon = step_lat * 2.2  # the square lies between 60 and 61 degrees north
    rows = engine.execute(
        """
        WITH cells AS (
          SELECT r.*, floor(lat / $a)::INT + i AS x, floor(lon / $b)::INT + j AS y
          FROM r, (VALUES (-1), (0), (1)) dx(i), (VALUES (-1), (0), (1)) dy(j))
        SELECT u.id, c.id FROM u JOIN cells c ON floor(u.lat / $a)::INT = c.x AND floor(u.lon / $b)::INT = c.y
        WHERE 2 * 6371008.8 * asin(sqrt(pow(sin(radians(c.lat - u.lat) / 2), 2)
          + cos(radians(u.lat)) * cos(radians(c.lat)) * pow(sin(radians(c.lon - u.lon) / 2), 2))) <= $r
        """,
        {"a": step_lat, "b": step_lon, "r": radius_m},
    ).fetchall()
    return set(rows)


def _stored(cluster: Any, execution: int) -> set[tuple[int, int]]:
    import msgspec
    import pyarrow.parquet as pq

    from tocsin.cluster.catalog import results_owner

    live = cluster.channel("NearMe")
    users = {
        number: int(msgspec.json.decode(parameters)[0][1:])
        for number, _, parameters in cluster.catalog.subscriptions.of_channel("NearMe")
    }
    found: set[tuple[int, int]] = set()
    rows = 0
    for file in cluster.catalog.files.of(results_owner("NearMe", live.epoch), execution - 1, execution):
        with cluster.storage.open(file.path) as stream:
            table = pq.read_table(stream, columns=["_tocsin_subscription", "report_id"])
        rows += table.num_rows
        numbers, names = (column.to_pylist() for column in table.columns)
        found |= {(users[number], int(name.partition("-")[2])) for number, name in zip(numbers, names, strict=True)}
    return found if rows == len(found) else set()
