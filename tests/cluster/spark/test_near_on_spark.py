"""The generated SQL on real Spark: it finds the same pairs as the exact condition, without a nested loop."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, Row

from tocsin.cluster.spark.session import Session
from tocsin.cluster.sql.channel_query import ChannelQuery, parse_channel_query
from tocsin.cluster.sql.declarations import CreateChannel, parse_application
from tocsin.cluster.sql.geo import cell_of, cell_sql, cover_of, cover_sql, distance_m, distance_sql, levels_of
from tocsin.cluster.sql.query_sql import to_lateral_sql, to_single_sql
from tocsin.model.schema import Schema

pytestmark = pytest.mark.spark

EXAMPLE = Path(__file__).parents[3] / "examples" / "emergency"
EDGES = [
    (90.0, 0.0), (-90.0, 10.0), (89.9995, -170.0), (89.9995, 10.0), (-89.999, 45.0), (0.0, 180.0), (0.0, -180.0),
    (0.001, 179.9995), (-0.001, -179.9995), (60.17, 24.94), (60.1701, 24.9401), (60.175, 24.95), (0.0, 0.0),
]  # fmt: skip
BROKEN = [(None, 24.9), (60.1, None), (math.nan, 24.9), (91.0, 24.9), (60.1, 181.0), (math.inf, 0.0)]
Place = tuple[float | None, float | None]


@pytest.fixture(scope="module")
def places(spark: Session) -> list[Place]:
    """Views of places in the world and in Helsinki, with edge cases and invalid places."""
    rng = random.Random(7)
    world = [(rng.uniform(-90, 90), rng.uniform(-180, 180)) for _ in range(60)]
    city = [(rng.uniform(60.15, 60.20), rng.uniform(24.88, 25.0)) for _ in range(120)]
    all_places: list[Place] = [*EDGES, *BROKEN, *world, *city]
    reports = [(f"r{i}", ["fire", "flood"][i % 2], i % 6, lat, lon, f"m{i}") for i, (lat, lon) in enumerate(all_places)]
    users = [(f"u{i}", lat, lon, [50.0, 900.0, 6e6][i % 3]) for i, (lat, lon) in enumerate(reversed(all_places))]
    _view(
        spark,
        reports,
        "report_id STRING, kind STRING, severity INT, lat DOUBLE, lon DOUBLE, message STRING",
        "new_reports",
    )
    _view(spark, users, "user_id STRING, lat DOUBLE, lon DOUBLE, reach_m DOUBLE", "all_users")
    return all_places


ARROW = {"STRING": pa.string(), "INT": pa.int32(), "DOUBLE": pa.float64()}


def _frame(spark: Session, rows: list[tuple[Any, ...]], schema: str) -> DataFrame:
    """A frame made from Arrow: Spark then knows its size, as it does for files, and plans for it."""
    columns = [column.replace("`", "").split() for column in schema.split(", ")]
    fields = pa.schema([(column, ARROW[kind]) for column, kind in columns])
    table = pa.Table.from_pylist([dict(zip(fields.names, row, strict=True)) for row in rows], fields)
    return spark.createDataFrame(table)


def _view(spark: Session, rows: list[tuple[Any, ...]], schema: str, name: str) -> None:
    _frame(spark, rows, schema).createOrReplaceTempView(name)


def view_of(dataset: str, is_new: bool) -> str:
    return f"{'new' if is_new else 'all'}_{dataset.lower()}"


def parsed(text: str, parameters: Schema | None = None) -> ChannelQuery:
    query = parse_channel_query(text, parameters or Schema(()))
    assert isinstance(query, ChannelQuery), query
    return query


def rows_of(frame: DataFrame) -> list[str]:
    return sorted(repr(tuple(row)) for row in frame.collect())


def plan_of(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())


def has_nested_loop(frame: DataFrame) -> bool:
    plan = plan_of(frame)
    return "NestedLoop" in plan or "Cartesian" in plan


def test_sql_and_python_compute_the_same_distances_cells_and_covers(spark: Session, places: list[Place]) -> None:
    levels = (6, 10, 17, 22, 25)
    for level in levels:
        share = 2.0**level * 0.9
        rows = spark.sql(f"""SELECT lat, lon, {distance_sql("lat", "lon", "60", "25")} AS away,
            {cell_sql("lat", "lon", (level,), "NULL")} AS cell, {cover_sql("lat", "lon", (level,), share)} AS cover,
            {cell_sql("lat", "lon", levels, f"{share}D")} AS chosen, {cover_sql("lat", "lon", levels)} AS covers
            FROM new_reports""")
        for row in rows.collect():
            if row.lat is None or row.lon is None or (away := distance_m(row.lat, row.lon, 60, 25)) is None:
                assert (row.away, row.cell, row.cover, row.chosen, row.covers) == (None, None, None, None, None)
                continue
            assert row.away == pytest.approx(away, abs=1e-6)
            assert row.cell == row.chosen == cell_of(row.lat, row.lon, level)
            assert len(set(row.cover)) == len(row.cover)
            assert set(row.cover) == cover_of(row.lat, row.lon, level, share)
            assert sorted(row.covers) == sorted(cell for other in levels for cell in cover_of(row.lat, row.lon, other))


NEVER_NEAR = ["0", "-5", "CAST(NULL AS DOUBLE)"]
JOIN = "SELECT r.report_id, u.user_id FROM NEW Reports r JOIN Users u ON near(r.lat, r.lon, u.lat, u.lon, {})"
COMMA = """SELECT r.report_id, u.user_id FROM Users u, NEW Reports r
    WHERE r.severity > 2 AND near(u.lat, u.lon, r.lat, r.lon, {})"""
STAR = """SELECT * FROM NEW Reports JOIN Users u
    ON near(Reports.lat, Reports.lon, u.lat, u.lon, {}) AND u.user_id <> 'u1'"""


@pytest.mark.parametrize(
    ("text", "radius"),
    [
        *((JOIN, radius) for radius in ("40", "1000", "150000.5", "7e6", "3e7", "u.reach_m", *NEVER_NEAR)),
        (COMMA, "1000"),
        (COMMA, "u.reach_m"),
        (STAR, "1000"),
    ],
)
def test_grid_finds_each_pair_of_the_exact_condition_once(
    spark: Session, places: list[Place], text: str, radius: str
) -> None:
    query = parsed(text.format(radius))
    exact, grid = (spark.sql(to_single_sql(query, view_of, grid=grid)) for grid in (False, True))
    assert rows_of(grid) == rows_of(exact)
    assert grid.columns == exact.columns
    assert not has_nested_loop(grid)
    if radius not in NEVER_NEAR:  # Spark knows those to be false before it plans
        assert has_nested_loop(exact)


@pytest.mark.parametrize(
    "text",
    [
        "SELECT r.report_id, count(u.user_id) AS n FROM NEW Reports r LEFT JOIN Users u"
        " ON near(r.lat, r.lon, u.lat, u.lon, 500) GROUP BY ALL",
        "SELECT u.user_id, Reports.report_id FROM Users u LEFT JOIN NEW Reports"
        " ON near(u.lat, u.lon, Reports.lat, Reports.lon, 200)",
        "SELECT r.* FROM NEW Reports r LEFT ANTI JOIN Users u ON near(r.lat, r.lon, u.lat, u.lon, 50)",
        "SELECT * FROM NEW Reports r ANTI JOIN Users u ON near(r.lat, r.lon, u.lat, u.lon, 50)",
        "SELECT * EXCEPT (kind) FROM NEW Reports r JOIN Users u ON near(r.lat, r.lon, u.lat, u.lon, 300)"
        " LEFT SEMI JOIN (SELECT lat AS y, lon AS x FROM Users) v ON near(r.lat, r.lon, v.y, v.x, 100)",
        "SELECT r.* FROM NEW Reports r LEFT SEMI JOIN Users u ON near(u.lat, u.lon, r.lat, r.lon, 300)",
        "SELECT * FROM NEW Reports r WHERE EXISTS (SELECT * FROM Users u WHERE near(r.lat, r.lon, u.lat, u.lon, 300))",
        "SELECT a.report_id, b.report_id AS other FROM NEW Reports a JOIN NEW Reports b ON a.report_id < b.report_id"
        " AND near(a.lat, a.lon, b.lat, b.lon, 400)",
        "SELECT * EXCEPT (message) FROM (SELECT * FROM NEW Reports WHERE kind = 'fire') r"
        " JOIN (SELECT user_id, lat AS y, lon AS x FROM Users) u ON (near(r.lat, r.lon, u.y, u.x, 700))",
        "WITH u AS (SELECT * FROM Users) SELECT count(*) AS n FROM u"
        " JOIN NEW Reports r ON near(r.lat, r.lon, u.lat, u.lon, 700)",
        "SELECT count(*) AS n FROM NEW Reports r JOIN Users u ON near(r.lat, r.lon, u.lat, u.lon, 700)"
        " JOIN Users v ON near(r.lat, r.lon, v.lat, v.lon, 300)",
    ],
)
def test_grid_serves_every_join_that_keeps_its_left_rows(spark: Session, places: list[Place], text: str) -> None:
    query = parsed(text)
    exact, grid = (spark.sql(to_single_sql(query, view_of, grid=grid)) for grid in (False, True))
    assert (rows := rows_of(grid)) == rows_of(exact)
    assert grid.columns == exact.columns
    assert len(rows) > 0
    assert not has_nested_loop(grid)


@pytest.mark.parametrize(
    "text",
    [
        "SELECT r.report_id, u.user_id FROM NEW Reports r JOIN Users u"
        " ON near(r.lat, r.lon, u.lat, u.lon, 500) OR r.message = u.user_id",
        "SELECT near(r.lat, r.lon, u.lat, u.lon, 500) AS n FROM NEW Reports r JOIN Users u ON r.severity = 3",
        "SELECT r.report_id, u.user_id FROM NEW Reports r FULL JOIN Users u ON near(r.lat, r.lon, u.lat, u.lon, 500)",
        "SELECT r.report_id FROM NEW Reports r WHERE near(r.lat, r.lon, 60.17, 24.94, 500)",
        "SELECT r.report_id FROM NEW Reports r JOIN Users u ON NOT near(r.lat, r.lon, u.lat, u.lon, 5000)",
    ],
)
def test_near_outside_a_join_stays_the_exact_expression(spark: Session, places: list[Place], text: str) -> None:
    query = parsed(text)
    assert query.grids == ()
    sql = to_single_sql(query, view_of, grid=True)
    assert "_tocsin_g" not in sql
    assert "FULL" in text or spark.sql(sql).count() > 0


PARAMETERS = Schema.of(user="STRING", radius_m="DOUBLE")
SUBSCRIPTIONS: list[tuple[str, str, float | None]] = [
    ("s1", "u3", 500.0), ("s2", "u3", 5_000.0), ("s3", "u40", 2_000.0), ("s4", "u41", 2e7), ("s5", "u42", None),
    ("s6", "u43", 0.0), ("s7", "nobody", 100.0), ("s8", "u198", 300.0), ("s9", "' OR '1'='1", 1e7),
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "is_flat"),
    [
        (
            "SELECT r.*, distance_m(r.lat, r.lon, u.lat, u.lon) AS away_m FROM NEW Reports r"
            " JOIN Users u ON near(r.lat, r.lon, u.lat, u.lon, :radius_m) WHERE u.user_id = :user AND r.severity >= 4",
            True,
        ),
        (
            "SELECT * FROM Users u CROSS JOIN NEW Reports r"
            " WHERE near(r.lat, r.lon, u.lat, u.lon, :RADIUS_M) AND user_id = :user",
            True,
        ),
        (
            "SELECT /*+ BROADCAST(r) */ * EXCEPT (reach_m) FROM Users u LEFT JOIN NEW Reports r"
            " ON near(r.lat, r.lon, u.lat, u.lon, :radius_m) WHERE u.user_id = :user",
            True,
        ),
        (
            "SELECT count(*) AS n, max(r.severity) AS worst FROM NEW Reports r JOIN Users u"
            " ON near(r.lat, r.lon, u.lat, u.lon, :radius_m) WHERE u.user_id = :user",
            False,
        ),
        (
            "SELECT r.kind, count(*) AS n FROM NEW Reports r JOIN Users u"
            " ON near(r.lat, r.lon, u.lat, u.lon, :radius_m) WHERE u.user_id = :user GROUP BY r.kind",
            False,
        ),
        (
            "SELECT * FROM (SELECT r.report_id FROM NEW Reports r, Users u WHERE u.user_id = :user"
            " AND near(r.lat, r.lon, u.lat, u.lon, :radius_m)) q",
            False,
        ),
    ],
)
def test_all_subscriptions_at_once_get_the_results_of_single_queries(
    spark: Session, places: list[Place], text: str, is_flat: bool
) -> None:
    query = parsed(text, PARAMETERS)
    _view(spark, SUBSCRIPTIONS, "_tocsin_subscription STRING, user STRING, radius_m DOUBLE", "_tocsin_subscriptions")
    alone_sql = to_single_sql(query, view_of)
    alone, columns = [], []
    for subscription, user, radius in SUBSCRIPTIONS:
        single = spark.sql(alone_sql, {"user": user, "radius_m": radius, "RADIUS_M": radius})
        alone += [repr((subscription, *row)) for row in single.collect()]
        columns = ["_tocsin_subscription", *single.columns]
    assert len(alone) > 5
    for levels in ({"radius_m": levels_of(radius for _, _, radius in SUBSCRIPTIONS)}, None):
        together = spark.sql(sql := to_lateral_sql(query, view_of, radius_levels=levels))
        assert ("LATERAL (" not in sql) == is_flat
        assert together.columns == columns
        assert rows_of(together) == sorted(alone)
        if is_flat:
            assert not has_nested_loop(together)


@pytest.fixture(scope="module")
def channels() -> dict[str, ChannelQuery]:
    application = parse_application((EXAMPLE / "emergency.sql").read_text(encoding="utf-8"), "emergency.sql")
    assert application.problems == ()
    return {s.channel.name: s.query for s in application.statements if isinstance(s, CreateChannel)}


@pytest.fixture(scope="module")
def city(spark: Session) -> list[tuple[Any, ...]]:
    """40 reports, 30 users and the example's shelters."""
    rng = random.Random(11)
    kinds = ["fire", "flood", "crash", "gas leak"]
    reports = [
        (f"r{i}", kinds[i % 4], i % 6, rng.uniform(60.15, 60.20), rng.uniform(24.88, 25.0), f"m{i}") for i in range(40)
    ]
    reports.append(("far", "fire", 5, 61.0, 24.9, "no shelter here"))
    users = [(f"u{i}", rng.uniform(60.15, 60.20), rng.uniform(24.88, 25.0)) for i in range(30)]
    users.append(("hermit", 61.001, 24.9))
    stamp = "timestamp'2026-11-15 18:00:00'"
    _frame(
        spark, reports, "report_id STRING, kind STRING, severity INT, lat DOUBLE, lon DOUBLE, message STRING"
    ).selectExpr("*", f"{stamp} AS reported_at").createOrReplaceTempView("new_emergencyreports")
    _frame(spark, users, "user_id STRING, lat DOUBLE, lon DOUBLE").selectExpr(
        "*", f"{stamp} AS at"
    ).createOrReplaceTempView("all_userlocations")
    schema = "shelter_id STRING, name STRING, capacity INT, lat DOUBLE, lon DOUBLE"
    spark.read.csv(str(EXAMPLE / "shelters.csv"), schema=schema, header=True).createOrReplaceTempView("all_shelters")
    return reports


