"""Vivaldi: a node computes its coordinate from measured round-trip times to peers and from their coordinates.

A live agent drives the estimator; `gossip` runs the same code for many nodes at once. It has no clock and no socket.
Derived from the published papers:

- Dabek, Cox, Kaashoek, Morris: Vivaldi, SIGCOMM 2004. Springs, height vectors, adaptive time steps.
- Ledlie, Gardner, Seltzer: Network Coordinates in the Wild, NSDI 2007. Latency filter, gravity.
- Lee, Zhang, Sahu, Saha: Network Coordinate Systems, adjustment of triangle-inequality violations, ToN 2010.

These are the enhancements that [ePulsar §3.2] names. Values are those of Serf [ePulsar §4], where it has them.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict, deque
from enum import StrEnum
from typing import NamedTuple

import numba
import numpy as np

from tocsin.coords.coordinate import ABSURD_S, DIMENSIONS, Coordinate, Vectors


class Tuning(NamedTuple):
    """The constants of the estimator. A NamedTuple, because compiled code reads it."""

    error_max: float = 1.5
    """Maximum and initial value of a node's estimate of its own error [Serf]."""
    error_gain: float = 0.25
    """c_e: how fast that estimate follows samples [Dabek §2.6]."""
    step_gain: float = 0.25
    """c_c: share of the distance to the spring's resting point by which one sample moves the node [Dabek §2.6]."""
    height_min_s: float = 10e-6
    """Serf's minimum: a height of 0 would stay 0, because heights change in proportion."""
    gravity_rho_s: float = 150.0
    """ρ of the gravity (|x| / ρ)² towards the origin, so that a cluster as a whole does not drift [Ledlie §4.3]."""
    step_max_s: float = 0.1
    """Ours: the maximum step of one sample, however far away the peer claims to be."""


ADJUSTMENT_WINDOW = 20
"""Samples whose residues make the adjustment [Lee §4; Serf]."""
FILTER_SAMPLES = 3
"""Latest RTTs per peer; their median is used [Ledlie §4.1; Serf]."""
PEERS_REMEMBERED = 1_024
"""Maximum number of filters. The least recently measured peer is dropped first, so that peers cannot fill the
memory."""
DEFAULT_TUNING = Tuning()
_KICK_SCALES = 0.3 ** np.arange(DIMENSIONS)


class ObservationRejection(StrEnum):
    """Why an observation was rejected."""

    RTT_OUT_OF_RANGE = "rtt-out-of-range"
    """The RTT is not a number, not positive, or above 10 s."""
    COORDINATE_ABSURD = "coordinate-absurd"
    """The peer's coordinate is not finite, of another dimension, with a negative height or error, or beyond 10 s."""
    STATE_RESET = "state-reset"
    """The sample made the node's own coordinate absurd; the estimator has started anew."""


@numba.njit(cache=True)
def pull(
    vector: Vectors,
    body: Vectors,
    peer_vector: Vectors,
    peer_body: Vectors,
    rtt_s: float,
    kick: Vectors,
    tuning: Tuning,
) -> float:
    """Apply one sample to the node, in place; returns the residue, which is the RTT less the new distance in s.

    A body is [height, error, adjustment]. In the space of height vectors a difference has the length |x − y| + h_x +
    h_y; its unit vector moves point and height in proportion to their share of that length [Dabek §5.4].
    """
    away = vector - peer_vector
    flat_s = math.sqrt(np.dot(away, away))
    length_s = flat_s + body[0] + peer_body[0]
    # The spring acts on the full prediction, adjustments included. A spring on the bare length would compete with the
    # adjustment for the same residue (mean error 0.5 % instead of 0.1 % on the grid).
    predicted_s = length_s + body[2] + peer_body[2]
    if not predicted_s > 0.0:
        predicted_s = length_s
    # Adaptive weights: an uncertain node follows a certain one [Dabek §2.6, algorithm 2].
    weight = body[1] / max(body[1] + peer_body[1], 1e-9)
    sample_error = abs(predicted_s - rtt_s) / rtt_s
    share = tuning.error_gain * weight
    body[1] = min(sample_error * share + body[1] * (1.0 - share), tuning.error_max)
    force_s = tuning.step_gain * weight * (rtt_s - predicted_s)
    force_s = max(-tuning.step_max_s, min(tuning.step_max_s, force_s))
    if flat_s > 1e-9:
        vector += away * (force_s / length_s)
        body[0] = max(tuning.height_min_s, body[0] + force_s * (body[0] + peer_body[0]) / length_s)
    else:
        # Two nodes at the same point push each other in a random direction, or they would stay there [Dabek §2.2].
        vector += kick * (force_s / max(math.sqrt(np.dot(kick, kick)), 1e-12))
    out_s = math.sqrt(np.dot(vector, vector))
    if out_s > 0.0:
        gravity_s = min((out_s / tuning.gravity_rho_s) ** 2, out_s)
        vector -= vector * (gravity_s / out_s)
    away = vector - peer_vector
    return rtt_s - (math.sqrt(np.dot(away, away)) + body[0] + peer_body[0])  # type: ignore[no-any-return]


