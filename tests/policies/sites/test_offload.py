"""Offloading on hand-made sites: load detection, load distribution, tables 4-4 to 4-7, figure 4-15, baselines."""

from __future__ import annotations

import math
import time
from dataclasses import replace

import numpy as np
import pytest

from tests.policies.sites.offload_worlds import EDGE, HEAD, HERE, THERE, THRESHOLDS, bundle, edge, publishing, site
from tocsin.model.ids import BrokerId, SubscriberId
from tocsin.policies.sites.baselines import PEER_DRD, PEER_LB, POLICIES
from tocsin.policies.sites.load import Window, overloaded_metrics, publisher_bundle, reach, state_of, subscriber_bundle
from tocsin.policies.sites.offload import DRD_LB, Balancer, drd_edge, publishers_first, subscribers_first
from tocsin.policies.sites.types import (
    BrokerReport,
    Bundle,
    Load,
    LoadState,
    LoadThresholds,
    Metric,
    OffloadParams,
    OffloadSnapshot,
    PublisherId,
    Reach,
    Utilisation,
    utilisation,
)
from tocsin.policies.topics.types import TopicName

# Load detection.


def test_state_follows_from_the_highest_metric() -> None:
    states = [state_of(Utilisation(0.1, used, 0.2), THRESHOLDS) for used in (0.89, 0.9, 0.95, 0.951)]
    assert states == [LoadState.LOW, LoadState.HIGH, LoadState.HIGH, LoadState.OVERLOAD]
    assert overloaded_metrics(Utilisation(0.96, 0.1, 0.97), THRESHOLDS) == (Metric.INPUT, Metric.MATCHING)


def test_two_measurements_are_weighted_three_to_seven() -> None:
    window = Window().with_(Load(100, 100, 100))
    assert window.average() == Load(100, 100, 100), "the first measurement has no other weight"
    window = window.with_(Load(200, 0, 100)).with_(Load(0, 100, 200))
    assert window.average() == pytest.approx(Load(60, 70, 170))


def test_remaining_capacity_is_capacity_below_the_high_threshold() -> None:
    report, _ = edge("e", [bundle("t", 400.0, received=100.0, sent=200.0)])
    assert report.remaining(THRESHOLDS) == pytest.approx(Load(850, 750, 550))
    assert report.headroom(THRESHOLDS) == pytest.approx(0.55)
    head, _ = edge("h", [], capacity=HEAD)
    assert math.isinf(head.remaining(THRESHOLDS).matched_per_s), "a head's matching is not measured"


# Load analysis.


def test_edge_pays_input_and_matching_once_and_output_per_subscriber() -> None:
    bundle = subscriber_bundle(TopicName("t"), 5.0, 20.0, 10.0, [SubscriberId("s1"), SubscriberId("s2")])
    assert utilisation(bundle.load, EDGE) == pytest.approx(Utilisation(0.2, 0.4, 0.02))
    assert bundle.client_bytes_per_s == (200.0, 200.0)
    assert bundle.reach is Reach.LOCAL


def test_head_pays_input_per_publisher_and_output_per_copy() -> None:
    both = [(PublisherId("p1"), 10.0), (PublisherId("p2"), 30.0)]
    bundle = publisher_bundle(TopicName("t"), 5.0, 10.0, both, copies=2, local=True, remote=True)
    assert utilisation(bundle.load, HEAD) == pytest.approx(Utilisation(0.4, 0.8, 0.0))
    assert bundle.client_bytes_per_s == (100.0, 300.0)
    assert bundle.reach is Reach.BOTH


# Load distribution.


def reports(*matched: float) -> list[BrokerReport]:
    return [edge(f"e{n}", [bundle(f"t{n}", load)])[0] for n, load in enumerate(matched)]


def test_subscribers_of_one_topic_share_an_edge() -> None:
    assert drd_edge(TopicName("t0"), reports(890.0, 100.0), THRESHOLDS) == "e0"


def test_new_topic_gets_the_emptiest_or_the_nearest_edge() -> None:
    edges = reports(500.0, 100.0, 920.0)
    assert drd_edge(TopicName("new"), edges, THRESHOLDS) == "e1"
    far = {BrokerId("e0"): 0.01, BrokerId("e1"): 0.08, BrokerId("e2"): 0.001}
    assert drd_edge(TopicName("new"), edges, THRESHOLDS, far) == "e0", "e2 is nearer but not LOW"


def test_subscriber_gets_an_edge_when_none_is_low() -> None:
    assert drd_edge(TopicName("new"), reports(960.0, 930.0), THRESHOLDS) == "e1"
    assert drd_edge(TopicName("new"), [], THRESHOLDS) is None


