"""Reading the files of STATIC datasets and the sources of feeds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import ClusterAt
from tocsin.cluster.catalog import FeedProgress, dataset_owner
from tocsin.cluster.engine import DataCluster
from tocsin.cluster.spark.feed_checkpoint import FeedCheckpoint
from tocsin.cluster.spark.frames import stored_frame
from tocsin.cluster.spark.ingestion import columns_of, read_static
from tocsin.cluster.spark.session import Session
from tocsin.model.entities import Dataset, DatasetKind, Feed
from tocsin.model.ids import DatasetName, FeedName
from tocsin.model.schema import Schema
from tocsin.wire.errors import Code, TocsinError

pytestmark = pytest.mark.spark


@pytest.mark.parametrize(
    ("columns", "rows"),
    [
        (Schema.of(lat="DOUBLE", lon="DOUBLE", name="STRING"), [(1.5, 2.5, "A"), (3.5, None, "B")]),
        (Schema.of(name="STRING", lon="DOUBLE"), [("A", 2.5), ("B", None)]),
        (Schema.of(LON="STRING"), [("2.5",), ("far",)]),
    ],
)
def test_declared_columns_of_a_csv_file_are_found_by_its_header(
    spark: Session, tmp_path: Path, columns: Schema, rows: list[tuple[object, ...]]
) -> None:
    file = tmp_path / "shelters.csv"
    file.write_text("Name, lat,lon,\nA,1.5,2.5,x\nB,3.5,far,y\n")
    frame = read_static(spark, str(file), "csv", columns)
    assert columns_of(frame) == columns
    assert [tuple(row) for row in frame.collect()] == rows


def test_declared_column_missing_in_a_csv_file_is_refused(spark: Session, tmp_path: Path) -> None:
    file = tmp_path / "shelters.csv"
    file.write_text("name,lat\nA,1.5\n")
    with pytest.raises(TocsinError, match=r"no column lon, beds \(it has: name, lat\)") as refused:
        read_static(spark, str(file), "csv", Schema.of(lon="DOUBLE", name="STRING", beds="INT"))
    assert refused.value.code is Code.BAD_SQL


DATASET, FEED = DatasetName("Fed"), FeedName("Drop")


def open_with_feed(cluster_at: ClusterAt, columns: Schema, format_: str, folder: Path) -> DataCluster:
    """A data cluster with a dataset without a key, and a feed of the files in `folder` into it."""
    cluster = cluster_at()
    cluster.datasets.create(Dataset(DATASET, DatasetKind.STREAM, columns))
    cluster.datasets.create_feed(Feed(FEED, DATASET, format_, {"path": str(folder)}))
    return cluster


def records_of(cluster: DataCluster) -> list[tuple[object, ...]]:
    dataset = cluster.dataset(DATASET).dataset
    frame = stored_frame(cluster.spark, cluster.storage, dataset, cluster.catalog.files.of(dataset_owner(DATASET)))
    return sorted((tuple(row) for row in frame.select(*dataset.schema.names).collect()), key=str)


@pytest.mark.parametrize(
    ("format_", "of_the_list"),
    [("json", [("c", None)]), ("text", [])],  # Spark reads a list in a file as its elements
)
def test_feed_skips_text_that_is_no_json_object(
    cluster_at: ClusterAt, tmp_path: Path, format_: str, of_the_list: list[tuple[object, ...]]
) -> None:
    folder = tmp_path / "drop"
    folder.mkdir()
    bad = ['{"id": "cut off"', "nonsense", "null", "5", '""', '{"other": 1']
    good = ['{"id": "a", "n": 1}', '{"id": "b", "n": "many"}', '{"n": "many"}', "{}", '{"other": 1}']
    (folder / "1").write_text("\n".join([*bad, *good, '[{"id": "c", "n": "many"}]']))
    cluster = open_with_feed(cluster_at, Schema.of(id="STRING", n="INT"), format_, folder)
    cluster.datasets.feeds()[0].query.catch_up()
    assert records_of(cluster) == [("a", 1), ("b", None), *of_the_list, (None, None), (None, None), (None, None)]


def test_number_too_large_for_a_column_becomes_null(cluster_at: ClusterAt, tmp_path: Path) -> None:
    columns = Schema.of(i="INT", t="TINYINT", many="ARRAY<SMALLINT>", text="INT", missing="INT")
    (tmp_path / "drop").mkdir()
    cluster = open_with_feed(cluster_at, columns, "json", tmp_path / "drop")
    rows = [(3_000_000_000, 300.0, [1, 70_000], "7.5"), (3, -1.5, None, "3000000000")]
    batch = cluster.spark.createDataFrame(rows, "I BIGINT, t DOUBLE, many ARRAY<INT>, text STRING")
    checkpoint = FeedCheckpoint.rebuild(tmp_path / "checkpoint", FeedProgress(FEED, -1, {"offsets/0": b"v1"}))
    cluster.dataset(DATASET).writer.add_feed_batch(checkpoint, 0, batch)
    assert records_of(cluster) == [(3, -1, None, None, None), (None, None, [1, None], 7, None)]
