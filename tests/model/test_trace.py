"""Trace rows: JSON and table forms, later kinds and foreign files."""

from __future__ import annotations

import pyarrow as pa

from tocsin.model.trace import SCHEMA, Kind, TraceRow, from_json, from_table, problem_with, to_json, to_table

ROWS = [
    TraceRow(0.1 + 0.2, Kind.TICK),
    TraceRow(1e10, Kind.JOIN, broker="", subscriber='é"\n', target="💧"),
    TraceRow(2.0, Kind.SAMPLE, broker="b", load_bytes_per_s=0.0, subscribers=0, detail={}),
    TraceRow(2.0, Kind.BALANCE, cov=-0.0, moves=2**53, detail={"a": [1, {"é": None}], "b": 0.5, "c": True}),
    TraceRow(3.0, Kind.POSITION, subscriber="ada", lat=-90.0, lon=1e-9, note="here", channel="C"),
]


def test_rows_survive_json_and_table_forms() -> None:
    assert {row.kind for row in ROWS} < set(Kind)
    assert from_json(to_json(ROWS)) == ROWS
    assert list(from_table(to_table(ROWS))) == ROWS
    assert list(from_table(to_table([]))) == []


def test_json_omits_columns_that_a_kind_does_not_use() -> None:
    row = TraceRow(1.5, Kind.JOIN, subscriber="ada", broker="b1")
    assert to_json([row]) == b'[{"time_s":1.5,"kind":"join","broker":"b1","subscriber":"ada"}]'


def test_unknown_kind_is_preserved() -> None:
    rows = [TraceRow(1.0, "eclipse"), TraceRow(2.0, Kind.TICK)]
    assert list(from_table(to_table(rows))) == rows


def test_file_that_is_no_trace_is_rejected_with_a_reason() -> None:
    assert problem_with(SCHEMA) is None
    assert "no trace" in (problem_with(pa.schema([("time_s", pa.float64())])) or "")
    assert "version 1" in (problem_with(SCHEMA.with_metadata({"tocsin.trace": "1"})) or "")
    assert "lat" in (problem_with(SCHEMA.remove(SCHEMA.get_field_index("lat"))) or "")
