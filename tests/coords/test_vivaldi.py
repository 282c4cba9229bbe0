"""The estimator: bounds on its error in seeded worlds, and no input of a peer breaks it."""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tocsin.coords import worlds
from tocsin.coords.coordinate import DIMENSIONS, Coordinate, behind_proxy, distance_s
from tocsin.coords.distances import Vectors
from tocsin.coords.estimator import (
    DEFAULT_TUNING,
    LIVE_TUNING,
    LOW_OF_8,
    PEERS_REMEMBERED,
    Estimator,
    ObservationRejection,
    Tuning,
)
from tocsin.coords.gossip import relative_errors, settle
from tocsin.coords.vivaldi import kicks, pull

SHARED_DATA = Path(os.environ.get("TOCSIN_SHARED_DATA", Path(__file__).parents[3] / "shared" / "data"))
SEEDS = range(5)


def two_sites(nodes: int, inside_s: float, between_s: float) -> Vectors:
    """Two local networks of equal size; RTTs between them are `between_s` longer."""
    site = np.arange(nodes) * 2 // nodes
    rtt_s = np.where(site[:, None] == site[None, :], inside_s, inside_s + between_s)
    np.fill_diagonal(rtt_s, 0.0)
    return rtt_s


def mean_error(world: Vectors, seed: int, rounds: int = 1_000) -> float:
    settled = settle(world, rounds, np.random.default_rng(seed))
    return float(relative_errors(world, settled.predicted_s()).mean())


@pytest.mark.parametrize(
    ("make", "bound"),
    [
        # The bounds are the errors of Serf's implementation after 1,000 rounds.
        (lambda: worlds.line(10, 0.010), 0.0031),
        (lambda: worlds.grid(25, 0.010), 0.0016),
        (lambda: two_sites(25, 0.001, 0.010), 0.000_06),
        (lambda: worlds.circle(25, 0.100), 0.0028),
        (lambda: worlds.scattered(25, 0.100, 0.010, np.random.default_rng(1)), 0.075),
        (lambda: worlds.star(32, 0.040), 0.010),
    ],
    ids=["line", "grid", "two sites", "circle", "random", "star"],
)
def test_error_on_known_world_stays_within_its_bound(make: Callable[[], Vectors], bound: float) -> None:
    errors = [mean_error(make(), seed) for seed in SEEDS]
    assert float(np.mean(errors)) <= bound, errors


def test_error_falls_with_more_rounds() -> None:
    world = worlds.grid(25, 0.010)
    assert mean_error(world, 1, 4_000) < mean_error(world, 1, 1_000) < mean_error(world, 1, 100) / 2


@pytest.mark.skipif(
    not (SHARED_DATA / "rtt_planetlab_490.txt").exists(), reason="the measured matrix is not in TOCSIN_SHARED_DATA"
)
@pytest.mark.parametrize("seed", [1, 2])
def test_median_error_on_490_measured_hosts_is_below_a_tenth(seed: int) -> None:
    measured = np.loadtxt(SHARED_DATA / "rtt_planetlab_490.txt") / 1_000.0
    settled = settle(measured, 500, np.random.default_rng(seed), peers=32, near=16)
    assert float(np.median(relative_errors(measured, settled.predicted_s()))) <= 0.095


def test_filter_removes_delayed_packets() -> None:
    world = worlds.grid(16, 0.010)

    def spikes(rtt_s: Vectors, rng: np.random.Generator) -> Vectors:
        return np.where(rng.random(len(rtt_s)) < 0.05, rtt_s * 10.0, rtt_s)

    settled = settle(world, 2_000, np.random.default_rng(1), noise=spikes)
    assert float(np.median(relative_errors(world, settled.predicted_s()))) < 0.10


def test_probing_near_peers_keeps_neighbours_together() -> None:
    """24 sites of two nodes, 1 ms apart; 31 ms between sites. A random probe hardly ever reaches the other node of a
    site."""
    site = np.arange(48) % 24
    world = np.where(site[:, None] == site[None, :], 0.001, 0.031)
    np.fill_diagonal(world, 0.0)

    def misplaced_nodes(near: int) -> int:
        predicted = settle(world, 600, np.random.default_rng(1), near=near).predicted_s()
        return sum(int(predicted[node, 24:].argmin()) != node for node in range(24))

    assert misplaced_nodes(near=2) == 0
    assert misplaced_nodes(near=0) > 0


