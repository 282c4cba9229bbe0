"""Topic partitioning: exact plans in hand-made worlds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.policies.topics.partition_worlds import PARAMS, after, at, broker, overloaded, topic, world
from tocsin.coords.coordinate import one_way_s
from tocsin.model.ids import BrokerId
from tocsin.policies.topics.baselines import POLICIES, all_pairs, consistent_hash, expected_from_all_pairs
from tocsin.policies.topics.monitor import summarise, summarise_by_place
from tocsin.policies.topics.partition import expected_from_centroids, plan
from tocsin.policies.topics.types import (
    Departure,
    LoadSample,
    PartitionPlan,
    PartitionSnapshot,
    Shortfall,
    TopicMove,
    TopicMoveReason,
    TopicName,
)

WEST, MIDDLE, EAST = broker("west", at(0)), broker("middle", at(30)), broker("east", at(60))
THREE = (WEST, MIDDLE, EAST)


def moves(plan: PartitionPlan) -> list[tuple[str, str, str, str]]:
    return [(move.topic, move.source, move.target, move.reason) for move in plan.moves]


def test_report_has_centroids_deviation_and_worst_latency() -> None:
    report = topic("t", WEST, [at(0, 0, 5)], [at(10, 0, 5), at(20, 0, 5)]).report
    assert report.producer_centroid is not None
    assert report.consumer_centroid is not None
    assert report.consumer_centroid.vector[0] == pytest.approx(2e-3 * 15)
    assert report.deviation_s == pytest.approx(0.005)  # consumers 5 ms around 15 ms, no other deviation
    assert report.worst_latency_s == pytest.approx(0.005 + 0.025)
    assert (report.producers, report.consumers, report.rate_per_s) == (1, 2, 10.0)


def test_client_with_larger_height_deviates_by_the_difference() -> None:
    report = topic("t", WEST, [at(0)], [at(10, 0, 2), at(10, 0, 8)]).report
    assert report.deviation_s == pytest.approx(0.003)


def test_topic_without_a_pair_has_no_latency_and_violates_no_bound() -> None:
    silent = topic("t", WEST, [at(500)], [], bound_ms=1)
    assert silent.report.worst_latency_s == 0.0
    assert plan(world([silent], THREE), PARAMS) == PartitionPlan(7)


def test_expected_latency_adds_both_centroids_and_the_deviation() -> None:
    (row,) = expected_from_centroids([topic("t", WEST, [at(0)], [at(20), at(40)])], THREE)
    assert row.tolist() == pytest.approx([0.0 + 0.030 + 0.010, 0.030 + 0.0 + 0.010, 0.060 + 0.030 + 0.010])


def test_topic_above_its_bound_moves_to_least_expected_latency() -> None:
    far = topic("t", WEST, [at(60)], [at(55), at(60)], bound_ms=40)
    answer = plan(world([far], THREE), PARAMS)
    assert answer.generation == 7
    assert moves(answer) == [("t", "west", "east", "latency")]
    assert answer.moves[0].expected_after_s == pytest.approx(0.0025 + 0.0025)
    assert answer.unmet == ()


def test_topic_within_its_bound_stays_although_another_broker_is_closer() -> None:
    assert plan(world([topic("t", WEST, [at(30)], [at(30)], bound_ms=61)], THREE), PARAMS).moves == ()


def test_headroom_applies_to_the_old_and_the_new_home() -> None:
    """95 ms of 100 by coordinates may be 101 in truth. With a tenth kept free, the topic moves."""
    careful = replace(PARAMS, headroom=0.10)
    close = topic("t", WEST, [at(47.5)], [at(47.5)], bound_ms=100)
    assert plan(world([close], (WEST, MIDDLE)), PARAMS).moves == ()
    assert moves(plan(world([close], (WEST, MIDDLE)), careful)) == [("t", "west", "middle", "latency")]
    tight = topic("t", WEST, [at(47.5)], [at(47.5)], bound_ms=36)
    answer = plan(world([tight], (WEST, MIDDLE)), careful)  # 35 ms in the middle: within the bound, above its target
    assert moves(answer) == [("t", "west", "middle", "latency")]
    assert answer.unmet == ()


def test_most_constrained_topic_chooses_first() -> None:
    """Only the east is feasible for `picky`, all but the west for `easy`; the east has room for one topic."""
    small = (WEST, MIDDLE, replace(EAST, rate_limit_per_s=5.0))
    easy = topic("a-easy", WEST, [at(60)], [at(60)], bound_ms=70)
    picky = topic("b-picky", WEST, [at(60)], [at(60)], bound_ms=20)
    answer = plan(world([easy, picky], small), PARAMS)
    assert moves(answer) == [("b-picky", "west", "east", "latency"), ("a-easy", "west", "middle", "latency")]


def test_topic_out_of_reach_is_reported_and_moves_only_if_it_gains() -> None:
    wide = topic("t", WEST, [at(60)], [at(60), at(0)], bound_ms=20)
    answer = plan(world([wide], THREE), PARAMS)
    assert moves(answer) == [("t", "west", "east", "latency")]
    (unmet,) = answer.unmet
    assert (unmet.why, unmet.best_broker, unmet.bound_s) == (Shortfall.OUT_OF_REACH, "east", 0.020)
    assert unmet.best_latency_s == pytest.approx(0.030 + 0.030)
    again = plan(after(world([wide], THREE), answer), PARAMS)
    assert again.moves == ()
    assert [unmet.why for unmet in again.unmet] == [Shortfall.OUT_OF_REACH]


def test_topic_whose_feasible_brokers_are_full_stays_and_is_reported() -> None:
    full = (WEST, MIDDLE, replace(EAST, cpu=0.9))
    stuck = topic("t", WEST, [at(60)], [at(60)], bound_ms=20)
    answer = plan(world([stuck], full), PARAMS)
    assert answer.moves == ()
    assert [(unmet.why, unmet.best_broker) for unmet in answer.unmet] == [(Shortfall.NO_ROOM, "east")]


@pytest.mark.parametrize("resource", ["cpu", "memory", "network"])
def test_broker_above_85_percent_of_a_resource_sheds_its_busiest_topics(resource: str) -> None:
    loaded = (broker("west", at(0), **{resource: 0.95}), MIDDLE, EAST)
    rates = {"a": 10.0, "b": 20.0, "c": 30.0, "d": 40.0}
    topics = [topic(name, WEST, [at(0)], [at(0)], rate_per_s=rate) for name, rate in rates.items()]
    before = world(topics, loaded)
    answer = plan(before, PARAMS)
    assert moves(answer) == [("d", "west", "middle", "overload")]
    assert overloaded(before) == {"west"}
    assert overloaded(after(before, answer)) == set()


def test_broker_exactly_at_its_limit_is_not_overloaded() -> None:
    exact = (replace(WEST, cpu=0.85, rate_limit_per_s=5.0), MIDDLE)
    assert plan(world([topic("t", WEST, [at(0)], [at(0)])], exact), PARAMS).moves == ()


def test_broker_above_its_message_rate_sheds_by_decreasing_rate() -> None:
    slow = (replace(WEST, rate_limit_per_s=27.5), MIDDLE)
    topics = [
        topic(name, WEST, [at(0)], [at(0)], rate_per_s=rate) for name, rate in (("a", 30.0), ("b", 25.0), ("c", 20.0))
    ]
    assert moves(plan(world(topics, slow), PARAMS)) == [("a", "west", "middle", "overload")]


def test_rate_limit_counts_outgoing_messages_only() -> None:
    """[ePulsar §3.4.2]: the threshold is that of the aggregate *output* message rate."""

    def many_in(in_per_s: float, out_per_s: float) -> PartitionPlan:
        plain = topic("t", WEST, [at(0)], [at(0)])
        report = replace(plain.report, in_rate_per_s=in_per_s, out_rate_per_s=out_per_s)
        return plan(world([replace(plain, report=report)], (replace(WEST, rate_limit_per_s=50.0), MIDDLE)), PARAMS)

    assert many_in(1_000.0, 50.0).moves == ()
    assert moves(many_in(0.0, 51.0)) == [("t", "west", "middle", "overload")]


def test_next_topics_move_when_the_busiest_fits_no_broker() -> None:
    crowded = (replace(WEST, rate_limit_per_s=40.0), replace(MIDDLE, rate_limit_per_s=15.0))
    topics = [
        topic(name, WEST, [at(0)], [at(0)], rate_per_s=rate) for name, rate in (("a", 60.0), ("b", 25.0), ("c", 5.0))
    ]
    assert moves(plan(world(topics, crowded), PARAMS)) == [("b", "west", "middle", "overload")]


def test_topic_shed_for_load_moves_only_within_its_bound() -> None:
    full = replace(MIDDLE, cpu=0.84, samples=(LoadSample(0.0, cpu=0.04),))
    loaded = (replace(WEST, cpu=0.95), full, EAST)
    near = topic("t", WEST, [at(0)], [at(0)], bound_ms=70, rate_per_s=10_000.0)
    other = topic("u", MIDDLE, [at(30)], [at(30)], rate_per_s=10_000.0)
    assert plan(world([near, other], loaded), PARAMS).moves == ()


def test_move_for_latency_that_relieves_its_broker_is_enough() -> None:
    loaded = (replace(WEST, cpu=0.95), MIDDLE, EAST)
    far = topic("far", WEST, [at(60)], [at(60)], bound_ms=20, rate_per_s=50.0)
    near = topic("near", WEST, [at(0)], [at(0)], bound_ms=100, rate_per_s=50.0)
    assert moves(plan(world([far, near], loaded), PARAMS)) == [("far", "west", "east", "latency")]


def left(name: str, at_s: float, expected_ms: float, reason: TopicMoveReason = TopicMoveReason.LATENCY) -> Departure:
    return Departure(BrokerId(name), at_s, reason, expected_ms * 1e-3)


def test_topic_does_not_return_within_a_minute_without_improvement() -> None:
    at_west = replace(topic("t", WEST, [at(60)], [at(60)], bound_ms=20), departures=(left("east", 100.0, 0.0),))
    answer = plan(world([at_west], THREE, now_s=130.0), PARAMS)
    assert answer.moves == ()
    assert [unmet.why for unmet in answer.unmet] == [Shortfall.RESTING]
    assert moves(plan(world([at_west], THREE, now_s=160.0), PARAMS)) == [("t", "west", "east", "latency")]


def test_topic_follows_clients_that_return() -> None:
    """The topic left the east with its clients, when it expected 120 ms there; now they are in the east again."""
    at_west = replace(topic("t", WEST, [at(60)], [at(60)], bound_ms=20), departures=(left("east", 100.0, 120.0),))
    assert moves(plan(world([at_west], THREE, now_s=115.0), PARAMS)) == [("t", "west", "east", "latency")]


def test_topic_shed_for_load_does_not_return_for_a_minute() -> None:
    shed = left("east", 100.0, 120.0, TopicMoveReason.OVERLOAD)
    at_west = replace(topic("t", WEST, [at(60)], [at(60)], bound_ms=20), departures=(shed,))
    assert plan(world([at_west], THREE, now_s=115.0), PARAMS).moves == ()


def test_topic_of_a_lost_broker_is_left_to_failover() -> None:
    lost = topic("t", broker("lost", at(0)), [at(60)], [at(60)], bound_ms=1)
    assert plan(world([lost], THREE), PARAMS) == PartitionPlan(7)


def test_empty_world_gives_an_empty_plan() -> None:
    for policy in POLICIES.values():
        assert policy(PartitionSnapshot(3, 0.0, (), ()), PARAMS) == PartitionPlan(3)
        assert policy(PartitionSnapshot(3, 0.0, (), THREE), PARAMS) == PartitionPlan(3)


def test_plan_does_not_depend_on_the_order_of_topics_and_brokers() -> None:
    topics = [topic(f"t{n}", WEST, [at(60)], [at(50 + n)], bound_ms=40) for n in range(5)]
    snapshot, reverse = world(topics, THREE), world(topics[::-1], THREE[::-1])
    for policy in POLICIES.values():
        assert policy(snapshot, PARAMS) == policy(reverse, PARAMS)


def test_all_pairs_uses_the_exact_worst_pair() -> None:
    wide = topic("t", WEST, [at(0), at(10)], [at(20), at(40)])
    silent = topic("u", WEST, [], [at(20)])
    rows = expected_from_all_pairs([wide, silent], THREE)
    for column, host in enumerate(THREE):
        assert wide.clients is not None
        slowest_in = max(one_way_s(client, host.coordinate) for client in wide.clients.producers)
        slowest_out = max(one_way_s(client, host.coordinate) for client in wide.clients.consumers)
        assert rows[0, column] == pytest.approx(slowest_in + slowest_out, abs=1e-8)
    assert rows[1].tolist() == pytest.approx([0.020, 0.010, 0.040], abs=1e-8)
    with pytest.raises(ValueError, match="no clients field"):
        all_pairs(world([replace(wide, clients=None, bound_s=0.001)], THREE), PARAMS)


def test_all_pairs_accepts_a_broker_that_centroids_exclude() -> None:
    """Consumers are 40 ms on either side of the line from west to east: W(t) overestimates both distances."""
    wide = topic("t", EAST, [at(0)], [at(30, 40), at(30, -40)], bound_ms=60)
    assert [unmet.why for unmet in plan(world([wide], THREE), PARAMS).unmet] == [Shortfall.OUT_OF_REACH]
    exact = all_pairs(world([wide], THREE), PARAMS)
    assert moves(exact) == [("t", "east", "west", "latency")]
    assert exact.unmet == ()


def test_room_made_by_a_move_is_used_in_the_same_plan() -> None:
    """`picky` needs the middle, which is full until `leaves`, whose clients are in the east, moves away."""
    tight = (WEST, replace(MIDDLE, rate_limit_per_s=5.0), EAST)
    picky = topic("a-picky", WEST, [at(30)], [at(30)], bound_ms=20)
    leaves = topic("b-leaves", MIDDLE, [at(60)], [at(60)], bound_ms=20)
    answer = plan(world([picky, leaves], tight), PARAMS)
    assert moves(answer) == [("b-leaves", "middle", "east", "latency"), ("a-picky", "west", "middle", "latency")]
    assert answer.unmet == ()


def test_consistent_hashing_spreads_topics_evenly_by_name_alone() -> None:
    topics = [topic(f"t{n:04}", WEST, [at(60)], [at(60)], bound_ms=1) for n in range(3_000)]
    answer = consistent_hash(world(topics, THREE), PARAMS)
    homes = {move.topic: move.target for move in answer.moves}
    counts = {name: list(homes.values()).count(BrokerId(name)) for name in ("middle", "east")}
    assert len(topics) - len(homes) == pytest.approx(1_000, abs=100)
    assert counts["middle"] == pytest.approx(1_000, abs=100)
    assert counts["east"] == pytest.approx(1_000, abs=100)
    assert consistent_hash(after(world(topics, THREE), answer), PARAMS).moves == ()
    assert all(isinstance(move, TopicMove) and move.reason is TopicMoveReason.HASH for move in answer.moves)


def test_reports_by_place_equal_single_reports() -> None:
    places = [at(0, 0, 5), at(40, 10, 3), at(80, -20, 1)]
    producer_place, consumers_at = np.array([0, 2, 1]), np.array([[1, 2, 0], [0, 0, 3], [2, 1, 4]])
    names = [TopicName(f"t{n}") for n in range(3)]
    brokers, coordinates = [host.broker for host in THREE], [host.coordinate for host in THREE]
    together = summarise_by_place(names, brokers, coordinates, places, producer_place, consumers_at)
    for row, name in enumerate(names):
        consumers = [places[place] for place in range(3) for _ in range(consumers_at[row, place])]
        alone = summarise(name, THREE[row].broker, THREE[row].coordinate, [places[producer_place[row]]], consumers)
        report = together[row]
        assert (report.topic, report.broker) == (name, alone.broker)
        assert (report.producers, report.consumers) == (1, alone.consumers)
        assert report.producer_centroid == alone.producer_centroid
        assert report.consumer_centroid is not None
        assert alone.consumer_centroid is not None
        assert report.consumer_centroid.vector == pytest.approx(alone.consumer_centroid.vector)
        assert report.consumer_centroid.height_s == pytest.approx(alone.consumer_centroid.height_s)
        assert (report.deviation_s, report.worst_latency_s) == pytest.approx((alone.deviation_s, alone.worst_latency_s))
    new = summarise_by_place(names, brokers, None, places, producer_place, consumers_at)
    assert all(report.worst_latency_s == float("inf") for report in new)