def test_peer_gives_a_subscriber_a_random_edge() -> None:
    rng = np.random.default_rng(1)
    edges = reports(900.0, 1.0, 1.0)
    chosen = {PEER_LB.edge_for(TopicName("t"), edges, OffloadParams(), rng) for _ in range(50)}
    assert chosen == {"e0", "e1", "e2"}


# Priorities.


def names(bundles: list[Bundle]) -> str:
    return " ".join(bundle.topic for bundle in bundles)


def test_publishers_move_in_the_order_of_table_4_5() -> None:
    kinds = [publishing(kind.value, 1.0, 1.0, reach=kind) for kind in Reach]
    assert names(publishers_first(kinds, Metric.INPUT)) == "n r r-l l"
    assert names(publishers_first(kinds, Metric.OUTPUT)) == "r r-l l n"


def test_subscribers_move_by_table_4_7_then_by_tolerated_delay() -> None:
    bundles = [bundle(f"{kind.value}{delay}", 1.0, float(delay), reach=kind) for kind in Reach for delay in (5, 50)]
    assert names(subscribers_first(bundles, between_sites=False)) == "l50 r-l50 r50 l5 r-l5 r5 n50 n5"
    assert names(subscribers_first(bundles, between_sites=True)) == "r50 r5 r-l50 r-l5 l50 l5 n50 n5"


def test_reach_is_the_location_of_the_counterparts() -> None:
    reaches = [reach(local, remote) for local in (True, False) for remote in (True, False)]
    assert reaches == [Reach.BOTH, Reach.LOCAL, Reach.REMOTE, Reach.NONE]


# DRD-LB.


def test_most_tolerant_bundle_that_fits_moves_to_the_emptiest_edge() -> None:
    full = edge("full", [bundle("urgent", 500, 1), bundle("tolerant", 300, 50), bundle("medium", 200, 20)])
    snapshot = site(full, edge("half", [bundle("x", 500)]), edge("empty", [bundle("y", 100)]))
    (offload,) = DRD_LB.plan(snapshot).offloads
    (move,) = offload.moves
    assert (move.topic, move.target, move.is_whole) == ("tolerant", "empty", True)
    assert offload.brokers == ("full", "empty")


def test_bundle_that_does_not_fit_is_skipped() -> None:
    full = edge("full", [bundle("huge", 700, 50), bundle("small", 300, 5)])
    (offload,) = DRD_LB.plan(site(full, edge("half", [bundle("x", 500)]))).offloads
    assert [move.topic for move in offload.moves] == ["small"]


def test_topic_that_the_acceptor_serves_adds_output_only() -> None:
    full = edge("full", [bundle("shared", 600, 50, clients=2), bundle("other", 400, 1)])
    half = edge("half", [bundle("shared", 600, 50)])
    (offload,) = DRD_LB.plan(site(full, half)).offloads
    assert offload.moves[0].accepted == Load(0.0, 2.0, 0.0)


def test_broker_is_limited_and_nothing_moves_unless_the_overload_ends() -> None:
    full = edge("full", [bundle("a", 900, 50), bundle("b", 300, 40), bundle("c", 10, 30)])
    plan = DRD_LB.plan(site(full, edge("high", [bundle("x", 880)])))
    assert plan.offloads == ()
    assert plan.limited == ("full",), "moving c alone would delay its subscribers without ending the overload"


def test_only_low_edges_accept() -> None:
    full = edge("full", [bundle("a", 500, 50), bundle("b", 500, 50)])
    assert DRD_LB.plan(site(full, edge("e", [bundle("x", 920)]))).limited == ("full",)
    assert DRD_LB.plan(site(full, edge("e", [], state=LoadState.BUSY))).offloads == ()
    assert DRD_LB.plan(site(full, edge("e", []))).offloads


def test_busy_edge_offloads_nothing() -> None:
    busy = edge("full", [bundle("a", 500, 50), bundle("b", 500, 50)], state=LoadState.BUSY)
    for policy in POLICIES.values():
        assert policy.plan(site(busy, edge("e", [])), OffloadParams()).offloads == ()


def test_subscribers_without_publishers_do_not_move() -> None:
    silent = bundle("silent", 0, 50, sent=0, received=0, reach=Reach.NONE)
    wide = edge("e", [], capacity=Load(2000, 2000, 2000))
    plan = DRD_LB.plan(site(edge("full", [silent, bundle("a", 960, 1)]), wide))
    assert [move.topic for offload in plan.offloads for move in offload.moves] == ["a"]


def test_bundle_is_split_only_for_output_and_if_none_fits_whole() -> None:
    fan_out = bundle("fan", 10, 50, clients=10, sent=100)
    full, half = edge("full", [fan_out]), edge("half", [bundle("x", 10, clients=5, sent=100)])
    (offload,) = DRD_LB.plan(site(full, half)).offloads
    (move,) = offload.moves
    assert not move.is_whole
    assert len(move.clients) == 1, "one subscriber of 100 bytes/s ends an overload of 50"
    matching = edge("full", [bundle("fan", 1_000, 50, clients=10)])
    assert DRD_LB.plan(site(matching, half)).limited == ("full",), "splitting would not reduce matching"