VALUES: dict[str, list[Any]] = {
    "kind": ["fire", "flood"],
    "user": ["u1", "hermit"],
    "lat": [60.17, 61.0],
    "lon": [24.94, 24.9],
    "radius_m": [3_000.0, 800.0],
}


@pytest.mark.parametrize(
    "name",
    [
        "EmergenciesOfType",
        "EmergenciesAtLocation",
        "EmergenciesNearMe",
        "EmergenciesOfTypeNearMe",
        "EmergenciesOfTypeAtLocation",
        "EmergenciesOfTypeWithShelterNearMe",
        "EmergenciesOfTypeAtLocationWithShelter",
        "SevereNearMe",
    ],
)
def test_channels_of_the_example_run_without_nested_loops(
    spark: Session, city: list[tuple[Any, ...]], channels: dict[str, ChannelQuery], name: str
) -> None:
    query = channels[name]
    names = query.parameters.names
    # The hermit has one fire nearby: kind fire, so that every channel has a result for the second subscription.
    subscriptions = [
        {parameter: VALUES[parameter][0] for parameter in names},
        {parameter: "fire" if parameter == "kind" else VALUES[parameter][1] for parameter in names},
    ]
    rows = [(f"s{i}", *(values[parameter] for parameter in names)) for i, values in enumerate(subscriptions)]
    _view(spark, rows, f"_tocsin_subscription STRING, {query.parameters.ddl()}", "_tocsin_subscriptions")
    together = spark.sql(to_lateral_sql(query, view_of, radius_levels={"radius_m": levels_of(VALUES["radius_m"])}))
    alone = [
        repr((f"s{i}", *row))
        for i, values in enumerate(subscriptions)
        for row in spark.sql(to_single_sql(query, view_of), values).collect()
    ]
    assert len(alone) > 0
    assert rows_of(together) == sorted(alone)
    assert not has_nested_loop(together)


