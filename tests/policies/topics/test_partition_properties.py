"""Topic partitioning in random worlds: invariants."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.policies.topics.partition_worlds import PARAMS, after, at, broker, overloaded, topic, world
from tocsin.coords.coordinate import DIMENSIONS, Coordinate
from tocsin.policies.topics.baselines import POLICIES, all_pairs, expected_from_all_pairs
from tocsin.policies.topics.partition import expected_from_centroids, plan
from tocsin.policies.topics.types import (
    LoadSample,
    PartitionPolicy,
    PartitionSnapshot,
    Shortfall,
    TopicMove,
    TopicMoveReason,
)

BOTH = pytest.mark.parametrize("policy", [plan, all_pairs], ids=["partition", "all-pairs"])
ESTIMATES = {plan: expected_from_centroids, all_pairs: expected_from_all_pairs}


def anywhere(rng: np.random.Generator, middle: npt.NDArray[np.float64], spread_ms: float) -> Coordinate:
    x_ms, y_ms = (middle + rng.uniform(-spread_ms, spread_ms, 2)).tolist()
    return at(x_ms, y_ms, float(rng.uniform(0, 5)))


@st.composite
def snapshots(draw: st.DrawFn) -> PartitionSnapshot:
    """Up to 8 brokers and 25 topics scattered over 100 × 100 ms; tight and loose bounds; some brokers overloaded."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    busy = draw(st.sampled_from([0.1, 0.6, 0.9]))
    rate_limit = draw(st.sampled_from([30_000.0, 100_000.0, 1e6]))
    brokers = [
        replace(
            broker(f"b{n}", anywhere(rng, np.array([50.0, 50.0]), 50.0)),
            cpu=float(rng.uniform(0, busy)),
            network=float(rng.uniform(0, busy)),
            rate_limit_per_s=rate_limit,
            samples=(LoadSample(0.0, cpu=0.05),) if rng.random() < 0.5 else (),
        )
        for n in range(draw(st.integers(1, 8)))
    ]
    topics = []
    for n in range(draw(st.integers(1, 25))):
        middle, spread_ms = rng.uniform(0, 100, 2), float(rng.choice([1.0, 10.0, 40.0]))
        clients = [anywhere(rng, middle, spread_ms) for _ in range(rng.integers(0, 6))]
        cut = int(rng.integers(0, len(clients) + 1))
        topics.append(
            topic(
                f"t{n:02}",
                brokers[int(rng.integers(0, len(brokers)))],
                clients[:cut],
                clients[cut:],
                bound_ms=float(rng.choice([20.0, 60.0, 120.0])) if rng.random() < 0.9 else None,
                rate_per_s=float(rng.choice([0.0, rng.uniform(0, 40_000)], p=[0.1, 0.9])),
            )
        )
    return world(topics, brokers)


@BOTH
@given(snapshot=snapshots())
@settings(max_examples=60)
def test_no_prefix_of_a_plan_overloads_another_broker(policy: PartitionPolicy, snapshot: PartitionSnapshot) -> None:
    allowed = overloaded(snapshot)
    answer = policy(snapshot, PARAMS)
    for length in range(1, len(answer.moves) + 1):
        now = overloaded(after(snapshot, replace(answer, moves=answer.moves[:length])))
        assert now <= allowed
        allowed = now


@BOTH
@given(snapshot=snapshots())
@settings(max_examples=60)
def test_no_topic_stays_above_its_bound_while_a_feasible_broker_has_room(
    policy: PartitionPolicy, snapshot: PartitionSnapshot
) -> None:
    answer = policy(snapshot, PARAMS)
    end = after(snapshot, answer)
    for left in end.topics:
        if left.bound_s is None or left.report.worst_latency_s <= left.bound_s:
            continue
        expected_s = ESTIMATES[policy]([left], end.brokers)[0]  # type: ignore[index]
        for number, candidate in enumerate(end.brokers):
            if expected_s[number] <= left.bound_s and candidate.broker != left.report.broker:
                extra = TopicMove(
                    left.report.topic, left.report.broker, candidate.broker, TopicMoveReason.LATENCY, 0.0, 0.0
                )
                # The move is added to the same plan, so that a message costs each broker as much as in the plan.
                with_extra = replace(answer, moves=(*answer.moves, extra))
                assert candidate.broker in overloaded(after(snapshot, with_extra)), (left.report, candidate)


@BOTH
@given(snapshot=snapshots())
@settings(max_examples=60)
def test_every_move_gains_and_no_topic_moves_twice(policy: PartitionPolicy, snapshot: PartitionSnapshot) -> None:
    answer, hot = policy(snapshot, PARAMS), overloaded(snapshot)
    topics = {topic.report.topic: topic for topic in snapshot.topics}
    assert len({move.topic for move in answer.moves}) == len(answer.moves)
    for move in answer.moves:
        assert move.source == topics[move.topic].report.broker != move.target
        if move.reason == "latency":
            bound_s = topics[move.topic].bound_s
            assert bound_s is not None
            assert topics[move.topic].report.worst_latency_s > bound_s
            assert move.expected_after_s < move.expected_before_s
        else:
            assert move.source in hot


