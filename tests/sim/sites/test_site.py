"""The simulated site under its policies: moves, their delays, and that every subscriber stays served."""

from __future__ import annotations

import numpy as np
import pytest

from tocsin.policies.sites.baselines import POLICIES
from tocsin.policies.sites.types import OffloadParams
from tocsin.sim.kernel import Kernel
from tocsin.sim.sites.site import SiteLog, SiteSimulation, SiteTiming
from tocsin.sim.sites.workload import SiteSettings, SiteWorld, draw_bursts, make_site


def played(policy: str, seed: int, *, assign_each: bool = False) -> tuple[SiteSimulation, SiteLog]:
    rng = np.random.default_rng(seed)
    world = make_site(SiteSettings(load=0.8), rng)
    bursts = draw_bursts(len(world.topics), rng)
    simulation = SiteSimulation(Kernel(seed), world, bursts, POLICIES[policy], assign_each=assign_each)
    return simulation, simulation.run()


@pytest.mark.parametrize("policy", POLICIES)
def test_every_subscriber_ends_at_one_edge_and_no_broker_is_busy(policy: str) -> None:
    simulation, log = played(policy, seed=4)
    world = simulation.world
    assert simulation._served.sum() == world.audience.sum()
    assert not simulation.migrations.busy
    assert len(log.used) == 1_000
    for topic, edge_of in enumerate(simulation._edge_of):
        assert set(edge_of) == set(world.subscribers[topic])
        counted = np.bincount(list(edge_of.values()), minlength=len(world.edges))
        assert (counted == simulation._served[topic]).all()


def test_drd_lb_spreads_topics_evenly_and_keeps_subscribers_together() -> None:
    simulation, log = played("drd-lb", seed=1)
    assert ((simulation._served > 0).sum(axis=1) == 1).all()
    at_rest = np.array(log.used[250])
    assert at_rest.mean() == pytest.approx(0.8, abs=0.02)
    assert np.ptp(at_rest) < 0.08


def test_bursts_raise_the_load_and_calm_restores_it() -> None:
    _, log = played("drd-lb", seed=1)
    used = np.array(log.used).mean(axis=1)
    assert used[299] < used[350] < used[500]
    assert used[950] == pytest.approx(used[299], abs=0.01)


def test_offload_delay_is_connection_time_relative_to_the_requirement() -> None:
    offloads = [offload for seed in range(12) for offload in played("drd-lb", seed)[1].offloads]
    assert offloads, "no site was overloaded: the test shows nothing"
    for offload in offloads:
        # 0.17 s per client, for requirements between 1 and 50 s.
        assert 0.17 / 50 * offload.clients <= offload.delay_ratio <= 0.17 * offload.clients * 1.001
    mean = sum(offload.delay_ratio for offload in offloads) / sum(offload.clients for offload in offloads)
    assert mean < 0.17 / 25, "tolerant subscribers move first"


def test_slow_connections_delay_in_proportion() -> None:
    rng = np.random.default_rng(2)
    world = make_site(SiteSettings(load=0.8), rng)
    bursts = draw_bursts(len(world.topics), rng)
    delays = []
    for connect_s in (0.13, 0.48):
        simulation = SiteSimulation(
            Kernel(2), world, bursts, POLICIES["peer-drd"], OffloadParams(), SiteTiming(connect_s=connect_s)
        )
        delays.append(sum(offload.delay_ratio / offload.clients for offload in simulation.run().offloads[:20]))
    assert 2.0 < delays[1] / delays[0] < 5.0


def test_same_seed_gives_the_same_run() -> None:
    assert played("peer-lb", seed=9)[1] == played("peer-lb", seed=9)[1]


def test_skipping_quiet_seconds_changes_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    _, quick = played("peer-drd", seed=6)
    original = SiteSimulation._tick

    def never_idle(self: SiteSimulation) -> None:
        self._idle_ticks = 0
        original(self)

    monkeypatch.setattr(SiteSimulation, "_tick", never_idle)
    _, slow = played("peer-drd", seed=6)
    assert quick.offloads == slow.offloads
    assert np.allclose(quick.used, slow.used)
    assert (quick.overloaded_s, quick.limited_s) == (slow.overloaded_s, slow.limited_s)


def test_edge_per_subscriber_costs_matching_at_several_edges() -> None:
    """The reason why the base draws an edge per topic for PEER: see the report of epeer-drd."""
    _, together = played("peer-lb", seed=3)
    _, apart = played("peer-lb", seed=3, assign_each=True)
    assert np.mean(together.used[250]) == pytest.approx(0.8, abs=0.02)
    assert np.mean(apart.used[250]) > 0.9


def test_edge_per_subscriber_costs_nothing_if_each_is_matched() -> None:
    """The reason why the base of epeer-drd matches once per subscription."""
    rng = np.random.default_rng(3)
    world = make_site(SiteSettings(load=0.8, matched_each=True, topic_rate_sigma=1.2), rng)
    bursts = draw_bursts(len(world.topics), rng)
    simulation = SiteSimulation(Kernel(3), world, bursts, POLICIES["peer-lb"], assign_each=True)
    log = simulation.run()
    assert np.mean(log.used[250]) == pytest.approx(0.8, abs=0.02)
    assert log.offloads
    assert ((simulation._served > 0).sum(axis=1) > 1).any(), "single subscriptions move, so topics are at several edges"


def test_skewed_topics_differ_more_than_uniform_ones() -> None:
    rates = [
        make_site(SiteSettings(load=0.8, topic_rate_sigma=sigma), np.random.default_rng(0)).topic_rate_per_s
        for sigma in (0.0, 1.2)
    ]
    assert rates[0].sum() / rates[0].max() > 2 * rates[1].sum() / rates[1].max()
    assert rates[0].sum() == pytest.approx(rates[1].sum())


def test_worlds_have_the_parameters_of_the_thesis() -> None:
    world: SiteWorld = make_site(SiteSettings(load=0.8), np.random.default_rng(0))
    assert len(world.topics) == 100
    assert len(world.edges) == 4
    assert world.matching_per_s.min() >= 20_000
    assert world.matching_per_s.max() <= 30_000
    assert set(world.edge_bytes_per_s) == {125e6}
    assert 1 <= world.delay_s.min() <= world.delay_s.max() <= 50
    assert world.topic_rate_per_s.sum() == pytest.approx(0.8 * world.matching_per_s.sum())
    first, second = draw_bursts(100, np.random.default_rng(0))
    assert 10 <= len(first) <= 15
    assert 10 <= len(second) <= 15
    assert not set(first) & set(second)
