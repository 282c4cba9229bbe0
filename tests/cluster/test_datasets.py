"""Keyed, static and fed datasets, and their state after a failed drop or load."""

from __future__ import annotations

import errno
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.emergency import NORTH, WHERE_IS, declare, ids, report
from tests.conftest import ClusterAt, publish, results_of
from tocsin.cluster import datasets
from tocsin.cluster.applying import apply
from tocsin.cluster.catalog import dataset_owner
from tocsin.cluster.engine import DataCluster
from tocsin.cluster.feed.gateway import FeedGateway, RecordForm
from tocsin.cluster.spark import dataset_writer
from tocsin.cluster.spark.dataset_writer import DatasetWriter
from tocsin.cluster.spark.gateway_ingestion import start_gateway
from tocsin.cluster.upkeep import maintain, merge_channel, merge_dataset
from tocsin.model.ids import DatasetName
from tocsin.wire.errors import TocsinError

pytestmark = pytest.mark.spark

DROPPED = "CREATE STREAM DATASET Dropped (id STRING) KEY (id);"


@pytest.mark.usefixtures("both_ways")
def test_keyed_dataset_gives_the_latest_record_by_event_order(cluster: DataCluster) -> None:
    declare(cluster, WHERE_IS)
    cluster.subscribe("Where", [{"user": "ann"}], NORTH)
    for lat, minute in ((1.0, 10), (2.0, 30), (3.0, 20)):  # the last to arrive is not the latest by time
        at = f"2026-11-15T18:{minute}:00Z"
        publish(cluster, "Places", [{"user_id": "ann", "lat": lat, "lon": 0.0, "at": at}])
    cluster.execute("Where")
    assert [row["lat"] for row in results_of(cluster, "Where")[("ann",)]] == [2.0]


@pytest.mark.usefixtures("both_ways")
def test_static_dataset_enriches_results_and_can_be_reloaded(cluster: DataCluster, tmp_path: Path) -> None:
    file = tmp_path / "teams.csv"
    file.write_text("kind,team\nfire,Brigade\nflood,Divers\n")
    declare(
        cluster,
        f"""CREATE STATIC DATASET Teams FROM '{file}';
        CREATE REPETITIVE CHANNEL WithTeam (kind STRING) EVERY 5 SECONDS AS
          SELECT r.id, t.team FROM NEW Reports r JOIN Teams t ON t.kind = r.kind WHERE r.kind = :kind;""",
    )
    cluster.subscribe("WithTeam", [{"kind": "fire"}], NORTH)
    publish(cluster, "Reports", [report("a")])
    cluster.execute("WithTeam")
    file.write_text("kind,team\nfire,Helicopter\n")
    cluster.datasets.load_static(cluster.dataset("Teams").dataset, str(file), "csv")
    publish(cluster, "Reports", [report("b")])
    cluster.execute("WithTeam")
    assert [row["team"] for row in results_of(cluster, "WithTeam")[("fire",)]] == ["Brigade", "Helicopter"]
    with pytest.raises(TocsinError, match="STATIC"):
        cluster.gateway("Teams")


