"""A continuous channel matches records while they are being stored, and commits only after they are."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.cluster.emergency import declare, ids
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


def test_execution_is_committed_after_the_records_it_matched(
    cluster: DataCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = cluster.dataset("Reports").writer
    may_commit, commit = threading.Event(), cluster.catalog.datasets.commit_records

    def commit_later(*arguments: Any, **more: Any) -> Any:
        assert may_commit.wait(60)
        return commit(*arguments, **more)

    monkeypatch.setattr(cluster.catalog.datasets, "commit_records", commit_later)
    accept(cluster, "a", "b")
    until(lambda: writer.visible == 1, "the batch did not arrive")
    assert writer.version == 0
    executing = threading.Thread(target=cluster.execute, args=("OfKind",))
    executing.start()
    until(lambda: cluster.channel("OfKind").executions == 1, "the channel did not match visible records")
    assert matched(cluster) == [] and cluster.announcements.sequence == 0
    assert cluster.execute("Rank") is None, "Rank reads the whole dataset too, which does not have the records yet"
    may_commit.set()
    executing.join(60)
    assert matched(cluster) == ["a", "b"] and cluster.announcements.sequence == 1
    assert cluster.execute("Rank") is not None
    assert [row["so_far"] for row in results_of(cluster, "Rank")["fire",]] == [2, 2]


def test_results_of_records_that_could_not_be_stored_are_discarded(
    cluster: DataCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = cluster.dataset("Reports")
    writer = dataset.writer
    may_fail = threading.Event()

    def broken(*arguments: Any) -> Any:
        assert may_fail.wait(60)
        raise OSError("no space left on device")

    monkeypatch.setattr(dataset_writer, "write_records_here", broken)
    accept(cluster, "a", "b")
    until(lambda: writer.visible == 1, "the batch did not arrive")
    outcome: list[str] = []

    def execute() -> None:
        try:
            cluster.execute("OfKind")
        except TocsinError as error:
            outcome.append(error.message)

    executing = threading.Thread(target=execute)
    executing.start()
    until(lambda: cluster.channel("OfKind").executions == 1, "the channel did not match visible records")
    may_fail.set()
    executing.join(60)
    assert outcome == ["OfKind: new records of Reports could not be stored yet"]
    assert dataset.query is not None and dataset.query.failure() == "no space left on device"
    accept(cluster, "c")  # acknowledged, but not stored before the records that came first
    with pytest.raises(Exception, match="no space"):
        cluster.catch_up("Reports")
    assert writer.version == writer.visible == 0 and matched(cluster) == []

    monkeypatch.setattr(dataset_writer, "write_records_here", write_records_here)
    cluster.datasets.restart_ingestion("Reports")
    cluster.catch_up("Reports")
    cluster.execute("OfKind")
    assert matched(cluster) == ["a", "b", "c"]


def test_reused_version_number_is_not_taken_for_the_matched_version(
    cluster: DataCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Storing fails, and a second attempt with more records succeeds before the execution checks."""
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
    until(lambda: writer.visible == 1, "the batch did not arrive")
    with ThreadPoolExecutor(1) as pool:
        executing = pool.submit(cluster.execute, "OfKind")
        assert may_fail.wait(60)
        until(lambda: writer.storing_error() is not None, "storing did not fail")
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


def test_restart_continues_at_the_position_in_the_catalog(cluster: DataCluster, cluster_at: ClusterAt) -> None:
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


def test_next_batch_waits_until_continuous_channels_match_or_time_out(
    cluster_at: ClusterAt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "MATCHING_S", 60.0)
    reported: list[str] = []
    cluster = cluster_at(arrived=reported.append)
    declare(cluster, APPLICATION)
    cluster.subscribe("OfKind", [{"kind": "fire"}], BrokerId("b"))
    writer = cluster.dataset("Reports").writer
    accept(cluster, "a")
    until(lambda: writer.visible == 1, "the first batch did not arrive")
    accept(cluster, "b")
    time.sleep(0.5)
    assert writer.visible == 1 and "OfKind" in reported, "b was read before the channel matched a"

    monkeypatch.setattr(live, "MATCHING_S", 0.1)
    cluster.execute("OfKind")
    until(lambda: writer.visible == 2, "the execution did not release the next batch")
    accept(cluster, "c")
    until(lambda: writer.visible == 3, "a channel that does not run delayed the batch")
    cluster.execute("OfKind")
    assert matched(cluster) == ["a", "b", "c"]


def test_setting_for_gateway_checkpoints_does_not_stay_in_the_session(cluster: DataCluster) -> None:
    accept(cluster, "a")
    assert cluster.spark.conf.get(ingestion.CHECKPOINT_FILES, None) is None, (
        "feeds write checkpoints in Spark's own way"
    )
