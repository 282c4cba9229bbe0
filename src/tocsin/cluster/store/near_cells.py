"""The grid of `cluster.sql.geo` for many places at once: their cells, the cells around them, and their distances.

The formulas are those of `geo`, in the same order, with numpy instead of Python's numbers. Places out of range have no
cell, and no place is near them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tocsin.cluster.sql.geo import (
    BAND_FACTOR,
    EARTH_RADIUS_M,
    LEVEL_FACTOR,
    SLACK,
    band_degrees,
    last_band,
    reach_degrees,
)

Degrees = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
_MORE = 1e-6
_MORE_M = 0.01
"""Added to a radius, because only certain non-matches may be left out: Spark rounds distances in its own way."""


class Covers(NamedTuple):
    """The cells that circles around some places may touch."""

    places: npt.NDArray[np.int64]
    """The index of each cell's place."""
    cells: npt.NDArray[np.uint64]


def are_places(lat: Degrees, lon: Degrees) -> Flags:
    """Which coordinates are in range; NaN is not."""
    with np.errstate(invalid="ignore"):
        return (np.abs(lat) <= 90) & (np.abs(lon) <= 180)


def cells_of(lat: Degrees, lon: Degrees, level: int) -> npt.NDArray[np.uint64]:
    """The cell of each place. All places are in range."""
    bands = _bands(lat, level)
    columns = _columns(bands, level)
    column = np.minimum(np.floor((lon + 180) / 360 * columns), columns - 1)
    return _packed(bands, column, level)


def covers_of(lat: Degrees, lon: Degrees, level: int, reach_m: float) -> Covers:
    """The cells within `reach_m` of each place, at most the cell size. All places are in range."""
    reach = reach_degrees(level, reach_m)
    half_width = _half_widths(lat, reach)
    low = _bands(np.maximum(-90.0, lat - reach), level)
    bands_each = (_bands(np.minimum(90.0, lat + reach), level) - low).astype(np.int64) + 1
    places, bands = _ranges(low, bands_each)
    columns = _columns(bands, level)
    east, width = lon[places], half_width[places]
    first = np.floor((east + 180 - width) / 360 * columns)
    last = np.minimum(np.floor((east + 180 + width) / 360 * columns), first + columns - 1)
    rows, column = _ranges(first, (last - first).astype(np.int64) + 1)
    return Covers(places[rows], _packed(bands[rows], np.mod(column, columns[rows]), level))


def are_near(lat1: Degrees, lon1: Degrees, lat2: Degrees, lon2: Degrees, radius_m: float) -> Flags:
    """Which pairs may be within `radius_m` of each other. False only for pairs that certainly are not."""
    half_lat, half_lon = np.radians(lat2 - lat1) / 2, np.radians(lon2 - lon1) / 2
    square = np.sin(half_lat) ** 2 + np.cos(np.radians(lat1)) * np.cos(np.radians(lat2)) * np.sin(half_lon) ** 2
    distance_m = 2 * EARTH_RADIUS_M * np.arcsin(np.minimum(1.0, np.sqrt(square)))
    near: Flags = distance_m <= radius_m * (1 + _MORE) + _MORE_M
    return near


def _ranges(first: Degrees, counts: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], Degrees]:
    """For each i the numbers first[i], first[i] + 1, …, counts[i] of them: (i of each number, the numbers)."""
    owners = np.repeat(np.arange(len(counts)), counts)
    within = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
    return owners, first[owners] + within


def _packed(bands: Degrees, columns: Degrees, level: int) -> npt.NDArray[np.uint64]:
    return (level * LEVEL_FACTOR + bands * BAND_FACTOR + columns).astype(np.uint64)


def _bands(lat: Degrees, level: int) -> Degrees:
    return np.minimum(np.floor((lat + 90) / band_degrees(level)), last_band(level))


def _columns(bands: Degrees, level: int) -> Degrees:
    height = band_degrees(level)
    edges = np.minimum(90.0, np.maximum(np.abs(bands * height - 90), np.abs((bands + 1) * height - 90)))
    around = 2 * np.pi * EARTH_RADIUS_M / 2.0**level
    return np.maximum(1.0, np.floor(around * np.cos(np.radians(edges))))


def _half_widths(lat: Degrees, reach: float) -> Degrees:
    holds_pole = np.abs(lat) + reach >= 90 - SLACK
    ratio = np.sin(np.radians(reach)) / np.cos(np.radians(np.where(holds_pole, 0.0, lat)))
    widths = np.degrees(np.arcsin(np.minimum(1.0, ratio))) * (1 + SLACK) + SLACK
    return np.where(holds_pole, 180.0, widths)
