"""What Spark reads for a dataset: the files of STATIC ones and the sources of feeds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tocsin.cluster.spark.ingestion import columns_of, read_static
from tocsin.cluster.spark.session import Session
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
def test_declared_columns_of_a_csv_file_are_those_its_header_names(
    spark: Session, tmp_path: Path, columns: Schema, rows: list[tuple[object, ...]]
) -> None:
    file = tmp_path / "shelters.csv"
    file.write_text("Name, lat,lon,\nA,1.5,2.5,x\nB,3.5,far,y\n")
    frame = read_static(spark, str(file), "csv", columns)
    assert columns_of(frame) == columns
    assert [tuple(row) for row in frame.collect()] == rows


def test_a_declared_column_that_a_csv_file_does_not_have_is_refused_with_those_it_has(
    spark: Session, tmp_path: Path
) -> None:
    file = tmp_path / "shelters.csv"
    file.write_text("name,lat\nA,1.5\n")
    with pytest.raises(TocsinError, match=r"no column lon, beds \(it has: name, lat\)") as refused:
        read_static(spark, str(file), "csv", Schema.of(lon="DOUBLE", name="STRING", beds="INT"))
    assert refused.value.code is Code.BAD_SQL
