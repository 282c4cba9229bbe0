"""Ingestion from a shared log: objects of several gateways, small and large backlogs, one partition for each object."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.cluster.emergency import declare
from tests.conftest import ClusterAt, publish
from tocsin.cluster.catalog import dataset_owner
from tocsin.cluster.engine import DataCluster
from tocsin.cluster.feed.feedlog_reader import FeedLogCorrupt
from tocsin.cluster.feed.gateway import RecordForm
from tocsin.cluster.feed.shared_gateway import SharedGateway
from tocsin.cluster.spark import dataset_writer
from tocsin.cluster.spark.frames import dataset_frame
from tocsin.cluster.spark.shared_log import move_objects, object_frame

pytestmark = pytest.mark.spark

APPLICATION = "CREATE STREAM DATASET Reports (id STRING, kind STRING) KEY (id);"


@pytest.fixture
def cluster(cluster_at: ClusterAt) -> DataCluster:
    cluster = cluster_at(log="shared")
    declare(cluster, APPLICATION)
    return cluster


def other_gateway(cluster: DataCluster) -> SharedGateway:
    """The gateway of another process on the same catalog and root."""
    live = cluster.dataset("Reports")
    state = cluster.catalog.logs.state(live.name, live.generation)
    assert state is not None
    return SharedGateway(
        live.dataset, live.generation, cluster.catalog, cluster.storage, cluster.settings.limits, cluster.now_s, state
    )


def send(gateway: SharedGateway, *ids: str) -> None:
    gateway.accept(json.dumps([{"id": name, "kind": "fire"} for name in ids]).encode(), RecordForm.JSON)
    gateway.sync()


def stored(cluster: DataCluster) -> list[str]:
    files = cluster.catalog.files.of(dataset_owner("Reports"))
    frame = dataset_frame(cluster.spark, cluster.storage, cluster.dataset("Reports").dataset, files, ordered=True)
    return [row.id for row in frame.collect()]


def test_records_of_another_gateway_enter_the_idle_dataset(cluster: DataCluster) -> None:
    assert cluster.datasets.with_records_of_other_gateways() == []
    send(other_gateway(cluster), "a", "b")
    assert cluster.datasets.with_records_of_other_gateways() == ["Reports"]
    cluster.catch_up("Reports")
    publish(cluster, "Reports", [{"id": name, "kind": "fire"} for name in ("b", "c")])
    assert stored(cluster) == ["a", "b", "c"]
    assert cluster.dataset("Reports").gateway.backlog_bytes == 0  # type: ignore[union-attr]


def test_large_backlog_has_a_partition_for_each_object_and_enters_once(
    cluster: DataCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dataset_writer, "SMALL_BATCH_BYTES", 0)
    gateway, expected = other_gateway(cluster), []
    for number in range(5):
        send(gateway, *(f"{number}-{index}" for index in range(20)), f"{number - 1}-0")
        expected += [f"{number}-{index}" for index in range(20)] + (["-1-0"] if not number else [])
    reader = gateway.log_reader()
    frame = object_frame(cluster.spark, cluster.storage, reader.objects(0, 1 << 30), 0)
    assert frame.rdd.getNumPartitions() == 5
    cluster.catch_up("Reports")
    assert Counter(stored(cluster)) == Counter(expected) and len(expected) == 101
    writer = cluster.dataset("Reports").writer
    assert (
        writer.position == gateway.log_reader().end and move_objects(cluster.spark, writer, reader) == writer.position
    )


def test_restarted_data_cluster_continues_at_its_position(cluster: DataCluster, cluster_at: ClusterAt) -> None:
    publish(cluster, "Reports", [{"id": "a", "kind": "fire"}])
    send(other_gateway(cluster), "b")
    again = cluster_at(log="local")  # a dataset keeps the log with which it was created
    again.catch_up("Reports")
    assert stored(again) == ["a", "b"]


def test_damaged_object_stops_ingestion_and_is_named(cluster: DataCluster, tmp_path: Path) -> None:
    gateway = other_gateway(cluster)
    send(gateway, "a")
    [path] = cluster.storage.list("log")
    raw = bytearray(cluster.storage.read(path).to_pybytes())
    raw[len(raw) // 2] ^= 0xFF
    (tmp_path / "data" / path).write_bytes(raw)
    with pytest.raises((FeedLogCorrupt, OSError)):
        gateway.log_reader().read(0, 1 << 20)
