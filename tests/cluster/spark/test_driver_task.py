"""A small task in the driver's JVM gives what a Spark job gives, without a job, and can be cancelled."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.cluster.emergency import NORTH, declare, report
from tests.conftest import publish
from tocsin.cluster.engine import DataCluster
from tocsin.cluster.spark.driver_task import DriverTask, TaskAbandoned, abandon_task
from tocsin.cluster.spark.reused_plan import PlanCache, ReusedPlan
from tocsin.cluster.spark.time_limit import TimeOver, time_limit

pytestmark = pytest.mark.spark

GROUPED = "SELECT a.n % 7 AS k, count(*) AS pairs FROM t a JOIN t b ON a.n % 3 = b.n % 3 GROUP BY 1 ORDER BY 1"
ENDLESS = "SELECT sum(a.n * b.n * c.n * d.n) AS s FROM t a JOIN t b JOIN t c JOIN t d WHERE a.n + b.n <> c.n + d.n"


def numbers(count: int) -> dict[str, pa.Table]:
    return {"t": pa.table({"n": pa.array(range(count), pa.int64())})}


class Planned:
    def __init__(self, spark: SparkSession, query: str) -> None:
        self.session, self.query = spark.newSession(), query

    def plan(self, frames: Mapping[str, DataFrame]) -> DataFrame:
        for name, frame in frames.items():
            frame.createOrReplaceTempView(name)
        return self.session.sql(self.query)

    def reused(self) -> ReusedPlan:
        return ReusedPlan.of(self.session, numbers(0), self.plan)


def memory_used(spark: SparkSession) -> int:
    driver = DriverTask.of(spark.sparkContext)
    assert driver is not None
    return int(driver._memory.executionMemoryUsed())


def test_driver_task_is_no_job_and_frees_its_memory(spark: SparkSession) -> None:
    plan = Planned(spark, GROUPED).reused()
    spark.sparkContext.setJobGroup("driver", "no job")
    for count in (0, 20, 50):
        expected = [
            {"k": k, "pairs": sum(a % 7 == k and a % 3 == b % 3 for a in range(count) for b in range(count))}
            for k in range(min(7, count))
        ]
        assert plan.run(numbers(count)).to_pylist() == expected
    assert spark.sparkContext.statusTracker().getJobIdsForGroup("driver") == []
    assert memory_used(spark) == 0


def test_driver_tasks_of_several_threads_run_at_once(spark: SparkSession) -> None:
    plans = [Planned(spark, GROUPED).reused() for _ in range(3)]
    found: dict[int, list[object]] = {}

    def run(place: int) -> None:
        found[place] = [plans[place].run(numbers(20 + place)).num_rows for _ in range(5)]

    threads = [threading.Thread(target=run, args=(place,)) for place in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {place: [7] * 5 for place in range(3)}
    assert memory_used(spark) == 0


def test_time_limit_ends_a_driver_task_and_its_plan(spark: SparkSession) -> None:
    planned = Planned(spark, ENDLESS)
    cache = PlanCache(planned.session, planned.query)
    assert cache.run("key", numbers(3), planned.plan) is not None
    began_s = time.monotonic()
    with pytest.raises(TimeOver), time_limit(spark, "endless", 0.5):
        cache.run("key", numbers(3_000), planned.plan)
    assert time.monotonic() - began_s < 60.0, "the query would take hours"
    assert cache.ready("key", numbers(3)) is None, "the cancelled task may still use the plan"
    assert cache.run("key", numbers(3), planned.plan) is not None


def test_time_limit_counts_only_what_the_task_computes(spark: SparkSession) -> None:
    with time_limit(spark, "waiting", 600.0, computing_s=0.1) as limit:
        threading.Event().wait(0.5)  # as if other work took the machine
        limit.check()
    plan = Planned(spark, ENDLESS).reused()
    began_s = time.monotonic()
    with pytest.raises(TimeOver), time_limit(spark, "computing", 600.0, computing_s=0.1):
        plan.run(numbers(3_000))
    assert time.monotonic() - began_s < 300.0


def test_cancelled_driver_task_raises_without_a_time_limit(spark: SparkSession) -> None:
    plan, caller = Planned(spark, ENDLESS).reused(), threading.get_ident()
    timer = threading.Timer(0.5, abandon_task, (caller,))
    timer.start()
    with pytest.raises(TaskAbandoned):
        plan.run(numbers(3_000))
    timer.join()
    abandon_task(caller)  # without a task, there is nothing to cancel
    assert Planned(spark, GROUPED).reused().run(numbers(7)).num_rows == 7


def test_execution_of_a_channel_needs_no_job_after_its_first(cluster: DataCluster) -> None:
    text = "SELECT r.id FROM NEW Reports r WHERE r.kind = :kind"
    declare(cluster, f"CREATE CONTINUOUS CHANNEL Own (kind STRING) AS {text};")
    cluster.subscribe("Own", [{"kind": "fire"}], NORTH)
    context = cluster.spark.sparkContext
    for number, group in enumerate(("first", "second")):
        publish(cluster, "Reports", [report(f"r{number}")])
        context.setJobGroup(group, group)
        execution = cluster.execute("Own")
        assert execution is not None and execution.results == 1
    assert context.statusTracker().getJobIdsForGroup("second") == []
