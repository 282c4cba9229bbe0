"""Trace rows: the same as JSON, as a table and as a picture; what is folded is what is there."""

from __future__ import annotations

import pyarrow as pa

from tocsin.model.trace import SCHEMA, Kind, TraceRow, from_json, from_table, problem_with, to_json, to_table
from tocsin.model.trace_present import EVENTS_S, Present

ROWS = [
    TraceRow(0.1 + 0.2, Kind.TICK),
    TraceRow(1e10, Kind.JOIN, broker="", subscriber='é"\n', target="💧"),
    TraceRow(2.0, Kind.SAMPLE, broker="b", load_bytes_per_s=0.0, subscribers=0, detail={}),
    TraceRow(2.0, Kind.BALANCE, cov=-0.0, moves=2**53, detail={"a": [1, {"é": None}], "b": 0.5, "c": True}),
    TraceRow(3.0, Kind.POSITION, subscriber="ada", lat=-90.0, lon=1e-9, note="here", channel="C"),
]


def test_rows_are_the_same_through_json_and_through_a_table() -> None:
    assert {row.kind for row in ROWS} < set(Kind)
    assert from_json(to_json(ROWS)) == ROWS
    assert list(from_table(to_table(ROWS))) == ROWS
    assert list(from_table(to_table([]))) == []


def test_a_row_says_only_what_its_kind_uses() -> None:
    [row] = [TraceRow(1.5, Kind.JOIN, subscriber="ada", broker="b1")]
    assert to_json([row]) == b'[{"time_s":1.5,"kind":"join","broker":"b1","subscriber":"ada"}]'


def test_a_kind_of_a_later_version_is_carried_along() -> None:
    rows = [TraceRow(1.0, "eclipse"), TraceRow(2.0, Kind.TICK)]
    assert list(from_table(to_table(rows))) == rows


def test_a_file_that_is_no_trace_is_refused_with_the_reason() -> None:
    assert problem_with(SCHEMA) is None
    assert "no trace" in (problem_with(pa.schema([("time_s", pa.float64())])) or "")
    assert "version 1" in (problem_with(SCHEMA.with_metadata({"tocsin.trace": "1"})) or "")
    assert "lat" in (problem_with(SCHEMA.remove(SCHEMA.get_field_index("lat"))) or "")


def folded(*rows: TraceRow, people: int = 10) -> Present:
    present = Present(people)
    for row in rows:
        present.fold(row)
    return present


def test_somebody_is_where_the_last_word_put_it() -> None:
    present = folded(
        TraceRow(1.0, Kind.JOIN, subscriber="ada", broker="b1"),
        TraceRow(1.0, Kind.JOIN, subscriber="bob", broker="b1"),
        TraceRow(1.0, Kind.JOIN, subscriber="eve", broker="b1"),
        TraceRow(2.0, Kind.MOVE, subscriber="ada", broker="b1", target="b2"),
        TraceRow(3.0, Kind.MOVED, subscriber="ada", broker="b1", target="b2"),
        TraceRow(3.0, Kind.MOVE, subscriber="bob", broker="b1", target="b2"),
        TraceRow(4.0, Kind.MOVE_FAILED, subscriber="bob", broker="b1", target="b2", note="no room"),
        TraceRow(5.0, Kind.LEAVE, subscriber="eve", broker="b1"),
    )
    assert present.homes == {"ada": "b2", "bob": "b1"}
    present.fold(TraceRow(6.0, Kind.FAILOVER, subscriber="bob", target="b3"))
    joins = [row for row in present.picture(7.0) if row.kind == Kind.JOIN]
    assert {(row.subscriber, row.broker, row.time_s) for row in joins} == {("ada", "b2", 7.0), ("bob", "b3", 7.0)}


def test_a_picture_rebuilds_the_present_it_was_taken_of() -> None:
    rows = [
        TraceRow(1.0, Kind.STREET, detail={"line": [[1.0, 2.0], [3.0, 4.0]]}),
        TraceRow(1.0, Kind.PLACE, note="school", lat=1.0, lon=2.0, detail={"dataset": "Shelters"}),
        TraceRow(1.0, Kind.BROKER, broker="b1", detail={"state": "alive"}),
        TraceRow(1.0, Kind.BROKER, broker="b2", detail={"state": "alive"}),
        TraceRow(1.0, Kind.SAMPLE, broker="b2", subscribers=3),
        TraceRow(2.0, Kind.BROKER, broker="b2", detail={"state": "gone"}),
        TraceRow(2.0, Kind.POSITION, subscriber="ada", lat=1.0, lon=1.0),
        TraceRow(3.0, Kind.POSITION, subscriber="ada", lat=2.0, lon=2.0),
        TraceRow(3.0, Kind.CHANNEL, channel="Fires", detail={"executions": 1}),
        TraceRow(3.0, Kind.CLUSTER, detail={"ready": True}),
        TraceRow(4.0, Kind.EVENT, note="fire", lat=1.0, lon=1.0),
    ]
    picture = folded(*rows).picture(5.0)
    assert [row.kind for row in picture if row.broker == "b2"] == []
    assert [row.lat for row in picture if row.kind == Kind.POSITION] == [2.0]
    assert picture == sorted(picture, key=lambda row: row.time_s), "events first, which are older"
    assert folded(*picture).picture(5.0) == picture
    assert not [row for row in folded(*rows).picture(5.0 + EVENTS_S) if row.kind == Kind.EVENT], "it has faded"


def test_people_in_a_picture_are_bounded_and_the_newest_are_kept() -> None:
    present = folded(*(TraceRow(1.0, Kind.POSITION, subscriber=str(n), lat=0.0, lon=0.0) for n in range(25)))
    assert [row.subscriber for row in present.picture(2.0) if row.subscriber] == [str(n) for n in range(15, 25)]


def test_a_picture_in_the_middle_of_a_recording_forgets_what_was_before() -> None:
    present = folded(TraceRow(1.0, Kind.JOIN, subscriber="ada", broker="b1"), TraceRow(2.0, Kind.PICTURE))
    assert present.homes == {}


def test_a_copy_goes_its_own_way() -> None:
    present = folded(TraceRow(1.0, Kind.JOIN, subscriber="ada", broker="b1"))
    copied = present.copy()
    present.fold(TraceRow(2.0, Kind.LEAVE, subscriber="ada", broker="b1"))
    assert copied.homes == {"ada": "b1"} and present.homes == {}
