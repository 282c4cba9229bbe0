"""Distances, and the promise of the grid: a point within reach lies in the cover."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tocsin.cluster.sql.geo import (
    ALL_LEVELS,
    EARTH_RADIUS_M,
    MAX_LEVEL,
    MIN_LEVEL,
    cell_of,
    cover_of,
    distance_m,
    level_of,
    levels_of,
)

latitudes = st.one_of(st.floats(-90, 90), st.sampled_from([-90.0, 90.0, 0.0, 89.9999, -89.9999]))
longitudes = st.one_of(st.floats(-180, 180), st.sampled_from([-180.0, 180.0, 0.0, 179.9999, -179.9999]))
radii_m = st.one_of(st.floats(0.1, 3e7), st.sampled_from([2.0**level for level in ALL_LEVELS]), st.floats(0.1, 500))


def moved(lat: float, lon: float, bearing: float, distance: float) -> tuple[float, float]:
    """The point `distance` metres away from a point, in the direction `bearing`."""
    angle, start = distance / EARTH_RADIUS_M, math.radians(lat)
    sine = math.sin(start) * math.cos(angle) + math.cos(start) * math.sin(angle) * math.cos(bearing)
    end = math.asin(max(-1.0, min(1.0, sine)))
    east = math.atan2(
        math.sin(bearing) * math.sin(angle) * math.cos(start), math.cos(angle) - math.sin(start) * math.sin(end)
    )
    return math.degrees(end), (lon + math.degrees(east) + 540) % 360 - 180


@pytest.mark.parametrize(
    ("a", "b", "metres"),
    [
        ((60.1699, 24.9384), (59.4370, 24.7536), 82_160),  # Helsinki – Tallinn
        ((0.0, 179.5), (0.0, -179.5), math.pi * EARTH_RADIUS_M / 180),
        ((90.0, 12.0), (90.0, -77.0), 0),
        ((-90.0, 0.0), (90.0, 0.0), math.pi * EARTH_RADIUS_M),
    ],
)
def test_distance_is_measured_on_the_mean_sphere(a: tuple[float, float], b: tuple[float, float], metres: float) -> None:
    assert distance_m(*a, *b) == pytest.approx(metres, rel=1e-3, abs=1e-6)


@pytest.mark.parametrize("bad", [(90.1, 0.0), (0.0, 180.1), (math.nan, 0.0), (0.0, -math.inf)])
def test_coordinate_out_of_range_has_no_distance_cell_or_cover(bad: tuple[float, float]) -> None:
    assert distance_m(*bad, 0, 0) is None
    assert cell_of(*bad, 10) is None
    assert cover_of(*bad, 10) == frozenset()


@settings(max_examples=500)
@given(latitudes, longitudes, st.floats(0, 2 * math.pi), radii_m, st.floats(0, 1))
@example(89.9999, 0.0, 0.0, 1_000.0, 1.0)
@example(0.0, 180.0, math.pi / 2, 64.0, 1.0)
@example(-89.99, -180.0, 3.0, 5e6, 1.0)
def test_point_within_reach_always_lies_in_the_cover(
    lat: float, lon: float, bearing: float, radius_m: float, share: float
) -> None:
    """The reach is the radius, or the cell size, as for radii that vary from row to row."""
    near = moved(lat, lon, bearing, radius_m * share)
    away = distance_m(lat, lon, *near)
    level = level_of(radius_m)
    if away is not None and away <= radius_m:
        assert cell_of(*near, level) in cover_of(lat, lon, level)
        assert cell_of(*near, level) in cover_of(lat, lon, level, min(radius_m, 2.0**level))


@given(latitudes, longitudes, latitudes, longitudes, st.sampled_from(ALL_LEVELS))
def test_grid_agrees_with_distance_of_any_two_points(
    lat1: float, lon1: float, lat2: float, lon2: float, level: int
) -> None:
    away = distance_m(lat1, lon1, lat2, lon2)
    assert away is not None
    if cell_of(lat2, lon2, level) not in cover_of(lat1, lon1, level):
        assert away > 2.0**level


@given(latitudes, longitudes, st.sampled_from(ALL_LEVELS))
def test_cover_stays_small_and_is_tight_away_from_the_poles(lat: float, lon: float, level: int) -> None:
    cover = cover_of(lat, lon, level)
    assert len(cover) <= 24
    if level <= 16 and abs(lat) < 80:
        assert len(cover) <= 12
        assert distance_m(lat, lon, min(90.0, lat + 5 * 2.0**level / 111_000), lon) is not None
        far = cell_of(lat + 4 * 2.0**level / 111_000, lon, level)
        assert far not in cover


@given(st.floats(0.001, 1e9))
def test_level_is_the_finest_whose_cells_hold_the_radius(radius_m: float) -> None:
    level = level_of(radius_m)
    assert level == MAX_LEVEL or 2.0**level >= radius_m
    assert level == MIN_LEVEL or 2.0 ** (level - 1) < radius_m


def test_levels_of_no_radius_are_still_one_level() -> None:
    assert levels_of([]) == levels_of([None, -1.0, math.nan]) == (MIN_LEVEL,)
    assert levels_of([100.0, 1_000.0, 1_024.0, None]) == (7, 10)