def test_unmeasured_pair_does_not_disturb_the_others() -> None:
    world = worlds.grid(16, 0.010)
    holes = world.copy()
    holes[3, 5] = holes[5, 3] = 0.0
    predicted = settle(holes, 1_000, np.random.default_rng(1)).predicted_s()
    assert float(relative_errors(world, predicted).mean()) < 0.01


def test_single_estimators_agree_with_the_compiled_cluster() -> None:
    """Objects with a filter per peer, and arrays."""
    world, rng = worlds.grid(9, 0.010), np.random.default_rng(1)
    nodes = [Estimator(np.random.default_rng(seed).standard_normal) for seed in range(9)]
    for _ in range(1_000):
        for node, estimator in enumerate(nodes):
            peer = int(rng.integers(0, 8))
            peer += peer >= node
            assert estimator.observe(str(peer), nodes[peer].coordinate, float(world[node, peer])) is None
    predicted = np.array([[distance_s(a.coordinate, b.coordinate) for b in nodes] for a in nodes])
    assert float(relative_errors(world, predicted).mean()) < 0.01
    assert mean_error(world, 1) < 0.01


@pytest.mark.parametrize("peer_x_s", [0.0, 0.02])
def test_plain_step_equals_the_compiled_step(peer_x_s: float) -> None:
    """Also at the same point, where the random direction counts."""
    peer = Coordinate((peer_x_s, *[0.0] * (DIMENSIONS - 1)), 0.001, 0.0005, 0.3)
    node, rng = Estimator(np.random.default_rng(7).standard_normal), np.random.default_rng(7)
    vector, body = np.zeros(DIMENSIONS), np.array([DEFAULT_TUNING.height_min_s, DEFAULT_TUNING.error_max, 0.0])
    node.observe("peer", peer, 0.050)
    peer_body = np.array([peer.height_s, peer.error, peer.adjustment_s])
    residue_s = pull(vector, body, np.array(peer.vector), peer_body, 0.050, kicks(rng, 1)[0], DEFAULT_TUNING)
    assert node.coordinate.vector == pytest.approx(vector.tolist())
    assert (node.coordinate.height_s, node.coordinate.error) == pytest.approx((body[0], body[1]))
    assert node._residues_s[-1] == pytest.approx(residue_s)


def test_same_seed_gives_same_coordinates() -> None:
    world = worlds.circle(10, 0.100)
    first, again = (settle(world, 50, np.random.default_rng(3)) for _ in range(2))
    assert np.array_equal(first.vectors, again.vectors)
    assert first.coordinates() == again.coordinates()
    assert first.coordinates() != settle(world, 50, np.random.default_rng(4)).coordinates()


FINE = Coordinate((0.02, *[0.0] * (DIMENSIONS - 1)), 0.001, 0.0, 0.3)


@pytest.mark.parametrize("rtt_s", [0.0, -0.01, math.nan, math.inf, 10.001])
def test_rtt_out_of_range_is_rejected_counted_and_ignored(rtt_s: float) -> None:
    node = Estimator(np.random.default_rng(1).standard_normal)
    before = node.coordinate
    assert node.observe("peer", FINE, rtt_s) is ObservationRejection.RTT_OUT_OF_RANGE
    assert node.coordinate == before
    assert node.rejected == {ObservationRejection.RTT_OUT_OF_RANGE: 1}
    assert node.accepted == 0


numbers = st.floats(allow_nan=True, allow_infinity=True)


@given(
    st.lists(
        st.tuples(
            st.builds(
                Coordinate,
                vector=st.lists(numbers, min_size=0, max_size=DIMENSIONS + 1).map(tuple),
                height_s=numbers,
                adjustment_s=numbers,
                error=numbers,
            ),
            numbers,
        ),
        max_size=12,
    )
)
@settings(max_examples=80)
def test_coordinate_stays_sane_and_samples_are_counted_for_any_input(
    observations: list[tuple[Coordinate, float]],
) -> None:
    node = Estimator(np.random.default_rng(1).standard_normal)
    for coordinate, rtt_s in observations:
        node.observe("liar", coordinate, rtt_s)
        assert node.coordinate.is_sane
    assert node.accepted + node.rejected.total() == len(observations)


