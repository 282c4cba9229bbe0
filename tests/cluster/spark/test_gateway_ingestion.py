"""Records reach their dataset without Spark while the backlog is small, and through a streaming query otherwise."""

from __future__ import annotations

import json
import threading
import time

import pytest

from tests.cluster.emergency import NORTH, REPORTS, ids, report
from tests.conftest import ClusterAt, publish, results_of
from tocsin.cluster.catalog import dataset_owner
from tocsin.cluster.engine import DataCluster
from tocsin.cluster.feed.gateway import Accepted, RecordForm
from tocsin.cluster.spark import dataset_writer, gateway_ingestion

pytestmark = pytest.mark.spark


def streamed(cluster: DataCluster) -> list[str]:
    """The names of the streaming queries over feed logs."""
    return [query.name for query in cluster.spark.streams.active if (query.name or "").startswith("gateway-")]


def accept(cluster: DataCluster, names: list[str], key: str | None = None) -> None:
    gateway = cluster.gateway("Reports")
    body = json.dumps([report(name) for name in names]).encode()
    assert isinstance(gateway.accept(body, RecordForm.JSON, key), Accepted)
    gateway.sync()


def test_small_backlog_needs_no_streaming_query(cluster: DataCluster) -> None:
    cluster.subscribe("OfKind", [{"kind": "fire"}], NORTH)
    for number in range(3):
        publish(cluster, "Reports", [report(f"a{number}")])
    assert streamed(cluster) == []
    cluster.execute("OfKind")
    assert ids(results_of(cluster, "OfKind")["fire",]) == ["a0", "a1", "a2"]
    assert cluster.gateway("Reports").backlog_bytes == 0


def test_large_backlog_is_streamed_and_the_query_stops_later(
    cluster: DataCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.subscribe("OfKind", [{"kind": "fire"}], NORTH)
    publish(cluster, "Reports", [report("a")])
    monkeypatch.setattr(dataset_writer, "SMALL_BATCH_BYTES", 100)
    publish(cluster, "Reports", [report("b"), report("c")])
    assert streamed(cluster) == ["gateway-Reports"]
    monkeypatch.setattr(dataset_writer, "SMALL_BATCH_BYTES", 1 << 20)
    monkeypatch.setattr(gateway_ingestion, "STREAMED_S", 0.0)
    deadline_s = time.monotonic() + 30
    while streamed(cluster) and time.monotonic() < deadline_s:
        threading.Event().wait(0.02)
    assert streamed(cluster) == []
    publish(cluster, "Reports", [report("d")])
    cluster.execute("OfKind")
    assert sorted(ids(results_of(cluster, "OfKind")["fire",])) == ["a", "b", "c", "d"]


def test_frames_with_answers_alone_are_passed_over(cluster: DataCluster) -> None:
    accept(cluster, ["a"], "first")
    accept(cluster, ["a"], "second")
    cluster.catch_up("Reports")
    accept(cluster, ["b"], "third")
    cluster.catch_up("Reports")
    assert cluster.dataset("Reports").writer.version == 2
    assert sum(file.rows for file in cluster.catalog.files.of(dataset_owner(REPORTS))) == 2


def test_restart_stores_accepted_records_once(cluster: DataCluster, cluster_at: ClusterAt) -> None:
    cluster.subscribe("OfKind", [{"kind": "fire"}], NORTH)
    publish(cluster, "Reports", [report("a")])
    accept(cluster, ["b", "c"])
    again = cluster_at()
    again.catch_up("Reports")
    again.execute("OfKind")
    assert sorted(ids(results_of(again, "OfKind")["fire",])) == ["a", "b", "c"]
