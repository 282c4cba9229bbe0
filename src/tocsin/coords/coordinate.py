"""A network coordinate: where a node stands in latency space.

A value that travels in messages, with its arithmetic: distance, centroid, proxy. How a node finds its own is in
`vivaldi`. Distances predict round-trip times, in seconds; `one_way_s` is what a single message needs.

A coordinate is a point plus a height [Dabek 2004, §5.4]: the point says where the node's gateway is in the core of the
network, the height how far the node hangs off it. Whatever goes from one node to another climbs both heights. The
adjustment [Lee 2010, §4] is a last correction per node for what no such space can express.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numba
import numpy as np
import numpy.typing as npt

DIMENSIONS = 8
"""Serf's value; more buys nothing on measured matrices [Ledlie 2007 uses 4, Dabek 2004 two and a height]."""
ABSURD_S = 10.0
"""No component of a coordinate on Earth is this long, and no RTT worth a coordinate. Beyond it, somebody lies."""

Vectors = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Coordinate:
    vector: tuple[float, ...] = (0.0,) * DIMENSIONS
    """Seconds, in each dimension."""
    height_s: float = 0.0
    adjustment_s: float = 0.0
    """Added to every prediction; may be negative."""
    error: float = 1.5
    """The node's own belief in its relative error: 0 is certain, 1.5 a node that has just arrived."""

    @property
    def is_sane(self) -> bool:
        """Finite, of the right shape and within what a network on Earth can be."""
        return (
            len(self.vector) == DIMENSIONS
            and all(abs(component) <= ABSURD_S for component in self.vector)
            and 0.0 <= self.height_s <= ABSURD_S
            and abs(self.adjustment_s) <= ABSURD_S
            and 0.0 <= self.error <= ABSURD_S
        )  # comparisons with NaN are false, so NaN is not sane either


def distance_s(one: Coordinate, other: Coordinate) -> float:
    """The predicted round-trip time between two nodes.

    Adjustments apply only while the sum stays positive: a correction larger than the distance says that it was learnt
    about other pairs than this one [Lee 2010, §4].
    """
    raw_s = math.dist(one.vector, other.vector) + one.height_s + other.height_s
    adjusted_s = raw_s + one.adjustment_s + other.adjustment_s
    return adjusted_s if adjusted_s > 0.0 else raw_s


def one_way_s(one: Coordinate, other: Coordinate) -> float:
    """The predicted time of one message: half a round trip."""
    return distance_s(one, other) / 2.0


def centroid(coordinates: Sequence[Coordinate]) -> Coordinate:
    """NC(I) of a set of nodes [ePulsar §3.2, table 1]: the mean of everything, height and adjustment included."""
    if not coordinates:
        raise ValueError("nobody has no centroid")
    share = 1.0 / len(coordinates)
    return Coordinate(
        tuple(share * math.fsum(components) for components in zip(*(one.vector for one in coordinates), strict=True)),
        share * math.fsum(one.height_s for one in coordinates),
        share * math.fsum(one.adjustment_s for one in coordinates),
        share * math.fsum(one.error for one in coordinates),
    )


def behind_proxy(gateway: Coordinate, access_rtt_s: float) -> Coordinate:
    """The coordinate of a mobile client: that of the gateway it is connected to, plus the way to the gateway as height.

    A mobile node's own coordinate never settles, while all its traffic passes the gateway anyway [ePulsar §4].
    """
    if not 0.0 <= access_rtt_s <= ABSURD_S:
        raise ValueError(f"no access network has a round trip of {access_rtt_s} s")
    return replace(gateway, height_s=gateway.height_s + access_rtt_s)


def as_arrays(coordinates: Sequence[Coordinate]) -> tuple[Vectors, Vectors]:
    """Points (n × dimensions) and lifts (n): a lift is height plus adjustment, which distances use together."""
    points = np.array([one.vector for one in coordinates], dtype=np.float64).reshape(len(coordinates), DIMENSIONS)
    lifts = np.array([one.height_s + one.adjustment_s for one in coordinates], dtype=np.float64)
    return points, lifts


@numba.njit(cache=True)
def distances_s(from_points: Vectors, from_lifts: Vectors, to_points: Vectors, to_lifts: Vectors) -> Vectors:
    """All predicted round-trip times between two sets, as a matrix; never negative.

    The one place where it differs from `distance_s`: a sum of lifts that would make a distance negative gives 0,
    because heights and adjustments are no longer apart here. Settled coordinates do not come near that.
    """
    rtt_s = np.empty((len(from_points), len(to_points)))
    for row in range(len(from_points)):
        for column in range(len(to_points)):
            square = 0.0
            for dimension in range(from_points.shape[1]):
                difference = from_points[row, dimension] - to_points[column, dimension]
                square += difference * difference
            rtt_s[row, column] = max(0.0, math.sqrt(square) + from_lifts[row] + to_lifts[column])
    return rtt_s
