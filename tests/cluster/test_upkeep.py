"""Upkeep: merging files changes no answer, old files are deleted, needed ones are not."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tests.cluster.emergency import NORTH, WHERE_IS, declare, ids, report
from tests.conftest import Clock, ClusterAt, publish, results_of
from tocsin.cluster import upkeep
from tocsin.cluster.catalog import dataset_owner, results_owner
from tocsin.cluster.engine import DataCluster
from tocsin.cluster.pulling import arrow_stream, open_pull
from tocsin.cluster.spark import execution, writing
from tocsin.cluster.spark.execution import SMALL_PAIRS
from tocsin.cluster.upkeep import OrphanSweep, maintain, merge_channel, merge_dataset

pytestmark = pytest.mark.spark

DROPPED = "CREATE STREAM DATASET Dropped (id STRING) KEY (id);"


@pytest.mark.usefixtures("both_ways")
def test_merging_files_changes_no_result_and_no_announcement(cluster: DataCluster, cluster_at: ClusterAt) -> None:
    declare(cluster, WHERE_IS)
    cluster.subscribe("OfKind", [{"kind": "fire"}], NORTH)
    for number in range(9):
        publish(cluster, "Reports", [report(f"r{number}")])
        cluster.execute("OfKind")
        at = f"2026-11-15T18:{number:02}:00Z"
        publish(cluster, "Places", [{"user_id": user, "lat": number, "lon": 0.0, "at": at} for user in ("ann", "bob")])
    before = results_of(cluster, "OfKind")
    announced = cluster.announcements.since(NORTH, 0)
    assert merge_channel(cluster, cluster.channel("OfKind"), fan_in=4) > 0
    assert merge_dataset(cluster, cluster.dataset("Reports"), fan_in=4) > 0
    assert merge_dataset(cluster, cluster.dataset("Places"), fan_in=4) > 0
    assert merge_dataset(cluster, cluster.dataset("Places"), fan_in=4) == 0, "no run is long enough any more"
    assert results_of(cluster, "OfKind") == before
    cluster.subscribe("Where", [{"user": "ann"}, {"user": "bob"}], NORTH)
    cluster.execute("Where")
    assert {key: [row["lat"] for row in rows] for key, rows in results_of(cluster, "Where").items()} == {
        ("ann",): [8.0],
        ("bob",): [8.0],
    }
    again = cluster_at()  # without its memory, announcements are counted from the merged files
    assert again.announcements.since(NORTH, 0).announcements[: len(announced.announcements)] == announced.announcements


def test_odd_column_names_survive_writing_and_merging_by_spark(
    cluster: DataCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark writes and merges large files, and interprets names that the driver takes as they are."""
    declare(
        cluster,
        """CREATE CONTINUOUS CHANNEL Odd (kind STRING) AS
          SELECT r.id, r.severity AS `a.b`, r.severity AS `x``y`, array(named_struct('Xy', 1, 'z z', r.kind)) AS s
          FROM NEW Reports r WHERE r.kind = :kind;""",
    )
    assert cluster.channel("Odd").prepared.described.type_of("s") == "ARRAY<STRUCT<Xy:INT,z z:STRING>>"
    (subscribed,) = cluster.subscribe("Odd", [{"kind": "fire"}], NORTH)
    monkeypatch.setattr(upkeep, "is_small", lambda _files: False)
    for pairs in (SMALL_PAIRS, 0, SMALL_PAIRS):
        monkeypatch.setattr(execution, "SMALL_PAIRS", pairs)
        publish(cluster, "Reports", [report(f"r{cluster.channel('Odd').execution}")])
        cluster.execute("Odd")
        merge_channel(cluster, cluster.channel("Odd"), fan_in=2)
    assert len(cluster.catalog.files.of(results_owner("Odd", cluster.channel("Odd").epoch))) == 1
    rows = [{"id": f"r{n}", "a.b": 5, "x`y": 5, "s": [{"Xy": 1, "z z": "fire"}]} for n in range(3)]
    assert results_of(cluster, "Odd") == {("fire",): rows}
    stream = b"".join(arrow_stream(cluster.results, open_pull(cluster, "Odd", {subscribed.id: None})))
    assert pa.ipc.open_stream(stream).read_all().select(list(rows[0])).to_pylist() == rows


def test_merged_files_and_orphans_are_deleted_after_their_delay(
    cluster: DataCluster, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "CATALOG_BYTES", 0)
    cluster.subscribe("OfKind", [{"kind": "fire"}], NORTH)
    for number in range(9):
        publish(cluster, "Reports", [report(f"r{number}")])
        cluster.execute("OfKind")
    with cluster.storage.create("results/OfKind-3/leftover.parquet") as file:
        file.write(b"half a file of a dead process")
    merge_channel(cluster, cluster.channel("OfKind"), fan_in=4)
    maintain(cluster)
    assert len(cluster.storage.list("results")) == 11, "readers may still have the nine old files open"
    monotonic_s = 0.0
    orphans = OrphanSweep(cluster, lambda: monotonic_s)
    clock.passed_s = 4_000
    maintain(cluster)
    assert orphans.sweep() == 0, "a file may still be committed, whatever time has passed"
    monotonic_s = 3_600.0
    assert orphans.sweep() == 1
    assert len(cluster.storage.list("results")) == 1
    assert len(results_of(cluster, "OfKind")[("fire",)]) == 9


def test_retention_keeps_old_records_that_a_channel_has_not_matched(cluster: DataCluster, clock: Clock) -> None:
    cluster.subscribe("OfKind", [{"kind": "fire"}], NORTH)
    publish(cluster, "Reports", [report("a")])
    cluster.execute("OfKind")
    publish(cluster, "Reports", [report("b")])
    clock.passed_s = 8 * 86_400
    maintain(cluster)
    assert [file.rows for file in cluster.catalog.files.of("dataset:Reports")] == [1], "OfKind has not matched b yet"
    cluster.execute("OfKind")
    assert ids(results_of(cluster, "OfKind")[("fire",)]) == ["b"], "results of a week ago are deleted"
    clock.passed_s = 16 * 86_400
    maintain(cluster)
    assert cluster.catalog.files.of("dataset:Reports") == []


def test_failing_step_does_not_stop_the_other_steps(cluster: DataCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    expired: list[str] = []

    def broken(_: DataCluster, dataset: Any) -> None:
        raise OSError(f"{dataset.dataset.name} cannot be read")

    monkeypatch.setattr(upkeep, "merge_dataset", broken)
    monkeypatch.setattr(upkeep, "expire_results", lambda _, channel: expired.append(channel.prepared.channel.name))
    with pytest.raises(OSError, match="Places cannot be read"):
        maintain(cluster)
    assert sorted(expired) == ["NearMe", "OfKind"]


def test_merge_is_refused_when_a_file_id_was_given_to_another_dataset(cluster: DataCluster) -> None:
    declare(cluster, DROPPED)
    publish(cluster, "Dropped", [{"id": "a"}])
    owner = dataset_owner("Dropped")
    merged = cluster.catalog.files.of(owner)
    cluster.datasets.drop("Dropped")
    publish(cluster, "Reports", [report("a")])  # gets the id that is free now
    [file] = cluster.catalog.files.of(dataset_owner("Reports"))
    assert file.id == merged[0].id
    assert not cluster.catalog.files.replace(owner, merged, [], cluster.now_s())
    assert cluster.catalog.files.of(dataset_owner("Reports")) == [file]
