"""What fails or happens between two steps of the data cluster leaves memory, catalog and files agreed."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.cluster.test_engine import APPLICATION, NORTH, WHERE_IS, declare, ids, report
from tests.conftest import ClusterAt, publish, results_of
from tocsin.cluster import datasets, upkeep
from tocsin.cluster.catalog import dataset_owner, results_owner
from tocsin.cluster.engine import DataCluster
from tocsin.cluster.feed.gateway import FeedGateway
from tocsin.cluster.pulling import open_pull, pulled
from tocsin.cluster.spark import dataset_writer
from tocsin.cluster.spark.ingestion import start_gateway
from tocsin.cluster.upkeep import maintain, merge_channel, merge_dataset
from tocsin.wire.errors import TocsinError

pytestmark = pytest.mark.spark


@pytest.fixture
def cluster(cluster_at: ClusterAt) -> DataCluster:
    cluster = cluster_at()
    declare(cluster, APPLICATION)
    return cluster


@pytest.mark.parametrize(("table", "method"), [("datasets", "commit_records"), ("executions", "commit")])
def test_a_commit_whose_answer_was_lost_is_not_made_again(
    cluster: DataCluster, monkeypatch: pytest.MonkeyPatch, table: str, method: str
) -> None:
    stored = getattr(cluster.catalog, table)
    commit = getattr(stored, method)

    def lost(*arguments: Any, **more: Any) -> Any:
        monkeypatch.undo()
        commit(*arguments, **more)
        raise OSError("the connection is gone")

    cluster.subscribe("OfKind", [{"kind": "fire"}], NORTH)
    monkeypatch.setattr(stored, method, lost)
    with pytest.raises(Exception, match="the connection is gone"):
        publish(cluster, "Reports", [report("a")])
        cluster.execute("OfKind")
    cluster.datasets.restart_ingestion("Reports")
    publish(cluster, "Reports", [report("b")])
    cluster.execute("OfKind")
    assert ids(results_of(cluster, "OfKind")[("fire",)]) == ["a", "b"]
    told = cluster.announcements.since(NORTH, 0)
    assert sum(news.subscriptions[0].results for news in told.announcements) == 2


DROPPED = "CREATE STREAM DATASET Dropped (id STRING) KEY (id);"


def test_a_dataset_whose_drop_failed_goes_on_and_one_that_was_dropped_half_way_is_gone(
    cluster: DataCluster, cluster_at: ClusterAt, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(cluster, DROPPED)
    publish(cluster, "Dropped", [{"id": "a"}])

    def broken(*_: Any) -> None:
        raise OSError("the catalog is away")

    monkeypatch.setattr(cluster.catalog.datasets, "drop", broken)
    with pytest.raises(OSError, match="away"):
        cluster.datasets.drop("Dropped")
    monkeypatch.undo()
    publish(cluster, "Dropped", [{"id": "a"}, {"id": "b"}])
    assert cluster.dataset("Dropped").writer.version == 2
    monkeypatch.setattr(FeedGateway, "close", broken)  # as if the process ended there
    with pytest.raises(OSError, match="away"):
        cluster.datasets.drop("Dropped")
    monkeypatch.undo()
    again = cluster_at()
    with pytest.raises(TocsinError, match="no dataset Dropped"):
        again.dataset("Dropped")
    declare(again, DROPPED)
    publish(again, "Dropped", [{"id": "a"}])
    assert again.dataset("Dropped").writer.version == 1


def test_a_dataset_dropped_while_its_ingestion_starts_leaves_no_query_behind(
    cluster: DataCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(cluster, DROPPED)
    begun = threading.Event()

    def slowly(*arguments: Any) -> Any:
        begun.set()
        time.sleep(0.3)
        return start_gateway(*arguments)

    monkeypatch.setattr(datasets, "start_gateway", slowly)
    with ThreadPoolExecutor(1) as beside:
        starting = beside.submit(cluster.datasets.start_ingestion, "Dropped")
        assert begun.wait(10)
        cluster.datasets.drop("Dropped")
        starting.result()
    assert "gateway-Dropped" not in [query.name for query in cluster.spark.streams.active]


def test_records_that_came_in_large_and_in_small_batches_are_one_dataset(
    cluster: DataCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark writes the files of the large ones, we those of the small ones: whoever reads both sees no difference."""
    declare(cluster, WHERE_IS)
    cluster.subscribe("Where", [{"user": "ann"}, {"user": "bob"}], NORTH)
    cluster.subscribe("OfKind", [{"kind": "fire"}], NORTH)
    for number in range(4):
        monkeypatch.setattr(dataset_writer, "SMALL_BATCH_BYTES", 1 << 20 if number % 2 else 0)
        who = {
            "user_id": ("ann", "bob")[number // 2],
            "lat": float(number),
            "lon": 0.0,
            "at": f"2026-11-15T18:0{number}:00Z",
        }
        publish(cluster, "Places", [who])
        publish(cluster, "Reports", [report(f"r{number}")])
        cluster.execute("OfKind")
    maintain(cluster)
    assert merge_dataset(cluster, cluster.dataset("Places"), 2) and merge_dataset(
        cluster, cluster.dataset("Reports"), 2
    )
    assert merge_channel(cluster, cluster.channel("OfKind"), 2)
    cluster.execute("Where")
    assert results_of(cluster, "Where") == {("ann",): [{"lat": 1.0}], ("bob",): [{"lat": 3.0}]}
    assert ids(results_of(cluster, "OfKind")[("fire",)]) == [f"r{number}" for number in range(4)]


def test_upkeep_that_fails_somewhere_is_done_elsewhere(cluster: DataCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    expired: list[str] = []

    def broken(_: DataCluster, dataset: Any) -> None:
        raise OSError(f"{dataset.dataset.name} cannot be read")

    monkeypatch.setattr(upkeep, "merge_dataset", broken)
    monkeypatch.setattr(upkeep, "expire_results", lambda _, channel: expired.append(channel.prepared.channel.name))
    with pytest.raises(OSError, match="Places cannot be read"):
        maintain(cluster)
    assert sorted(expired) == ["NearMe", "OfKind"]


def test_an_execution_that_is_stored_and_not_yet_announced_is_announced_once(
    cluster: DataCluster, cluster_at: ClusterAt, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.subscribe("OfKind", [{"kind": "fire"}], NORTH)
    publish(cluster, "Reports", [report("a")])
    cluster.execute("OfKind")
    again = cluster_at()
    tell, told = again.announcements.publish, []
    monkeypatch.setattr(again.announcements, "publish", lambda *news: told.append(news))
    publish(again, "Reports", [report("b")])
    again.execute("OfKind")
    before = again.announcements.since(NORTH, 0)
    assert [news.sequence for news in before.announcements] == [1] and before.sequence == 1
    tell(*told[0])
    after = again.announcements.since(NORTH, before.sequence)
    assert [news.sequence for news in after.announcements] == [2] and not after.gap


def test_results_that_pass_their_retention_while_they_are_looked_up_are_not_passed_over(cluster: DataCluster) -> None:
    [held] = cluster.subscribe("OfKind", [{"kind": "fire"}], NORTH)
    for name in ("a", "b"):
        publish(cluster, "Reports", [report(name)])
        cluster.execute("OfKind")
    pull = open_pull(cluster, "OfKind", {held.id: str(held.cursor)})
    assert not pull.gaps
    live = cluster.channel("OfKind")
    cluster.catalog.executions.expire(live.prepared.channel.name, cluster.now_s() + 1)
    cluster.catalog.files.expire(results_owner("OfKind", live.epoch), cluster.now_s() + 1, 2, cluster.now_s())
    with pytest.raises(TocsinError, match="request them again"):
        list(pulled(cluster.results, pull))
    again = open_pull(cluster, "OfKind", {held.id: str(held.cursor)})
    assert list(again.gaps) == [held.id] and list(pulled(cluster.results, again)) == []
    assert cluster.catalog.executions.last_sequence() == 2, "a restart does not begin to count anew"


def test_merging_never_takes_a_file_of_another_dataset_for_its_own(cluster: DataCluster) -> None:
    declare(cluster, DROPPED)
    publish(cluster, "Dropped", [{"id": "a"}])
    owner = dataset_owner("Dropped")
    merged = cluster.catalog.files.of(owner)
    cluster.datasets.drop("Dropped")
    publish(cluster, "Reports", [report("a")])  # given the number that has become free
    [file] = cluster.catalog.files.of(dataset_owner("Reports"))
    assert file.id == merged[0].id
    assert not cluster.catalog.files.replace(owner, merged, [], cluster.now_s())
    assert cluster.catalog.files.of(dataset_owner("Reports")) == [file]
