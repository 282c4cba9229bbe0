"""Turns descriptions and records from the data cluster into trace rows for the map: datasets, channels, streets.

Pure. Values that do not fit are left out and never raise an error: the map is for people to look at, and a dataset may
have columns named `lat` and `lon` by accident.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

from tocsin.model.trace import Kind, TraceRow

_MOST_POINTS = 500_000
"""Points of all streets together: as many as a browser can draw."""
_KIND_OF = {"KEYED": Kind.POSITION, "STREAM": Kind.EVENT, "STATIC": Kind.PLACE}
_NAME_COLUMNS = ("name", "title")
_NOTE_COLUMNS = ("kind", "type")


@dataclass(frozen=True, slots=True)
class DatasetDrawing:
    """How the records of one dataset are drawn."""

    dataset: str
    kind: Kind
    key: str | None
    note: str | None
    """The column whose value is shown as text."""

    @classmethod
    def of(cls, description: Mapping[str, Any]) -> Self | None:
        """The drawing for an entry of GET /v1/datasets; None if the records of the dataset have no place."""
        types = {str(column["name"]): str(column["type"]) for column in description["columns"]}
        kind = _KIND_OF.get(str(description["kind"]))
        if kind is None or (types.get("lat"), types.get("lon")) != ("DOUBLE", "DOUBLE"):
            return None
        key = next(iter(description.get("key") or ()), None)
        if kind is Kind.POSITION and key is None:
            return None
        preferred = _NAME_COLUMNS if kind is Kind.PLACE else _NOTE_COLUMNS
        texts = [name for name, type in types.items() if type == "STRING" and (name != key or kind is Kind.PLACE)]
        note = next((name for name in (*preferred, *texts) if name in texts), None)
        return cls(str(description["name"]), kind, key, note)

    def row(self, record: Mapping[str, Any], time_s: float) -> TraceRow | None:
        """The trace row of a record; None for a record without a place on Earth."""
        lat, lon = record.get("lat"), record.get("lon")
        if not (_within(lat, 90.0) and _within(lon, 180.0)):
            return None
        detail: dict[str, Any] = {"dataset": self.dataset}
        if self.kind is Kind.POSITION:
            key = record.get(self.key or "")
            if key is None:
                return None
            return TraceRow(time_s, self.kind, subscriber=str(key), lat=lat, lon=lon, detail=detail)
        note = None if self.note is None else record.get(self.note)
        if self.kind is Kind.PLACE:
            columns = {name: value for name, value in record.items() if name not in ("lat", "lon", self.note)}
            detail = columns | detail
        else:
            shown = {"severity": record.get("severity"), "id": None if self.key is None else record.get(self.key)}
            detail |= {name: value for name, value in shown.items() if value is not None}
        return TraceRow(time_s, self.kind, lat=lat, lon=lon, note=None if note is None else str(note), detail=detail)


def channel_row(description: Mapping[str, Any], time_s: float) -> TraceRow:
    """The trace row for an entry of GET /v1/channels, without the text of the query."""
    detail = {name: value for name, value in description.items() if name not in ("name", "query", "state")}
    failing = bool(description.get("last_error")) and bool(description.get("failures"))
    detail["state"] = str(description.get("state") or ("failing" if failing else "running"))
    return TraceRow(time_s, Kind.CHANNEL, channel=str(description["name"]), detail=detail)


def street_rows(geojson: object, time_s: float) -> Iterator[TraceRow]:
    """Trace rows of the LineStrings and MultiLineStrings of a GeoJSON object.

    GeoJSON has longitude first (RFC 7946), a trace row latitude first.
    """
    points = 0
    for line in _lines(geojson):
        drawn = [[round(float(point[1]), 6), round(float(point[0]), 6)] for point in line if _is_point(point)]
        points += len(drawn)
        if points > _MOST_POINTS:
            return
        if len(drawn) > 1:
            yield TraceRow(time_s, Kind.STREET, detail={"line": drawn})


def _lines(geojson: object) -> Iterator[list[Any]]:
    if not isinstance(geojson, Mapping):
        return
    match geojson.get("type"):
        case "FeatureCollection":
            for feature in _listed(geojson.get("features")):
                yield from _lines(feature)
        case "Feature":
            yield from _lines(geojson.get("geometry"))
        case "GeometryCollection":
            for geometry in _listed(geojson.get("geometries")):
                yield from _lines(geometry)
        case "LineString":
            yield _listed(geojson.get("coordinates"))
        case "MultiLineString":
            yield from (_listed(line) for line in _listed(geojson.get("coordinates")))


def _listed(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _is_point(value: object) -> bool:
    return isinstance(value, list) and len(value) >= 2 and _within(value[1], 90.0) and _within(value[0], 180.0)


def _within(value: object, limit: float) -> bool:
    return (
        isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and abs(value) <= limit
    )
