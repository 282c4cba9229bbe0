"""Values that make a channel's query fail: the record or the subscription at fault is set aside, the others go on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.cluster.emergency import NORTH, declare, ids, report
from tests.conftest import Clock, ClusterAt, publish, results_of
from tocsin.cluster import executions, recovery
from tocsin.cluster.applying import apply
from tocsin.cluster.engine import DataCluster
from tocsin.cluster.spark.execution import execute
from tocsin.cluster.spark.trial import Trial
from tocsin.cluster.upkeep import maintain
from tocsin.model.ids import ChannelName
from tocsin.wire.errors import Code, TocsinError

pytestmark = pytest.mark.spark

IN_THEIR_TIME = """CREATE OR REPLACE CONTINUOUS CHANNEL InTheirTime (least INT) AS
  SELECT r.id, from_utc_timestamp(r.at, {zone}) AS there FROM NEW Reports r WHERE r.severity >= :least;"""
VOLCANOES = """CREATE CONTINUOUS CHANNEL Volcanoes (pattern STRING) AS
  SELECT r.id FROM NEW Reports r WHERE r.kind = 'volcano' AND r.id RLIKE :pattern;"""


def test_record_that_fails_the_query_becomes_a_dead_letter_and_is_replayed(
    cluster: DataCluster, cluster_at: ClusterAt, clock: Clock
) -> None:
    apply(cluster, IN_THEIR_TIME.format(zone="r.kind"))
    cluster.subscribe("InTheirTime", [{"least": 1}, {"least": 2}], NORTH)
    publish(cluster, "Reports", [report("a", "UTC")])
    cluster.execute("InTheirTime")
    cluster.subscribe("InTheirTime", [{"least": 3}], NORTH)
    publish(cluster, "Reports", [report("b", "UTC"), report("c", "Mars/Base"), report("d", "UTC")])
    cluster.execute("InTheirTime")
    assert len(cluster.subscriptions.book) == 3, "no subscription is at fault"
    assert {key: ids(rows) for key, rows in results_of(cluster, "InTheirTime").items()} == {
        (1,): ["a", "b", "d"],
        (2,): ["a", "b", "d"],
        (3,): ["b", "d"],
    }
    [letter] = cluster.catalog.dead_letters.page()
    assert (letter.channel, letter.dataset) == ("InTheirTime", "Reports")
    assert '"id":"c"' in letter.record and "Mars/Base" in letter.reason
    with pytest.raises(TocsinError, match="the query still fails") as refused:
        cluster.replay("InTheirTime")
    assert refused.value.code is Code.BAD_RECORDS

    again = cluster_at()
    apply(again, IN_THEIR_TIME.format(zone="'UTC'"))
    assert again.replay("InTheirTime") == 1 and again.replay("InTheirTime") == 0
    publish(again, "Reports", [report("e", "Mars/Base")])
    again.execute("InTheirTime")
    results = results_of(again, "InTheirTime")
    assert [ids(results[(least,)]) for least in (1, 2, 3)] == [["c", "e"]] * 3
    assert results[(1,)][0]["there"].isoformat() == "2026-11-15T18:00:00+00:00"


def test_value_that_fails_only_later_ends_its_subscription(cluster: DataCluster, cluster_at: ClusterAt) -> None:
    declare(cluster, VOLCANOES)
    cluster.subscribe("Volcanoes", [{"pattern": pattern} for pattern in ("(", "^v", "x")], NORTH)
    publish(cluster, "Reports", [report("f1", "fire")])
    cluster.execute("Volcanoes")
    again = cluster_at()
    assert again.channel("Volcanoes").tried == cluster.channel("Volcanoes").tried > 0
    publish(again, "Reports", [report("v1", "volcano"), report("f2", "fire")])
    again.execute("Volcanoes")
    assert {key: ids(rows) for key, rows in results_of(again, "Volcanoes").items()} == {("^v",): ["v1"], ("x",): []}
    assert again.catalog.dead_letters.page() == []
    assert "missing closing" in again.channel("Volcanoes").notices[0]
    after_restart = cluster_at()
    with pytest.raises(TocsinError, match="missing closing") as refused:
        after_restart.subscribe("Volcanoes", [{"pattern": "("}], NORTH)
    assert refused.value.code is Code.BAD_PARAMETER


def test_untried_subscription_stays_untried_after_a_restart(cluster: DataCluster, cluster_at: ClusterAt) -> None:
    declare(cluster, VOLCANOES)
    cluster.subscribe("Volcanoes", [{"pattern": "^v"}], NORTH)
    publish(cluster, "Reports", [report("v1", "volcano")])
    cluster.execute("Volcanoes")
    cluster.subscribe("Volcanoes", [{"pattern": "("}], NORTH)
    again = cluster_at()
    publish(again, "Reports", [report("v2", "volcano")])
    again.execute("Volcanoes")
    assert {key: ids(rows) for key, rows in results_of(again, "Volcanoes").items()} == {("^v",): ["v1", "v2"]}


@pytest.mark.parametrize("answers", [False, True], ids=["lost connection", "last answer"])
def test_value_that_kills_spark_is_set_aside_after_restarts(
    cluster: DataCluster, cluster_at: ClusterAt, monkeypatch: pytest.MonkeyPatch, answers: bool
) -> None:
    """The tests share Spark, so it is not killed here: the calls that would kill it fail like a lost connection.

    With `answers`, a trial still gets the error of the task that had no memory left, before the JVM ends.
    """
    declare(cluster, VOLCANOES)
    cluster.subscribe("Volcanoes", [{"pattern": "^v"}], NORTH)
    publish(cluster, "Reports", [report("v1", "volcano")])
    cluster.execute("Volcanoes")
    cluster.subscribe("Volcanoes", [{"pattern": pattern} for pattern in ("a", "killer", "b")], NORTH)
    stored = cluster.catalog.subscriptions
    [killer] = [number for number, _, text in stored.of_channel(ChannelName("Volcanoes")) if "killer" in text]
    publish(cluster, "Reports", [report("v2", "volcano")])
    monkeypatch.setattr(recovery, "has_died", lambda *_: True)
    monkeypatch.setattr(recovery, "ended_by_itself", lambda *_: True)

    def deadly(original: Any, is_deadly: Callable[..., bool], last_answer: str | None = None) -> Any:
        def call(*arguments: Any) -> Any:
            if is_deadly(*arguments):
                if last_answer is not None:
                    return last_answer
                raise ConnectionError("Spark is gone")
            return original(*arguments)

        return call

    def holds_killer(*_: Any) -> bool:
        return killer in [number for number, _, _ in current.catalog.subscriptions.of_channel(ChannelName("Volcanoes"))]

    monkeypatch.setattr(executions, "execute", deadly(execute, holds_killer))
    last_answer = "OutOfMemoryError: Java heap space" if answers else None
    fails = deadly(Trial.fails, lambda _, first, last, *__: first <= killer <= last, last_answer)
    monkeypatch.setattr(Trial, "fails", fails)
    current, deaths = cluster, 0
    while True:
        try:
            current.execute("Volcanoes")
            break
        except (ConnectionError, TocsinError):
            deaths += 1
            current = cluster_at()
    assert deaths == 3
    results = {key: ids(rows) for key, rows in results_of(current, "Volcanoes").items()}
    assert results == {("^v",): ["v1", "v2"], ("a",): [], ("b",): []}
    assert current.catalog.trials.deaths(ChannelName("Volcanoes")) == 0
    with pytest.raises(TocsinError, match="Spark died"):
        current.subscribe("Volcanoes", [{"pattern": "killer"}], NORTH)


def test_dead_letters_expire_with_the_retention_of_their_dataset(cluster: DataCluster, clock: Clock) -> None:
    apply(cluster, IN_THEIR_TIME.format(zone="r.kind"))
    cluster.subscribe("InTheirTime", [{"least": 1}], NORTH)
    publish(cluster, "Reports", [report("a", "Mars/Base")])
    cluster.execute("InTheirTime")
    assert cluster.catalog.dead_letters.counts() == {"InTheirTime": 1}
    clock.passed_s = 8 * 86_400
    maintain(cluster)
    assert cluster.catalog.dead_letters.counts() == {}
