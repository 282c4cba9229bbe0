"""Synthetic worlds: matrices of true round-trip times, in seconds, with a known shape.

Each exists to break a different kind of mistake in the estimator. Seeded where they are random; nothing is read from
outside.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tocsin.coords.coordinate import Vectors

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


def two_sites(nodes: int, inside_s: float, between_s: float) -> Vectors:
    """Two local networks of equal size, `between_s` further from each other."""
    site = np.arange(nodes) * 2 // nodes
    rtt_s = np.where(site[:, None] == site[None, :], inside_s, inside_s + between_s)
    np.fill_diagonal(rtt_s, 0.0)
    return rtt_s


def circle(nodes: int, radius_s: float) -> Vectors:
    """Nodes on a circle, and node 0 twice the radius from all of them: no place on the plane, only a height fits it."""
    angle = 2.0 * np.pi * np.arange(nodes) / (nodes - 1)
    rtt_s = _euclid_s(radius_s * np.column_stack([np.cos(angle), np.sin(angle)]))
    rtt_s[0, :] = rtt_s[:, 0] = 2.0 * radius_s
    rtt_s[0, 0] = 0.0
    return rtt_s


def scattered(nodes: int, mean_s: float, deviation_s: float, rng: np.random.Generator) -> Vectors:
    """Every pair drawn on its own: no space holds it, so it shows how gracefully the estimator fails."""
    upper = np.triu(np.abs(rng.normal(mean_s, deviation_s, (nodes, nodes))), 1)
    return upper + upper.T


def star(nodes: int, rtt_s: float) -> Vectors:
    """Everyone behind an equal link to one switch [ePulsar §5.3, figure 3a]: all heights, no distances."""
    return np.where(np.eye(nodes, dtype=bool), 0.0, rtt_s)


def hung(core_rtt_s: Vectors, gateways: Sequence[int], access_rtt_s: Sequence[float]) -> Vectors:
    """Nodes behind gateways: RTTs of the core between gateways, plus both access links. One gateway may serve many."""
    gateway, access_s = np.asarray(gateways), np.asarray(access_rtt_s)
    rtt_s: Vectors = core_rtt_s[np.ix_(gateway, gateway)] + access_s[:, None] + access_s[None, :]
    np.fill_diagonal(rtt_s, 0.0)
    return rtt_s


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
