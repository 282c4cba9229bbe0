"""`tocsin bench near`: find all users within a kilometre of new records, for every user at once.

Timed: one execution that joins subscriptions, positions and new records through the grid and writes the results. Users
are spread over a square, each with a position in a KEYED dataset and a subscription of its own. The records are spread
over the same square.
Checked by: DuckDB, which finds the same pairs with a plain lattice, in the first and in the last execution.
Prints: the median of the executions, the pairs of the last one, peak memory.
"""

from __future__ import annotations

import statistics
from typing import Annotated, Any

import typer

from tocsin.benchmarks.shared.harness import announce, benchmark_cluster, command, publish, stored_results, timed
from tocsin.benchmarks.shared.processes import MemoryWatch

SIDE_KM = 100.0
SOUTH_WEST = (60.0, 24.0)
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
    rounds: Annotated[int, typer.Option(help="Timed executions, after two that warm up.")] = 5,
) -> dict[str, Any]:
    """Join people and events by distance."""
    with MemoryWatch() as memory, benchmark_cluster(APPLICATION) as cluster:
        measured = measure(cluster, users, records, radius_m, rounds)
    return {**measured, "users": users, "records": records, "peak_rss_mib": memory.peak_mib}


register = command(near)


def measure(cluster: Any, users: int, records: int, radius_m: float, rounds: int) -> dict[str, Any]:
    import numpy as np

    from tocsin.model.ids import BrokerId

    generator = np.random.default_rng(users)
    places = _spread(generator, users)
    for start in range(0, users, 20_000):
        part = list(enumerate(places[start : start + 20_000].tolist(), start))
        publish(cluster, "Places", [{"user_id": f"u{number}", "lat": lat, "lon": lon} for number, (lat, lon) in part])
        parameters = [{"user": f"u{number}", "radius_m": radius_m} for number, _ in part]
        cluster.subscribe("NearMe", parameters, BrokerId("bench"))
    announce(f"{users:,} users placed and subscribed")
    times = []
    correct = True
    for round_number in range(rounds + 2):
        events = _spread(generator, records)
        reports = [
            {"report_id": f"{round_number}-{index}", "lat": lat, "lon": lon, "message": "m" * 100}
            for index, (lat, lon) in enumerate(events.tolist())
        ]
        publish(cluster, "Reports", reports)
        execution, took_s = timed(lambda: cluster.execute("NearMe"))
        announce(f"execution of {execution.results:,} results: {took_s:.2f} s")
        if round_number >= 2:
            times.append(took_s)
        if round_number in (0, rounds + 1):
            correct = correct and _expected(places, events, radius_m) == _stored(cluster, execution.execution)
    return {"spark_s_p50": statistics.median(times), "pairs": execution.results, "correct": correct}


def _spread(generator: Any, count: int) -> Any:
    """Points (lat, lon), spread evenly over a square with sides of SIDE_KM."""
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
    """Pairs (user, event) of the stored results: users are called u0, u1, …, reports ROUND-EVENT."""
    import msgspec

    users = {
        number: int(msgspec.json.decode(parameters)[0][1:])
        for number, _, parameters in cluster.catalog.subscriptions.of_channel("NearMe")
    }
    results = stored_results(cluster, "NearMe", execution)
    return {(users[number], int(report.partition("-")[2])) for number, report in results}
