"""Vivaldi: a node computes its coordinate from measured round-trip times to peers and from their coordinates.

The live agents of brokers and clients drive it. It has no clock and no socket, and needs no compiled code: a broker
would pay tens of megabytes for it. Derived from the published papers:

- Dabek, Cox, Kaashoek, Morris: Vivaldi, SIGCOMM 2004. Springs, height vectors, adaptive time steps.
- Ledlie, Gardner, Seltzer: Network Coordinates in the Wild, NSDI 2007. Latency filter, gravity.
- Lee, Zhang, Sahu, Saha: Network Coordinate Systems, adjustment of triangle-inequality violations, ToN 2010.

These are the enhancements that [ePulsar §3.2] names. Values are those of Serf [ePulsar §4], where it has them.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple

from tocsin.coords.coordinate import ABSURD_S, DIMENSIONS, Coordinate


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
    uses_adjustment: bool = True
    height_kept: float = 1.0
    """Ours: share of its height that a node keeps at each sample; see `LIVE_TUNING`."""
    kick_share: float = 0.0
    """Ours: a random displacement at each sample, as a share of the spring's; see `LIVE_TUNING`."""


ADJUSTMENT_WINDOW = 20
"""Samples whose residues make the adjustment [Lee §4; Serf]."""
FILTER_SAMPLES = 3
"""Latest RTTs per peer; their median is used [Ledlie §4.1; Serf]."""


class LatencyFilter(NamedTuple):
    """A percentile of the latest RTTs per peer [Ledlie §4.1]."""

    samples: int
    percentile: float


MEDIAN_OF_3 = LatencyFilter(FILTER_SAMPLES, 0.5)
"""Serf's."""
LOW_OF_8 = LatencyFilter(8, 0.25)
"""For live agents: the processes at both ends add delay to most RTTs of a busy machine, not only to a few."""
PEERS_REMEMBERED = 1_024
"""Maximum number of filters. The least recently measured peer is dropped first, so that peers cannot fill the
memory."""
DEFAULT_TUNING = Tuning()
LIVE_TUNING = Tuning(uses_adjustment=False, height_kept=0.95, kick_share=0.6)
"""For live agents, because a few brokers do not determine a coordinate with height and adjustment. All nodes start at
one point, so the first residues are positive, and an adjustment that every broker got at the start stays. Four brokers
that are equally far from each other get heights of half that distance and one point, and then a client behind one of
them seems equally far from all. Without heights they lie on a line or in a plane, and nothing moves them out of it but
random displacements, which end when the springs rest. Simulated agents have a neighbour next to each broker, which
prevents heights."""
KICK_SHRINKS = 0.3
"""Ours: each dimension of a random direction is smaller than the one before by this factor.

A cluster that starts evenly in eight dimensions takes very long to flatten when it needs only two, because the
remainder of the others changes distances only to second order. Where more are needed, the springs use them.
"""


class ObservationRejection(StrEnum):
    """Why an observation was rejected."""

    RTT_OUT_OF_RANGE = "rtt-out-of-range"
    """The RTT is not a number, not positive, or above 10 s."""
    COORDINATE_ABSURD = "coordinate-absurd"
    """The peer's coordinate is not finite, of another dimension, with a negative height or error, or beyond 10 s."""
    STATE_RESET = "state-reset"
    """The sample made the node's own coordinate absurd; the estimator has started anew."""


