"""A damaged site: feedback follows equations 1–8, limits end the overload, and all load returns with the bandwidth."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tocsin.experiments.epeer_fdcc import SETTINGS
from tocsin.model.ids import SubscriberId
from tocsin.policies.sites.congestion_types import CongestionParams
from tocsin.policies.sites.feedback import by_keywords, mean_experience, publisher_utility
from tocsin.policies.sites.types import PublisherId
from tocsin.sim.kernel import Kernel
from tocsin.sim.sites.audience import AudienceSettings, _rate, _subsets, draw_audience
from tocsin.sim.sites.congestion import DamagedSite, DamageTiming
from tocsin.sim.sites.workload import Quality, make_site


def damaged(
    seed: int,
    end_s: int = 400,
    *,
    fewest: int = 1,
    matching: float = 1.0,
    left: float = 0.25,
    params: CongestionParams | None = None,
) -> DamagedSite:
    """A site that keeps `left` of its bandwidth, and `matching` of the thesis' matching capacity from the start."""
    rng = np.random.default_rng(seed)
    world = make_site(replace(SETTINGS, subscribers=(fewest, 8)), rng)
    world = replace(world, matching_per_s=world.matching_per_s * matching)
    audience = draw_audience(world, AudienceSettings(), rng)
    timing = DamageTiming(damage_s=150, repair_s=300, end_s=end_s)
    return DamagedSite(Kernel(seed), world, audience, np.full(4, left), max(left, 0.4), params, timing)


@pytest.fixture(scope="module")
def site() -> DamagedSite:
    site = damaged(1)
    site.run()
    return site


def test_limits_end_the_overload_of_every_edge(site: DamagedSite) -> None:
    before, during = site.log.seconds[140], site.log.seconds[160:299]
    assert before.used[:, 1].max() < 0.9
    assert max(second.offered[:, 1].min() for second in during) > 0.95, "without limits all edges would be overloaded"
    assert max(second.used[:, 1].max() for second in during) <= 0.95 + 1e-9
    assert site.log.limited_from_s == 150


def test_all_load_returns_with_the_bandwidth(site: DamagedSite) -> None:
    assert site.log.recovered_s == 300
    assert np.isinf(site._limit).all()
    assert np.allclose(site.log.seconds[-1].used, site.log.seconds[140].used)
    assert site.log.seconds[-1].qoe_all == pytest.approx(site.log.seconds[140].qoe_all, abs=0.01)


def test_every_second_under_limits_is_worth_more_than_a_blind_cut(site: DamagedSite) -> None:
    for second in site.log.seconds[160:299]:
        assert second.utility > 1.5 * second.blind_utility
    rest = site.log.seconds[140]
    assert rest.utility == pytest.approx(rest.blind_utility), "without limits both send all messages"


def test_silent_subscribers_lower_the_experience_of_all(site: DamagedSite) -> None:
    second = site.log.seconds[200]
    assert second.served < 1.0
    assert second.qoe_heard is not None
    assert second.qoe_all == pytest.approx(second.served * second.qoe_heard)


def test_limits_fill_the_output_of_an_edge_short_of_it() -> None:
    """Work conservation: only useless publishers are cut below TH_high."""
    site = damaged(1, end_s=200, left=0.15)
    used = site.run().seconds[190].used[:, 1]
    assert used.min() > 0.93
    ceilings = damaged(1, end_s=200, left=0.15, params=CongestionParams(shares_the_rest=False))
    assert ceilings.run().seconds[190].used[:, 1].min() <= used.min()


def test_site_short_of_matching_is_limited_too() -> None:
    site = damaged(4, end_s=140, matching=0.1)
    log = site.run()
    assert log.limited_from_s is not None
    assert log.seconds[-1].offered[:, 2].max() > 0.95, "without limits an edge would be overloaded"
    assert log.seconds[-1].used[:, 2].max() <= 0.95 + 1e-9


