"""Announcements to brokers: gaps are reported, and a broker continues from any sequence."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cluster.emergency import NORTH, SOUTH, report
from tests.conftest import Clock, ClusterAt, publish
from tocsin.cluster.applying import apply
from tocsin.cluster.engine import DataCluster
from tocsin.cluster.upkeep import maintain

pytestmark = pytest.mark.spark


def test_broker_that_was_away_too_long_gets_a_gap(cluster: DataCluster, clock: Clock) -> None:
    cluster.subscribe("OfKind", [{"kind": "fire"}], NORTH)
    publish(cluster, "Reports", [report("a")])
    cluster.execute("OfKind")
    assert not cluster.announcements.since(NORTH, 0).gap
    clock.passed_s = 2 * 86_400
    maintain(cluster)
    publish(cluster, "Reports", [report("b")])
    cluster.execute("OfKind")
    assert cluster.announcements.since(NORTH, 0).gap
    assert not cluster.announcements.since(NORTH, 1).gap


def test_broker_catches_up_from_any_sequence_after_a_restart(cluster: DataCluster, cluster_at: ClusterAt) -> None:
    cluster.subscribe("OfKind", [{"kind": "fire"}], NORTH)
    cluster.subscribe("OfKind", [{"kind": "flood"}], SOUTH)
    for name in ("a", "b", "c"):
        publish(cluster, "Reports", [report(name), report(f"{name}-flood", "flood")])
        cluster.execute("OfKind")
    live = cluster.announcements.since(NORTH, 1)
    again = cluster_at().announcements.since(NORTH, 1)
    assert [news.sequence for news in live.announcements] == [2, 3]
    assert again.announcements == live.announcements
    assert all(news.subscriptions[0].results == 1 and news.subscriptions[0].bytes > 50 for news in live.announcements)


def test_committed_execution_is_announced_only_once(
    cluster: DataCluster, cluster_at: ClusterAt, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.subscribe("OfKind", [{"kind": "fire"}], NORTH)
    publish(cluster, "Reports", [report("a")])
    cluster.execute("OfKind")
    again = cluster_at()
    publish_now, delayed = again.announcements.publish, []
    monkeypatch.setattr(again.announcements, "publish", lambda *execution: delayed.append(execution))
    publish(again, "Reports", [report("b")])
    again.execute("OfKind")
    before = again.announcements.since(NORTH, 0)
    assert [news.sequence for news in before.announcements] == [1] and before.sequence == 1
    publish_now(*delayed[0])
    after = again.announcements.since(NORTH, before.sequence)
    assert [news.sequence for news in after.announcements] == [2] and not after.gap


def test_execution_whose_commit_had_no_answer_is_announced_before_later_ones(
    cluster: DataCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply(
        cluster, "CREATE CONTINUOUS CHANNEL Other (kind STRING) AS SELECT r.id FROM NEW Reports r WHERE r.kind = :kind;"
    )
    for channel in ("OfKind", "Other"):
        cluster.subscribe(channel, [{"kind": "fire"}], NORTH)
    publish(cluster, "Reports", [report("a")])
    cluster.execute("Other")
    read = cluster.announcements.since(NORTH, 0).sequence
    commit = cluster.catalog.executions.commit

    def commit_and_lose_answer(*arguments: Any) -> Any:
        commit(*arguments)
        raise OSError("the connection broke")

    with monkeypatch.context() as broken:
        broken.setattr(cluster.catalog.executions, "commit", commit_and_lose_answer)
        with pytest.raises(OSError, match="broke"):
            cluster.execute("OfKind")
    publish(cluster, "Reports", [report("b")])
    cluster.execute("Other")
    news = cluster.announcements.since(NORTH, read)
    assert [(found.channel, found.sequence) for found in news.announcements] == [("OfKind", 2), ("Other", 3)]


def test_brokers_are_woken_when_a_lost_answer_is_found(cluster: DataCluster) -> None:
    woken: list[None] = []
    stop = cluster.announcements.listen(lambda: woken.append(None))
    cluster.announcements.read_catalog_again()
    stop()
    assert woken
