"""Meter readings for tests, hand-made and drawn. Values are eighths, so that their sums are exact in any order."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import strategies as st

from tocsin.edge.plan import Stream
from tocsin.model.schema import Schema

SECOND = 1_000_000
READINGS = Stream(Schema.of(ts="TIMESTAMP", meter="STRING", kwh="DOUBLE", zone="INT"), "ts")
ALARMS = Stream(Schema.of(at="TIMESTAMP", meter="STRING", level="INT"), "at")
STREAMS = {"Readings": READINGS, "Alarms": ALARMS}

Row = tuple[float | None, str | None, float | None, int | None]


def readings(*rows: Row) -> pa.RecordBatch:
    """A batch of rows (seconds, meter, kwh, zone)."""
    times = pa.array([None if row[0] is None else round(row[0] * SECOND) for row in rows], pa.int64())
    columns = [times.cast(pa.timestamp("us", "UTC"))]
    columns += [
        pa.array([row[place] for row in rows], kind)
        for place, kind in ((1, pa.string()), (2, pa.float64()), (3, pa.int32()))
    ]
    return pa.RecordBatch.from_arrays(columns, schema=READINGS.arrow())


def alarms(*rows: tuple[float, str | None, int | None]) -> pa.RecordBatch:
    times = pa.array([round(row[0] * SECOND) for row in rows], pa.int64()).cast(pa.timestamp("us", "UTC"))
    columns = [times, pa.array([row[1] for row in rows], pa.string()), pa.array([row[2] for row in rows], pa.int32())]
    return pa.RecordBatch.from_arrays(columns, schema=ALARMS.arrow())


def in_seconds(batches: list[pa.RecordBatch]) -> list[tuple[object, ...]]:
    """Rows as tuples; timestamps as seconds since 1970."""
    rows: list[tuple[object, ...]] = []
    for batch in batches:
        columns = []
        for column in batch.columns:
            if pa.types.is_timestamp(column.type):
                whole = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
                columns.append([None if value is None else value / SECOND for value in whole.to_pylist()])
            else:
                columns.append(column.to_pylist())
        rows += zip(*columns, strict=True)
    return rows


meters = st.sampled_from(["m1", "m2", "m3", None])
eighths = st.one_of(st.none(), st.integers(-16, 80).map(lambda value: value / 8))
zones = st.sampled_from([1, 2, None])
reading_rows = st.tuples(st.integers(0, 200).map(float), meters, eighths, zones)
reading_batches = st.lists(st.lists(reading_rows, min_size=1, max_size=8).map(lambda rows: readings(*rows)), max_size=6)
alarm_batches = st.lists(
    st.lists(st.tuples(st.integers(0, 200).map(float), meters, st.integers(0, 3)), min_size=1, max_size=6).map(
        lambda rows: alarms(*rows)
    ),
    max_size=4,
)
