"""The UAV and MMOG scenarios, short: topics follow their clients, nothing is lost, a seed is a run."""

from __future__ import annotations

import pytest

from tocsin.policies.topics.baselines import consistent_hash
from tocsin.sim.topics import mmog, uav
from tocsin.sim.topics.transients import transients

SHORT_UAV = uav.UavSetting(seed=5, swarms=3, members=3, duration_s=150.0, speed_m_per_s=150.0, followed_per_s=4.0)
SHORT_MMOG = mmog.MmogSetting(seed=5, players=20, groups=5, duration_s=60.0, stay_s=(5.0, 10.0))


@pytest.fixture(scope="module")
def flown() -> uav.UavOutcome:
    return uav.run(SHORT_UAV)


def test_topics_follow_their_swarm_and_every_transient_ends_within_two_periods(flown: uav.UavOutcome) -> None:
    assert len(flown.zone_changes) >= 5
    assert len(flown.moves) >= 2 * len({swarm for _, swarm, _ in flown.zone_changes})
    for found in flown.latencies.values():
        for one in transients(found, SHORT_UAV.bound_s):
            assert one.duration_s <= 10.0


def test_local_and_remote_latencies_are_what_the_places_say(flown: uav.UavOutcome) -> None:
    """Two hops of 10.5 ms inside a zone, 30 ms more through another one; more only while a topic migrates."""
    usual = {round(latency_s, 4) for found in flown.latencies.values() for _, latency_s in found if latency_s < 0.0515}
    assert {0.021, 0.051} <= usual
    share = sum(latency_s < 0.0215 for found in flown.latencies.values() for _, latency_s in found)
    assert share / sum(len(found) for found in flown.latencies.values()) > 0.8


def test_no_topic_goes_back_and_forth_and_nothing_is_lost(flown: uav.UavOutcome) -> None:
    assert not [move for move in flown.moves if move.returned and not move.followed]
    assert flown.lost == 0


def test_the_same_seed_is_the_same_flight_and_another_is_not(flown: uav.UavOutcome) -> None:
    again = uav.run(SHORT_UAV)
    assert again.latencies == flown.latencies
    assert again.moves == flown.moves
    other = uav.run(uav.UavSetting(seed=6, swarms=3, members=3, duration_s=20.0, followed_per_s=4.0))
    assert other.zone_changes != flown.zone_changes


def test_without_latency_aware_partitioning_swarms_stay_above_their_bound() -> None:
    """What the scenario would be with Pulsar's hashing: it shows that the bound is not met by accident."""
    blind = uav.run(SHORT_UAV, consistent_hash)
    longest = max(one.duration_s for found in blind.latencies.values() for one in transients(found, SHORT_UAV.bound_s))
    assert longest > 10.0


def test_players_regroup_and_their_topics_stay_within_bounds_but_for_transients() -> None:
    outcome = mmog.run(SHORT_MMOG)
    assert outcome.regroupings > 100
    assert outcome.moves
    assert outcome.lost == 0
    assert all(outcome.heard.values())
    for found in outcome.latencies.values():
        for one in transients(found, SHORT_MMOG.bound_s):
            assert one.duration_s <= 10.0
    assert not [move for move in outcome.moves if move.returned and not move.followed]
