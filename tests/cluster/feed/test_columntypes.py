"""`LineReader` reads small micro-batches without a Spark job. It must give the same table as Spark."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tocsin.cluster.feed.columntypes import LineReader
from tocsin.cluster.feed.recordforms import RecordForm
from tocsin.cluster.feed.records import Decoded, RecordCodec
from tocsin.cluster.spark.session import Session
from tocsin.model.schema import Schema

SCHEMA = Schema.of(
    text="STRING",
    yes="BOOLEAN",
    tiny="TINYINT",
    small="SMALLINT",
    whole="INT",
    big="BIGINT",
    single="FLOAT",
    double="DOUBLE",
    money="DECIMAL(10,2)",
    day="DATE",
    at="TIMESTAMP",
    many="ARRAY<INT>",
    when="ARRAY<TIMESTAMP>",
)

records = st.fixed_dictionaries(
    {},
    optional={
        "text": st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
        "yes": st.booleans(),
        "tiny": st.integers(-128, 127),
        "small": st.integers(-(2**15), 2**15 - 1),
        "whole": st.integers(-(2**31), 2**31 - 1),
        "big": st.integers(-(2**63), 2**63 - 1),
        "single": st.floats(width=32, allow_nan=False, allow_infinity=False),
        "double": st.floats(allow_nan=False, allow_infinity=False),
        "money": st.decimals(-99_999_999, 99_999_999, places=2).map(str),
        "day": st.dates().map(str),
        "at": st.datetimes().map(lambda moment: moment.isoformat() + "Z"),
        "many": st.lists(st.none() | st.integers(-5, 5), max_size=3),
        "when": st.lists(st.datetimes().map(lambda moment: moment.isoformat() + "Z"), max_size=2),
    },
)


@pytest.mark.spark
@settings(max_examples=8, suppress_health_check=list(HealthCheck), database=None)
@given(st.lists(records, min_size=1, max_size=30))
def test_line_reader_gives_the_same_table_as_spark(spark: Session, given_records: list[dict[str, Any]]) -> None:
    from pyspark.sql import functions as F

    decoded = RecordCodec(SCHEMA).decode(json.dumps(given_records).encode(), RecordForm.JSON)
    assert isinstance(decoded, Decoded) and not decoded.refusals, decoded
    here = LineReader(SCHEMA).read(decoded.lines)
    frame = spark.createDataFrame([(line,) for line in decoded.lines.decode().split("\n")], "line STRING")
    there = frame.select(F.from_json("line", SCHEMA.ddl()).alias("record")).select("record.*").toArrow()
    assert here.num_rows == len(given_records)
    assert there.cast(here.schema).to_pylist() == here.to_pylist()


def test_column_may_have_a_name_that_python_reserves() -> None:
    table = LineReader(Schema.of(**{"class": "INT", "def": "STRING"})).read(b'{"class":1,"def":"x"}\n{}')
    assert table.to_pylist() == [{"class": 1, "def": "x"}, {"class": None, "def": None}]