def test_publishers_without_subscribers_stop_and_cost_no_edge() -> None:
    site = damaged(6, end_s=200, fewest=0)
    site.run()
    unheard = ~(site.world.audience > 0)[site.audience.publisher_topic]
    assert unheard.any()
    assert not site._limit[unheard].any()


def test_useless_publishers_are_limited_most_and_experience_rises() -> None:
    site = damaged(2, end_s=250)
    site.run()
    qualities = site.audience.quality
    limits = {
        quality: np.mean(
            [limit for limit, of_publisher in zip(site._limit, qualities, strict=True) if of_publisher is quality]
        )
        for quality in Quality
    }
    assert limits[Quality.BAD] <= 0.1 < limits[Quality.MEDIUM] < limits[Quality.GOOD]
    before, after = site.log.seconds[140].qoe_heard, site.log.seconds[240].qoe_heard
    assert before is not None
    assert after is not None
    assert after > 1.1 * before


def test_other_edges_help_before_publishers_are_limited() -> None:
    rng = np.random.default_rng(5)
    world = make_site(replace(SETTINGS, load=0.3), rng)
    audience = draw_audience(world, AudienceSettings(), rng)
    timing = DamageTiming(damage_s=150, repair_s=200, end_s=220)
    factors = np.array([0.3, 1.0, 1.0, 1.0])
    site = DamagedSite(Kernel(5), world, audience, factors, 1.0, timing=timing)
    log = site.run()
    assert log.offloads >= 1
    assert log.limited_from_s is None
    assert max(second.used[:, 1].max() for second in log.seconds[160:199]) <= 0.95


def test_utilities_of_a_second_equal_the_policys_equations() -> None:
    """The simulation sums arrays; the policy's functions must give the same results."""
    site = damaged(3, end_s=1)
    site._edge[:] = 0
    site._joined[:] = True
    audience, rates = site.audience, site._published()
    state = site._rng.bit_generator.state
    averages = audience.averages(rates, site._rng)
    site._rng.bit_generator.state = state
    site._collect_feedback()
    feedback: dict[SubscriberId, dict[PublisherId, float]] = {}
    pairs = zip(audience.pair_subscriber, audience.pair_publisher, averages, strict=True)
    for subscriber, publisher, value in pairs:
        feedback.setdefault(SubscriberId(str(subscriber)), {})[PublisherId(str(publisher))] = float(value)
    utilities = publisher_utility(feedback)
    assert [utilities[PublisherId(str(n))] for n in range(len(rates))] == pytest.approx(site._utility.tolist())
    assert site.log.seconds[-1].qoe_all == pytest.approx(mean_experience(feedback))


def test_messages_are_rated_by_equation_8() -> None:
    settings = AudienceSettings()
    interests = _subsets(np.array([4, 8]), settings.vocabulary, np.random.default_rng(1))
    utilities = _rate(interests, Quality.MEDIUM, settings, np.random.default_rng(2))
    replay = np.random.default_rng(2)
    keywords = np.asarray(replay.integers(*settings.keywords, utilities.shape[1], endpoint=True))
    used = _subsets(np.asarray(keywords // 2), settings.vocabulary, replay)
    for subscriber in range(2):
        names = {f"k{n}" for n in np.flatnonzero(interests[subscriber])}
        for message in range(5):
            on_topic = {f"k{n}" for n in np.flatnonzero(used[message])}
            off_topic = {f"other{n}" for n in range(int(keywords[message]) - len(on_topic))}
            assert utilities[subscriber, message] == pytest.approx(by_keywords(names, on_topic | off_topic))
    assert not _rate(interests, Quality.BAD, settings, np.random.default_rng(3)).any()


def test_half_the_publishers_are_good_and_a_quarter_useless(site: DamagedSite) -> None:
    quality = site.audience.quality
    assert [quality.count(kind) / len(quality) for kind in Quality] == pytest.approx([0.5, 0.25, 0.25], abs=0.01)
    useless = [quality[publisher] is Quality.BAD for publisher in site.audience.pair_publisher]
    assert not site.audience.pair_mean[useless].any()
