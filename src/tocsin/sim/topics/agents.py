"""The coordinate agents of a simulated deployment, long settled: brokers and what stands beside them at each place."""

from __future__ import annotations

import numpy as np

from tocsin.coords.coordinate import Coordinate, Vectors
from tocsin.coords.gossip import settle
from tocsin.sim.topics.places import Places, settled_rtt_s

SETTLE_ROUNDS = 600
"""Agents settle for ten minutes of one probe a second before anything is asked of them [ePulsar §5.5.1]."""
NEAR = 2
"""Every second probe goes to one of the two fastest peers: the agent beside a broker must know that it is beside it."""
JITTER = 0.02
DELAYED_SHARE = 0.01


def jitter(rtt_s: Vectors, rng: np.random.Generator) -> Vectors:
    """What a probe measures: 2 % of spread around the truth, and one packet in a hundred delayed to the double.

    Ours: the paper's emulated links have the noise of its machine, which it does not state.
    """
    measured_s = rtt_s * np.exp(rng.normal(0.0, JITTER, len(rtt_s)))
    return np.where(rng.random(len(rtt_s)) < DELAYED_SHARE, measured_s * 2.0, measured_s)


def settled_sites(places: Places, hop_s: float, seed: int) -> tuple[list[Coordinate], list[Coordinate]]:
    """Coordinates of the brokers and of the agents `hop_s` (one way) beside them, one of each per place."""
    rtt_s, (brokers, agents) = settled_rtt_s(places, [0.0, hop_s])
    settled = settle(rtt_s, SETTLE_ROUNDS, np.random.default_rng(seed), near=NEAR, noise=jitter).coordinates()
    return [settled[node] for node in brokers], [settled[node] for node in agents]