def test_one_false_sample_moves_settled_node_by_bounded_step() -> None:
    node = Estimator(np.random.default_rng(1).standard_normal)
    for _ in range(100):
        node.observe("honest", FINE, 0.050)
    before = node.coordinate
    far_and_certain = Coordinate((9.0, *[0.0] * (DIMENSIONS - 1)), 0.0, 0.0, 0.0)
    assert node.observe("liar", far_and_certain, 0.001) is None
    assert math.dist(before.vector, node.coordinate.vector) <= 0.1 + 1e-9


def test_number_of_filters_is_bounded() -> None:
    node = Estimator(np.random.default_rng(1).standard_normal)
    for stranger in range(PEERS_REMEMBERED + 50):
        node.observe(f"stranger-{stranger}", FINE, 0.050)
    assert len(node._filters) == PEERS_REMEMBERED
    node.forget(f"stranger-{PEERS_REMEMBERED}")
    assert len(node._filters) == PEERS_REMEMBERED - 1


def test_worlds_are_symmetric_with_zero_diagonal_and_known_shape() -> None:
    rng = np.random.default_rng(1)
    for world in (
        worlds.line(5, 0.01),
        worlds.grid(7, 0.01),
        two_sites(6, 0.001, 0.01),
        worlds.circle(9, 0.1),
        worlds.scattered(6, 0.1, 0.01, rng),
        worlds.star(4, 0.04),
    ):
        assert np.array_equal(world, world.T)
        assert not world.diagonal().any()
        assert (world[~np.eye(len(world), dtype=bool)] > 0).all()
    assert two_sites(4, 0.001, 0.01)[0].tolist() == pytest.approx([0.0, 0.001, 0.011, 0.011])
    # New York to Los Angeles
    assert worlds.great_circle_km([40.71, 34.05], [-74.01, -118.24])[0, 1] == pytest.approx(3_936, abs=15)


def _three_brokers_and_a_client(seed: int, tuning: Tuning) -> tuple[float, float]:
    """Brokers 40, 80 and 100 ms apart; a client 2 ms from the second. Returns its error, and that distance in s."""
    rtts_s, rng = {(0, 1): 0.040, (0, 2): 0.080, (1, 2): 0.100}, random.Random(seed)
    brokers = [Estimator(partial(rng.gauss, 0.0, 1.0), tuning, LOW_OF_8) for _ in range(3)]
    for _ in range(150):
        for own in range(3):
            peer = rng.choice([number for number in range(3) if number != own])
            noise_s = abs(rng.gauss(0.0, 0.0005))
            rtt_s = rtts_s[min(own, peer), max(own, peer)] + noise_s
            brokers[own].observe(str(peer), brokers[peer].coordinate, rtt_s)
    client = Estimator(partial(rng.gauss, 0.0, 1.0), tuning, LOW_OF_8)
    for _ in range(60):
        for peer, rtt_s in enumerate((0.042, 0.002, 0.102)):
            client.observe(str(peer), brokers[peer].coordinate, rtt_s + abs(rng.gauss(0.0, 0.0005)))
    return client.coordinate.error, distance_s(client.coordinate, brokers[1].coordinate)


def test_client_next_to_one_of_three_brokers_settles_near_it() -> None:
    found = [_three_brokers_and_a_client(seed, LIVE_TUNING) for seed in range(10)]
    assert max(distance for _, distance in found) < 0.004
    assert max(error for error, _ in found) < 0.2
    without = [_three_brokers_and_a_client(seed, Tuning()) for seed in range(10)]
    assert min(distance for _, distance in without) > 0.015, "adjustments that nothing determines stay"


def test_client_behind_one_of_four_equally_distant_brokers_is_near_that_one() -> None:
    for seed in range(10):
        rng = random.Random(seed)
        brokers = [Estimator(partial(rng.gauss, 0.0, 1.0), LIVE_TUNING, LOW_OF_8) for _ in range(4)]
        for _ in range(200):
            for own in range(4):
                peer = rng.choice([number for number in range(4) if number != own])
                brokers[own].observe(str(peer), brokers[peer].coordinate, 0.030 + abs(rng.gauss(0.0, 0.0005)))
        client = behind_proxy(brokers[2].coordinate, 0.020)
        distances_s = [distance_s(client, broker.coordinate) for broker in brokers]
        assert distances_s == pytest.approx([0.050, 0.050, 0.020, 0.050], abs=0.003)
