"""Pairs of places within a radius, by DuckDB: the independent engine for benchmarks that join by distance."""

from __future__ import annotations

from typing import Any

from tocsin.benchmarks.shared.harness import timed

SOUTH_WEST = (60.0, 24.0)
_METRES_PER_DEGREE = 111_000.0
"""A little less than a degree of latitude: a lattice of these steps is never too fine."""
_JOIN = """
CREATE OR REPLACE TABLE o AS
WITH cells AS (
  SELECT r.*, floor(lat / $a)::INT + i AS x, floor(lon / $b)::INT + j AS y
  FROM r, (VALUES (-1), (0), (1)) dx(i), (VALUES (-1), (0), (1)) dy(j))
SELECT u.id AS place, c.id AS event, c.lat, c.lon, c.message,
  2 * 6371008.8 * asin(sqrt(pow(sin(radians(c.lat - u.lat) / 2), 2)
    + cos(radians(u.lat)) * cos(radians(c.lat)) * pow(sin(radians(c.lon - u.lon) / 2), 2))) AS away_m
FROM u JOIN cells c ON u.x = c.x AND u.y = c.y WHERE away_m <= $r
"""
"""The results have the columns that the channel of `bench near` has."""


def spread(generator: Any, count: int, side_km: float) -> Any:
    """Points (lat, lon), spread evenly over a square from `SOUTH_WEST` on."""
    import numpy as np

    degrees = side_km / 111.195
    lat = SOUTH_WEST[0] + generator.random(count) * degrees
    lon = SOUTH_WEST[1] + generator.random(count) * degrees / np.cos(np.radians(SOUTH_WEST[0]))
    return np.column_stack([lat, lon])


class NearPairs:
    """Finds pairs by a lattice of degrees, whose cells are stored with each place, and decides by the haversine."""

    def __init__(self, places: Any, radius_m: float, northernmost: float) -> None:
        """`northernmost` is the highest latitude of any place or event."""
        import duckdb
        import numpy as np
        import pyarrow as pa

        self._engine = duckdb.connect()
        self._engine.execute("SET threads = 2")
        step_lat = radius_m / _METRES_PER_DEGREE * 1.01
        step_lon = float(step_lat / np.cos(np.radians(northernmost + step_lat)))
        self._steps = {"a": step_lat, "b": step_lon}
        self._radius_m = radius_m
        self._engine.register("places", pa.table({"lat": places[:, 0], "lon": places[:, 1]}))
        self._engine.execute(
            """
            CREATE TABLE u AS SELECT row_number() OVER () - 1 AS id, lat, lon,
              floor(lat / $a)::INT AS x, floor(lon / $b)::INT AS y FROM places
            """,
            self._steps,
        )

    def with_events(self, events: Any) -> tuple[set[tuple[int, int]], float]:
        """Pairs (place, event) by their indexes, and the seconds that DuckDB took to write them into a table."""
        import pyarrow as pa

        self._engine.register("events", pa.table({"lat": events[:, 0], "lon": events[:, 1]}))
        columns = "row_number() OVER () - 1 AS id, lat, lon, repeat('m', 100) AS message"
        self._engine.execute(f"CREATE OR REPLACE TABLE r AS SELECT {columns} FROM events")  # noqa: S608
        _, took_s = timed(lambda: self._engine.execute(_JOIN, self._steps | {"r": self._radius_m}))
        return set(self._engine.execute("SELECT place, event FROM o").fetchall()), took_s


def pairs_within(places: Any, events: Any, radius_m: float) -> set[tuple[int, int]]:
    """Pairs (place, event) by their indexes."""
    northernmost = max(float(places[:, 0].max()), float(events[:, 0].max()))
    return NearPairs(places, radius_m, northernmost).with_events(events)[0]
