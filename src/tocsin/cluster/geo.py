"""Distance on the sphere, and a grid that turns "within so many metres" into equality of cell numbers.

Each thing exists twice: as a Python function, and as a Spark SQL expression (text made from argument texts) that
computes the same. No UDF: Spark compiles the expressions. `grid_join` decides where a query uses them.

The grid: a level is a cell size of 2**level metres. A level cuts the sphere into bands of latitude one cell high, and
each band into as many columns as are at least one cell wide where the band is narrowest. A point lies in one cell; the
cover of a circle is all the cells it may touch. So `b` is within `reach` of `a` only if cell(b) is in cover(a, reach),
and since the cells of a cover are distinct, joining on them finds each pair once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

EARTH_RADIUS_M = 6_371_008.8
"""Mean radius (IUGG). The sphere is within 0.6 % of the ellipsoid, which is finer than radii people ask for."""
METRES_PER_DEGREE = EARTH_RADIUS_M * math.pi / 180

MIN_LEVEL = 6
"""64 m: finer than people's positions are known."""
MAX_LEVEL = 25
"""33,554 km: more than half way around, so that one cell is the whole world and no radius is too large."""
ALL_LEVELS = tuple(range(MIN_LEVEL, MAX_LEVEL + 1))

_BAND_FACTOR = 1 << 20
_LEVEL_FACTOR = 1 << 40
_SLACK = 1e-9
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
    return level * _LEVEL_FACTOR + band * _BAND_FACTOR + column


def cover_of(lat: float, lon: float, level: int, reach_m: float | None = None) -> frozenset[int]:
    """Every cell that a place within `reach_m` (at most, and by default, the cell size) may lie in."""
    if not is_place(lat, lon):
        return frozenset()
    reach = _reach_degrees(level, reach_m)
    half_width = _half_width_degrees(lat, reach)
    cells = set()
    for band in range(_band(max(-90.0, lat - reach), level), _band(min(90.0, lat + reach), level) + 1):
        columns = _columns(band, level)
        first = math.floor((lon + 180 - half_width) / 360 * columns)
        last = min(math.floor((lon + 180 + half_width) / 360 * columns), first + columns - 1)
        cells |= {level * _LEVEL_FACTOR + band * _BAND_FACTOR + column % columns for column in range(first, last + 1)}
    return frozenset(cells)


def _band_degrees(level: int) -> float:
    return 2.0**level / METRES_PER_DEGREE


def _last_band(level: int) -> int:
    return math.ceil(180 / _band_degrees(level)) - 1


def _band(lat: float, level: int) -> int:
    return min(math.floor((lat + 90) / _band_degrees(level)), _last_band(level))


def _columns(band: int, level: int) -> int:
    """As many as are one cell wide at the band's edge nearest a pole; one around the pole itself."""
    height = _band_degrees(level)
    edge = max(abs(band * height - 90), abs((band + 1) * height - 90))
    return max(1, math.floor(2 * math.pi * EARTH_RADIUS_M / 2.0**level * math.cos(math.radians(min(90.0, edge)))))


def _reach_degrees(level: int, reach_m: float | None) -> float:
    return (2.0**level if reach_m is None else reach_m) / METRES_PER_DEGREE * (1 + _SLACK) + _SLACK


def _half_width_degrees(lat: float, reach: float) -> float:
    """How far east and west a circle extends. A circle that holds a pole extends all around."""
    if abs(lat) + reach >= 90 - _SLACK:
        return 180.0
    ratio = math.sin(math.radians(reach)) / math.cos(math.radians(lat))
    return math.degrees(math.asin(min(1.0, ratio))) * (1 + _SLACK) + _SLACK


# The same in Spark SQL. Arguments are texts of SQL expressions, which `_number` makes safe: whatever their type, they
# become DOUBLE or NULL and never fail, and a NaN is no place because Spark holds it to be greater than any number.


def distance_sql(lat1: str, lon1: str, lat2: str, lon2: str) -> str:
    a, b, c, d = (_number(argument) for argument in (lat1, lon1, lat2, lon2))
    square = (
        f"pow(sin(radians({c} - {a}) / 2), 2) + "
        f"cos(radians({a})) * cos(radians({c})) * pow(sin(radians({d} - {b}) / 2), 2)"
    )
    return (
        f"CASE WHEN {_is_place_sql(a, b)} AND {_is_place_sql(c, d)} "
        f"THEN {2 * EARTH_RADIUS_M!r}D * asin(least(1.0D, sqrt({square}))) END"
    )


