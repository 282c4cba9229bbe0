"""Vivaldi in compiled code: one sample applied to a node of a cluster of arrays. `gossip` runs it for many nodes.

`estimator` is the same step for a single live node, in plain Python; a test compares the two.
"""

from __future__ import annotations

import math

import numba
import numpy as np

from tocsin.coords.coordinate import DIMENSIONS
from tocsin.coords.distances import Vectors
from tocsin.coords.estimator import KICK_SHRINKS, Tuning

_KICK_SCALES = KICK_SHRINKS ** np.arange(DIMENSIONS)


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

    A body is [height, error, adjustment]. `Estimator._pull` explains the steps.
    """
    away = vector - peer_vector
    flat_s = math.sqrt(np.dot(away, away))
    length_s = flat_s + body[0] + peer_body[0]
    predicted_s = length_s + body[2] + peer_body[2]
    if not predicted_s > 0.0:
        predicted_s = length_s
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
        vector += kick * (force_s / max(math.sqrt(np.dot(kick, kick)), 1e-12))
    out_s = math.sqrt(np.dot(vector, vector))
    if out_s > 0.0:
        gravity_s = min((out_s / tuning.gravity_rho_s) ** 2, out_s)
        vector -= vector * (gravity_s / out_s)
    away = vector - peer_vector
    return rtt_s - (math.sqrt(np.dot(away, away)) + body[0] + peer_body[0])  # type: ignore[no-any-return]


def kicks(rng: np.random.Generator, nodes: int) -> Vectors:
    """Random directions, one per row, that favour the first dimensions (`KICK_SHRINKS`)."""
    return rng.standard_normal((nodes, DIMENSIONS)) * _KICK_SCALES
