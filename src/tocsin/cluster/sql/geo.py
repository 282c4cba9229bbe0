"""Distance on the sphere, and a grid that turns "within so many metres" into an equality of cell numbers.

A grid level is a cell size of 2**level metres. A level divides the sphere into bands of latitude, one cell high, and
each band into as many columns as are at least one cell wide where the band is narrowest. A point lies in one cell. The
cover of a circle is the set of cells that the circle may touch. So `b` is within `reach` of `a` only if cell(b) is in
cover(a, reach), and a join on cells finds each pair once because the cells of a cover are distinct.

The first half computes this in Python: alerts use it, and it is the reference for the second half, which writes the
same formulas as Spark SQL expressions (`…_sql`). Spark compiles these; there is no UDF. Their arguments are texts of
SQL expressions. An argument of any type becomes DOUBLE or NULL and never fails; NaN is not a coordinate, because in
Spark NaN is greater than any number. `query_sql` inserts the expressions into a query; `cluster.spark` calls `level_of`
with the radii of a channel's subscriptions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

EARTH_RADIUS_M = 6_371_008.8
"""Mean radius (IUGG). The sphere differs from the ellipsoid by at most 0.6 %, less than the radii in use need."""
METRES_PER_DEGREE = EARTH_RADIUS_M * math.pi / 180

MIN_LEVEL = 6
"""Cells of 64 m, which is finer than the accuracy of people's positions."""
MAX_LEVEL = 25
"""Cells of 33,554 km, more than half the circumference: one cell is the whole world, and no radius is too large."""
ALL_LEVELS = tuple(range(MIN_LEVEL, MAX_LEVEL + 1))

BAND_FACTOR = 1 << 20
LEVEL_FACTOR = 1 << 40
SLACK = 1e-9
"""Covers are wider by this fraction and by this many degrees (0.1 mm): more than the error of the arithmetic."""


def level_of(radius_m: float) -> int:
    """The finest level whose cells are at least `radius_m` wide; MIN_LEVEL for a radius that matches nothing."""
    return next((level for level in ALL_LEVELS if radius_m <= 2.0**level), MAX_LEVEL if radius_m > 0 else MIN_LEVEL)


def levels_of(radii_m: Iterable[float | None]) -> tuple[int, ...]:
    """The levels that these radii need, finest first. At least one level, so that there is a grid to join on."""
    return tuple(sorted({level_of(radius) for radius in radii_m if radius is not None})) or (MIN_LEVEL,)


def is_place(lat: float | None, lon: float | None) -> bool:
    return lat is not None and lon is not None and abs(lat) <= 90 and abs(lon) <= 180


def distance_m(lat1: float, lon1: float, lat2: float, lon2: float) -> float | None:
    """Great-circle distance (haversine); None if a coordinate is out of range."""
    if not (is_place(lat1, lon1) and is_place(lat2, lon2)):
        return None
    half_lat, half_lon = math.radians(lat2 - lat1) / 2, math.radians(lon2 - lon1) / 2
    square = (
        math.sin(half_lat) ** 2 + math.cos(math.radians(lat1)) * math.cos(math.radians(lat2)) * math.sin(half_lon) ** 2
    )
    return 2 * EARTH_RADIUS_M * math.asin(min(1.0, math.sqrt(square)))


def cell_of(lat: float, lon: float, level: int) -> int | None:
    """The cell of a point; None if a coordinate is out of range."""
    if not is_place(lat, lon):
        return None
    band = _band(lat, level)
    columns = _columns(band, level)
    column = min(math.floor((lon + 180) / 360 * columns), columns - 1)
    return level * LEVEL_FACTOR + band * BAND_FACTOR + column


def cover_of(lat: float, lon: float, level: int, reach_m: float | None = None) -> frozenset[int]:
    """All cells of the points within `reach_m`, which is the cell size at most and by default."""
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
    """How many columns a band has: one cell wide at the edge nearest to a pole; one column around the pole itself."""
    height = band_degrees(level)
    edge = max(abs(band * height - 90), abs((band + 1) * height - 90))
    return max(1, math.floor(2 * math.pi * EARTH_RADIUS_M / 2.0**level * math.cos(math.radians(min(90.0, edge)))))


