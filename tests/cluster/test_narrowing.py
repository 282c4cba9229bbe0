"""Executions that leave out rows: too many at once, values that fail, datasets that are not in memory yet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.cluster.emergency import NORTH, declare, ids
from tests.conftest import ClusterAt, publish, results_of
from tocsin.cluster import current_tables, inputs
from tocsin.cluster.engine import DataCluster
from tocsin.cluster.settings import NarrowingLimits
from tocsin.cluster.spark import execution

pytestmark = pytest.mark.spark

APPLICATION = """
CREATE STREAM DATASET Reports (id INT, kind STRING, text STRING, lat DOUBLE, lon DOUBLE);
CREATE KEYED DATASET People (person STRING, lat DOUBLE, lon DOUBLE) KEY (person);
CREATE CONTINUOUS CHANNEL NearMe (person STRING) AS SELECT r.id FROM NEW Reports r JOIN People p
  ON near(r.lat, r.lon, p.lat, p.lon, 1000) WHERE p.person = :person;
CREATE REPETITIVE CHANNEL NearMeOften (person STRING) EVERY 5 SECONDS AS SELECT r.id FROM NEW Reports r JOIN People p
  ON near(r.lat, r.lon, p.lat, p.lon, 1000) WHERE p.person = :person;
CREATE CONTINUOUS CHANNEL Texts (kind STRING, pattern STRING) AS
  SELECT r.id FROM NEW Reports r WHERE r.kind = :kind AND r.text RLIKE :pattern;
"""


@pytest.fixture
def opened(cluster_at: ClusterAt, monkeypatch: pytest.MonkeyPatch) -> Callable[..., DataCluster]:
    """Opens a data cluster whose executions are never small as a whole."""
    monkeypatch.setattr(execution, "SMALL_PAIRS", 0)

    def open_cluster(**limits: Any) -> DataCluster:
        own = {"least_rows": 0, "least_subscriptions": 0, "in_background": False} | limits
        cluster = cluster_at(narrowing=NarrowingLimits(**own))
        declare(cluster, APPLICATION)
        return cluster

    return open_cluster


def report(number: int, kind: str = "fire", text: str = "") -> dict[str, Any]:
    return {"id": number, "kind": kind, "text": text, "lat": 60.0 + number, "lon": 24.0}


def fill(cluster: DataCluster, people: int) -> None:
    """Person pN is near report N. Each report is a batch of its own."""
    publish(cluster, "People", [{"person": f"p{n}", "lat": 60.0 + n, "lon": 24.001} for n in range(people)])
    for channel in ("NearMe", "NearMeOften"):
        cluster.subscribe(channel, [{"person": f"p{n}"} for n in range(people)], NORTH)
    for number in range(people):
        publish(cluster, "Reports", [report(number)])


def nearest(cluster: DataCluster, channel: str) -> dict[tuple[object, ...], list[Any]]:
    return {key: ids(rows) for key, rows in results_of(cluster, channel).items()}


def test_continuous_channel_executes_too_many_records_in_parts(opened: Callable[..., DataCluster]) -> None:
    cluster = opened(most_rows=2)
    fill(cluster, 7)
    executions = 0
    while (done := cluster.execute("NearMe")) is not None:
        executions += 1
        assert done.results <= 2
    assert executions >= 4
    assert nearest(cluster, "NearMe") == {(f"p{n}",): [n] for n in range(7)}


def test_repetitive_channel_executes_all_records_of_a_period_together(opened: Callable[..., DataCluster]) -> None:
    cluster = opened(most_rows=2)
    fill(cluster, 7)
    done = cluster.execute("NearMeOften")
    assert done is not None and done.results == 7
    assert nearest(cluster, "NearMeOften") == {(f"p{n}",): [n] for n in range(7)}


def test_execution_of_many_rows_reads_them_from_memory(
    opened: Callable[..., DataCluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tocsin.cluster.store.smalltables.SMALL_TABLE_ROWS", 0)
    from_files = []
    monkeypatch.setattr(inputs, "dataset_frame", lambda *read, **_: from_files.append(read[2].name))
    monkeypatch.setattr("tocsin.cluster.spark.preparing.MOST_PLANNED_ROWS", 3)
    cluster = opened(most_rows=2)
    fill(cluster, 4)
    assert cluster.execute("NearMeOften") is not None
    publish(cluster, "People", [{"person": "p0", "lat": 61.0, "lon": 24.0}])
    publish(cluster, "Reports", [{**report(number), "id": 10 + number} for number in range(4)])
    assert cluster.execute("NearMeOften") is not None
    assert nearest(cluster, "NearMeOften") == {("p0",): [0, 11], ("p1",): [1, 11], ("p2",): [2, 12], ("p3",): [3, 13]}
    assert from_files == []


def test_narrowed_execution_reuses_the_plan_of_the_one_before(opened: Callable[..., DataCluster]) -> None:
    cluster = opened()
    fill(cluster, 3)
    cluster.execute("NearMe")
    plans = cluster.channel("NearMe").prepared.plans
    reused = plans.reused
    publish(cluster, "People", [{"person": "p0", "lat": 61.0, "lon": 24.0}])
    publish(cluster, "Reports", [{**report(1), "id": 10}])
    assert cluster.execute("NearMe") is not None
    assert plans.reused == reused + 1
    assert nearest(cluster, "NearMe") == {("p0",): [0, 10], ("p1",): [1, 10], ("p2",): [2]}


def test_value_that_makes_the_query_fail_is_found_beside_narrowing(opened: Callable[..., DataCluster]) -> None:
    cluster = opened()
    values = [("fire", "a"), ("fire", "["), ("flood", "b"), ("storm", "[")]
    cluster.subscribe("Texts", [{"kind": kind, "pattern": pattern} for kind, pattern in values], NORTH)
    publish(cluster, "Reports", [report(1, "flood", "abc")])
    assert cluster.execute("Texts") is not None
    publish(cluster, "Reports", [report(2, "fire", "abc"), report(3, "flood", "abc")])
    assert cluster.execute("Texts") is not None
    assert nearest(cluster, "Texts") == {("fire", "a"): [2], ("flood", "b"): [1, 3], ("storm", "["): []}


def test_executions_read_files_until_the_rows_are_in_memory(
    opened: Callable[..., DataCluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    later: list[Callable[[], None]] = []
    monkeypatch.setattr(current_tables, "in_thread", later.append)
    monkeypatch.setattr(current_tables, "WAIT_S", 0.0)
    monkeypatch.setattr("tocsin.cluster.store.smalltables.SMALL_TABLE_ROWS", 0)
    cluster = opened(in_background=True)
    fill(cluster, 2)
    assert cluster.execute("NearMe") is not None
    plans = cluster.channel("NearMe").prepared.plans
    assert nearest(cluster, "NearMe") == {("p0",): [0], ("p1",): [1]} and plans.reused == 0
    later[0]()
    for number in (0, 1):
        publish(cluster, "Reports", [{**report(number), "id": 10 + number}])
        cluster.execute("NearMe")
    assert nearest(cluster, "NearMe") == {("p0",): [0, 10], ("p1",): [1, 11]} and plans.reused == 1