def near_sql(lat1: str, lon1: str, lat2: str, lon2: str, radius_m: str) -> str:
    """True or false, never NULL: what is not known to be near is not near."""
    radius = _number(radius_m)
    exact = f"{radius} > 0 AND NOT isnan({radius}) AND {distance_sql(lat1, lon1, lat2, lon2)} <= {radius}"
    return f"coalesce({exact}, false)"


def cell_sql(lat: str, lon: str, level: int) -> str:
    """`cell_of`; NULL where there is no place."""
    a, b = _number(lat), _number(lon)
    band = f"least(floor(({a} + 90) / {_double(_band_degrees(level))}), {_last_band(level)}L)"
    column = f"least(floor(({b} + 180) / 360 * {_columns_sql(band, level)}), {_columns_sql(band, level)} - 1)"
    return f"CASE WHEN {_is_place_sql(a, b)} THEN {level * _LEVEL_FACTOR}L + {band} * {_BAND_FACTOR}L + {column} END"


def cell_by_radius_sql(lat: str, lon: str, radius_m: str, levels: Sequence[int]) -> str:
    """The cell at the finest of `levels` that fits each row's own radius, which must not exceed the coarsest."""
    if len(levels) == 1:
        return cell_sql(lat, lon, levels[0])
    radius = _number(radius_m)
    branches = [
        f"WHEN {radius} {'> 0' if level == MAX_LEVEL else f'<= {_double(2.0**level)}'} THEN {cell_sql(lat, lon, level)}"
        for level in sorted(levels)
    ]
    return f"CASE {' '.join(branches)} END"


def cover_sql(lat: str, lon: str, level: int, reach_m: float | None = None) -> str:
    """`cover_of` as an array of BIGINT; NULL where there is no place."""
    a, b = _number(lat), _number(lon)
    reach = _reach_degrees(level, reach_m)
    height = _double(_band_degrees(level))
    ratio = f"{_double(math.sin(math.radians(min(reach, 90.0))))} / cos(radians({a}))"
    half_width = (
        f"CASE WHEN abs({a}) + {_double(reach)} >= {_double(90 - _SLACK)} THEN 180D "
        f"ELSE degrees(asin(least(1.0D, {ratio}))) * {_double(1 + _SLACK)} + {_double(_SLACK)} END"
    )
    low, high = (
        f"least(floor(({limit} + 90) / {height}), {_last_band(level)}L)"
        for limit in (f"greatest(-90D, {a} - {_double(reach)})", f"least(90D, {a} + {_double(reach)})")
    )
    base = f"{level * _LEVEL_FACTOR}L + _tocsin_b * {_BAND_FACTOR}L"
    columns = _columns_sql("_tocsin_b", level)
    first = f"floor(({b} + 180 - ({half_width})) / 360 * {columns})"
    last = f"least(floor(({b} + 180 + ({half_width})) / 360 * {columns}), {first} + {columns} - 1)"
    cells = f"transform(sequence({first}, {last}), _tocsin_c -> {base} + pmod(_tocsin_c, {columns}))"
    return f"CASE WHEN {_is_place_sql(a, b)} THEN flatten(transform(sequence({low}, {high}), _tocsin_b -> {cells})) END"


def _columns_sql(band: str, level: int) -> str:
    height = _double(_band_degrees(level))
    edge = f"least(90D, greatest(abs({band} * {height} - 90), abs(({band} + 1) * {height} - 90)))"
    return f"greatest(1L, floor({_double(2 * math.pi * EARTH_RADIUS_M / 2.0**level)} * cos(radians({edge}))))"


def _is_place_sql(lat: str, lon: str) -> str:
    return f"abs({lat}) <= 90 AND abs({lon}) <= 180"


def _number(expression: str) -> str:
    return f"try_cast(({expression}) AS DOUBLE)"


def _double(value: float) -> str:
    return f"{value!r}D"