def reach_degrees(level: int, reach_m: float | None) -> float:
    return (2.0**level if reach_m is None else reach_m) / METRES_PER_DEGREE * (1 + SLACK) + SLACK


def _half_width_degrees(lat: float, reach: float) -> float:
    """The degrees that a circle extends to the east and to the west: 180° for a circle that contains a pole."""
    if abs(lat) + reach >= 90 - SLACK:
        return 180.0
    ratio = math.sin(math.radians(reach)) / math.cos(math.radians(lat))
    return math.degrees(math.asin(min(1.0, ratio))) * (1 + SLACK) + SLACK


def distance_sql(lat1: str, lon1: str, lat2: str, lon2: str) -> str:
    a, b, c, d = (_number(argument) for argument in (lat1, lon1, lat2, lon2))
    square = (
        f"pow(sin(radians({c} - {a}) / 2), 2) + "
        f"cos(radians({a})) * cos(radians({c})) * pow(sin(radians({d} - {b}) / 2), 2)"
    )
    return (
        f"CASE WHEN {_is_place_sql(a, b)} AND {_is_place_sql(c, d)} "
        f"THEN {_double(2 * EARTH_RADIUS_M)} * asin(least(1.0D, sqrt({square}))) END"
    )


def near_sql(lat1: str, lon1: str, lat2: str, lon2: str, radius_m: str) -> str:
    """The condition that two points are near: true or false, never NULL. False if the distance is unknown."""
    radius = _number(radius_m)
    exact = f"{radius} > 0 AND NOT isnan({radius}) AND {distance_sql(lat1, lon1, lat2, lon2)} <= {radius}"
    return f"coalesce({exact}, false)"


def cell_sql(lat: str, lon: str, levels: Sequence[int], radius_m: str) -> str:
    """The cell of a point at the finest of `levels` that fits the row's radius; NULL if none fits.

    With one level the expression ignores the radius: the caller has chosen a level that fits.
    """
    if len(levels) == 1:
        return _cell_sql(lat, lon, _Level.known(levels[0]), _inlined)
    radius = _number(radius_m)
    fits = " ".join(
        f"WHEN {radius} {'> 0' if level == MAX_LEVEL else f'<= {_double(2.0**level)}'} THEN {level}"
        for level in sorted(levels)
    )
    return _let("_tocsin_l", f"CASE {fits} END", _cell_sql(lat, lon, _Level.variable("_tocsin_l"), _let))


def cover_sql(lat: str, lon: str, levels: Sequence[int], reach_m: float | None = None) -> str:
    """The cells that a circle may touch at each of `levels`: an array of BIGINT, NULL if a coordinate is out of range.

    The circle's radius is the cell size of each level, or `reach_m`, which only makes sense with one level.
    """
    place = _is_place_sql(_number(lat), _number(lon))
    if len(levels) == 1:
        cells = _cover_sql(lat, lon, _Level.known(levels[0], reach_m))
    else:
        listed = ", ".join(str(level) for level in sorted(levels))
        cells_of_level = _cover_sql(lat, lon, _Level.variable("_tocsin_l"))
        cells = f"flatten(transform(array({listed}), _tocsin_l -> {cells_of_level}))"
    return f"CASE WHEN {place} THEN {cells} END"


