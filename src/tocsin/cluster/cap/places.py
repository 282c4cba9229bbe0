"""Converts the shape of a CAP area to a centre, a radius and Well-Known Text, and WKT back to polygons.

CAP writes latitude first; WKT and GeoJSON write longitude first (x, y). Only this module converts between the two.
Polygons around a pole are not supported: their centre is wrong. Pure functions.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tocsin.cluster.cap.alert import Area, Point, Ring
from tocsin.cluster.sql.geo import METRES_PER_DEGREE, distance_m, is_place


@dataclass(frozen=True, slots=True)
class BoundingCircle:
    centre: Point
    radius_m: float
    """The whole area is within this distance of the centre."""


def bounding_circle(area: Area) -> BoundingCircle | None:
    """The area's own circle if it has no other shape; else a circle around the weighted centre of all shapes.

    None for an area with geocodes alone.
    """
    if len(area.circles) == 1 and not area.polygons:
        [circle] = area.circles
        return BoundingCircle(circle.centre, circle.radius_km * 1_000)
    parts = [_weighted(ring) for ring in area.polygons]
    parts += [(math.pi * (circle.radius_km * 1_000) ** 2, circle.centre) for circle in area.circles]
    if not parts:
        return None
    centre = _mean(parts)
    reach = [_away_m(centre, point) for ring in area.polygons for point in ring]
    reach += [_away_m(centre, circle.centre) + circle.radius_km * 1_000 for circle in area.circles]
    return BoundingCircle(centre, max(reach))


def _away_m(a: Point, b: Point) -> float:
    metres = distance_m(*a, *b)
    assert metres is not None
    return metres


def _weighted(ring: Ring) -> tuple[float, Point]:
    """(area in m², centroid) of a polygon, on the plane that touches the sphere at its first point."""
    lat0, lon0 = ring[0]
    shrink = math.cos(math.radians(lat0))
    # Relative to the first point and in the shorter direction, so that a polygon may cross the 180th meridian.
    flat = [(_shorter(lon - lon0) * shrink, lat - lat0) for lat, lon in ring]
    doubled = cx = cy = 0.0
    for (x1, y1), (x2, y2) in pairwise(flat):
        cross = x1 * y2 - x2 * y1
        doubled += cross
        cx += (x1 + x2) * cross
        cy += (y1 + y2) * cross
    if abs(doubled) < 1e-12:  # a line or a point, of about 100 cm² at most
        corners = flat[:-1]
        x, y = (sum(coordinates) / len(corners) for coordinates in zip(*corners, strict=True))
    else:
        x, y = cx / (3 * doubled), cy / (3 * doubled)
    # Rounding, or a polygon that crosses itself, may give a latitude out of range.
    lat = max(-90.0, min(90.0, lat0 + y))
    return abs(doubled) / 2 * METRES_PER_DEGREE**2, (lat, _wrapped(lon0 + (x / shrink if shrink > 1e-9 else 0.0)))


def _mean(parts: Sequence[tuple[float, Point]]) -> Point:
    if len(parts) == 1:
        return parts[0][1]
    total = sum(weight for weight, _ in parts)
    weights = [weight / total if total > 0 else 1 / len(parts) for weight, _ in parts]
    lon0 = parts[0][1][1]
    lat = sum(weight * point[0] for weight, (_, point) in zip(weights, parts, strict=True))
    east = sum(weight * _shorter(point[1] - lon0) for weight, (_, point) in zip(weights, parts, strict=True))
    return max(-90.0, min(90.0, lat)), _wrapped(lon0 + east)


def _shorter(degrees: float) -> float:
    """A difference of longitudes in the shorter direction around the globe."""
    return degrees - 360 if degrees > 180 else degrees + 360 if degrees < -180 else degrees


def _wrapped(lon: float) -> float:
    wrapped = (lon + 180) % 360 - 180
    return lon if -180 <= lon <= 180 else wrapped


def well_known_text(rings: Sequence[Ring]) -> str | None:
    """`POLYGON ((lon lat, …))`, a MULTIPOLYGON for several rings, None for none."""
    texts = ["((" + ", ".join(f"{lon!r} {lat!r}" for lat, lon in ring) + "))" for ring in rings]
    if len(texts) <= 1:
        return f"POLYGON {texts[0]}" if texts else None
    return f"MULTIPOLYGON ({', '.join(texts)})"


_RING = re.compile(r"\(([^()]*)\)")
_SHAPE = re.compile(
    r"\s*(?:POLYGON\s*\(\s*\([^()]*\)\s*\)|MULTIPOLYGON\s*\(\s*\(\([^()]*\)\)(\s*,\s*\(\([^()]*\)\))*\s*\))\s*"
)


def rings_of(text: object) -> tuple[Ring, ...]:
    """The polygons of a WKT text, latitude first. Empty for any other value. Holes are not supported."""
    if not isinstance(text, str) or _SHAPE.fullmatch(text) is None:
        return ()
    rings = [_ring(inside) for inside in _RING.findall(text)]
    return tuple(ring for ring in rings if ring is not None) if all(rings) else ()


def _ring(text: str) -> Ring | None:
    points: list[Point] = []
    for pair in text.split(","):
        try:
            lon, lat = map(float, pair.split())
        except ValueError:
            return None
        if not is_place(lat, lon):
            return None
        points.append((lat, lon))
    return tuple(points) if len(points) >= 4 and points[0] == points[-1] else None


def counter_clockwise(ring: Ring) -> Ring:
    """The ring in the direction that RFC 7946 §3.1.6 requires of an outer ring."""
    return ring if _turn(ring) >= 0 else ring[::-1]


def _turn(ring: Iterable[Point]) -> float:
    return sum(lon1 * lat2 - lon2 * lat1 for (lat1, lon1), (lat2, lon2) in pairwise(ring))
