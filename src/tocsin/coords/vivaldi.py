"""Vivaldi: a node learns its coordinate from the round-trip times it sees to peers that say theirs.

The estimator is driven by whoever measures: a live agent, or `gossip` for many nodes at once. It keeps no clock and
opens no socket. Derived from the published papers:

- Dabek, Cox, Kaashoek, Morris: Vivaldi, SIGCOMM 2004. Springs, height vectors, adaptive time steps.
- Ledlie, Gardner, Seltzer: Network Coordinates in the Wild, NSDI 2007. Latency filter, gravity.
- Lee, Zhang, Sahu, Saha: Network Coordinate Systems, adjustment of triangle-inequality violations, ToN 2010.

which are the enhancements [ePulsar §3.2] names; the values are those that Serf [ePulsar §4] ships, where it has them.
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
    """A NamedTuple because compiled code reads it. Unit, default and source of each value:"""

    error_max: float = 1.5
    """Cap of a node's belief in its own error, and what it starts with [Serf]."""
    error_gain: float = 0.25
    """c_e: how fast the belief follows samples [Dabek §2.6]."""
    step_gain: float = 0.25
    """c_c: share of the way to the resting point of a spring that one sample moves the node [Dabek §2.6]."""
    height_min_s: float = 10e-6
    """Serf's floor: a height of zero would stay zero, because heights grow in proportion."""
    gravity_rho_s: float = 150.0
    """Pull to the origin (|x| / ρ)², so that a cluster as a whole does not drift [Ledlie §4.3]."""
    step_max_s: float = 0.1
    """Ours: no single sample moves a node further, however far away its peer claims to be."""


ADJUSTMENT_WINDOW = 20
"""Samples whose residues make up the adjustment [Lee §4; Serf]."""
FILTER_SAMPLES = 3
"""Latest RTTs per peer of which the median counts [Ledlie §4.1; Serf]."""
PEERS_REMEMBERED = 1_024
"""Filters kept; the peer heard from longest ago is forgotten first, so strangers cannot fill the memory."""
DEFAULT_TUNING = Tuning()
_KICK_SCALES = 0.3 ** np.arange(DIMENSIONS)


class ObservationRejection(StrEnum):
    """Why an observation was not absorbed."""

    RTT_OUT_OF_RANGE = "rtt-out-of-range"
    """Not a number, not positive, or above 10 s."""
    COORDINATE_ABSURD = "coordinate-absurd"
    """Not finite, of another dimension, negative height or error, or beyond 10 s."""
    STATE_RESET = "state-reset"
    """The sample drove our own state out of what is sane; it started anew."""


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
    """One sample of Vivaldi, in place, where a body is [height, error, adjustment]; returns what is left unexplained.

    In the space of height vectors, a difference has length |x − y| + h_x + h_y and its unit vector moves point and
    height in proportion to their share of that length [Dabek §5.4].
    """
    away = vector - peer_vector
    flat_s = math.sqrt(np.dot(away, away))
    length_s = flat_s + body[0] + peer_body[0]
    # The spring acts on the prediction that others will make, adjustments included: a spring on the bare length would
    # fight the adjustment for the same residue (mean error 0.5 % instead of 0.1 % on the grid).
    predicted_s = length_s + body[2] + peer_body[2]
    if not predicted_s > 0.0:
        predicted_s = length_s
    # Adaptive weights: a node that knows little trusts one that knows more [Dabek §2.6, algorithm 2].
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
        # Two nodes in one spot push each other in a random direction, or they would stay there [Dabek §2.2].
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
    what is left of the others changes distances to second order. Where more are needed, the springs find them.
    """
    return rng.standard_normal((nodes, DIMENSIONS)) * _KICK_SCALES


class Estimator:
    """A node's view of where it stands. `observe` what it measures; read `coordinate`.

    Counters: `accepted` and `rejected` by reason. Nothing a peer sends raises.
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
        """Take one measured round-trip time to `peer`, who said it stands at `coordinate`. None if it was absorbed."""
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
        # Half the mean residue: the other half is the peer's to correct [Lee §4]. A window that is not full yet counts
        # its missing samples as zero, so that the first sample does not become the correction.
        self._body[2] = math.fsum(self._residues_s) / (2.0 * ADJUSTMENT_WINDOW)
        if not self.coordinate.is_sane:
            self._start()
            return self._reject(ObservationRejection.STATE_RESET)
        self.accepted += 1
        return None

    def forget(self, peer: str) -> None:
        """A peer that left; its past RTTs say nothing about whoever takes its name."""
        self._filters.pop(peer, None)

    def _filtered_s(self, peer: str, rtt_s: float) -> float:
        """The median of the latest RTTs to this peer: one delayed packet changes nothing [Ledlie §4.1]."""
        latest = self._filters.setdefault(peer, deque(maxlen=FILTER_SAMPLES))
        self._filters.move_to_end(peer)
        while len(self._filters) > PEERS_REMEMBERED:
            self._filters.popitem(last=False)
        latest.append(rtt_s)
        return sorted(latest)[(len(latest) - 1) // 2]  # of two, the lower: only delay is ever added

    def _reject(self, reason: ObservationRejection) -> ObservationRejection:
        self.rejected[reason] += 1
        return reason