@BOTH
@given(snapshot=snapshots())
@settings(max_examples=60)
def test_planning_an_unchanged_world_reaches_a_fixed_point_without_returns(
    policy: PartitionPolicy, snapshot: PartitionSnapshot
) -> None:
    homes = {topic.report.topic: [topic.report.broker] for topic in snapshot.topics}
    for _ in range(30):
        answer = policy(snapshot, PARAMS)
        if not answer.moves:
            break
        for move in answer.moves:
            assert move.target not in homes[move.topic], homes
            homes[move.topic].append(move.target)
        snapshot = after(snapshot, answer, elapsed_s=5.0)
    assert not policy(snapshot, PARAMS).moves


@BOTH
@given(snapshot=snapshots())
@settings(max_examples=60)
def test_planning_reaches_a_fixed_point_after_all_departures_expired(
    policy: PartitionPolicy, snapshot: PartitionSnapshot
) -> None:
    """`rest_s` protects against noise; planning ends because every move gains."""
    for _ in range(30):
        answer = policy(snapshot, PARAMS)
        if not answer.moves:
            break
        snapshot = after(snapshot, answer, elapsed_s=PARAMS.rest_s + 1.0)
    assert not policy(snapshot, PARAMS).moves


@given(snapshot=snapshots())
@settings(max_examples=60)
def test_expected_latency_from_centroids_is_never_below_the_exact_one(snapshot: PartitionSnapshot) -> None:
    """W(t, b) ≥ E(t) at b: a broker that is feasible by centroids is feasible."""
    pairs = [topic for topic in snapshot.topics if topic.report.producers and topic.report.consumers]
    if pairs:
        cautious = expected_from_centroids(pairs, snapshot.brokers)
        exact = expected_from_all_pairs(pairs, snapshot.brokers)
        assert (cautious >= exact - 1e-7).all()


@BOTH
@given(snapshot=snapshots())
@settings(max_examples=60)
def test_every_topic_still_above_its_bound_is_reported(policy: PartitionPolicy, snapshot: PartitionSnapshot) -> None:
    answer = policy(snapshot, PARAMS)
    end = after(snapshot, answer)
    reported = {unmet.topic for unmet in answer.unmet}

    def violated(world: PartitionSnapshot) -> set[str]:
        pairs = [(topic.report, topic.bound_s) for topic in world.topics]
        return {report.topic for report, bound_s in pairs if bound_s is not None and report.worst_latency_s > bound_s}

    assert violated(snapshot) & violated(end) <= reported
    for unmet in answer.unmet:
        if unmet.why is Shortfall.OUT_OF_REACH:
            assert unmet.best_latency_s > unmet.bound_s


@st.composite
def lan_clients(draw: st.DrawFn) -> list[Coordinate]:
    """Nodes of one site, whose adjustments may exceed the distances between them."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    count = draw(st.integers(2, 8))
    points = rng.uniform(-0.0002, 0.0002, (count, DIMENSIONS)).tolist()
    lifts = rng.uniform((0.0, -0.001), (0.0005, 0.001), (count, 2)).tolist()
    return [
        Coordinate(tuple(point), height, change, 0.1) for point, (height, change) in zip(points, lifts, strict=True)
    ]


@given(clients=lan_clients())
def test_worst_latency_within_one_site_never_exceeds_its_upper_bound(clients: list[Coordinate]) -> None:
    """E(t) ≤ W(t, home), also where adjustments exceed distances."""
    home, *others = clients
    host = broker("b", home)
    local = topic("t", host, others[: len(others) // 2 + 1], others[len(others) // 2 :])
    assert local.report.worst_latency_s <= expected_from_centroids([local], [host])[0, 0] + 1e-12


@st.composite
def edge_cases(draw: st.DrawFn) -> PartitionSnapshot:
    """No or one broker, no clients, no coordinates (a new node's), no rates, unmeasured or impossible bounds."""
    unsettled = Coordinate()
    brokers = [broker(f"b{n}", unsettled) for n in range(draw(st.integers(0, 2)))]
    homes = [*brokers, broker("lost", unsettled)]
    topics = []
    for n in range(draw(st.integers(0, 3))):
        home, clients = draw(st.sampled_from(homes)), [unsettled] * draw(st.integers(0, 2))
        bound_ms = draw(st.sampled_from([None, 0.0, 1e-6, 1e9]))
        new = topic(f"t{n}", home, clients, clients, bound_ms=bound_ms, rate_per_s=draw(st.sampled_from([0.0, 1e9])))
        worst_s = draw(st.sampled_from([0.0, float("inf")]))
        topics.append(replace(new, report=replace(new.report, worst_latency_s=worst_s)))
    loads = draw(st.sampled_from([0.0, 0.85, 1.0]))
    limits = draw(st.sampled_from([None, 0.0]))
    return world(topics, [replace(host, cpu=loads, rate_limit_per_s=limits) for host in brokers])


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
@given(snapshot=edge_cases())
def test_plan_for_an_edge_case_names_only_present_brokers_and_topics(
    policy: PartitionPolicy, snapshot: PartitionSnapshot
) -> None:
    answer = policy(snapshot, PARAMS)
    brokers = {host.broker for host in snapshot.brokers}
    homes = {known.report.topic: known.report.broker for known in snapshot.topics}
    for move in answer.moves:
        assert move.target in brokers
        assert move.source == homes[move.topic] != move.target
        if policy is not POLICIES["consistent-hash"]:
            assert move.source in brokers, "failover moves the topics of a lost broker"
            assert len(brokers) > 1
            assert np.isfinite(move.expected_after_s)
    assert {unmet.topic for unmet in answer.unmet} <= set(homes)