def kicks(rng: np.random.Generator, nodes: int) -> Vectors:
    """Random directions, one per row, that favour the first dimensions.

    Ours: a cluster that starts evenly in eight dimensions takes very long to flatten when it needs only two, because
    the remainder of the others changes distances only to second order. Where more are needed, the springs use them.
    """
    return rng.standard_normal((nodes, DIMENSIONS)) * _KICK_SCALES


class Estimator:
    """Estimates the coordinate of one node from its measurements. No input of a peer raises an exception.

    `accepted` and `rejected` (by reason) count the observations.
    """

    def __init__(self, rng: np.random.Generator, tuning: Tuning = DEFAULT_TUNING) -> None:
        self._rng = rng
        self._tuning = tuning
        self._filters: OrderedDict[str, deque[float]] = OrderedDict()
        self.accepted = 0
        self.rejected: Counter[ObservationRejection] = Counter()
        self._start()

    def _start(self) -> None:
        self._vector = np.zeros(DIMENSIONS)
        self._body = np.array([self._tuning.height_min_s, self._tuning.error_max, 0.0])
        self._residues_s: deque[float] = deque(maxlen=ADJUSTMENT_WINDOW)

    @property
    def coordinate(self) -> Coordinate:
        height_s, error, adjustment_s = self._body.tolist()
        return Coordinate(tuple(self._vector.tolist()), height_s, adjustment_s, error)

    def observe(self, peer: str, coordinate: Coordinate, rtt_s: float) -> ObservationRejection | None:
        """Use one measured round-trip time to `peer`, which reported this coordinate. Returns None if accepted."""
        if not 0.0 < rtt_s <= ABSURD_S:
            return self._reject(ObservationRejection.RTT_OUT_OF_RANGE)
        if not coordinate.is_sane:
            return self._reject(ObservationRejection.COORDINATE_ABSURD)
        residue_s = pull(
            self._vector,
            self._body,
            np.array(coordinate.vector),
            np.array([coordinate.height_s, coordinate.error, coordinate.adjustment_s]),
            self._filtered_s(peer, rtt_s),
            kicks(self._rng, 1)[0],
            self._tuning,
        )
        self._residues_s.append(residue_s)
        # Half the mean residue: the peer corrects the other half [Lee §4]. Missing samples of a window that is not full
        # yet count as 0, so that the first sample alone does not become the correction.
        self._body[2] = math.fsum(self._residues_s) / (2.0 * ADJUSTMENT_WINDOW)
        if not self.coordinate.is_sane:
            self._start()
            return self._reject(ObservationRejection.STATE_RESET)
        self.accepted += 1
        return None

    def forget(self, peer: str) -> None:
        """Drop the filter of a peer that left: its RTTs do not apply to the next node of that name."""
        self._filters.pop(peer, None)

    def _filtered_s(self, peer: str, rtt_s: float) -> float:
        """The median of the latest RTTs to this peer: one delayed packet has no effect [Ledlie §4.1]."""
        latest = self._filters.setdefault(peer, deque(maxlen=FILTER_SAMPLES))
        self._filters.move_to_end(peer)
        while len(self._filters) > PEERS_REMEMBERED:
            self._filters.popitem(last=False)
        latest.append(rtt_s)
        return sorted(latest)[(len(latest) - 1) // 2]  # of two RTTs the lower: errors only add delay

    def _reject(self, reason: ObservationRejection) -> ObservationRejection:
        self.rejected[reason] += 1
        return reason
