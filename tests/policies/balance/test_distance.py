"""The bound on the distance that balancing adds, and the report of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tocsin.model.ids import BrokerId, SubscriberId
from tocsin.model.snapshot import Place, Snapshot
from tocsin.policies.balance.distance import EVERYWHERE, added_m, distances_m, reach_of
from tocsin.policies.balance.load import in_reach
from tocsin.policies.balance.multistage import plan
from tocsin.policies.balance.placement import distance_m
from tocsin.policies.balance.settings import BalanceSettings

SCHEMES = [("ldm", "none"), ("sdm", "none"), ("affinity", "none"), ("none", "gsh"), ("none", "affinity")]


def country(seed: int = 1, people: int = 300) -> Snapshot:
    """Six brokers along a line of some 550 km; most people live near the first."""
    rng = np.random.default_rng(seed)
    at = np.array([(60.0, 20.0 + 2.0 * j) for j in range(6)])
    home = np.minimum(5, rng.geometric(0.6, people) - 1).astype(np.int32)
    start = np.arange(people + 1, dtype=np.int32) * 3
    return Snapshot(
        generation=1,
        at_s=0.0,
        brokers=tuple(BrokerId(f"b{j}") for j in range(6)),
        capacity=np.ones(6),
        accepting=np.ones(6, np.bool_),
        subscribers=tuple(SubscriberId(f"s{i}") for i in range(people)),
        broker_of=home,
        wants_start=start,
        wants=rng.integers(0, 60, 3 * people).astype(np.int32),
        rate=rng.uniform(10.0, 100.0, 60),
        movable=np.ones(people, np.bool_),
        moved_at_s=np.full(people, -np.inf),
        places_deg=at[home] + rng.normal(0.0, 0.05, (people, 2)),
        broker_places_deg=at,
    )


def settings(scheme: str, shuffle: str, max_added_m: float) -> BalanceSettings:
    return BalanceSettings(scheme=scheme, shuffle=shuffle, hits=1, alpha=0.05, gamma=0.05, max_added_m=max_added_m)


@pytest.mark.parametrize(("scheme", "shuffle"), SCHEMES)
def test_no_move_exceeds_the_bound(scheme: str, shuffle: str) -> None:
    """Brokers are 111 km apart: a bound of 250 km allows the next two."""
    made = plan(country(), settings(scheme, shuffle, 250_000.0))
    assert made.moves and made.after is not None and made.before is not None
    assert made.after.maximum < made.before.maximum
    distances = [move.added_m for move in made.moves]
    assert all(metres is not None and metres <= 250_000.0 for metres in distances)
    free = plan(country(), settings(scheme, shuffle, 0.0))
    assert max(move.added_m or 0.0 for move in free.moves) > 300_000.0, "without a bound subscribers go far"
    assert "m at most" in made.note


@pytest.mark.parametrize(("scheme", "shuffle"), SCHEMES)
def test_tiny_bound_moves_no_subscriber_away_from_its_nearest_broker(scheme: str, shuffle: str) -> None:
    made = plan(country(), settings(scheme, shuffle, 1_000.0))
    assert not made.moves


@pytest.mark.parametrize(("scheme", "shuffle"), SCHEMES)
def test_subscribers_without_a_position_may_go_anywhere(scheme: str, shuffle: str) -> None:
    world = replace(country(), places_deg=np.full((300, 2), np.nan))
    bounded, free = (plan(world, settings(scheme, shuffle, metres)) for metres in (1_000.0, 0.0))
    assert [(move.subscriber, move.target) for move in bounded.moves] == [
        (move.subscriber, move.target) for move in free.moves
    ]
    assert all(move.added_m is None for move in bounded.moves)


def test_reach_has_the_nearest_and_the_present_broker() -> None:
    world = country()
    reach = reach_of(world, 1_000.0)
    assert world.places_deg is not None and world.broker_places_deg is not None
    away_m = distances_m(world.places_deg[:, None], world.broker_places_deg[None])
    for i in range(300):
        nearest, present = int(away_m[i].argmin()), int(world.broker_of[i])
        assert in_reach(reach, i, nearest) and in_reach(reach, i, present)
        assert in_reach(reach, i, 5) == (away_m[i, 5] <= max(away_m[i].min() + 1_000.0, away_m[i, present]))
    assert reach_of(world, 0.0) is EVERYWHERE and in_reach(EVERYWHERE, 7, 3)


def test_distances_are_those_of_placement() -> None:
    world = country(people=5)
    assert world.places_deg is not None and world.broker_places_deg is not None

    single = distance_m(Place(*world.places_deg[0]), Place(*world.broker_places_deg[3]))
    assert distances_m(world.places_deg[0], world.broker_places_deg[3]) == pytest.approx(single)
    moved = added_m(world, np.array([0]), np.array([3], np.int32))
    home = distance_m(Place(*world.places_deg[0]), Place(*world.broker_places_deg[world.broker_of[0]]))
    assert moved is not None and moved[0] == pytest.approx(single - home)