def test_other_sites_take_the_load_that_the_own_site_cannot() -> None:
    full = edge("full", [bundle("local", 600, 50), bundle("remote", 600, 40, reach=Reach.REMOTE), bundle("x", 300, 1)])
    near = edge("near", [bundle("y", 640)])
    far, _ = edge("far", [], site=THERE)
    (offload,) = DRD_LB.plan(site(full, near, neighbours=(far,))).offloads
    assert [(move.topic, move.target, move.target_site) for move in offload.moves] == [
        ("x", "near", HERE),
        ("remote", "far", THERE),
    ]


def test_overloaded_head_offloads_publishers_to_low_heads_of_other_sites() -> None:
    head = edge("head", [publishing("kept", 500, 100), publishing("unheard", 480, 0, reach=Reach.NONE)], capacity=HEAD)
    idle = edge("idle", [])
    far, _ = edge("far", [], site=THERE, capacity=HEAD)
    (offload,) = DRD_LB.plan(site(head, idle, neighbours=(far,))).offloads
    assert [(move.topic, move.target) for move in offload.moves] == [("unheard", "far")]
    assert DRD_LB.plan(site(head, idle)).limited == ("head",), "edges of the own site serve no publishers"


def test_two_overloaded_edges_do_not_share_an_acceptor() -> None:
    first = edge("a", [bundle("a1", 700, 50), bundle("a2", 300, 40)])
    second = edge("b", [bundle("b1", 680, 50), bundle("b2", 300, 40)])
    plan = DRD_LB.plan(site(first, second, edge("c", [])))
    assert [offload.source for offload in plan.offloads] == ["a"]
    assert plan.waiting == ("b",), "a can help it as soon as c has accepted the load of a"
    assert plan.limited == ()


def test_broker_waits_for_a_busy_helper_with_enough_capacity() -> None:
    full = edge("full", [bundle("a", 500, 50), bundle("b", 500, 50)])
    plan = DRD_LB.plan(site(full, edge("e", [bundle("x", 100)], state=LoadState.BUSY)))
    assert (plan.offloads, plan.waiting, plan.limited) == ((), ("full",), ())
    plan = DRD_LB.plan(site(full, edge("e", [bundle("x", 850)], state=LoadState.BUSY)))
    assert (plan.offloads, plan.waiting, plan.limited) == ((), (), ("full",))


def test_broker_is_limited_if_the_present_plan_fills_its_helper() -> None:
    first = edge("a", [bundle("a1", 300, 50), bundle("a2", 900, 40)])
    second = edge("b", [bundle("b1", 680, 50), bundle("b2", 300, 40)])
    plan = DRD_LB.plan(site(first, second, edge("c", [bundle("x", 600)])))
    assert [offload.source for offload in plan.offloads] == ["a"]
    assert (plan.waiting, plan.limited) == ((), ("b",))


@pytest.mark.parametrize("policy", POLICIES.values(), ids=str)
def test_every_policy_separates_waiting_from_limited(policy: Balancer) -> None:
    full = edge("full", [bundle("a", 500, 50), bundle("b", 500, 50)])
    helper, no_helper = edge("e", [], state=LoadState.BUSY), edge("e", [bundle("x", 940)])
    plans = [policy.plan(site(full, other), OffloadParams()) for other in (helper, no_helper)]
    assert [(plan.waiting, plan.limited) for plan in plans] == [(("full",), ()), ((), ("full",))]


# The baselines.


def test_peer_also_balances_edges_that_are_not_overloaded() -> None:
    many = edge("many", [bundle(f"t{n}", 100, n + 1) for n in range(6)])
    snapshot = site(many, edge("few", [bundle("x", 100)]))
    assert DRD_LB.plan(snapshot).offloads == ()
    (offload,) = PEER_LB.plan(snapshot, OffloadParams(), np.random.default_rng(3)).offloads
    assert len(offload.moves) in (2, 3)
    assert offload.source == "many"


def test_peer_drd_moves_tolerant_subscribers_and_peer_lb_any() -> None:
    many = edge("many", [bundle(f"t{n}", 100, n + 1) for n in range(6)])
    snapshot = site(many, edge("few", [bundle("x", 100)]))
    (tolerant,) = PEER_DRD.plan(snapshot).offloads
    assert [move.topic for move in tolerant.moves][:2] == ["t5", "t4"]
    seen = {
        move.topic
        for seed in range(30)
        for offload in PEER_LB.plan(snapshot, OffloadParams(), np.random.default_rng(seed)).offloads
        for move in offload.moves
    }
    assert seen == {f"t{n}" for n in range(6)}


