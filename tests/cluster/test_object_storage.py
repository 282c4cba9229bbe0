"""A data cluster whose root is a bucket of a real S3 server, also while that server is busy, slow or loses answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.cluster.emergency import APPLICATION, NORTH, WHERE_IS, declare, ids, report
from tests.conftest import Clock, ClusterAt, publish, results_of
from tests.object_storage import SECRET, Fault, FaultyProxy, ObjectStore
from tocsin.cluster import upkeep
from tocsin.cluster.catalog import dataset_owner
from tocsin.cluster.spark.frames import dataset_frame, stored_frame
from tocsin.cluster.store import object_storage, smalltables
from tocsin.cluster.upkeep import OrphanSweep, maintain, merge_channel, merge_dataset
from tocsin.wire.errors import TocsinError

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

NUMBERS = "CREATE STREAM DATASET Numbers (n INT, text STRING, at TIMESTAMP, tags ARRAY<STRING>);"


@pytest.fixture
def faulty(object_store: ObjectStore) -> Iterator[FaultyProxy]:
    proxy = FaultyProxy(object_store.address, slow_s=0.3)
    yield proxy
    proxy.close()


def test_data_cluster_works_on_a_store_with_faults(
    cluster_at: ClusterAt, faulty: FaultyProxy, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(smalltables, "SMALL_TABLE_ROWS", 0)  # Spark reads every dataset
    random = Random(22)
    faulty.choose = lambda _method, _path: random.choices(list(Fault), (17, 1, 1, 1))[0]
    root, store = tmp_path / "faulty", ObjectStore(faulty.address)
    cluster = cluster_at(root, store=store)
    declare(cluster, APPLICATION)
    declare(cluster, WHERE_IS)
    cluster.subscribe("OfKind", [{"kind": "fire"}], NORTH)
    cluster.subscribe("Where", [{"user": "ann"}], NORTH)
    for number in range(5):
        publish(cluster, "Reports", [report(f"r{number}"), report(f"other-{number}", kind="flood")])
        at = f"2026-11-15T18:{number:02}:00Z"
        publish(cluster, "Places", [{"user_id": user, "lat": number, "lon": 0.0, "at": at} for user in ("ann", "bob")])
        cluster.execute("OfKind")
    monkeypatch.setattr(upkeep, "is_small", lambda files: False)  # Spark merges
    assert merge_channel(cluster, cluster.channel("OfKind"), fan_in=4) > 0
    assert merge_dataset(cluster, cluster.dataset("Reports"), fan_in=4) > 0
    assert merge_dataset(cluster, cluster.dataset("Places"), fan_in=4) > 0
    clock.passed_s += 2 * cluster.settings.garbage_after_s
    maintain(cluster)

    cluster = cluster_at(root, store=store)
    publish(cluster, "Reports", [report("last")])
    cluster.execute("OfKind")
    cluster.execute("Where")
    assert ids(results_of(cluster, "OfKind")["fire",]) == [*(f"r{number}" for number in range(5)), "last"]
    assert [row["lat"] for row in results_of(cluster, "Where")["ann",]] == [4.0]
    assert all(faulty.counts[fault] for fault in Fault), faulty.counts
    kept = {path for path in cluster.storage.list("datasets") if "Reports" in path}
    assert {file.path for file in cluster.catalog.files.of(dataset_owner("Reports"))} <= kept


def test_leftovers_and_dropped_files_leave_the_bucket(
    cluster_at: ClusterAt, object_store: ObjectStore, clock: Clock, tmp_path: Path
) -> None:
    cluster = cluster_at(tmp_path / "swept", store=object_store)
    declare(cluster, APPLICATION)
    for number in range(4):
        publish(cluster, "Reports", [report(f"r{number}")])
    cluster.storage.write("datasets/Reports/0123-leftover.parquet", [b"not committed"])
    assert merge_dataset(cluster, cluster.dataset("Reports"), fan_in=4) == 3
    sweep = OrphanSweep(cluster, lambda: clock.passed_s)
    sweep.sweep()
    cluster.garbage.collect()
    assert len(cluster.storage.list("datasets")) == 6, "nothing is deleted at once"
    clock.passed_s += 2 * cluster.settings.orphans_after_s
    cluster.garbage.collect()
    assert sweep.sweep() == 1
    assert cluster.storage.list("datasets") == [file.path for file in cluster.catalog.files.of("dataset:Reports")]


def test_spark_reads_the_same_rows_from_a_bucket_as_from_a_folder(
    cluster_at: ClusterAt, object_store: ObjectStore, tmp_path: Path
) -> None:
    frames = []
    for place in (None, object_store):
        cluster = cluster_at(tmp_path / ("folder" if place is None else "bucket"), store=place)
        declare(cluster, NUMBERS)
        for start in range(0, 60, 20):
            rows = [
                {
                    "n": n,
                    "text": None if n % 7 == 0 else f"t{n}",
                    "at": f"2026-11-15T18:00:{n:02}Z",
                    "tags": ["a", None],
                }
                for n in range(start, start + 20)
            ]
            publish(cluster, "Numbers", rows)
        dataset = cluster.dataset("Numbers").dataset
        files = cluster.catalog.files.of(dataset_owner("Numbers"))
        frames.append(dataset_frame(cluster.spark, cluster.storage, dataset, files))
        assert dataset_frame(cluster.spark, cluster.storage, dataset, files, after=1, upto=2).count() == 20
        assert dataset_frame(cluster.spark, cluster.storage, dataset, []).count() == 0
        column = stored_frame(cluster.spark, cluster.storage, dataset, files, ["n"])
        assert column.columns == ["n"] and column.where("n >= 57").count() == 3
    folder, bucket = frames
    assert bucket.schema == folder.schema
    as_text = [Counter(map(str, frame.collect())) for frame in frames]
    assert as_text[0] == as_text[1] and as_text[0].total() == 60


def test_feed_and_file_of_a_static_dataset_fill_a_bucket(
    cluster_at: ClusterAt, object_store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(smalltables, "SMALL_TABLE_ROWS", 0)
    drop, teams = tmp_path / "drop", tmp_path / "teams.csv"
    drop.mkdir()
    teams.write_text("kind,team\nfire,red\n", encoding="utf-8")
    root = tmp_path / "fed"
    cluster = cluster_at(root, store=object_store)
    declare(
        cluster,
        f"""CREATE STATIC DATASET Teams FROM '{teams}';
        CREATE STREAM DATASET Reports (id STRING, kind STRING) KEY (id);
        CREATE FEED Drop INTO Reports FROM json OPTIONS (path '{drop}');
        CREATE REPETITIVE CHANNEL Assigned (kind STRING) EVERY 5 SECONDS AS
          SELECT r.id, t.team FROM NEW Reports r JOIN Teams t ON t.kind = r.kind WHERE r.kind = :kind;""",
    )
    cluster.subscribe("Assigned", [{"kind": "fire"}], NORTH)
    publish(cluster, "Reports", [{"id": "a", "kind": "fire"}])
    (drop / "1.json").write_text('{"id": "a", "kind": "fire"}\n{"id": "b", "kind": "fire"}\n', encoding="utf-8")
    [feed] = cluster.datasets.feeds()
    feed.query.catch_up()
    cluster = cluster_at(root, store=object_store)
    (drop / "2.json").write_text('{"id": "b", "kind": "fire"}\n{"id": "c", "kind": "fire"}\n', encoding="utf-8")
    [feed] = cluster.datasets.feeds()
    feed.query.catch_up()
    publish(cluster, "Reports", [{"id": "c", "kind": "fire"}, {"id": "d", "kind": "fire"}])
    cluster.execute("Assigned")
    rows = results_of(cluster, "Assigned")["fire",]
    assert Counter((row["id"], row["team"]) for row in rows) == Counter((name, "red") for name in "abcd")


def test_store_that_does_not_answer_is_reported_without_secrets(
    cluster_at: ClusterAt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_storage, "ATTEMPTS", 2)
    with pytest.raises(TocsinError) as raised:
        cluster_at(tmp_path / "nowhere", store=ObjectStore("http://127.0.0.1:1"))
    assert "does not answer" in raised.value.message and SECRET not in raised.value.message
