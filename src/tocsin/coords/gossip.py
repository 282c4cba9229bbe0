"""Many nodes that probe each other, round by round, in compiled code: what a settled cluster of agents looks like.

It runs the estimator's own `pull` over arrays, thousands of times faster than as many `Estimator` objects, and is what
experiments and quality tests use. It is not the live gossip: who probes whom comes from a seeded generator, and all
nodes see the coordinates of the others as they are at that moment.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numba
import numpy as np
import numpy.typing as npt

from tocsin.coords.coordinate import DIMENSIONS, Coordinate, Vectors, distances_s
from tocsin.coords.vivaldi import ADJUSTMENT_WINDOW, DEFAULT_TUNING, FILTER_SAMPLES, Tuning, kicks, pull

Noise = Callable[[npt.NDArray[np.float64], np.random.Generator], npt.NDArray[np.float64]]
"""True RTTs of one round (seconds) → what was measured."""


@dataclass(frozen=True, slots=True)
class Embedding:
    """Coordinates of a whole cluster, column by column."""

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
        """The matrix of predicted round-trip times; see `distance_s` for the rule about adjustments."""
        raw_s = distances_s(self.vectors, self.heights_s, self.vectors, self.heights_s)
        adjusted_s = raw_s + self.adjustments_s[:, None] + self.adjustments_s[None, :]
        predicted_s = np.where(adjusted_s > 0.0, adjusted_s, raw_s)
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
    """Each round, every node probes one of its peers once. `peers` is how many each node knows (default: all others).

    With `near`, every second probe goes to one of that many peers which have answered fastest so far: a cluster whose
    nodes only ever see far ones places near ones anywhere [Dabek §4.2, near and distant neighbours].

    Pairs without a positive RTT are never measured: that is how a matrix says that it does not know.
    """
    nodes = len(rtt_s)
    known = nodes - 1 if peers is None else min(peers, nodes - 1)
    others = np.array([_others(node, nodes, known, rng) for node in range(nodes)]).reshape(nodes, known)
    cluster = _Cluster.start(nodes, known, tuning)
    everyone, seen_s = np.arange(nodes), np.full((nodes, known), np.inf)
    for round_ in range(rounds):
        slots = rng.integers(0, known, nodes)
        if near and round_ % 2:
            fastest = np.argpartition(seen_s, min(near, known) - 1, axis=1)[:, : min(near, known)]
            choice = fastest[everyone, rng.integers(0, fastest.shape[1], nodes)]
            slots = np.where(np.isfinite(seen_s[everyone, choice]), choice, slots)
        probed = others[everyone, slots]
        measured_s = rtt_s[everyone, probed]
        if noise is not None:
            measured_s = noise(measured_s, rng)
        seen_s[everyone, slots] = np.where(measured_s > 0.0, measured_s, np.inf)
        _round(
            cluster.vectors,
            cluster.bodies,
            cluster.residues_s,
            cluster.samples,
            cluster.latest_s,
            cluster.heard,
            probed,
            slots,
            measured_s,
            kicks(rng, nodes),
            tuning,
        )
    heights_s, errors, adjustments_s = cluster.bodies.T.copy()
    return Embedding(cluster.vectors, heights_s, adjustments_s, errors)


def relative_errors(rtt_s: Vectors, predicted_s: Vectors) -> Vectors:
    """|predicted − true| / true over every ordered pair whose true RTT is known and positive."""
    known = (rtt_s > 0.0) & ~np.eye(len(rtt_s), dtype=bool)
    errors: Vectors = np.abs(predicted_s[known] - rtt_s[known]) / rtt_s[known]
    return errors


def _others(node: int, nodes: int, known: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    everyone = np.delete(np.arange(nodes), node)
    return everyone if known == nodes - 1 else rng.choice(everyone, known, replace=False)


@dataclass(frozen=True, slots=True)
class _Cluster:
    vectors: Vectors
    bodies: Vectors
    """[height, error, adjustment] per node."""
    residues_s: Vectors
    samples: npt.NDArray[np.int64]
    latest_s: Vectors
    """The filters: latest RTTs per node and peer slot."""
    heard: npt.NDArray[np.int64]
    """How often each slot was measured."""

    @classmethod
    def start(cls, nodes: int, known: int, tuning: Tuning) -> _Cluster:
        return cls(
            np.zeros((nodes, DIMENSIONS)),
            np.tile(np.array([tuning.height_min_s, tuning.error_max, 0.0]), (nodes, 1)),
            np.zeros((nodes, ADJUSTMENT_WINDOW)),
            np.zeros(nodes, dtype=np.int64),
            np.zeros((nodes, known, FILTER_SAMPLES)),
            np.zeros((nodes, known), dtype=np.int64),
        )


@numba.njit(cache=True)
def _round(
    vectors: Vectors,
    bodies: Vectors,
    residues_s: Vectors,
    samples: npt.NDArray[np.int64],
    latest_s: Vectors,
    heard: npt.NDArray[np.int64],
    probed: npt.NDArray[np.int64],
    slots: npt.NDArray[np.int64],
    measured_s: Vectors,
    directions: Vectors,
    tuning: Tuning,
) -> None:
    for node in range(len(vectors)):
        if not measured_s[node] > 0.0:
            continue
        peer, slot = probed[node], slots[node]
        recent = latest_s[node, slot]
        recent[heard[node, slot] % len(recent)] = measured_s[node]
        heard[node, slot] += 1
        filled = np.sort(recent[: min(heard[node, slot], len(recent))])
        residue_s = pull(
            vectors[node],
            bodies[node],
            vectors[peer],
            bodies[peer],
            filled[(len(filled) - 1) // 2],
            directions[node],
            tuning,
        )
        residues_s[node, samples[node] % residues_s.shape[1]] = residue_s
        samples[node] += 1
        bodies[node, 2] = residues_s[node].sum() / (2.0 * residues_s.shape[1])
