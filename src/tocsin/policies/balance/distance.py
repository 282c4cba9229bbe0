"""Distances between subscribers and brokers: which brokers a move may choose, and how much farther a move takes them.

A subscriber that balancing sends across the country waits for every notification. `reach_of` gives each subscriber the
brokers that are near enough; the policies of this folder choose among those. Positions are latitude and longitude; a
subscriber or broker without a position is near to all.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tocsin.model.snapshot import UNPLACED, Floats, Ints, Snapshot

Bits = npt.NDArray[np.uint64]
Longs = npt.NDArray[np.int64]

EVERYWHERE: Bits = np.zeros((0, 0), dtype=np.uint64)
"""The reach without a bound: every broker may get every subscriber."""
EARTH_RADIUS_M = 6_371_008.8
_ROWS = 65_536
"""Subscribers whose distances are computed at a time, so that a million of them need little memory."""


def distances_m(places_deg: Floats, others_deg: Floats) -> Floats:
    """Great-circle distances (haversine) in metres, element by element; NaN where a position is unknown."""
    lat, lon = np.radians(places_deg[..., 0]), np.radians(places_deg[..., 1])
    other_lat, other_lon = np.radians(others_deg[..., 0]), np.radians(others_deg[..., 1])
    half = np.sin((other_lat - lat) / 2) ** 2 + np.cos(lat) * np.cos(other_lat) * np.sin((other_lon - lon) / 2) ** 2
    metres: Floats = 2 * EARTH_RADIUS_M * np.arcsin(np.sqrt(np.minimum(1.0, half)))
    return metres


def reach_of(snapshot: Snapshot, max_added_m: float) -> Bits:
    """Per subscriber, one bit per broker: True if a move may take the subscriber there; `EVERYWHERE` without a bound.

    A broker is in reach if it is at most `max_added_m` farther than the nearest accepting broker, or not farther than
    the present one. Measured from the nearest broker, the bound holds for all moves of a subscriber together.
    """
    places, at = snapshot.places_deg, snapshot.broker_places_deg
    if max_added_m <= 0.0 or places is None or at is None or not len(at):
        return EVERYWHERE
    n, m = len(places), len(at)
    reach = np.zeros((n, m // 64 + 1), dtype=np.uint64)
    for first in range(0, n, _ROWS):
        rows = slice(first, min(n, first + _ROWS))
        allowed = _allowed(places[rows], at, snapshot.accepting, snapshot.broker_of[rows], max_added_m)
        bits = np.packbits(allowed, axis=1, bitorder="little")
        padded = np.zeros((len(bits), reach.shape[1] * 8), dtype=np.uint8)
        padded[:, : bits.shape[1]] = bits
        reach[rows] = padded.view("<u8")
    return reach


def _allowed(
    places: Floats, at: Floats, accepting: npt.NDArray[np.bool_], broker_of: Ints, max_added_m: float
) -> npt.NDArray[np.bool_]:
    away_m = distances_m(places[:, None, :], at[None, :, :])
    nearest_m = np.min(np.where(accepting & ~np.isnan(away_m), away_m, np.inf), axis=1)
    present_m = np.take_along_axis(away_m, np.maximum(broker_of, 0)[:, None], axis=1)[:, 0]
    present_m = np.where((broker_of == UNPLACED) | np.isnan(present_m), 0.0, present_m)
    allowed: npt.NDArray[np.bool_] = np.isnan(away_m) | (
        away_m <= np.maximum(nearest_m + max_added_m, present_m)[:, None]
    )
    return allowed


def added_m(snapshot: Snapshot, subscribers: Longs, targets: Ints) -> Floats | None:
    """How much farther each of these subscribers is from its target than from its present broker; NaN if unknown."""
    places, at = snapshot.places_deg, snapshot.broker_places_deg
    if places is None or at is None:
        return None
    of = places[subscribers]
    metres: Floats = distances_m(of, at[targets]) - distances_m(of, at[snapshot.broker_of[subscribers]])
    return metres
