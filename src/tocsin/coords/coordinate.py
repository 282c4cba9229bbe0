"""A network coordinate: the position of a node in latency space.

A value that messages carry, with its arithmetic: distance, centroid, proxy. `estimator` computes a node's own
coordinate. Plain Python, because every broker and client loads it; `distances` computes many distances at once.
Distances predict round-trip times, in seconds; `one_way_s` predicts the time of a single message.

A coordinate is a point plus a height [Dabek 2004, §5.4]. The point is the position of the node's gateway in the core of
the network; the height is the latency between node and gateway. The distance of two nodes includes both heights. The
adjustment [Lee 2010, §4] is a correction per node for latencies that no such space can express.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

DIMENSIONS = 8
"""Serf's value; more dimensions gain nothing on measured matrices [Ledlie 2007: 4, Dabek 2004: 2 and a height]."""
ABSURD_S = 10.0
"""Upper limit of RTTs and of each component of a coordinate. No network on Earth exceeds it; a peer that does is
lying."""
SETTLED_ERROR = 0.5
"""Ours: the largest estimate of its own relative error with which a coordinate is used for placement."""


@dataclass(frozen=True, slots=True)
class Coordinate:
    vector: tuple[float, ...] = (0.0,) * DIMENSIONS
    """The position in seconds, in each dimension."""
    height_s: float = 0.0
    adjustment_s: float = 0.0
    """Added to every prediction; may be negative."""
    error: float = 1.5
    """The node's estimate of its own relative error: 0 is certain, 1.5 is a new node."""

    @property
    def is_sane(self) -> bool:
        """True if the coordinate is finite, of the right dimension and within `ABSURD_S`."""
        return (
            len(self.vector) == DIMENSIONS
            and all(abs(component) <= ABSURD_S for component in self.vector)
            and 0.0 <= self.height_s <= ABSURD_S
            and abs(self.adjustment_s) <= ABSURD_S
            and 0.0 <= self.error <= ABSURD_S
        )  # comparisons with NaN are false, so NaN is not sane

    @property
    def is_settled(self) -> bool:
        """True if decisions may use the coordinate. A node without enough measurements has a larger error."""
        return self.is_sane and self.error <= SETTLED_ERROR

    def rounded(self) -> Coordinate:
        """The coordinate as messages carry it: in whole microseconds, so that its text has a bounded size."""
        return Coordinate(
            tuple(round(component, 6) for component in self.vector),
            round(self.height_s, 6),
            round(self.adjustment_s, 6),
            round(self.error, 4),
        )


def distance_s(node: Coordinate, other: Coordinate) -> float:
    """The predicted round-trip time between two nodes; never negative. `distances_s` is the same for many nodes.

    Serf drops the adjustments if the sum would not be positive. The distance then jumps, and the worst latency E(t) of
    a topic could exceed its upper bound W(t, b) between nodes of one site. With a minimum of 0, W(t, b) holds
    everywhere, and predictions are as accurate.
    """
    flat_s = math.dist(node.vector, other.vector)
    return max(0.0, flat_s + node.height_s + other.height_s + node.adjustment_s + other.adjustment_s)


def one_way_s(node: Coordinate, other: Coordinate) -> float:
    """The predicted time of one message: half a round trip."""
    return distance_s(node, other) / 2.0


def centroid(coordinates: Sequence[Coordinate]) -> Coordinate:
    """NC(I) of a set of nodes [ePulsar §3.2, table 1]: the mean of each field, height and adjustment included.

    Raises ValueError without nodes.
    """
    if not coordinates:
        raise ValueError("a centroid needs at least one coordinate")
    share = 1.0 / len(coordinates)
    return Coordinate(
        tuple(share * math.fsum(components) for components in zip(*(c.vector for c in coordinates), strict=True)),
        share * math.fsum(c.height_s for c in coordinates),
        share * math.fsum(c.adjustment_s for c in coordinates),
        share * math.fsum(c.error for c in coordinates),
    )


def furthest_s(clients: Sequence[Coordinate], centre: Coordinate | None) -> float:
    """One-way distance of the outermost client from the centroid; 0 without clients.

    [ePulsar §3.2] writes d(NC(p), NC_P(t)). That distance adds the heights of both ends, so a single client would
    deviate from itself by twice its height. W(t, b) needs how much further from any broker a client can be than the
    centroid: the distance of the two points plus the difference of their heights. Then W(t, b) is an upper bound of
    E(t) at b.
    """
    if centre is None:
        return 0.0
    lift_s = centre.height_s + centre.adjustment_s
    furthest = max(
        math.dist(client.vector, centre.vector) + (client.height_s + client.adjustment_s - lift_s) for client in clients
    )
    return max(furthest, 0.0) / 2.0


def behind_proxy(gateway: Coordinate, access_rtt_s: float) -> Coordinate:
    """The coordinate of a mobile client: that of its gateway, with the round-trip time to the gateway added to the
    height.

    The own coordinate of a mobile node never settles, and all its traffic passes the gateway [ePulsar §4].
    """
    if not 0.0 <= access_rtt_s <= ABSURD_S:
        raise ValueError(f"access round-trip time {access_rtt_s} s is not between 0 and {ABSURD_S:g} s")
    return replace(gateway, height_s=gateway.height_s + access_rtt_s)