class Estimator:
    """Estimates the coordinate of one node from its measurements. No input of a peer raises an exception.

    `accepted` and `rejected` (by reason) count the observations.
    """

    def __init__(
        self, normal: Callable[[], float], tuning: Tuning = DEFAULT_TUNING, latency_filter: LatencyFilter = MEDIAN_OF_3
    ) -> None:
        """`normal` draws numbers with a standard normal distribution."""
        self._normal = normal
        self._filter = latency_filter
        self._tuning = tuning
        self._filters: OrderedDict[str, deque[float]] = OrderedDict()
        self.accepted = 0
        self.rejected: Counter[ObservationRejection] = Counter()
        self._start()

    def _start(self) -> None:
        self._vector = [0.0] * DIMENSIONS
        self._height_s, self._error, self._adjustment_s = self._tuning.height_min_s, self._tuning.error_max, 0.0
        self._residues_s: deque[float] = deque(maxlen=ADJUSTMENT_WINDOW)

    @property
    def coordinate(self) -> Coordinate:
        return Coordinate(tuple(self._vector), self._height_s, self._adjustment_s, self._error)

    def observe(self, peer: str, coordinate: Coordinate, rtt_s: float) -> ObservationRejection | None:
        """Use one measured round-trip time to `peer`, which reported this coordinate. Returns None if accepted."""
        if not 0.0 < rtt_s <= ABSURD_S:
            return self._reject(ObservationRejection.RTT_OUT_OF_RANGE)
        if not coordinate.is_sane:
            return self._reject(ObservationRejection.COORDINATE_ABSURD)
        residue_s = self._pull(coordinate, self._filtered_s(peer, rtt_s))
        if self._tuning.uses_adjustment:
            self._residues_s.append(residue_s)
        # Half the mean residue: the peer corrects the other half [Lee §4]. Missing samples of a window that is not full
        # yet count as 0, so that the first sample alone does not become the correction.
        self._adjustment_s = math.fsum(self._residues_s) / (2.0 * ADJUSTMENT_WINDOW)
        if not self.coordinate.is_sane:
            self._start()
            return self._reject(ObservationRejection.STATE_RESET)
        self.accepted += 1
        return None

    def _pull(self, peer: Coordinate, rtt_s: float) -> float:
        """Apply one sample to the node; returns the residue, which is the RTT less the new distance in s.

        In the space of height vectors a difference has the length |x − y| + h_x + h_y; its unit vector moves point and
        height in proportion to their share of that length [Dabek §5.4].
        """
        tuning, vector = self._tuning, self._vector
        flat_s = math.dist(vector, peer.vector)
        length_s = flat_s + self._height_s + peer.height_s
        # The spring acts on the full prediction, adjustments included. A spring on the bare length would compete with
        # the adjustment for the same residue (mean error 0.5 % instead of 0.1 % on the grid).
        predicted_s = length_s + self._adjustment_s + peer.adjustment_s
        if not predicted_s > 0.0:
            predicted_s = length_s
        # Adaptive weights: an uncertain node follows a certain one [Dabek §2.6, algorithm 2].
        weight = self._error / max(self._error + peer.error, 1e-9)
        sample_error = abs(predicted_s - rtt_s) / rtt_s
        share = tuning.error_gain * weight
        self._error = min(sample_error * share + self._error * (1.0 - share), tuning.error_max)
        force_s = tuning.step_gain * weight * (rtt_s - predicted_s)
        force_s = max(-tuning.step_max_s, min(tuning.step_max_s, force_s))
        kick = [self._normal() * KICK_SHRINKS**dimension for dimension in range(DIMENSIONS)]
        if flat_s > 1e-9:
            pairs = zip(vector, peer.vector, strict=True)
            vector = [own_s + (own_s - other_s) * (force_s / length_s) for own_s, other_s in pairs]
            raised_s = self._height_s + force_s * (self._height_s + peer.height_s) / length_s
            self._height_s = max(tuning.height_min_s, tuning.height_kept * raised_s)
        else:
            # Two nodes at the same point push each other in a random direction, or they would stay there [Dabek §2.2].
            scale_s = force_s / max(math.hypot(*kick), 1e-12)
            vector = [own_s + component * scale_s for own_s, component in zip(vector, kick, strict=True)]
        if tuning.kick_share:
            scale_s = tuning.kick_share * abs(force_s) / max(math.hypot(*kick), 1e-12)
            vector = [own_s + component * scale_s for own_s, component in zip(vector, kick, strict=True)]
        out_s = math.hypot(*vector)
        if out_s > 0.0:
            kept = 1.0 - min((out_s / tuning.gravity_rho_s) ** 2, out_s) / out_s
            vector = [component * kept for component in vector]
        self._vector = vector
        return rtt_s - (math.dist(vector, peer.vector) + self._height_s + peer.height_s)

    def forget(self, peer: str) -> None:
        """Drop the filter of a peer that left: its RTTs do not apply to the next node of that name."""
        self._filters.pop(peer, None)

    def _filtered_s(self, peer: str, rtt_s: float) -> float:
        """A percentile of the latest RTTs to this peer: a few delayed packets have no effect [Ledlie §4.1]."""
        latest = self._filters.setdefault(peer, deque(maxlen=self._filter.samples))
        self._filters.move_to_end(peer)
        while len(self._filters) > PEERS_REMEMBERED:
            self._filters.popitem(last=False)
        latest.append(rtt_s)
        # Between two RTTs the lower: errors only add delay.
        return sorted(latest)[int((len(latest) - 1) * self._filter.percentile)]

    def _reject(self, reason: ObservationRejection) -> ObservationRejection:
        self.rejected[reason] += 1
        return reason
