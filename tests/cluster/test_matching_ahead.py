"""A continuous channel matches records while they are being stored, and says nothing of it before they are."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.cluster.test_engine import declare, ids
from tests.conftest import ClusterAt, results_of
from tocsin.cluster import executions, live
from tocsin.cluster.engine import DataCluster
from tocsin.cluster.feed.gateway import RecordForm
from tocsin.cluster.spark import dataset_writer, ingestion
from tocsin.cluster.spark.execution import execute
from tocsin.cluster.spark.writing import write_records_here
from tocsin.model.ids import BrokerId
from tocsin.wire.errors import TocsinError

pytestmark = pytest.mark.spark

APPLICATION = """
CREATE STREAM DATASET Reports (id STRING, kind STRING) KEY (id);
CREATE CONTINUOUS CHANNEL OfKind (kind STRING) AS SELECT r.* FROM NEW Reports r WHERE r.kind = :kind;
CREATE CONTINUOUS CHANNEL Rank (kind STRING) AS
  SELECT r.id, count(a.id) AS so_far FROM NEW Reports r JOIN Reports a ON a.kind = r.kind
  WHERE r.kind = :kind GROUP BY r.id;
"""


@pytest.fixture
def cluster(cluster_at: ClusterAt) -> DataCluster:
    opened = cluster_at()
    declare(opened, APPLICATION)
    opened.subscribe("OfKind", [{"kind": "fire"}], BrokerId("b"))
    opened.subscribe("Rank", [{"kind": "fire"}], BrokerId("b"))
    return opened


def accept(cluster: DataCluster, *names: str) -> None:
    gateway = cluster.gateway("Reports")
    gateway.accept(json.dumps([{"id": name, "kind": "fire"} for name in names]).encode(), RecordForm.JSON)
    gateway.sync()
    cluster.datasets.start_ingestion("Reports")


def until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def matched(cluster: DataCluster, channel: str = "OfKind") -> list[str]:
    return ids(results_of(cluster, channel)["fire",])


def test_an_execution_is_committed_after_the_records_it_matched(
    cluster: DataCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = cluster.dataset("Reports").writer
    may_commit, commit = threading.Event(), cluster.catalog.datasets.commit_records

    def held_back(*arguments: Any, **more: Any) -> Any:
        assert may_commit.wait(60)
        return commit(*arguments, **more)

    monkeypatch.setattr(cluster.catalog.datasets, "commit_records", held_back)
    accept(cluster, "a", "b")
    until(lambda: writer.visible == 1, "the batch never came")
    assert writer.version == 0
    executing = threading.Thread(target=cluster.execute, args=("OfKind",))
    executing.start()
    until(lambda: cluster.channel("OfKind").executions == 1, "it did not match what is only visible")
    assert matched(cluster) == [] and cluster.announcements.sequence == 0
    assert cluster.execute("Rank") is None, "it reads the whole dataset too, which does not have them yet"
    may_commit.set()
    executing.join(60)
    assert matched(cluster) == ["a", "b"] and cluster.announcements.sequence == 1
    assert cluster.execute("Rank") is not None
    assert [row["so_far"] for row in results_of(cluster, "Rank")["fire",]] == [2, 2]


def test_what_came_of_records_that_could_not_be_stored_is_thrown_away_and_they_come_again(
    cluster: DataCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset, writer = cluster.dataset("Reports"), cluster.dataset("Reports").writer
    may_fail = threading.Event()

    def broken(*arguments: Any) -> Any:
        assert may_fail.wait(60)
        raise OSError("no space left on device")

    monkeypatch.setattr(dataset_writer, "write_records_here", broken)
    accept(cluster, "a", "b")
    until(lambda: writer.visible == 1, "the batch never came")
    outcome: list[str] = []

    def execute() -> None:
        try:
            cluster.execute("OfKind")
        except TocsinError as error:
            outcome.append(error.message)

    executing = threading.Thread(target=execute)
    executing.start()
    until(lambda: cluster.channel("OfKind").executions == 1, "it did not match what is only visible")
    may_fail.set()
    executing.join(60)
    assert outcome == ["OfKind: new records of Reports could not be stored yet"]
    assert dataset.query is not None and dataset.query.failure() == "no space left on device"
    accept(cluster, "c")  # acknowledged, and not stored before those that came first
    with pytest.raises(Exception, match="no space"):
        cluster.catch_up("Reports")
    assert writer.version == writer.visible == 0 and matched(cluster) == []

    monkeypatch.setattr(dataset_writer, "write_records_here", write_records_here)
    cluster.datasets.restart_ingestion("Reports")
    cluster.catch_up("Reports")
    cluster.execute("OfKind")
    assert matched(cluster) == ["a", "b", "c"]


def test_a_version_whose_number_was_given_again_is_not_taken_for_the_one_that_was_matched(
    cluster: DataCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Storing fails and succeeds at the second try, with more records, before the execution looks."""
    writer = cluster.dataset("Reports").writer
    may_fail, stored_again = threading.Event(), threading.Event()

    def broken(*arguments: Any) -> Any:
        assert may_fail.wait(60)
        raise OSError("no space left on device")

    def slowly(*arguments: Any) -> Any:
        written = execute(*arguments)
        may_fail.set()
        assert stored_again.wait(60)
        return written

    monkeypatch.setattr(dataset_writer, "write_records_here", broken)
    monkeypatch.setattr(executions, "execute", slowly)
    accept(cluster, "a")
    until(lambda: writer.visible == 1, "the batch never came")
    with ThreadPoolExecutor(1) as beside:
        executing = beside.submit(cluster.execute, "OfKind")
        assert may_fail.wait(60)
        until(lambda: writer.storing_error() is not None, "it did not fail")
        monkeypatch.undo()
        accept(cluster, "b")
        cluster.datasets.restart_ingestion("Reports")
        cluster.catch_up("Reports")
        assert writer.version >= 1
        stored_again.set()
        with pytest.raises(TocsinError, match="could not be stored yet"):
            executing.result()
    cluster.execute("OfKind")
    assert matched(cluster) == ["a", "b"]