def three_nearest(shelters: list[Row], lat: float, lon: float) -> list[str]:
    """The names of the three nearest shelters within 2 km, computed without the channel's query."""
    away = sorted((distance_m(lat, lon, shelter.lat, shelter.lon) or 0.0, shelter.name) for shelter in shelters)
    return [name for metres, name in away[:3] if metres <= 2_000]


def test_shelters_at_a_location_are_the_nearest_to_the_emergency(
    spark: Session, city: list[tuple[Any, ...]], channels: dict[str, ChannelQuery]
) -> None:
    query = channels["EmergenciesOfTypeAtLocationWithShelter"]
    rows = [("city", "fire", 60.175, 24.94, 6_000.0), ("woods", "fire", 61.0, 24.9, 500.0)]
    _view(spark, rows, f"_tocsin_subscription STRING, {query.parameters.ddl()}", "_tocsin_subscriptions")
    results = spark.sql(to_lateral_sql(query, view_of, radius_levels={"radius_m": (9, 13)})).collect()
    shelters = spark.table("all_shelters").collect()
    in_city = [row for row in results if row._tocsin_subscription == "city"]
    fires = [report for report in city if report[1] == "fire"]
    close = {fire[0] for fire in fires if (distance_m(fire[3], fire[4], 60.175, 24.94) or 0) <= 6_000}
    assert {row.report_id for row in in_city} == close
    for row in in_city:
        assert [shelter.name for shelter in row.shelters] == three_nearest(shelters, row.lat, row.lon)
    (woods,) = [row for row in results if row._tocsin_subscription == "woods"]
    assert (woods.report_id, woods.shelters) == ("far", [])


