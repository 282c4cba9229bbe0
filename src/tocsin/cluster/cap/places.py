"""The shape of a CAP area as a dataset wants it: a point, a radius around it, and Well-Known Text; and back.

CAP writes latitude first; WKT and GeoJSON write longitude first (x, y). The two meet in this module and nowhere else.
Pure. Polygons around a pole are not understood: their centre comes out at the wrong place.
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
class Place:
    centre: Point
    radius_m: float
    """Everything of the area is within it."""


def place_of(area: Area) -> Place | None:
    """A lone circle as it is; else the centre of all shapes by their size; None for an area of geocodes alone."""
    if len(area.circles) == 1 and not area.polygons:
        [circle] = area.circles
        return Place(circle.centre, circle.radius_km * 1_000)
    parts = [_weighted(ring) for ring in area.polygons]
    parts += [(math.pi * (circle.radius_km * 1_000) ** 2, circle.centre) for circle in area.circles]
    if not parts:
        return None
    centre = _mean(parts)
    reach = [_away_m(centre, point) for ring in area.polygons for point in ring]
    reach += [_away_m(centre, circle.centre) + circle.radius_km * 1_000 for circle in area.circles]
    return Place(centre, max(reach))


def _away_m(a: Point, b: Point) -> float:
    found = distance_m(*a, *b)
    assert found is not None
    return found


def _weighted(ring: Ring) -> tuple[float, Point]:
    """(size in m², centroid) of one polygon, on the plane that touches the sphere at its first point."""
    lat0, lon0 = ring[0]
    shrink = math.cos(math.radians(lat0))
    # Relative to the first point and the short way round: a polygon across the 180th meridian stays in one piece.
    flat = [(_short_way(lon - lon0) * shrink, lat - lat0) for lat, lon in ring]
    doubled = cx = cy = 0.0
    for (x1, y1), (x2, y2) in pairwise(flat):
        cross = x1 * y2 - x2 * y1
        doubled += cross
        cx += (x1 + x2) * cross
        cy += (y1 + y2) * cross
    if abs(doubled) < 1e-12:  # a line or a point, of some 100 cm² at most
        corners = flat[:-1]
        x, y = (sum(each) / len(corners) for each in zip(*corners, strict=True))
    else:
        x, y = cx / (3 * doubled), cy / (3 * doubled)
    # Rounding, and a polygon that crosses itself, may put the centroid outside the world.
    lat = max(-90.0, min(90.0, lat0 + y))
    return abs(doubled) / 2 * METRES_PER_DEGREE**2, (lat, _wrapped(lon0 + (x / shrink if shrink > 1e-9 else 0.0)))


def _mean(parts: Sequence[tuple[float, Point]]) -> Point:
    if len(parts) == 1:
        return parts[0][1]
    total = sum(weight for weight, _ in parts)
    weights = [weight / total if total > 0 else 1 / len(parts) for weight, _ in parts]
    lon0 = parts[0][1][1]
    lat = sum(weight * point[0] for weight, (_, point) in zip(weights, parts, strict=True))
    east = sum(weight * _short_way(point[1] - lon0) for weight, (_, point) in zip(weights, parts, strict=True))
    return max(-90.0, min(90.0, lat)), _wrapped(lon0 + east)


def _short_way(degrees: float) -> float:
    return degrees - 360 if degrees > 180 else degrees + 360 if degrees < -180 else degrees


def _wrapped(lon: float) -> float:
    wrapped = (lon + 180) % 360 - 180
    return lon if -180 <= lon <= 180 else wrapped


def well_known_text(rings: Sequence[Ring]) -> str | None:
    """`POLYGON ((lon lat, …))`, MULTIPOLYGON for several, None for none."""
    texts = ["((" + ", ".join(f"{lon!r} {lat!r}" for lat, lon in ring) + "))" for ring in rings]
    if len(texts) <= 1:
        return f"POLYGON {texts[0]}" if texts else None
    return f"MULTIPOLYGON ({', '.join(texts)})"


_RING = re.compile(r"\(([^()]*)\)")
_SHAPE = re.compile(
    r"\s*(?:POLYGON\s*\(\s*\([^()]*\)\s*\)|MULTIPOLYGON\s*\(\s*\(\([^()]*\)\)(\s*,\s*\(\([^()]*\)\))*\s*\))\s*"
)


def rings_of(text: object) -> tuple[Ring, ...]:
    """The polygons of such a text, latitude first again; none if it is anything else. Holes are not understood."""
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
    """As RFC 7946 §3.1.6 wants the outer ring."""
    return ring if _turn(ring) >= 0 else ring[::-1]


def _turn(ring: Iterable[Point]) -> float:
    return sum(lon1 * lat2 - lon2 * lat1 for (lat1, lon1), (lat2, lon2) in pairwise(ring))
