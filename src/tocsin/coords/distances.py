"""Predicted round-trip times between many coordinates at once, in compiled code, for policies and experiments."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numba
import numpy as np
import numpy.typing as npt

from tocsin.coords.coordinate import DIMENSIONS, Coordinate

Vectors = npt.NDArray[np.float64]


def as_arrays(coordinates: Sequence[Coordinate]) -> tuple[Vectors, Vectors]:
    """Points (n × dimensions) and lifts (n). A lift is height plus adjustment: distances use only their sum."""
    points = np.array([c.vector for c in coordinates], dtype=np.float64).reshape(len(coordinates), DIMENSIONS)
    lifts = np.array([c.height_s + c.adjustment_s for c in coordinates], dtype=np.float64)
    return points, lifts


@numba.njit(cache=True)
def distances_s(from_points: Vectors, from_lifts: Vectors, to_points: Vectors, to_lifts: Vectors) -> Vectors:
    """All predicted round-trip times between two sets, as a matrix: `distance_s` of every pair."""
    rtt_s = np.empty((len(from_points), len(to_points)))
    for row in range(len(from_points)):
        for column in range(len(to_points)):
            square = 0.0
            for dimension in range(from_points.shape[1]):
                difference = from_points[row, dimension] - to_points[column, dimension]
                square += difference * difference
            rtt_s[row, column] = max(0.0, math.sqrt(square) + from_lifts[row] + to_lifts[column])
    return rtt_s
