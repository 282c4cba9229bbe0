"""Many nodes that probe each other, round by round, in compiled code: the coordinates of a settled cluster.

It runs the estimator's step (`vivaldi.pull`) over arrays, thousands of times faster than as many `Estimator` objects.
Experiments and quality tests use it. Each node takes its peers in a shuffled order and shuffles again when each has had
its turn, as Serf's failure detector does. It is not the live gossip: all nodes probe in the same rounds and see the
present coordinates of the others. `sim.topics.agents` has agents with phases and delays of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numba
import numpy as np
import numpy.typing as npt

from tocsin.coords.coordinate import DIMENSIONS, Coordinate
from tocsin.coords.distances import Vectors, distances_s
from tocsin.coords.estimator import ADJUSTMENT_WINDOW, DEFAULT_TUNING, FILTER_SAMPLES, Tuning
from tocsin.coords.vivaldi import kicks, pull

Noise = Callable[[npt.NDArray[np.float64], np.random.Generator], npt.NDArray[np.float64]]
"""True RTTs of one round → measured RTTs, in seconds."""


@dataclass(frozen=True, slots=True)
class Embedding:
    """The coordinates of a whole cluster, as columns."""

    vectors: Vectors
    heights_s: Vectors
    adjustments_s: Vectors
    errors: Vectors

    def coordinate(self, node: int) -> Coordinate:
        return Coordinate(
            tuple(self.vectors[node].tolist()),
            float(self.heights_s[node]),
            float(self.adjustments_s[node]),
            float(self.errors[node]),
        )

    def coordinates(self) -> list[Coordinate]:
        return [self.coordinate(node) for node in range(len(self.vectors))]

    def predicted_s(self) -> Vectors:
        """The matrix of predicted round-trip times, as `distance_s` predicts them."""
        lifts_s = self.heights_s + self.adjustments_s
        predicted_s: Vectors = distances_s(self.vectors, lifts_s, self.vectors, lifts_s)
        np.fill_diagonal(predicted_s, 0.0)
        return predicted_s


def settle(
    rtt_s: Vectors,
    rounds: int,
    rng: np.random.Generator,
    *,
    peers: int | None = None,
    near: int = 0,
    noise: Noise | None = None,
    tuning: Tuning = DEFAULT_TUNING,
) -> Embedding:
    """The coordinates after `rounds` rounds, in each of which every node probes one of its peers.

    `peers` is the number of peers of each node (default: all others). With `near`, every second probe goes to one of
    the `near` peers that have answered fastest so far: a cluster whose nodes see only distant peers cannot place near
    ones [Dabek §4.2, near and distant neighbours]. An RTT of 0 in the matrix means unknown; such pairs are never
    measured.
    """
    nodes = len(rtt_s)
    peer_count = nodes - 1 if peers is None else min(peers, nodes - 1)
    peers_of = np.array([_draw_peers(node, nodes, peer_count, rng) for node in range(nodes)]).reshape(nodes, peer_count)
    cluster = _new_cluster(nodes, peer_count, tuning)
    every_node, seen_s = np.arange(nodes), np.full((nodes, peer_count), np.inf)
    turns = np.tile(np.arange(peer_count), (nodes, 1))
    for round_ in range(rounds):
        turn = (round_ // 2 if near else round_) % peer_count
        if turn == 0:
            turns = rng.permuted(turns, axis=1)
        slots = turns[every_node, turn]
        if near and round_ % 2:
            fastest = np.argpartition(seen_s, min(near, peer_count) - 1, axis=1)[:, : min(near, peer_count)]
            choice = fastest[every_node, rng.integers(0, fastest.shape[1], nodes)]
            slots = np.where(np.isfinite(seen_s[every_node, choice]), choice, slots)
        probed = peers_of[every_node, slots]
        measured_s = rtt_s[every_node, probed]
        if noise is not None:
            measured_s = noise(measured_s, rng)
        seen_s[every_node, slots] = np.where(measured_s > 0.0, measured_s, np.inf)
        _round(cluster, probed, slots, measured_s, kicks(rng, nodes), tuning)
    heights_s, errors, adjustments_s = cluster.bodies.T.copy()
    return Embedding(cluster.vectors, heights_s, adjustments_s, errors)


def relative_errors(rtt_s: Vectors, predicted_s: Vectors) -> Vectors:
    """|predicted − true| / true over every ordered pair whose true RTT is known and positive."""
    measured = (rtt_s > 0.0) & ~np.eye(len(rtt_s), dtype=bool)
    errors: Vectors = np.abs(predicted_s[measured] - rtt_s[measured]) / rtt_s[measured]
    return errors


def _draw_peers(node: int, nodes: int, known: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    others = np.delete(np.arange(nodes), node)
    return others if known == nodes - 1 else rng.choice(others, known, replace=False)


class _Cluster(NamedTuple):
    """The state of all nodes. A NamedTuple because compiled code reads it; the arrays change in place."""

    vectors: Vectors
    bodies: Vectors
    """[height, error, adjustment] per node."""
    residues_s: Vectors
    samples: npt.NDArray[np.int64]
    latest_s: Vectors
    """The filters: the latest RTTs per node and peer slot."""
    measurements: npt.NDArray[np.int64]
    """The number of measurements per node and peer slot."""


def _new_cluster(nodes: int, known: int, tuning: Tuning) -> _Cluster:
    return _Cluster(
        vectors=np.zeros((nodes, DIMENSIONS)),
        bodies=np.tile(np.array([tuning.height_min_s, tuning.error_max, 0.0]), (nodes, 1)),
        residues_s=np.zeros((nodes, ADJUSTMENT_WINDOW)),
        samples=np.zeros(nodes, dtype=np.int64),
        latest_s=np.zeros((nodes, known, FILTER_SAMPLES)),
        measurements=np.zeros((nodes, known), dtype=np.int64),
    )


@numba.njit(cache=True)
def _round(
    c: _Cluster,
    probed: npt.NDArray[np.int64],
    slots: npt.NDArray[np.int64],
    measured_s: Vectors,
    directions: Vectors,
    tuning: Tuning,
) -> None:
    """Every node applies its measurement, if there is one, to its coordinate."""
    for node in range(len(c.vectors)):
        if not measured_s[node] > 0.0:
            continue
        peer, slot = probed[node], slots[node]
        recent = c.latest_s[node, slot]
        recent[c.measurements[node, slot] % len(recent)] = measured_s[node]
        c.measurements[node, slot] += 1
        filled = np.sort(recent[: min(c.measurements[node, slot], len(recent))])
        median_s = filled[(len(filled) - 1) // 2]
        residue_s = pull(
            c.vectors[node], c.bodies[node], c.vectors[peer], c.bodies[peer], median_s, directions[node], tuning
        )
        c.residues_s[node, c.samples[node] % c.residues_s.shape[1]] = residue_s
        c.samples[node] += 1
        c.bodies[node, 2] = c.residues_s[node].sum() / (2.0 * c.residues_s.shape[1])
