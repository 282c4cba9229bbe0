"""A channel's results as GeoJSON (RFC 7946): a FeatureCollection, or one Feature.

A result's geometry is its `polygon` column if that holds Well-Known Text, else the point of its columns `lat` and
`lon`, else null: a result without a place is not left out. Coordinates are longitude first, whatever order the columns
have. Polygons across the 180th meridian are not cut. Pure; the data cluster's results route drives it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from tocsin.cluster.cap.columns import spelled
from tocsin.cluster.cap.places import counter_clockwise, rings_of
from tocsin.cluster.sql.geo import is_place

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class ResultGap:
    """A subscription whose cursor pointed at deleted results, and the position where reading starts instead."""

    subscription: str
    cursor: str


def feature(subscription: str, cursor: str, result: Mapping[str, Any]) -> dict[str, Any]:
    """`properties` are the result's columns; its subscription and cursor are foreign members, as §6.1 allows."""
    return {
        "type": "Feature",
        "id": f"{subscription}/{cursor}",
        "geometry": geometry_of(result),
        "properties": dict(result),
        "subscription": subscription,
        "cursor": cursor,
    }


def geometry_of(result: Mapping[str, Any]) -> dict[str, Any] | None:
    values = {spelled(name): value for name, value in result.items()}
    if rings := rings_of(values.get("polygon")):
        shapes = [[[[lon, lat] for lat, lon in counter_clockwise(ring)]] for ring in rings]
        if len(shapes) == 1:
            return {"type": "Polygon", "coordinates": shapes[0]}
        return {"type": "MultiPolygon", "coordinates": shapes}
    lat = _first(values, "lat", "latitude")
    lon = _first(values, "lon", "lng", "longitude")
    if lat is None or lon is None or not is_place(lat, lon):
        return None
    return {"type": "Point", "coordinates": [lon, lat]}


def _first(values: Mapping[str, Any], *names: str) -> float | None:
    for name in names:
        value = values.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
    return None


def collection(gaps: Iterable[ResultGap], features: Iterable[list[dict[str, Any]]]) -> Iterator[bytes]:
    """A FeatureCollection, a piece at a time. The gaps come before the features, as in every form of results."""
    gap_rows = [{"subscription": gap.subscription, "cursor": gap.cursor} for gap in gaps]
    yield (
        b'{"type":"FeatureCollection",' + (b'"gaps":' + _encode(gap_rows) + b"," if gap_rows else b"") + b'"features":['
    )
    separator = b"\n"
    for page in features:
        yield separator + b",\n".join(map(_encode, page))
        separator = b",\n"
    yield b"\n]}\n"
