"""Synthetic worlds: matrices of true round-trip times, in seconds, with a known shape.

Each world reveals a different kind of mistake in the estimator. Random worlds take a generator; no files are read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tocsin.coords.distances import Vectors

_EARTH_RADIUS_KM = 6_371.0


def line(nodes: int, spacing_s: float) -> Vectors:
    """Equally spaced nodes in one dimension."""
    at_s = np.arange(nodes) * spacing_s
    return np.abs(at_s[:, None] - at_s[None, :])


def grid(nodes: int, spacing_s: float) -> Vectors:
    """A square lattice, filled row by row."""
    side = math.isqrt(nodes - 1) + 1
    at_s = np.array([divmod(node, side) for node in range(nodes)], dtype=np.float64) * spacing_s
    return _euclid_s(at_s)


def circle(nodes: int, radius_s: float) -> Vectors:
    """Nodes on a circle, and node 0 at twice the radius from all of them: only a height can express that."""
    angle = 2.0 * np.pi * np.arange(nodes) / (nodes - 1)
    rtt_s = _euclid_s(radius_s * np.column_stack([np.cos(angle), np.sin(angle)]))
    rtt_s[0, :] = rtt_s[:, 0] = 2.0 * radius_s
    rtt_s[0, 0] = 0.0
    return rtt_s


def scattered(nodes: int, mean_s: float, deviation_s: float, rng: np.random.Generator) -> Vectors:
    """Each pair is drawn independently. No space fits it, so it shows how the estimator degrades."""
    upper = np.triu(np.abs(rng.normal(mean_s, deviation_s, (nodes, nodes))), 1)
    return upper + upper.T


def star(nodes: int, rtt_s: float) -> Vectors:
    """All nodes behind equal links to one switch [ePulsar §5.3, figure 3a]: heights only, no distances."""
    return np.where(np.eye(nodes, dtype=bool), 0.0, rtt_s)


def great_circle_km(latitudes_deg: Sequence[float], longitudes_deg: Sequence[float]) -> Vectors:
    """Distances over a spherical Earth (haversine)."""
    lat, lon = np.radians(np.asarray(latitudes_deg)), np.radians(np.asarray(longitudes_deg))
    half = np.sin((lat[:, None] - lat[None, :]) / 2) ** 2
    half = half + np.cos(lat)[:, None] * np.cos(lat)[None, :] * np.sin((lon[:, None] - lon[None, :]) / 2) ** 2
    distance_km: Vectors = 2.0 * _EARTH_RADIUS_KM * np.arcsin(np.sqrt(np.clip(half, 0.0, 1.0)))
    return distance_km


def _euclid_s(at_s: Vectors) -> Vectors:
    rtt_s: Vectors = np.sqrt(((at_s[:, None, :] - at_s[None, :, :]) ** 2).sum(axis=-1))
    return rtt_s