@dataclass(frozen=True, slots=True)
class _Level:
    """The quantities of a level in the formulas, each as an SQL expression: numbers if the level is known."""

    base: str
    height: str
    """Height of a band in degrees."""
    last_band: str
    around: str
    """Cells around the equator, as a fraction."""
    reach: str
    """The radius of a cover, in degrees."""
    sin_reach: str

    @classmethod
    def known(cls, level: int, reach_m: float | None = None) -> _Level:
        reach = reach_degrees(level, reach_m)
        return cls(
            base=f"{level * LEVEL_FACTOR}L",
            height=_double(band_degrees(level)),
            last_band=f"{last_band(level)}L",
            around=_double(2 * math.pi * EARTH_RADIUS_M / 2.0**level),
            reach=_double(reach),
            sin_reach=_double(math.sin(math.radians(min(reach, 90.0)))),
        )

    @classmethod
    def variable(cls, level: str) -> _Level:
        """The same formulas as in Python, in the same order, so that cells and covers agree to the last bit."""
        size = f"shiftleft(1L, {level})"
        height = f"({size} / {_double(METRES_PER_DEGREE)})"
        reach = f"({height} * {_double(1 + SLACK)} + {_double(SLACK)})"
        return cls(
            base=f"{level} * {LEVEL_FACTOR}L",
            height=height,
            last_band=f"(ceil(180 / {height}) - 1)",
            around=f"({_double(2 * math.pi * EARTH_RADIUS_M)} / {size})",
            reach=reach,
            sin_reach=f"sin(radians(least({reach}, 90D)))",
        )


def _cell_sql(lat: str, lon: str, level: _Level, let: Callable[[str, str, str], str]) -> str:
    a, b = _number(lat), _number(lon)
    column = f"least(floor(({b} + 180) / 360 * _tocsin_n), _tocsin_n - 1)"
    packed = f"{level.base} + _tocsin_b * {BAND_FACTOR}L + {column}"
    cell = let("_tocsin_b", _band_sql(a, level), let("_tocsin_n", _columns_sql("_tocsin_b", level), packed))
    return f"CASE WHEN {_is_place_sql(a, b)} THEN {cell} END"


def _cover_sql(lat: str, lon: str, level: _Level) -> str:
    a, b = _number(lat), _number(lon)
    half_width = (
        f"CASE WHEN abs({a}) + {level.reach} >= {_double(90 - SLACK)} THEN 180D "
        f"ELSE degrees(asin(least(1.0D, {level.sin_reach} / cos(radians({a}))))) * {_double(1 + SLACK)}"
        f" + {_double(SLACK)} END"
    )
    low = _band_sql(f"greatest(-90D, {a} - {level.reach})", level)
    high = _band_sql(f"least(90D, {a} + {level.reach})", level)
    first = f"floor(({b} + 180 - _tocsin_w) / 360 * _tocsin_n)"
    last = f"least(floor(({b} + 180 + _tocsin_w) / 360 * _tocsin_n), {first} + _tocsin_n - 1)"
    cell = f"{level.base} + _tocsin_b * {BAND_FACTOR}L + pmod(_tocsin_c, _tocsin_n)"
    row = _let(
        "_tocsin_n", _columns_sql("_tocsin_b", level), f"transform(sequence({first}, {last}), _tocsin_c -> {cell})"
    )
    return _let("_tocsin_w", half_width, f"flatten(transform(sequence({low}, {high}), _tocsin_b -> {row}))")


def _band_sql(lat: str, level: _Level) -> str:
    return f"least(floor(({lat} + 90) / {level.height}), {level.last_band})"


def _columns_sql(band: str, level: _Level) -> str:
    edge = f"least(90D, greatest(abs({band} * {level.height} - 90), abs(({band} + 1) * {level.height} - 90)))"
    return f"greatest(1L, floor({level.around} * cos(radians({edge}))))"


def _let(name: str, value: str, body: str) -> str:
    """`body` where `name` means `value`, computed once. SQL has no LET: a lambda over one element replaces it."""
    return f"transform(array({value}), {name} -> {body})[0]"


def _inlined(name: str, value: str, body: str) -> str:
    """`body` with `name` replaced by `value`. Longer than `_let`, but Spark compiles it, unlike a lambda."""
    return body.replace(name, value)


def _is_place_sql(lat: str, lon: str) -> str:
    return f"abs({lat}) <= 90 AND abs({lon}) <= 180"


def _number(expression: str) -> str:
    return f"try_cast(({expression}) AS DOUBLE)"


def _double(value: float) -> str:
    return f"{value!r}D"