def test_a_restart_goes_on_where_the_catalog_stands_whatever_spark_had_noted(
    cluster: DataCluster, cluster_at: ClusterAt
) -> None:
    accept(cluster, "a")
    cluster.catch_up("Reports")
    cluster.datasets.restart_ingestion("Reports")
    accept(cluster, "b")
    cluster.catch_up("Reports")
    again = cluster_at()
    accept(again, "c")
    again.catch_up("Reports")
    again.execute("OfKind")
    assert matched(again) == ["a", "b", "c"]


def test_spark_goes_on_when_continuous_channels_have_matched_or_after_a_moment(
    cluster_at: ClusterAt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "MATCHING_S", 60.0)
    told: list[str] = []
    cluster = cluster_at(arrived=told.append)
    declare(cluster, APPLICATION)
    cluster.subscribe("OfKind", [{"kind": "fire"}], BrokerId("b"))
    writer = cluster.dataset("Reports").writer
    accept(cluster, "a")
    until(lambda: writer.visible == 1, "the first batch never came")
    accept(cluster, "b")
    time.sleep(0.5)
    assert writer.visible == 1 and "OfKind" in told, "it was read before the channel had matched the one before"

    monkeypatch.setattr(live, "MATCHING_S", 0.1)
    cluster.execute("OfKind")
    until(lambda: writer.visible == 2, "the execution did not let it go on")
    accept(cluster, "c")
    until(lambda: writer.visible == 3, "a channel that does not run held it up")
    cluster.execute("OfKind")
    assert matched(cluster) == ["a", "b", "c"]


def test_a_feeds_checkpoint_is_written_the_way_spark_does_by_itself(cluster: DataCluster) -> None:
    accept(cluster, "a")
    assert cluster.spark.conf.get(ingestion.CHECKPOINT_FILES, None) is None, "only the scratch of gateways differs"