def test_static_dataset_that_cannot_be_loaded_is_not_created(
    cluster_at: ClusterAt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = cluster_at()
    (tmp_path / "teams.csv").write_text("kind,team\nfire,Brigade\n")
    text = "CREATE STATIC DATASET Teams FROM 'teams.csv';"

    def full(*_arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(DatasetWriter, "replace_all", full)
    with pytest.raises(OSError, match="No space left"):
        apply(cluster, text, folder=str(tmp_path))
    assert (cluster.datasets.all(), cluster.catalog.datasets.all()) == ([], [])
    monkeypatch.undo()
    assert [str(change.action) for change in apply(cluster, text, folder=str(tmp_path))] == ["created"]
    assert sum(file.rows for file in cluster.catalog.files.of(dataset_owner(DatasetName("Teams")))) == 1


def test_feed_and_gateway_together_store_each_key_once(
    cluster: DataCluster, cluster_at: ClusterAt, tmp_path: Path
) -> None:
    drop = tmp_path / "drop"
    drop.mkdir()
    cluster.subscribe("OfKind", [{"kind": "fire"}], NORTH)
    publish(cluster, "Reports", [report("a")])
    (drop / "1.json").write_text('{"id": "a", "kind": "fire"}\n{"id": "b", "kind": "fire"}\n{"kind": "fire"}\n')
    declare(cluster, f"CREATE FEED Drop INTO Reports FROM json OPTIONS (path '{drop}');")
    cluster.datasets.feeds()[0].query.catch_up()
    publish(cluster, "Reports", [report("b"), report("c")])
    cluster.execute("OfKind")
    assert sorted(ids(results_of(cluster, "OfKind")[("fire",)])) == ["a", "b", "c"]
    again = cluster_at()
    (drop / "2.json").write_text('{"id": "c", "kind": "fire"}\n{"id": "d", "kind": "fire"}\n')
    again.datasets.feeds()[0].query.catch_up()
    again.execute("OfKind")
    assert sorted(ids(results_of(again, "OfKind")[("fire",)])) == ["a", "b", "c", "d"]
    gateway = again.gateway("Reports")
    gateway.accept(json.dumps([report("d")]).encode(), RecordForm.JSON, "a key")
    gateway.accept(json.dumps([report("d")]).encode(), RecordForm.JSON, "another")
    gateway.sync()
    again.catch_up("Reports")  # the batch holds answers and no record
    again.datasets.drop_feed("Drop")
    without = cluster_at()
    publish(without, "Reports", [report("d"), report("e")])
    without.execute("OfKind")
    names = sorted(ids(results_of(without, "OfKind")[("fire",)]))
    assert names == ["a", "b", "c", "d", "e"], "keys that came by a feed are known after the feed is dropped"


def test_large_and_small_batches_make_one_dataset(cluster: DataCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark writes the files of large batches, the driver those of small ones: a reader sees no difference."""
    declare(cluster, WHERE_IS)
    cluster.subscribe("Where", [{"user": "ann"}, {"user": "bob"}], NORTH)
    cluster.subscribe("OfKind", [{"kind": "fire"}], NORTH)
    for number in range(4):
        monkeypatch.setattr(dataset_writer, "SMALL_BATCH_BYTES", 1 << 20 if number % 2 else 0)
        place = {
            "user_id": ("ann", "bob")[number // 2],
            "lat": float(number),
            "lon": 0.0,
            "at": f"2026-11-15T18:0{number}:00Z",
        }
        publish(cluster, "Places", [place])
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


def test_failed_drop_keeps_the_dataset_and_interrupted_drop_removes_it(
    cluster: DataCluster, cluster_at: ClusterAt, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(cluster, DROPPED)
    publish(cluster, "Dropped", [{"id": "a"}])

    def broken(*_: Any) -> None:
        raise OSError("the catalog is unreachable")

    monkeypatch.setattr(cluster.catalog.datasets, "drop", broken)
    with pytest.raises(OSError, match="unreachable"):
        cluster.datasets.drop("Dropped")
    monkeypatch.undo()
    publish(cluster, "Dropped", [{"id": "a"}, {"id": "b"}])
    assert cluster.dataset("Dropped").writer.version == 2
    monkeypatch.setattr(FeedGateway, "close", broken)  # as if the process ended there
    with pytest.raises(OSError, match="unreachable"):
        cluster.datasets.drop("Dropped")
    monkeypatch.undo()
    again = cluster_at()
    with pytest.raises(TocsinError, match="no dataset Dropped"):
        again.dataset("Dropped")
    declare(again, DROPPED)
    publish(again, "Dropped", [{"id": "a"}])
    assert again.dataset("Dropped").writer.version == 1


def test_drop_during_start_of_ingestion_leaves_no_query(cluster: DataCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    declare(cluster, DROPPED)
    started = threading.Event()

    def slowly(*arguments: Any) -> Any:
        started.set()
        time.sleep(0.3)
        return start_gateway(*arguments)

    monkeypatch.setattr(datasets, "start_gateway", slowly)
    with ThreadPoolExecutor(1) as pool:
        starting = pool.submit(cluster.datasets.start_ingestion, "Dropped")
        assert started.wait(10)
        cluster.datasets.drop("Dropped")
        starting.result()
    assert "gateway-Dropped" not in [query.name for query in cluster.spark.streams.active]