def test_peer_moves_single_subscriptions_where_they_relieve_the_edge() -> None:
    """Two edges differ in output: one of two subscribers of a topic moves, which balances them."""
    full = edge("full", [bundle("fan", 10, clients=4, sent=100)])
    snapshot = site(full, edge("few", [bundle("fan", 10, clients=1, sent=100)]))
    for policy in (PEER_LB, PEER_DRD):
        (offload,) = policy.plan(snapshot, OffloadParams(), np.random.default_rng(0)).offloads
        (move,) = offload.moves
        assert len(move.clients) in (1, 2)
        assert not move.is_whole
        assert move.accepted == Load(0.0, 100.0 * len(move.clients), 0.0), "the acceptor has the topic already"
    (offload,) = replace(PEER_LB, whole_topics=True).plan(snapshot, OffloadParams(), np.random.default_rng(0)).offloads
    assert offload.moves[0].is_whole


def test_peer_moves_single_subscriptions_that_are_matched_each() -> None:
    def edges(matched_each: bool) -> OffloadSnapshot:
        many, one = (
            subscriber_bundle(TopicName("t"), 5.0, 100.0, 0.1, names, matched_each=matched_each)
            for names in ([SubscriberId(f"s{n}") for n in range(8)], [SubscriberId("x")])
        )
        return site(edge("many", [many]), edge("one", [one]))

    (offload,) = PEER_LB.plan(edges(matched_each=True), OffloadParams(), np.random.default_rng(0)).offloads
    (move,) = offload.moves
    assert len(move.clients) in (3, 4)
    assert move.accepted == Load(0.0, 10.0 * len(move.clients), 100.0 * len(move.clients))


def test_peer_ends_an_overload_although_the_pair_becomes_less_even() -> None:
    full = edge("full", [bundle("a", 500, sent=1.0), bundle("b", 500, sent=1.0)])
    other = edge("other", [bundle("x", 100, sent=500.0)])
    (offload,) = PEER_LB.plan(site(full, other), OffloadParams(), np.random.default_rng(0)).offloads
    assert len(offload.moves) == 1


def test_part_of_a_bundle_matched_each_ends_an_overload_of_matching() -> None:
    fan = subscriber_bundle(
        TopicName("t"), 5.0, 100.0, 0.1, [SubscriberId(f"s{n}") for n in range(10)], matched_each=True
    )
    (offload,) = DRD_LB.plan(site(edge("full", [fan]), edge("half", [bundle("x", 500)]))).offloads
    (move,) = offload.moves
    assert len(move.clients) == 1, "one subscriber of 100 messages/s ends an overload of 50"
    assert not move.is_whole


def test_head_that_has_the_topic_still_gets_the_input_of_its_publishers() -> None:
    head = edge("head", [publishing("t", 600, 100), publishing("u", 400, 100, reach=Reach.REMOTE)], capacity=HEAD)
    full, _ = edge("far", [publishing("u", 700, 100)], site=THERE, capacity=HEAD)
    plan = DRD_LB.plan(site(head, neighbours=(full,)))
    moved = [move for offload in plan.offloads for move in offload.moves]
    assert all(move.accepted.in_bytes_per_s <= 250.0 for move in moved)


def test_imbalance_may_be_points_of_utilisation() -> None:
    snapshot = site(edge("a", [bundle("t0", 30), bundle("t1", 30)]), edge("b", [bundle("x", 10)]))
    rng = np.random.default_rng(0)
    assert PEER_LB.plan(snapshot, OffloadParams(), rng).offloads
    assert not PEER_LB.plan(snapshot, OffloadParams(imbalance_is_relative=False), rng).offloads


def test_policies_have_their_names_and_default_thresholds() -> None:
    assert set(POLICIES) == {"drd-lb", "peer-lb", "peer-drd"}
    assert LoadThresholds() == LoadThresholds(0.9, 0.95)
    assert EDGE.fits(EDGE)


def test_plan_for_many_topics_takes_time_in_proportion() -> None:
    count = 40_000
    bundles = [bundle(f"t{number}", 1.0, clients=2) for number in range(count)]
    full = Load(math.inf, 1.3 * count, math.inf)
    crowded, empty = edge("e1", bundles, capacity=full), edge("e2", [], capacity=full)
    snapshot = OffloadSnapshot(1, 0.0, (crowded[0], empty[0]), {BrokerId("e1"): crowded[1]}, ())
    began_s = time.process_time()
    plan = DRD_LB.plan(snapshot)
    assert time.process_time() - began_s < 3.0, "all earlier choices looked at for each topic take several seconds"
    assert len(plan.offloads[0].moves) > count / 3
