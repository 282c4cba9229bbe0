"""What of the data cluster can be drawn on a map: records of datasets with a place, channels, streets. As trace rows.

Pure: what the data cluster said goes in, rows come out. Anything that does not fit is left out, never an error: what is
drawn is for people to look at, and a dataset that nobody meant for a map may have such columns by accident.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

from tocsin.model.trace import Kind, TraceRow

_NOTE_COLUMNS = ("kind", "type")
_POINTS = 500_000
"""Of all streets together: what a browser still draws."""
_KIND_OF = {"KEYED": Kind.POSITION, "STREAM": Kind.EVENT, "STATIC": Kind.PLACE}
_NAME_COLUMNS = ("name", "title")


@dataclass(frozen=True, slots=True)
class DatasetDrawing:
    """How the records of one dataset are drawn."""

    dataset: str
    kind: Kind
    key: str | None
    note: str | None
    """The column whose value people read."""

    @classmethod
    def of(cls, described: Mapping[str, Any]) -> Self | None:
        """From an entry of GET /v1/datasets; None if its records have no place."""
        types = {str(one["name"]): str(one["type"]) for one in described["columns"]}
        kind = _KIND_OF.get(str(described["kind"]))
        if kind is None or (types.get("lat"), types.get("lon")) != ("DOUBLE", "DOUBLE"):
            return None
        key = next(iter(described.get("key") or ()), None)
        if kind is Kind.POSITION and key is None:
            return None
        preferred = _NAME_COLUMNS if kind is Kind.PLACE else _NOTE_COLUMNS
        texts = [name for name, type in types.items() if type == "STRING" and (name != key or kind is Kind.PLACE)]
        note = next((name for name in (*preferred, *texts) if name in texts), None)
        return cls(str(described["name"]), kind, key, note)

    def row(self, record: Mapping[str, Any], time_s: float) -> TraceRow | None:
        """None for a record without a place on Earth."""
        lat, lon = record.get("lat"), record.get("lon")
        if not (_within(lat, 90.0) and _within(lon, 180.0)):
            return None
        if self.kind is Kind.POSITION:
            who = record.get(self.key or "")
            return None if who is None else TraceRow(
                time_s, self.kind, subscriber=str(who), lat=lat, lon=lon, detail={"dataset": self.dataset}
            )  # fmt: skip
        note = None if self.note is None else record.get(self.note)
        if self.kind is Kind.PLACE:
            rest = {name: value for name, value in record.items() if name not in ("lat", "lon", self.note)}
            detail = rest | {"dataset": self.dataset}
        else:
            named = {"severity": record.get("severity"), "id": None if self.key is None else record.get(self.key)}
            detail = {"dataset": self.dataset} | {name: value for name, value in named.items() if value is not None}
        return TraceRow(time_s, self.kind, lat=lat, lon=lon, note=None if note is None else str(note), detail=detail)


def channel_row(described: Mapping[str, Any], time_s: float) -> TraceRow:
    """From an entry of GET /v1/channels, without the query's text."""
    detail = {name: value for name, value in described.items() if name not in ("name", "query", "state")}
    failing = bool(described.get("last_error")) and bool(described.get("failures"))
    return TraceRow(
        time_s, Kind.CHANNEL, channel=str(described["name"]),
        detail=detail | {"state": str(described.get("state") or ("failing" if failing else "running"))},
    )  # fmt: skip


def street_rows(geojson: object, time_s: float) -> Iterator[TraceRow]:
    """LineStrings and MultiLineStrings of a GeoJSON object, which is lon, lat (RFC 7946); ours is lat, lon."""
    points = 0
    for line in _lines(geojson):
        drawn = [[round(float(point[1]), 6), round(float(point[0]), 6)] for point in line if _is_point(point)]
        points += len(drawn)
        if points > _POINTS:
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
