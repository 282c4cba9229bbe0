"""Small executions reuse a channel's physical plan: the results equal those of the ordinary way for changing tables."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.cluster.emergency import NORTH, declare, ids, report
from tests.conftest import publish, results_of
from tocsin.cluster.engine import DataCluster
from tocsin.cluster.spark import reused_plan
from tocsin.cluster.spark.reused_plan import NotReusable, PlanCache, ReusedPlan, depends_on_clock

pytestmark = pytest.mark.spark

QUERIES = {
    "join": "SELECT r.id, t.size FROM r JOIN t ON t.district = r.district WHERE r.severity > 1",
    "left join": "SELECT r.id, t.team FROM r LEFT JOIN t ON t.kind = r.kind AND t.size > 1",
    "no equality": "SELECT r.id, t.team FROM r JOIN t ON r.severity < t.size",
    "grouped": "SELECT kind, count(*) AS n, collect_set(district) AS d FROM r GROUP BY kind HAVING count(*) > 1",
    "counted": "SELECT count(*) AS n, max(severity) AS worst FROM r WHERE severity > 3",
    "topmost": "SELECT id, severity FROM r ORDER BY severity DESC, id LIMIT 2",
    "ranked": (
        "SELECT id FROM (SELECT id, row_number() OVER (PARTITION BY kind ORDER BY severity, id) AS place FROM r) "
        "WHERE place <= 2"
    ),
    "united": "SELECT id FROM r WHERE severity = 1 UNION ALL SELECT team FROM t",
    "distinct": "SELECT DISTINCT district, kind FROM r",
    "with itself": "SELECT a.id, b.id AS other FROM r a JOIN r b ON a.kind = b.kind AND a.id < b.id",
    "same part twice": (
        "WITH g AS (SELECT kind, max(severity) AS worst FROM r GROUP BY kind) "
        "SELECT a.kind, b.worst FROM g a JOIN g b ON a.kind = b.kind"
    ),
    "exists": "SELECT r.id FROM r WHERE EXISTS (SELECT 1 FROM t WHERE t.district = r.district AND t.size > 2)",
    "not exists": "SELECT r.id FROM r WHERE NOT EXISTS (SELECT 1 FROM t WHERE t.district = r.district AND t.size > 2)",
    "several joins": (
        "SELECT r.id, a.team, b.size FROM r JOIN t a ON a.district = r.district JOIN t b ON b.kind = r.kind "
        "LEFT JOIN t c ON c.team = b.team"
    ),
    "full join": "SELECT r.id, t.team FROM r FULL JOIN t ON t.district = r.district AND r.severity = t.size",
    "collected": (
        "SELECT r.id, u.teams FROM r JOIN (SELECT p.id, slice(array_sort(collect_list(struct(t.size, t.team))), 1, 3) "
        "AS teams FROM r p LEFT JOIN t ON t.district = p.district GROUP BY p.id) u ON u.id = r.id WHERE r.severity > 1"
    ),
    "united, counted": (
        "SELECT district, count(*) AS n FROM (SELECT district FROM r UNION ALL SELECT district FROM t) "
        "GROUP BY district"
    ),
    "topmost of united": ("SELECT id FROM (SELECT id FROM r UNION ALL SELECT team AS id FROM t) ORDER BY id LIMIT 3"),
    "spread": "SELECT /*+ REPARTITION(3, kind) */ kind, count(*) AS n FROM r GROUP BY kind",
    "nested": "SELECT id, named_struct('k', kind, 'when', seen) AS what, array(severity, district) AS pair FROM r",
}


def tables(seed: int, reports: int, teams: int) -> dict[str, pa.Table]:
    rng = random.Random(seed)
    kinds = ["fire", "flood", "storm", None]
    return {
        "r": pa.table(
            {
                "id": pa.array(range(reports), pa.int32()),
                "kind": pa.array([rng.choice(kinds) for _ in range(reports)], pa.string()),
                "severity": pa.array([rng.randrange(5) for _ in range(reports)], pa.int32()),
                "district": pa.array([rng.randrange(4) for _ in range(reports)], pa.int32()),
                "seen": pa.array([rng.randrange(10**15) for _ in range(reports)], pa.timestamp("us", tz="UTC")),
            }
        ),
        "t": pa.table(
            {
                "team": pa.array(range(teams), pa.int32()),
                "kind": pa.array([rng.choice(kinds) for _ in range(teams)], pa.string()),
                "district": pa.array([rng.randrange(4) for _ in range(teams)], pa.int32()),
                "size": pa.array([rng.randrange(5) for _ in range(teams)], pa.int32()),
            }
        ),
    }


class Planned:
    """A session, and how to plan a query in it."""

    def __init__(self, spark: SparkSession, query: str) -> None:
        self.session, self.query = spark.newSession(), query
        self.session.conf.set("spark.sql.adaptive.enabled", "false")
        self.session.conf.set("spark.sql.shuffle.partitions", "2")

    def plan(self, frames: Mapping[str, DataFrame]) -> DataFrame:
        for name, frame in frames.items():
            frame.createOrReplaceTempView(name)
        return self.session.sql(self.query)

    def reused(self) -> ReusedPlan:
        return ReusedPlan.of(self.session, tables(0, 0, 0), self.plan)

    def ordinary(self, inputs: Mapping[str, pa.Table]) -> pa.Table:
        return self.plan({name: self.session.createDataFrame(table) for name, table in inputs.items()}).toArrow()


def rows(table: pa.Table) -> Counter[str]:
    return Counter(map(repr, table.to_pylist()))


@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES)
def test_reused_plan_gives_the_results_of_the_ordinary_way(
    spark: SparkSession, query: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reused_plan, "INTERPRETED_ROWS", 10)  # the larger tables use compiled projections
    planned = Planned(spark, query)
    plan = planned.reused()
    one, few, many = tables(1, 1, 1), tables(2, 5, 3), tables(3, 60, 8)
    for inputs in (tables(0, 0, 0), one, few, {"r": many["r"], "t": few["t"]}, {"r": one["r"], "t": many["t"]}, many):
        found, expected = plan.run(inputs), planned.ordinary(inputs)
        assert found.schema == expected.schema
        assert rows(found) == rows(expected)


def test_reused_plan_runs_one_task(spark: SparkSession) -> None:
    planned = Planned(spark, QUERIES["several joins"])
    plan, inputs = planned.reused(), tables(3, 60, 8)
    plan.run(inputs)
    context = planned.session.sparkContext
    context.setJobGroup("reused", "one execution")
    found = plan.run(inputs)
    tracker = context.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup("reused")]
    stages = [tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds]
    assert [stage.numTasks for stage in stages if stage is not None] == [1]
    assert rows(found) == rows(planned.ordinary(inputs))


def test_later_jobs_of_the_thread_compile_their_projections(spark: SparkSession) -> None:
    planned = Planned(spark, QUERIES["collected"])
    planned.reused().run(tables(3, 60, 8))
    assert planned.session.sparkContext.getLocalProperty("spark.sql.codegen.factoryMode") is None


def test_planning_leaves_the_settings_of_the_session(spark: SparkSession) -> None:
    planned = Planned(spark, QUERIES["several joins"])
    before = planned.session.conf.getAll
    planned.reused()
    assert planned.session.conf.getAll == before


@pytest.mark.parametrize(
    "query",
    [
        "SELECT id FROM r WHERE severity >= (SELECT max(size) FROM t)",
        "SELECT id FROM r WHERE district NOT IN (SELECT district FROM t WHERE size > 2)",
    ],
    ids=["subquery inside an expression", "not in"],
)
def test_query_with_more_than_one_job_is_planned_anew(spark: SparkSession, query: str) -> None:
    planned = Planned(spark, query)
    with pytest.raises(NotReusable):
        planned.reused()
    cache = PlanCache(planned.session, planned.query)
    assert cache.run(planned.query, tables(1, 9, 3), planned.plan) is None and not cache.usable


def test_table_with_other_columns_needs_another_plan(spark: SparkSession) -> None:
    planned = Planned(spark, "SELECT id, severity FROM r WHERE severity > 1")
    cache = PlanCache(planned.session, planned.query)
    inputs = tables(1, 9, 3)
    severity = inputs["r"].schema.get_field_index("severity")
    wider = inputs | {"r": inputs["r"].set_column(severity, "severity", inputs["r"]["severity"].cast(pa.int64()))}
    for chosen in (inputs, wider, inputs):
        found = cache.run(planned.query, chosen, planned.plan)
        assert found is not None and found.equals(planned.ordinary(chosen))
    assert cache.reused == 0


def test_failed_execution_does_not_spoil_the_next_one(spark: SparkSession) -> None:
    planned = Planned(spark, "SELECT t.team FROM r JOIN t ON r.kind RLIKE t.kind")
    cache = PlanCache(planned.session, planned.query)
    good = tables(1, 9, 3)
    bad = good | {"t": good["t"].set_column(1, "kind", pa.array(["("] * 3))}
    assert cache.run(planned.query, good, planned.plan) is not None
    assert cache.run(planned.query, bad, planned.plan) is None
    again = cache.run(planned.query, good, planned.plan)
    assert again is not None and rows(again) == rows(planned.ordinary(good)) and cache.usable


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("SELECT now() AS t FROM r", True),
        ("SELECT * FROM r WHERE at > CURRENT_TIMESTAMP - INTERVAL 1 DAY", True),
        ("SELECT * FROM r WHERE day = current_date", True),
        ("SELECT * FROM r WHERE day = DATE'today'", True),
        ("SELECT unix_timestamp() AS t FROM r", True),
        ("SELECT * FROM r WHERE kind = 'known'", False),
        ("SELECT known, nowhere FROM r", False),
    ],
)
def test_query_with_the_present_time_is_recognised(query: str, expected: bool) -> None:
    assert depends_on_clock(query) is expected


def test_channel_reuses_its_plan_until_a_radius_needs_another(cluster: DataCluster) -> None:
    plans = cluster.channel("NearMe").prepared.plans
    people: list[dict[str, Any]] = [{"user_id": user, "lat": 60.17, "lon": 24.94} for user in ("ann", "bob")]
    publish(cluster, "Places", people)
    cluster.subscribe("NearMe", [{"user": "ann", "radius_m": 500.0}], NORTH)
    for number in range(3):
        publish(cluster, "Reports", [report(f"a{number}")])
        cluster.execute("NearMe")
    assert plans.reused == 2
    cluster.subscribe("NearMe", [{"user": "bob", "radius_m": 50_000.0}], NORTH)
    for number in range(2):
        publish(cluster, "Reports", [report(f"b{number}", lat=60.4)])
        cluster.execute("NearMe")
    assert plans.reused == 3, "a new level of the grid is another query"
    found = results_of(cluster, "NearMe")
    assert ids(found["ann", 500.0]) == ["a0", "a1", "a2"] and ids(found["bob", 50_000.0]) == ["b0", "b1"]


def test_radii_and_widths_of_a_city_need_no_other_plan(cluster: DataCluster) -> None:
    plans = cluster.channel("NearMe").prepared.plans
    publish(cluster, "Places", [{"user_id": "ann", "lat": 60.17, "lon": 24.94}])
    for number, radius_m in enumerate((150.0, 250.0, 550.0, 1_500.0, 4_000.0)):
        cluster.subscribe("NearMe", [{"user": "ann", "radius_m": radius_m}], NORTH)
        publish(cluster, "Reports", [report(f"a{number}")])
        cluster.execute("NearMe")
    assert plans.reused == 4
    found = results_of(cluster, "NearMe")
    assert ids(found["ann", 150.0]) == ["a0", "a1", "a2", "a3", "a4"] and ids(found["ann", 4_000.0]) == ["a4"]


def test_first_execution_after_a_warm_up_reuses_its_plan(cluster: DataCluster) -> None:
    assert cluster.warm_up() == len(cluster.channels.all())
    assert cluster.warm_up() == 0, "each channel is planned once"
    publish(cluster, "Places", [{"user_id": "ann", "lat": 60.17, "lon": 24.94}])
    cluster.subscribe("NearMe", [{"user": "ann", "radius_m": 500.0}], NORTH)
    cluster.subscribe("OfKind", [{"kind": "fire"}], NORTH)
    publish(cluster, "Reports", [report("a", kind="fire")])
    for channel in ("NearMe", "OfKind"):
        cluster.execute(channel)
        assert cluster.channel(channel).prepared.plans.reused == 1, channel
        [found] = results_of(cluster, channel).values()
        assert ids(found) == ["a"]


def test_warm_up_evaluates_no_value_of_a_subscription(cluster: DataCluster) -> None:
    text = "SELECT r.id FROM NEW Reports r WHERE r.kind RLIKE :pattern"
    declare(cluster, f"CREATE REPETITIVE CHANNEL Matching (pattern STRING) EVERY 5 SECONDS AS {text};")
    cluster.subscribe("Matching", [{"pattern": "("}], NORTH)
    cluster.warm_up()
    assert cluster.channel("Matching").subscribers.count == 1 and not cluster.channel("Matching").refused


@pytest.mark.parametrize("channel", ["OfKind", "NearMe"])
def test_results_of_one_execution_come_in_the_order_of_their_records(cluster: DataCluster, channel: str) -> None:
    publish(cluster, "Places", [{"user_id": "ann", "lat": 60.17, "lon": 24.94}])
    values: dict[str, Any] = {"kind": "fire"} if channel == "OfKind" else {"user": "ann", "radius_m": 500.0}
    cluster.subscribe(channel, [values], NORTH)
    names = [f"a{number}" for number in range(60)]
    for start in (0, 30):
        publish(cluster, "Reports", [report(name) for name in names[start : start + 30]])
        cluster.execute(channel)
    assert ids(results_of(cluster, channel)[tuple(values.values())]) == names


def test_channel_with_the_present_time_is_planned_for_each_execution(cluster: DataCluster) -> None:
    late = "SELECT r.id FROM NEW Reports r WHERE r.kind = :kind AND r.at < current_timestamp()"
    declare(cluster, f"CREATE REPETITIVE CHANNEL Late (kind STRING) EVERY 5 SECONDS AS {late};")
    cluster.subscribe("Late", [{"kind": "fire"}], NORTH)
    for number in range(2):
        publish(cluster, "Reports", [report(f"a{number}")])
        cluster.execute("Late")
    assert cluster.channel("Late").prepared.plans.reused == 0
    assert ids(results_of(cluster, "Late")["fire",]) == ["a0", "a1"]
