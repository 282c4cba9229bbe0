"""DuckDB's pairs within a radius, on places whose distances are known."""

from __future__ import annotations

import numpy as np

from tocsin.benchmarks.shared.near_pairs import pairs_within, spread


def test_pairs_are_those_within_the_radius_also_in_the_north() -> None:
    degree_m = 111_195.0
    for lat in (60.0, 62.9):
        east = 990.0 / degree_m / np.cos(np.radians(lat))
        places = np.array([(lat, 24.0), (lat, 24.0 + east), (lat + 1_010.0 / degree_m, 24.0)])
        assert pairs_within(places, np.array([(lat, 24.0)]), 1_000.0) == {(0, 0), (1, 0)}


def test_points_lie_in_the_square() -> None:
    points = spread(np.random.default_rng(1), 1_000, 10.0)
    assert points.min(axis=0).tolist() >= [60.0, 24.0]
    assert np.ptp(points[:, 0]) * 111.195 <= 10.0 and np.ptp(points[:, 0]) * 111.195 > 9.5
