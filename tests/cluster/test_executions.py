"""Executions on real Spark: each record is matched once, in order, and across restarts and lost answers."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cluster.emergency import NORTH, REPORTS, SOUTH, declare, ids, report
from tests.conftest import Clock, ClusterAt, publish, results_of
from tocsin.cluster.engine import DataCluster
from tocsin.cluster.feed.gateway import RecordForm
from tocsin.wire.errors import Code, TocsinError

pytestmark = pytest.mark.spark


def test_channel_matches_every_record_exactly_once(cluster: DataCluster) -> None:
    cluster.subscribe("OfKind", [{"kind": "fire"}, {"kind": "flood"}], NORTH)
    publish(cluster, "Reports", [report("a"), report("b", "flood"), report("c", "storm")])
    first = cluster.execute("OfKind")
    publish(cluster, "Reports", [report("d"), report("e")])
    second = cluster.execute("OfKind")
    assert first is not None and second is not None
    assert cluster.execute("OfKind") is None, "no record is new"
    assert {key: ids(rows) for key, rows in results_of(cluster, "OfKind").items()} == {
        ("fire",): ["a", "d", "e"],
        ("flood",): ["b"],
    }
    assert (first.execution, second.execution) == (1, 2)
    assert second.intervals[REPORTS][0] == first.intervals[REPORTS][1], "intervals are half-open and join up"


def test_record_of_the_same_millisecond_as_an_execution_is_matched(cluster: DataCluster, clock: Clock) -> None:
    """Intervals are versions, not time stamps: two records with the same time stamp are in different versions."""
    clock.frozen_s = clock()
    cluster.subscribe("OfKind", [{"kind": "fire"}], NORTH)
    for name in ("a", "b", "c"):
        publish(cluster, "Reports", [report(name)])
        cluster.execute("OfKind")
    assert ids(results_of(cluster, "OfKind")[("fire",)]) == ["a", "b", "c"]


def test_clock_that_steps_back_loses_no_record(cluster: DataCluster, clock: Clock) -> None:
    cluster.subscribe("OfKind", [{"kind": "fire"}], NORTH)
    publish(cluster, "Reports", [report("a")])
    cluster.execute("OfKind")
    clock.ahead_s = -86_400
    publish(cluster, "Reports", [report("b")])
    cluster.execute("OfKind")
    assert ids(results_of(cluster, "OfKind")[("fire",)]) == ["a", "b"]


def test_restart_loses_no_record_and_repeats_none(cluster: DataCluster, cluster_at: ClusterAt) -> None:
    cluster.subscribe("OfKind", [{"kind": "fire"}], NORTH)
    publish(cluster, "Reports", [report("a")])
    cluster.execute("OfKind")
    publish(cluster, "Reports", [report("b")])  # in the dataset, not yet matched
    gateway = cluster.gateway("Reports")
    gateway.accept(b'[{"id": "c", "kind": "fire"}]', RecordForm.JSON)  # acknowledged only
    gateway.sync()

    again = cluster_at()
    again.catch_up("Reports")
    again.execute("OfKind")
    assert again.execute("OfKind") is None
    assert ids(results_of(again, "OfKind")[("fire",)]) == ["a", "b", "c"]
    assert len(again.subscriptions.book) == 1


def test_channel_without_subscriptions_does_no_work(cluster: DataCluster) -> None:
    publish(cluster, "Reports", [report("before")])
    assert cluster.execute("OfKind") is None
    assert cluster.channel("OfKind").executions == 0
    cluster.subscribe("OfKind", [{"kind": "fire"}], NORTH)
    publish(cluster, "Reports", [report("after")])
    cluster.execute("OfKind")
    assert ids(results_of(cluster, "OfKind")[("fire",)]) == ["after"]


def test_records_before_the_first_subscription_are_not_new_after_a_restart(
    cluster: DataCluster, cluster_at: ClusterAt
) -> None:
    publish(cluster, "Reports", [report("old")])
    cluster.execute("OfKind")
    again = cluster_at()
    again.subscribe("OfKind", [{"kind": "fire"}], NORTH)
    publish(again, "Reports", [report("new")])
    again.execute("OfKind")
    assert ids(results_of(again, "OfKind")[("fire",)]) == ["new"]


def test_execution_without_results_writes_nothing(cluster: DataCluster) -> None:
    cluster.subscribe("OfKind", [{"kind": "fire"}], NORTH)
    publish(cluster, "Reports", [report("a", "flood")])
    assert cluster.execute("OfKind") is None
    assert cluster.storage.list("results") == []
    assert cluster.catalog.executions.page() == []
    assert cluster.channel("OfKind").empty == 1


@pytest.mark.usefixtures("both_ways")
def test_near_uses_the_position_and_radius_of_each_subscription(cluster: DataCluster) -> None:
    near, far = (60.1700, 24.9400), (60.1790, 24.9400)  # 1.0 km apart
    publish(cluster, "Places", [{"user_id": "ann", "lat": near[0], "lon": near[1], "at": "2026-11-15T18:00:00Z"}])
    cluster.subscribe(
        "NearMe",
        [{"user": "ann", "radius_m": 500}, {"user": "ann", "radius_m": 2000.0}, {"user": "bob", "radius_m": 1e7}],
        NORTH,
    )
    publish(cluster, "Reports", [report("here", lat=near[0], lon=near[1]), report("there", lat=far[0], lon=far[1])])
    cluster.execute("NearMe")
    publish(cluster, "Places", [{"user_id": "ann", "lat": far[0], "lon": far[1], "at": "2026-11-15T18:05:00Z"}])
    publish(cluster, "Reports", [report("there again", lat=far[0], lon=far[1]), report("mild", severity=1)])
    cluster.execute("NearMe")
    results = results_of(cluster, "NearMe")
    assert sorted(ids(results["ann", 500.0])) == ["here", "there again"]
    assert sorted(ids(results["ann", 2000.0])) == ["here", "there", "there again"]
    assert results["bob", 1e7] == []
    away = next(row["away_m"] for row in results["ann", 2000.0] if row["id"] == "there")
    assert away == pytest.approx(1000.8, abs=0.5)


@pytest.mark.parametrize("kind", ["DECIMAL(10, 2)", "STRING"])
def test_radius_parameter_may_be_decimal_or_text(cluster: DataCluster, kind: str) -> None:
    declare(
        cluster,
        f"""CREATE CONTINUOUS CHANNEL Around (user STRING, radius_m {kind}) AS
            SELECT r.id FROM NEW Reports r JOIN Places u ON near(r.lat, r.lon, u.lat, u.lon, :radius_m)
            WHERE u.user_id = :user;""",
    )
    publish(cluster, "Places", [{"user_id": "ann", "lat": 60.17, "lon": 24.94, "at": "2026-11-15T18:00:00Z"}])
    cluster.subscribe("Around", [{"user": "ann", "radius_m": radius} for radius in ("5000", "100")], NORTH)
    publish(cluster, "Reports", [report("here"), report("near", lat=60.19)])
    cluster.execute("Around")
    names = sorted(sorted(ids(rows)) for rows in results_of(cluster, "Around").values())
    assert names == [["here"], ["here", "near"]]


def test_subscription_whose_values_fail_is_ended_and_the_others_continue(cluster: DataCluster) -> None:
    declare(
        cluster,
        """CREATE CONTINUOUS CHANNEL Like (pattern STRING, least INT) AS
           SELECT r.id FROM NEW Reports r WHERE r.kind RLIKE :pattern AND r.severity >= :least;""",
    )
    good = {"pattern": "^f", "least": 5}
    bad = [{"pattern": "(", "least": 1}, {"pattern": "[a", "least": 2}]
    cluster.subscribe("Like", [good, {"pattern": "fire", "least": 1}], NORTH)
    publish(cluster, "Reports", [report("a")])
    cluster.execute("Like")
    cluster.subscribe("Like", [*bad, {"pattern": "x", "least": 1}], SOUTH)
    publish(cluster, "Reports", [report("b")])
    cluster.execute("Like")
    assert {key: ids(rows) for key, rows in results_of(cluster, "Like").items()} == {
        ("^f", 5): ["a", "b"],
        ("fire", 1): ["a", "b"],
        ("x", 1): [],
    }
    assert len(cluster.subscriptions.book) == 3 and len(cluster.subscriptions.book.held_by(SOUTH)) == 1
    for values, reason in zip(bad, ("missing closing \\)", "missing closing \\]"), strict=True):
        with pytest.raises(TocsinError, match=reason) as refused:
            cluster.subscribe("Like", [values], SOUTH)
        assert refused.value.code is Code.BAD_PARAMETER
    publish(cluster, "Reports", [report("c")])
    assert cluster.execute("Like") is not None


@pytest.mark.parametrize(("table", "method"), [("datasets", "commit_records"), ("executions", "commit")])
def test_commit_whose_answer_was_lost_is_not_repeated(
    cluster: DataCluster, monkeypatch: pytest.MonkeyPatch, table: str, method: str
) -> None:
    stored = getattr(cluster.catalog, table)
    commit = getattr(stored, method)

    def commit_and_lose_answer(*arguments: Any, **more: Any) -> Any:
        monkeypatch.undo()
        commit(*arguments, **more)
        raise OSError("the connection is lost")

    cluster.subscribe("OfKind", [{"kind": "fire"}], NORTH)
    monkeypatch.setattr(stored, method, commit_and_lose_answer)
    with pytest.raises(Exception, match="the connection is lost"):
        publish(cluster, "Reports", [report("a")])
        cluster.execute("OfKind")
    cluster.datasets.restart_ingestion("Reports")
    publish(cluster, "Reports", [report("b")])
    cluster.execute("OfKind")
    assert ids(results_of(cluster, "OfKind")[("fire",)]) == ["a", "b"]
    announced = cluster.announcements.since(NORTH, 0).announcements
    assert sum(announcement.subscriptions[0].results for announcement in announced) == 2