def test_shelters_near_me_are_the_nearest_to_the_user(
    spark: Session, city: list[tuple[Any, ...]], channels: dict[str, ChannelQuery]
) -> None:
    query = channels["EmergenciesOfTypeWithShelterNearMe"]
    kinds = sorted({report[1] for report in city})
    people = {row.user_id: (row.lat, row.lon) for row in spark.table("all_userlocations").collect()}
    rows = [(f"{user}/{kind}", kind, user) for user in people for kind in kinds]
    _view(spark, rows, f"_tocsin_subscription STRING, {query.parameters.ddl()}", "_tocsin_subscriptions")
    results = spark.sql(to_lateral_sql(query, view_of)).collect()
    close = {
        (f"{user}/{report[1]}", report[0])
        for user, (lat, lon) in people.items()
        for report in city
        if (distance_m(report[3], report[4], lat, lon) or 0) <= 1_000
    }
    assert {(row._tocsin_subscription, row.report_id) for row in results} == close
    shelters = spark.table("all_shelters").collect()
    ranked_otherwise = 0
    for row in results:
        lat, lon = people[row._tocsin_subscription.partition("/")[0]]
        names = [shelter.name for shelter in row.shelters]
        assert names == three_nearest(shelters, lat, lon)
        assert [shelter.away_m for shelter in row.shelters] == sorted(shelter.away_m for shelter in row.shelters)
        ranked_otherwise += names != three_nearest(shelters, row.lat, row.lon)
    assert ranked_otherwise > 0, "the shelters nearest to the emergency would pass too"
    (hermit,) = [row for row in results if row._tocsin_subscription == "hermit/fire"]
    assert hermit.shelters == []
