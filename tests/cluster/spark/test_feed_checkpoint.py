"""Feeds go on from the offsets that the catalog has, whatever became of Spark's checkpoint."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.cluster.spark.test_ingestion import DATASET, FEED, records_of
from tests.conftest import ClusterAt
from tocsin.cluster.catalog import FeedProgress, tables
from tocsin.cluster.engine import DataCluster
from tocsin.cluster.spark.feed_checkpoint import FeedCheckpoint
from tocsin.cluster.spark.session import Session
from tocsin.model.entities import Dataset, DatasetKind, Feed
from tocsin.model.schema import Schema

COMPACT_EVERY = "spark.sql.streaming.fileSource.log.compactInterval"


class Drop:
    """A folder of numbered files, three records each, and the feed that reads it one file at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.files = 0

    def add(self, count: int) -> None:
        for number in range(self.files + 1, self.files + count + 1):
            part = self.folder.parent / "part"
            part.write_text("".join(f'{{"n": {3 * number + row}}}\n' for row in range(3)))
            part.rename(self.folder / f"{number}.json")
        self.files += count

    def expected(self) -> list[tuple[object, ...]]:
        return sorted(((n,) for n in range(3, 3 * self.files + 3)), key=str)


@pytest.fixture
def drop(spark: Session, tmp_path: Path) -> Iterator[Drop]:
    spark.conf.set(COMPACT_EVERY, "3")
    yield Drop(tmp_path / "drop")
    spark.conf.unset(COMPACT_EVERY)


@pytest.fixture
def fed(cluster_at: ClusterAt, drop: Drop) -> DataCluster:
    cluster = cluster_at()
    cluster.datasets.create(Dataset(DATASET, DatasetKind.STREAM, Schema.of(n="INT")))
    options = {"path": str(drop.folder), "maxFilesPerTrigger": "1"}
    cluster.datasets.create_feed(Feed(FEED, DATASET, "json", options))
    drop.add(4)
    catch_up(cluster)
    return cluster


def catch_up(cluster: DataCluster) -> None:
    cluster.datasets.feeds()[0].query.catch_up()


@pytest.mark.spark
def test_lost_checkpoint_loses_no_record_and_repeats_none(
    fed: DataCluster, cluster_at: ClusterAt, drop: Drop, tmp_path: Path
) -> None:
    fed.close()
    for name in ("checkpoints", "state/scratch"):
        shutil.rmtree(tmp_path / "data" / name, ignore_errors=True)
    drop.add(1)
    again = cluster_at()
    catch_up(again)
    assert records_of(again) == drop.expected()


@pytest.mark.spark
def test_older_catalog_loses_no_record_and_repeats_none(
    fed: DataCluster, cluster_at: ClusterAt, drop: Drop, tmp_path: Path
) -> None:
    catalog = tmp_path / "data" / "state" / "catalog.sqlite"
    fed.close()
    shutil.copy(catalog, tmp_path / "backup")
    later = cluster_at()
    drop.add(2)
    catch_up(later)
    assert records_of(later) == drop.expected()
    later.close()
    shutil.copy(tmp_path / "backup", catalog)
    for journal in catalog.parent.glob("catalog.sqlite-*"):
        journal.unlink()
    restored = cluster_at()
    catch_up(restored)
    assert records_of(restored) == drop.expected()


@pytest.mark.spark
def test_checkpoint_from_before_offsets_were_in_the_catalog_is_taken_over(
    fed: DataCluster, cluster_at: ClusterAt, drop: Drop, tmp_path: Path
) -> None:
    fed.close()
    fed.catalog._database.execute(sa.delete(tables.feed_files))
    fed.catalog.close()
    [scratch] = (tmp_path / "data" / "state" / "scratch").glob("*/*")
    earlier = scratch.rename(tmp_path / scratch.name)
    without = cluster_at()
    assert "lacks offsets/" in str(without.datasets.feeds()[0].query.failure()), "the process starts and reports it"
    without.close()
    (tmp_path / "data" / "checkpoints").mkdir()
    earlier.rename(tmp_path / "data" / "checkpoints" / scratch.name)
    drop.add(1)
    again = cluster_at()
    catch_up(again)
    assert records_of(again) == drop.expected()


def test_catalog_keeps_two_offsets_and_no_entry_of_a_compacted_log(tmp_path: Path) -> None:
    checkpoint = FeedCheckpoint.rebuild(tmp_path / "checkpoint", FeedProgress(FEED, -1, {}))
    stored: dict[str, bytes] = {}
    for batch in range(8):
        entry = f"sources/0/{batch}.compact" if batch % 3 == 2 else f"sources/0/{batch}"
        for path in (f"offsets/{batch}", entry, f"commits/{batch}", f"offsets/.{batch}.crc", "metadata"):
            (tmp_path / "checkpoint" / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "checkpoint" / path).write_text(path)
        progress = checkpoint.progress(batch)
        stored = {path: text for path, text in (stored | dict(progress.added)).items() if path not in progress.dropped}
        checkpoint.committed(progress)
    names = ["metadata", "offsets/6", "offsets/7", "sources/0/5.compact", "sources/0/6", "sources/0/7"]
    assert sorted(stored) == names
    rebuilt = FeedCheckpoint.rebuild(tmp_path / "checkpoint", FeedProgress(FEED, 7, stored))
    present = sorted(
        path.relative_to(tmp_path / "checkpoint").as_posix() for path in rebuilt.folder.rglob("*") if path.is_file()
    )
    assert present == sorted([*names, "commits/6", "commits/7"])
