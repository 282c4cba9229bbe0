"""Scenario files of the broker network, and the worlds drawn from them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tocsin.model.ids import BrokerId
from tocsin.model.snapshot import Place
from tocsin.policies.balance.placement import BrokerChoice, Newcomer, place
from tocsin.policies.balance.settings import PlacementPolicy
from tocsin.sim.balance import scenario as balance_scenario
from tocsin.sim.balance.policy_coordinator import ArrivingSubscribers, place_together
from tocsin.sim.balance.scenario import BadScenario, parse
from tocsin.sim.balance.world import BalanceWorld, draw
from tocsin.sim.kernel import Kernel

SMALL = """
name = "small"
length_s = 120
[brokers]
count = 3
[subscribers]
count = 20
subscriptions = [1, 3]
[channels]
periods_s = [5, 10]
subscriptions = 8
mean_bytes_per_s = 100
"""


def drawn_world(name: str, seed: int = 1) -> BalanceWorld:
    return draw(balance_scenario.load(name), Kernel(seed).stream)


def nearest(world: BalanceWorld) -> list[int]:
    choices = tuple(BrokerChoice(b, place=at) for b, at in zip(world.brokers, world.broker_places, strict=True))
    chosen = place_together(
        PlacementPolicy.NEAREST, ArrivingSubscribers(world.places_deg, np.zeros(len(world.places_deg))), choices, 0
    )
    return sorted(np.bincount(chosen, minlength=len(choices)).tolist())


def test_shipped_scenarios_have_the_stated_sizes() -> None:
    assert balance_scenario.shipped() == ["communities", "million", "paper-simulation", "paper-testbed", "surge"]
    sizes = {
        name: (
            scenario.brokers.count,
            scenario.subscribers.count,
            len(scenario.channels.periods_s) * scenario.channels.subscriptions,
        )
        for name in balance_scenario.shipped()
        for scenario in [balance_scenario.load(name)]
    }
    assert sizes["paper-simulation"] == (10, 10_000, 1_000)
    assert sizes["paper-testbed"][:2] == (5, 400)
    assert sizes["communities"] == (100, 100_000, 10_000)
    assert sizes["million"][1] == 1_000_000


@pytest.mark.parametrize("seed", range(3))
def test_nearest_placement_is_skewed_in_the_papers_world(seed: int) -> None:
    world = drawn_world("paper-simulation", seed)
    crowds = nearest(world)
    assert crowds[-1] > 2_000 and crowds[0] < 500 and crowds[1] < 500
    assert 190_000 < len(world.wants) < 205_000
    assert 10 <= np.diff(world.start).max() <= 30
    assert world.subscribe_s.max() <= 480.0


def test_testbed_has_600_backend_and_2200_frontend_subscriptions() -> None:
    worlds = [drawn_world("paper-testbed", seed) for seed in range(5)]
    assert 560 < np.mean([len(np.unique(world.wants)) for world in worlds]) < 640
    assert 2_000 < np.mean([len(world.wants) for world in worlds]) < 2_600


def test_neighbours_are_close_and_share_most_interests() -> None:
    scenario = balance_scenario.load("communities")
    scenario = replace(scenario, subscribers=replace(scenario.subscribers, count=5_000))
    world = draw(scenario, Kernel(1).stream)
    own = world.wants % 500 == np.repeat(world.neighbourhood, np.diff(world.start))
    assert 0.75 < own.mean() < 0.9
    middle = np.array([world.places_deg[world.neighbourhood == hood].mean(axis=0) for hood in range(500)])
    assert np.abs(world.places_deg - middle[world.neighbourhood]).max() < 0.1


def test_world_depends_on_its_seed_alone() -> None:
    first, again, other = (
        drawn_world("paper-testbed", 4),
        drawn_world("paper-testbed", 4),
        drawn_world("paper-testbed", 5),
    )
    assert np.array_equal(first.wants, again.wants) and np.array_equal(first.rate, again.rate)
    assert not np.array_equal(first.rate, other.rate)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("count = 3", "count = 3\ncolour = 1"), "unknown key 'colour'; known are count, crowd"),
        (("length_s = 120", ""), "length_s is missing"),
        (("subscriptions = [1, 3]", "subscriptions = [3, 1]"), "from, to"),
        (("periods_s = [5, 10]", "periods_s = [0]"), "periods_s must be above 0"),
        (("count = 20", 'count = "many"'), "should be a number"),
        (("[brokers]", "[brokers"), "not TOML"),
        (('name = "small"', 'name = "small"\nchurn = 3'), "should be a table"),
        (("[channels]", "[[failures]]\nbroker = 9\nat_s = 1\nback_s = 2\n[channels]"), "must name a broker by number"),
    ],
)
def test_invalid_scenario_is_refused_with_place_and_reason(change: tuple[str, str], message: str) -> None:
    assert change[0] in SMALL
    with pytest.raises(BadScenario, match=r"file\.toml") as refused:
        parse(SMALL.replace(*change, 1), "file.toml")
    assert message in str(refused.value)


def test_unknown_scenario_is_refused_with_list_of_names() -> None:
    with pytest.raises(BadScenario, match="paper-simulation"):
        balance_scenario.load("nowhere")


@pytest.mark.parametrize("policy", [PlacementPolicy.NEAREST, PlacementPolicy.ROUND_ROBIN, PlacementPolicy.RANDOM])
@pytest.mark.parametrize("located", [True, False])
def test_place_together_agrees_with_place(policy: PlacementPolicy, located: bool) -> None:
    rng = np.random.default_rng(2)
    brokers = tuple(
        BrokerChoice(BrokerId(str(j)), j != 2, Place(*rng.uniform(-60, 60, 2)) if located and j != 4 else None)
        for j in range(7)
    )
    places, draws = rng.uniform(-60, 60, (200, 2)), rng.random(200)
    together = place_together(policy, ArrivingSubscribers(places, draws), brokers, 5)
    for number in range(200):
        newcomer = Newcomer(Place(*places[number]), None, 5 + number, float(draws[number]))
        assert brokers[together[number]].broker == place(policy, newcomer, brokers)


def test_subscribers_stay_unplaced_when_no_broker_accepts() -> None:
    closed = (BrokerChoice(BrokerId("a"), accepting=False),)
    arrivals = ArrivingSubscribers(np.zeros((2, 2)), np.zeros(2))
    for policy in (PlacementPolicy.NEAREST, PlacementPolicy.RANDOM):
        assert place_together(policy, arrivals, closed, 0).tolist() == [
            -1,
            -1,
        ]
