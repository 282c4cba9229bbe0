"""Write intents: files that wait for their commit are kept, and files that are gone are not committed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.cluster.emergency import NORTH, ids, report
from tests.conftest import ClusterAt, publish, results_of
from tocsin.cluster.engine import DataCluster
from tocsin.cluster.spark import writing
from tocsin.cluster.store.recent_tables import RecentTables
from tocsin.cluster.upkeep import OrphanSweep, maintain, merge_channel
from tocsin.wire.errors import TocsinError

pytestmark = pytest.mark.spark

BeforeCommit = Callable[[str, str, Callable[[], Any]], None]


@pytest.fixture
def before_commit(cluster: DataCluster, monkeypatch: pytest.MonkeyPatch) -> BeforeCommit:
    """Call a function once, when a job has written its files and is about to commit them."""

    def install(table: str, method: str, action: Callable[[], Any]) -> None:
        stored = getattr(cluster.catalog, table)
        commit = getattr(stored, method)

        def late(*arguments: Any, **more: Any) -> Any:
            monkeypatch.setattr(stored, method, commit)
            action()
            return commit(*arguments, **more)

        monkeypatch.setattr(stored, method, late)

    return install


class LongSweeps:
    """An orphan sweep before and after a pause that is longer than `orphans_after_s`."""

    def __init__(self, cluster: DataCluster) -> None:
        self._elapsed_s = 0.0
        self._orphans = OrphanSweep(cluster, lambda: self._elapsed_s)
        self.calls = 0

    def __call__(self) -> int:
        self.calls += 1
        self._orphans.sweep()
        self._elapsed_s += 4_000.0
        return self._orphans.sweep()


@pytest.mark.parametrize("catalog_bytes", [0, writing.CATALOG_BYTES], ids=["in files", "in the catalog"])
def test_files_of_slow_jobs_are_kept_until_their_commit(
    cluster: DataCluster, before_commit: BeforeCommit, monkeypatch: pytest.MonkeyPatch, catalog_bytes: int
) -> None:
    monkeypatch.setattr(writing, "CATALOG_BYTES", catalog_bytes)
    sweeps = LongSweeps(cluster)
    cluster.subscribe("OfKind", [{"kind": "fire"}], NORTH)
    for number in range(2):
        before_commit("datasets", "commit_records", sweeps)
        publish(cluster, "Reports", [report(f"r{number}")])
        before_commit("executions", "commit", sweeps)
        cluster.execute("OfKind")
    before_commit("files", "replace", sweeps)
    assert merge_channel(cluster, cluster.channel("OfKind"), fan_in=2) == 1
    assert sweeps.calls == 5
    cluster.results._recent = RecentTables(0)  # so that the results are read from the files
    assert ids(results_of(cluster, "OfKind")[("fire",)]) == ["r0", "r1"]
    assert cluster.catalog.writes.open() == {}


def test_execution_whose_file_disappeared_is_repeated(
    cluster: DataCluster, before_commit: BeforeCommit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "CATALOG_BYTES", 0)
    cluster.subscribe("OfKind", [{"kind": "fire"}], NORTH)
    publish(cluster, "Reports", [report("a")])
    wait_stored = cluster.dataset("Reports").writer.wait_stored

    def delete_results(*arguments: Any) -> bool:
        for path in cluster.storage.list("results"):
            cluster.storage.delete(path)
        return wait_stored(*arguments)

    monkeypatch.setattr(cluster.dataset("Reports").writer, "wait_stored", delete_results)
    with pytest.raises(TocsinError, match="disappeared before its commit"):
        cluster.execute("OfKind")
    monkeypatch.undo()
    assert cluster.execute("OfKind") is not None
    maintain(cluster)
    assert ids(results_of(cluster, "OfKind")[("fire",)]) == ["a"]


def test_intent_of_a_dead_process_protects_no_file(cluster: DataCluster, cluster_at: ClusterAt) -> None:
    write = cluster.catalog.writes.begin("results:OfKind:3", 0.0)
    with cluster.storage.create(f"results/OfKind-3/{write}-1.parquet") as file:
        file.write(b"half a file of a dead process")
    assert LongSweeps(cluster)() == 0
    again = cluster_at()
    assert LongSweeps(again)() == 1


def test_job_whose_intent_is_gone_cannot_commit(cluster: DataCluster, before_commit: BeforeCommit) -> None:
    """A process that opens the data root deletes the intents of the process before it, which may still run."""
    cluster.subscribe("OfKind", [{"kind": "fire"}], NORTH)
    publish(cluster, "Reports", [report("a")])
    before_commit("executions", "commit", cluster.catalog.writes.clear)
    with pytest.raises(TocsinError, match="another process has opened this data root"):
        cluster.execute("OfKind")
    assert results_of(cluster, "OfKind") == {("fire",): []}
