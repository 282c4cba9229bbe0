"""What holds on any site: acceptors are never overloaded by what they accept, clients are moved once, plans come to
rest."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.policies.sites.offload_worlds import THRESHOLDS, after, bundle, edge, site, sites
from tocsin.policies.sites.offload import DRD_LB, POLICIES
from tocsin.policies.sites.offload_detection import overloaded_metrics
from tocsin.policies.sites.offload_types import LoadState, OffloadParams, OffloadSnapshot, total, utilisation

PARAMS = OffloadParams()
many = settings(max_examples=50)


@pytest.mark.parametrize("name", POLICIES)
@many
@given(snapshot=sites(), seed=st.integers(0, 1_000))
def test_acceptors_are_never_overloaded_by_what_they_accept(name: str, snapshot: OffloadSnapshot, seed: int) -> None:
    plan = POLICIES[name].plan(snapshot, PARAMS, np.random.default_rng(seed))
    reports = {report.broker: report for report in snapshot.brokers}
    for offload in plan.offloads:
        for target in set(offload.brokers) - {offload.source}:
            accepted = total(move.accepted for move in offload.moves if move.target == target)
            assert accepted.fits(reports[target].remaining(THRESHOLDS))
            assert reports[target].state is LoadState.LOW
    for report in after(snapshot, plan).brokers:
        if reports[report.broker].state is LoadState.LOW:
            assert report.state is not LoadState.OVERLOAD


@pytest.mark.parametrize("name", POLICIES)
@many
@given(snapshot=sites(), seed=st.integers(0, 1_000))
def test_nobody_moves_twice_and_no_broker_is_in_two_offloads(name: str, snapshot: OffloadSnapshot, seed: int) -> None:
    plan = POLICIES[name].plan(snapshot, PARAMS, np.random.default_rng(seed))
    brokers = [broker for offload in plan.offloads for broker in offload.brokers]
    assert len(brokers) == len(set(brokers))
    moved = [client for offload in plan.offloads for move in offload.moves for client in move.clients]
    assert len(moved) == len(set(moved))
    here = {client for held in snapshot.bundles.values() for one in held for client in one.clients}
    assert set(moved) <= here


@many
@given(sites())
def test_drd_lb_ends_every_overload_that_it_touches(snapshot: OffloadSnapshot) -> None:
    plan = DRD_LB.plan(snapshot, PARAMS)
    states = {report.broker: report.state for report in after(snapshot, plan).brokers}
    for offload in plan.offloads:
        assert states[offload.source] is not LoadState.OVERLOAD
    overloaded = {report.broker for report in snapshot.brokers if report.state is LoadState.OVERLOAD}
    assert overloaded == set(plan.limited) | {offload.source for offload in plan.offloads}


@many
@given(sites())
def test_drd_lb_passes_over_a_more_tolerant_bundle_only_if_it_had_fitted_nowhere(snapshot: OffloadSnapshot) -> None:
    """On one acceptor, with whole bundles: whoever is more tolerant than one who moved and stayed did not fit, or
    carried nothing of what was still overloaded."""
    plan = DRD_LB.plan(snapshot, PARAMS)
    reports = {report.broker: report for report in snapshot.brokers}
    for offload in plan.offloads:
        targets = {move.target for move in offload.moves}
        if len(targets) != 1 or not all(move.is_whole for move in offload.moves):
            continue
        (target,) = targets
        bundles = {one.topic: one for one in snapshot.bundles[offload.source]}
        room = reports[target].remaining(THRESHOLDS)
        source = reports[offload.source]
        carried = source.load
        for move in offload.moves:
            still = overloaded_metrics(utilisation(carried, source.capacity), THRESHOLDS)
            for other in bundles.values():
                ahead = other.delay_s > bundles[move.topic].delay_s and other.reach is bundles[move.topic].reach
                stayed = other.topic not in {one.topic for one in offload.moves}
                helps = any(other.load.of(metric) > 0.0 for metric in still)
                if ahead and stayed and helps and other.topic not in reports[target].topics:
                    assert not other.load.fits(room)
            room = room.minus(move.accepted)
            carried = carried.minus(bundles[move.topic].load)


@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=25)
@given(snapshot=sites(most_topics=20), seed=st.integers(0, 1_000))
def test_on_an_unchanged_world_planning_comes_to_rest(name: str, snapshot: OffloadSnapshot, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(400):
        plan = POLICIES[name].plan(snapshot, PARAMS, rng)
        if not plan.offloads:
            return
        snapshot = after(snapshot, plan)
    raise AssertionError("still moving clients after 400 plans")


def test_seventeen_equal_bundles_on_two_edges_are_not_swapped_for_ever() -> None:
    """Nine against eight differ by more than a tenth, and so do eight against nine."""
    world = site(edge("e0", [bundle(f"t{n}", 1.0, sent=0.0, received=0.1) for n in range(17)]), edge("e1", []))
    rng = np.random.default_rng(0)
    for _ in range(60):
        world = after(world, POLICIES["peer-lb"].plan(world, PARAMS, rng))
    assert not POLICIES["peer-lb"].plan(world, PARAMS, rng).offloads
