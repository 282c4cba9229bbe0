"""Retention counts the time that has passed: neither long jobs nor steps of the wall clock lose anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cluster.emergency import NORTH, declare, ids, report
from tests.conftest import Clock, ClusterAt, publish, results_of
from tocsin.cluster import executions
from tocsin.cluster.catalog import Catalog
from tocsin.cluster.engine import DataCluster
from tocsin.cluster.retention import RetentionClock, Uptime
from tocsin.cluster.spark.execution import execute
from tocsin.cluster.upkeep import maintain, merge_dataset

DAY_S = 86_400.0
BRIEF = """
CREATE STREAM DATASET Brief (id STRING, kind STRING) KEY (id) RETAIN 1 DAYS;
CREATE REPETITIVE CHANNEL OfBrief (kind STRING) EVERY 10 SECONDS RETAIN 1 DAYS AS
  SELECT r.* FROM NEW Brief r WHERE r.kind = :kind;
"""


@pytest.mark.spark
def test_execution_of_twenty_minutes_survives_a_merge_of_its_files(
    cluster: DataCluster, cluster_at: ClusterAt, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.subscribe("OfKind", [{"kind": "fire"}], NORTH)
    publish(cluster, "Reports", [report("a")])
    publish(cluster, "Reports", [report("b")])
    again = cluster_at()  # without its memory, so that the execution reads files

    def slow(*arguments: Any) -> Any:
        assert merge_dataset(again, again.dataset("Reports"), fan_in=2) == 1
        maintain(again)
        clock.passed_s = 1_200
        maintain(again)
        return execute(*arguments)

    monkeypatch.setattr(executions, "execute", slow)
    again.execute("OfKind")
    monkeypatch.undo()
    assert sorted(ids(results_of(again, "OfKind")[("fire",)])) == ["a", "b"]
    assert len(again.storage.list("datasets")) == 3
    maintain(again)
    assert len(again.storage.list("datasets")) == 1, "after the execution the merged files are deleted"


@pytest.mark.spark
@pytest.mark.parametrize("step_s", [2 * DAY_S, -2 * DAY_S], ids=["forwards", "backwards"])
def test_clock_step_of_two_days_loses_nothing(
    cluster: DataCluster, cluster_at: ClusterAt, clock: Clock, step_s: float
) -> None:
    declare(cluster, BRIEF)
    cluster.subscribe("OfBrief", [{"kind": "fire"}], NORTH)
    publish(cluster, "Brief", [{"id": "a", "kind": "fire"}])
    cluster.execute("OfBrief")
    clock.ahead_s = step_s
    again = cluster_at()
    maintain(again)
    publish(again, "Brief", [{"id": "b", "kind": "fire"}])
    again.execute("OfBrief")
    clock.ahead_s = 0.0
    maintain(again)
    assert publish(again, "Brief", [{"id": name, "kind": "fire"} for name in "ab"]).duplicates == 2
    assert ids(results_of(again, "OfBrief")[("fire",)]) == ["a", "b"]
    assert not again.announcements.since(NORTH, 0).gap
    assert sum(file.rows for file in again.catalog.files.of("dataset:Brief")) == 2
    clock.passed_s = 1.1 * DAY_S
    maintain(again)
    assert results_of(again, "OfBrief") == {("fire",): []}, "a day has passed"


def test_retention_clock_counts_only_time_that_can_be_measured(tmp_path: Path) -> None:
    catalog = Catalog(f"sqlite:///{tmp_path / 'catalog.sqlite'}")
    up_s = 100.0

    def started(wall_s: float, boot: str | None) -> RetentionClock:
        return RetentionClock(catalog, lambda: wall_s, Uptime(lambda: up_s, boot))

    clock = started(5_000.0, "one")
    up_s = 150.0
    assert clock() == 5_050.0
    up_s = 250.0
    assert started(9e9, "one")() == 5_150.0, "the time since the process died counts, the wall clock does not"
    up_s = 10.0
    clock = started(9e9, "two")
    assert clock() == 5_150.0, "the time between two boots cannot be measured"
    up_s = 30.0
    clock.store(60.0)
    up_s = 75.0
    clock.store(60.0)
    assert started(0.0, None)() == 5_215.0
    catalog.close()
