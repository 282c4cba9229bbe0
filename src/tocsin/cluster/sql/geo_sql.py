"""`near`, `distance_m` and the grid of `geo` as Spark SQL expressions: no UDF, Spark compiles them.

Arguments are texts of SQL expressions. Whatever their type they become DOUBLE or NULL and never fail; a NaN is no place
because Spark holds it to be greater than any number. `query_sql` puts the results into a query.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tocsin.cluster.sql.geo import (
    BAND_FACTOR,
    EARTH_RADIUS_M,
    LEVEL_FACTOR,
    MAX_LEVEL,
    METRES_PER_DEGREE,
    SLACK,
    band_degrees,
    last_band,
    reach_degrees,
)


def distance_sql(lat1: str, lon1: str, lat2: str, lon2: str) -> str:
    a, b, c, d = (_number(argument) for argument in (lat1, lon1, lat2, lon2))
    square = (
        f"pow(sin(radians({c} - {a}) / 2), 2) + "
        f"cos(radians({a})) * cos(radians({c})) * pow(sin(radians({d} - {b}) / 2), 2)"
    )
    return (
        f"CASE WHEN {_is_place(a, b)} AND {_is_place(c, d)} "
        f"THEN {_double(2 * EARTH_RADIUS_M)} * asin(least(1.0D, sqrt({square}))) END"
    )


def near_sql(lat1: str, lon1: str, lat2: str, lon2: str, radius_m: str) -> str:
    """True or false, never NULL: what is not known to be near is not near."""
    radius = _number(radius_m)
    exact = f"{radius} > 0 AND NOT isnan({radius}) AND {distance_sql(lat1, lon1, lat2, lon2)} <= {radius}"
    return f"coalesce({exact}, false)"


def cell_sql(lat: str, lon: str, levels: Sequence[int], radius_m: str) -> str:
    """The cell of a place at the finest of `levels` that fits each row's own radius; NULL where there is none.

    With one level the radius is not looked at: whoever chose the level knows that it fits.
    """
    if len(levels) == 1:
        return _cell(lat, lon, _Level.known(levels[0]), _inlined)
    radius = _number(radius_m)
    fits = " ".join(
        f"WHEN {radius} {'> 0' if level == MAX_LEVEL else f'<= {_double(2.0**level)}'} THEN {level}"
        for level in sorted(levels)
    )
    return _let("_tocsin_l", f"CASE {fits} END", _cell(lat, lon, _Level.variable("_tocsin_l"), _let))


def cover_sql(lat: str, lon: str, levels: Sequence[int], reach_m: float | None = None) -> str:
    """The cells that a circle may touch at each of `levels`: an array of BIGINT, NULL where there is no place.

    Its radius is the cell size of each level, or `reach_m`, which only makes sense with one level.
    """
    place = _is_place(_number(lat), _number(lon))
    if len(levels) == 1:
        cells = _cover(lat, lon, _Level.known(levels[0], reach_m))
    else:
        listed = ", ".join(str(level) for level in sorted(levels))
        each = _cover(lat, lon, _Level.variable("_tocsin_l"))
        cells = f"flatten(transform(array({listed}), _tocsin_l -> {each}))"
    return f"CASE WHEN {place} THEN {cells} END"


@dataclass(frozen=True, slots=True)
class _Level:
    """What the formulas need of a level, each as an SQL expression: numbers for a known level."""

    base: str
    height: str
    """Of a band, in degrees."""
    last_band: str
    around: str
    """Cells around the equator, as a fraction."""
    reach: str
    """In degrees."""
    sin_reach: str

    @classmethod
    def known(cls, level: int, reach_m: float | None = None) -> _Level:
        reach = reach_degrees(level, reach_m)
        return cls(
            f"{level * LEVEL_FACTOR}L", _double(band_degrees(level)), f"{last_band(level)}L",
            _double(2 * math.pi * EARTH_RADIUS_M / 2.0**level), _double(reach),
            _double(math.sin(math.radians(min(reach, 90.0)))),
        )  # fmt: skip

    @classmethod
    def variable(cls, level: str) -> _Level:
        """The same formulas as in `geo`, in the same order, so that cells and covers agree to the last bit."""
        size = f"shiftleft(1L, {level})"
        height = f"({size} / {_double(METRES_PER_DEGREE)})"
        reach = f"({height} * {_double(1 + SLACK)} + {_double(SLACK)})"
        return cls(
            f"{level} * {LEVEL_FACTOR}L", height, f"(ceil(180 / {height}) - 1)",
            f"({_double(2 * math.pi * EARTH_RADIUS_M)} / {size})", reach, f"sin(radians(least({reach}, 90D)))",
        )  # fmt: skip


def _cell(lat: str, lon: str, level: _Level, let: Callable[[str, str, str], str]) -> str:
    a, b = _number(lat), _number(lon)
    column = f"least(floor(({b} + 180) / 360 * _tocsin_n), _tocsin_n - 1)"
    packed = f"{level.base} + _tocsin_b * {BAND_FACTOR}L + {column}"
    cell = let("_tocsin_b", _band(a, level), let("_tocsin_n", _columns("_tocsin_b", level), packed))
    return f"CASE WHEN {_is_place(a, b)} THEN {cell} END"


def _cover(lat: str, lon: str, level: _Level) -> str:
    a, b = _number(lat), _number(lon)
    half_width = (
        f"CASE WHEN abs({a}) + {level.reach} >= {_double(90 - SLACK)} THEN 180D "
        f"ELSE degrees(asin(least(1.0D, {level.sin_reach} / cos(radians({a}))))) * {_double(1 + SLACK)}"
        f" + {_double(SLACK)} END"
    )
    low = _band(f"greatest(-90D, {a} - {level.reach})", level)
    high = _band(f"least(90D, {a} + {level.reach})", level)
    first = f"floor(({b} + 180 - _tocsin_w) / 360 * _tocsin_n)"
    last = f"least(floor(({b} + 180 + _tocsin_w) / 360 * _tocsin_n), {first} + _tocsin_n - 1)"
    cell = f"{level.base} + _tocsin_b * {BAND_FACTOR}L + pmod(_tocsin_c, _tocsin_n)"
    row = _let("_tocsin_n", _columns("_tocsin_b", level), f"transform(sequence({first}, {last}), _tocsin_c -> {cell})")
    return _let("_tocsin_w", half_width, f"flatten(transform(sequence({low}, {high}), _tocsin_b -> {row}))")


def _band(lat: str, level: _Level) -> str:
    return f"least(floor(({lat} + 90) / {level.height}), {level.last_band})"


def _columns(band: str, level: _Level) -> str:
    edge = f"least(90D, greatest(abs({band} * {level.height} - 90), abs(({band} + 1) * {level.height} - 90)))"
    return f"greatest(1L, floor({level.around} * cos(radians({edge}))))"


def _let(name: str, value: str, body: str) -> str:
    """`body` with `name` standing for `value`, computed once: SQL has no LET, but a lambda over one element is one."""
    return f"transform(array({value}), {name} -> {body})[0]"


def _inlined(name: str, value: str, body: str) -> str:
    """The same with the value written out each time: longer, but Spark compiles it, which it does not do to lambdas."""
    return body.replace(name, value)


def _is_place(lat: str, lon: str) -> str:
    return f"abs({lat}) <= 90 AND abs({lon}) <= 180"


def _number(expression: str) -> str:
    return f"try_cast(({expression}) AS DOUBLE)"


def _double(value: float) -> str:
    return f"{value!r}D"
