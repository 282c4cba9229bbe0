"""Trace rows for the map: records with a place on Earth, by kind of dataset, channels and streets."""

from __future__ import annotations

from typing import Any

from tocsin.coordinator.drawing import DatasetDrawing, channel_row, street_rows
from tocsin.model.trace import Kind


def description(kind: str, key: list[str], /, **columns: str) -> dict[str, Any]:
    types = columns | {"lat": "DOUBLE", "lon": "DOUBLE"}
    listed = [{"name": name, "type": type} for name, type in types.items()]
    return {"name": "D", "kind": kind, "key": key, "columns": listed}


def test_keyed_record_is_a_position() -> None:
    drawn = DatasetDrawing.of(description("KEYED", ["user"], user="STRING"))
    assert drawn is not None
    row = drawn.row({"user": "ada", "lat": 60.0, "lon": 24.5}, 7.0)
    assert row is not None and (row.kind, row.subscriber, row.lat, row.lon) == (Kind.POSITION, "ada", 60.0, 24.5)
    assert row.detail == {"dataset": "D"}


def test_stream_record_is_an_event_with_kind_and_severity() -> None:
    drawn = DatasetDrawing.of(description("STREAM", ["id"], id="STRING", text="STRING", kind="STRING", severity="INT"))
    assert drawn is not None
    row = drawn.row({"id": "r1", "text": "help", "kind": "fire", "severity": 4, "lat": 1.0, "lon": 2.0}, 7.0)
    assert row is not None and (row.kind, row.note) == (Kind.EVENT, "fire")
    assert row.detail == {"dataset": "D", "severity": 4, "id": "r1"}
    plain = DatasetDrawing.of(description("STREAM", ["id"], id="STRING", number="INT", text="STRING"))
    assert plain is not None and plain.note == "text", "the first text that is not the key"


def test_static_record_is_a_place_with_all_its_columns() -> None:
    drawn = DatasetDrawing.of(description("STATIC", [], code="STRING", name="STRING", beds="INT"))
    assert drawn is not None
    row = drawn.row({"code": "s1", "name": "School", "beds": 40, "lat": 1.0, "lon": 2.0}, 0.0)
    assert row is not None and (row.kind, row.note) == (Kind.PLACE, "School")
    assert row.detail == {"dataset": "D", "code": "s1", "beds": 40}


def test_record_without_a_place_is_not_drawn() -> None:
    columns = [{"name": "lat", "type": "DOUBLE"}, {"name": "lon", "type": "STRING"}]
    assert DatasetDrawing.of({"name": "D", "kind": "STREAM", "key": [], "columns": columns}) is None
    drawn = DatasetDrawing.of(description("STREAM", []))
    assert drawn is not None
    for lat, lon in ((None, 1.0), (91.0, 1.0), (1.0, 181.0), (float("nan"), 1.0), ("1", 1.0), (True, 1.0)):
        assert drawn.row({"lat": lat, "lon": lon}, 0.0) is None


def test_channel_row_leaves_out_the_query() -> None:
    channel = {"name": "C", "query": "SELECT …", "executions": 3, "failures": 0, "last_error": None}
    row = channel_row(channel, 1.0)
    assert row.channel == "C"
    assert row.detail == {"executions": 3, "failures": 0, "last_error": None, "state": "running"}


def test_street_rows_turn_lon_lat_into_lat_lon() -> None:
    line = {"type": "LineString", "coordinates": [[24.9, 60.1], [25.0, 60.2, 7.0]]}
    many = {"type": "MultiLineString", "coordinates": [[[1, 2], [3, 4]], [[5, 6]], "broken", [[7, 8], [200, 9]]]}
    features = [
        {"type": "Feature", "geometry": line},
        {"type": "Feature", "geometry": {"type": "GeometryCollection", "geometries": [many]}},
        {"type": "Feature", "geometry": {"type": "Point", "coordinates": [1, 2]}},
        None,
    ]
    city = {"type": "FeatureCollection", "features": features}
    rows = list(street_rows(city, 3.0))
    lines = [row.detail["line"] for row in rows if row.detail is not None]
    assert lines == [[[60.1, 24.9], [60.2, 25.0]], [[2.0, 1.0], [4.0, 3.0]]]
    assert list(street_rows(["no", "GeoJSON"], 3.0)) == []
