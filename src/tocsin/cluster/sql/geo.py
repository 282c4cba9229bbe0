"""Distance on the sphere, and a grid that turns "within so many metres" into equality of cell numbers.

Pure Python, the reference for `geo_sql`, which writes the same as Spark SQL expressions. Whoever executes a channel
calls `levels_of` on the radii of its subscriptions.

The grid: a level is a cell size of 2**level metres. A level cuts the sphere into bands of latitude one cell high, and
each band into as many columns as are at least one cell wide where the band is narrowest. A point lies in one cell; the
cover of a circle is all the cells it may touch. So `b` is within `reach` of `a` only if cell(b) is in cover(a, reach),
and since the cells of a cover are distinct, joining on them finds each pair once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

EARTH_RADIUS_M = 6_371_008.8
"""Mean radius (IUGG). The sphere is within 0.6 % of the ellipsoid, which is finer than radii people ask for."""
METRES_PER_DEGREE = EARTH_RADIUS_M * math.pi / 180

MIN_LEVEL = 6
"""64 m: finer than people's positions are known."""
MAX_LEVEL = 25
"""33,554 km: more than half way around, so that one cell is the whole world and no radius is too large."""
ALL_LEVELS = tuple(range(MIN_LEVEL, MAX_LEVEL + 1))

BAND_FACTOR = 1 << 20
LEVEL_FACTOR = 1 << 40
SLACK = 1e-9
"""Relative and in degrees (0.1 mm): covers are widened by more than the arithmetic can be wrong."""


def level_of(radius_m: float) -> int:
    """The finest level whose cells are at least `radius_m` wide; for a radius that matches nothing, the finest."""
    return next((level for level in ALL_LEVELS if radius_m <= 2.0**level), MAX_LEVEL if radius_m > 0 else MIN_LEVEL)


def levels_of(radii_m: Iterable[float | None]) -> tuple[int, ...]:
    """The levels that these radii need, finest first; one at least, so that there is a grid to join on."""
    return tuple(sorted({level_of(radius) for radius in radii_m if radius is not None})) or (MIN_LEVEL,)


def is_place(lat: float | None, lon: float | None) -> bool:
    return lat is not None and lon is not None and abs(lat) <= 90 and abs(lon) <= 180


def distance_m(lat1: float, lon1: float, lat2: float, lon2: float) -> float | None:
    """Great-circle distance (haversine); None if either is not a place."""
    if not (is_place(lat1, lon1) and is_place(lat2, lon2)):
        return None
    half_lat, half_lon = math.radians(lat2 - lat1) / 2, math.radians(lon2 - lon1) / 2
    square = (
        math.sin(half_lat) ** 2 + math.cos(math.radians(lat1)) * math.cos(math.radians(lat2)) * math.sin(half_lon) ** 2
    )
    return 2 * EARTH_RADIUS_M * math.asin(min(1.0, math.sqrt(square)))


def cell_of(lat: float, lon: float, level: int) -> int | None:
    """The one cell a place lies in."""
    if not is_place(lat, lon):
        return None
    band = _band(lat, level)
    columns = _columns(band, level)
    column = min(math.floor((lon + 180) / 360 * columns), columns - 1)
    return level * LEVEL_FACTOR + band * BAND_FACTOR + column


def cover_of(lat: float, lon: float, level: int, reach_m: float | None = None) -> frozenset[int]:
    """Every cell that a place within `reach_m` (at most, and by default, the cell size) may lie in."""
    if not is_place(lat, lon):
        return frozenset()
    reach = reach_degrees(level, reach_m)
    half_width = _half_width_degrees(lat, reach)
    cells = set()
    for band in range(_band(max(-90.0, lat - reach), level), _band(min(90.0, lat + reach), level) + 1):
        columns = _columns(band, level)
        first = math.floor((lon + 180 - half_width) / 360 * columns)
        last = min(math.floor((lon + 180 + half_width) / 360 * columns), first + columns - 1)
        cells |= {level * LEVEL_FACTOR + band * BAND_FACTOR + column % columns for column in range(first, last + 1)}
    return frozenset(cells)


def band_degrees(level: int) -> float:
    return 2.0**level / METRES_PER_DEGREE


def last_band(level: int) -> int:
    return math.ceil(180 / band_degrees(level)) - 1


def _band(lat: float, level: int) -> int:
    return min(math.floor((lat + 90) / band_degrees(level)), last_band(level))


def _columns(band: int, level: int) -> int:
    """As many as are one cell wide at the band's edge nearest a pole; one around the pole itself."""
    height = band_degrees(level)
    edge = max(abs(band * height - 90), abs((band + 1) * height - 90))
    return max(1, math.floor(2 * math.pi * EARTH_RADIUS_M / 2.0**level * math.cos(math.radians(min(90.0, edge)))))


def reach_degrees(level: int, reach_m: float | None) -> float:
    return (2.0**level if reach_m is None else reach_m) / METRES_PER_DEGREE * (1 + SLACK) + SLACK


def _half_width_degrees(lat: float, reach: float) -> float:
    """How far east and west a circle extends. A circle that holds a pole extends all around."""
    if abs(lat) + reach >= 90 - SLACK:
        return 180.0
    ratio = math.sin(math.radians(reach)) / math.cos(math.radians(lat))
    return math.degrees(math.asin(min(1.0, ratio))) * (1 + SLACK) + SLACK
