"""LDM, SDM and GSH as [BAD §5.2, §5.3] describe them, and `plan`, which chooses among them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings

from tests.policies.balance.balance_worlds import loads_by_definition, seeded, snapshot, snapshots
from tocsin.model.plan import Plan
from tocsin.model.snapshot import Snapshot
from tocsin.policies.balance.multistage import MIGRATIONS, SHUFFLED_AT_S, SHUFFLES, plan
from tocsin.policies.balance.settings import MIGRATION_NAMES, NONE, SHUFFLE_NAMES, BalanceSettings

LDM = BalanceSettings(scheme="ldm", shuffle="none", hits=1, alpha=0.0)
SDM = replace(LDM, scheme="sdm")
GSH = BalanceSettings(scheme="none", shuffle="gsh", hits=1, gamma=0.0, shuffle_gain=0.0)
EVERY = {
    **{name: replace(LDM, scheme=name) for name in MIGRATIONS},
    **{f"{name} shuffle": replace(GSH, shuffle=name) for name in SHUFFLES},
}


def moves(made: Plan) -> list[tuple[str, str | None, str]]:
    return [(move.subscriber, move.source, move.target) for move in made.moves]


def applied(world: Snapshot, made: Plan) -> Snapshot:
    """The world after the plan."""
    index = {name: number for number, name in enumerate(world.brokers)}
    number_of = {name: number for number, name in enumerate(world.subscribers)}
    broker_of, moved_at_s = world.broker_of.copy(), world.moved_at_s.copy()
    for move in made.moves:
        i = number_of[move.subscriber]
        assert world.brokers[broker_of[i]] == move.source
        broker_of[i], moved_at_s[i] = index[move.target], world.at_s
    return replace(world, broker_of=broker_of, moved_at_s=moved_at_s, memory=made.memory)


def test_ldm_moves_heaviest_subscriber_that_fits_to_least_loaded_broker() -> None:
    """b0 carries 2 × (8 + 4 + 2). The 8 fits into the empty b2. Then b0 has 12 and b1 has 6, and only the 2 fits."""
    world = snapshot(3, [(0, [0]), (0, [1]), (0, [2]), (1, [3])], [8.0, 4.0, 2.0, 3.0])
    assert moves(plan(world, LDM)) == [("s0", "b0", "b2"), ("s2", "b0", "b1")]
    assert plan(world, LDM).moves[0].load_bytes_per_s == 8.0
    assert "b0 was most loaded" in plan(world, LDM).moves[0].reason


def test_ldm_skips_subscriber_too_heavy_for_the_target() -> None:
    world = snapshot(2, [(0, [0]), (0, [1]), (1, [2])], [10.0, 1.0, 8.0])
    assert moves(plan(world, LDM)) == [("s1", "b0", "b1")]


def test_move_that_only_swaps_two_loads_is_not_made() -> None:
    """The target would get exactly the source's load. The paper's text allows that, its argument does not."""
    assert moves(plan(snapshot(2, [(0, [0])], [5.0]), LDM)) == []


def test_sdm_prefers_shared_subscriptions_and_ldm_low_load() -> None:
    subscribers = [(0, [0, 1]), (0, [2]), (0, [3]), (1, [0, 1]), (2, [4])]
    world = snapshot(3, subscribers, [6.0, 6.0, 5.0, 5.0, 1.0])
    assert moves(plan(world, LDM))[0] == ("s0", "b0", "b2")
    assert moves(plan(world, replace(SDM, max_moves=1)))[0] == (
        "s0",
        "b0",
        "b2",
    )  # b1 has 24, which is not below the mean
    lighter = snapshot(3, [*subscribers[:3], (1, [0]), subscribers[4]], [6.0, 6.0, 5.0, 5.0, 1.0])
    assert moves(plan(lighter, SDM))[0] == ("s0", "b0", "b1")
    assert "fetches most of its subscriptions" in plan(lighter, SDM).moves[0].reason


def test_broker_without_valid_migration_is_set_aside_for_the_next() -> None:
    """The only subscriber of b0 is too heavy to move. b1 is above the mean as well and can give."""
    subscribers = [(0, [0]), (1, [1]), (1, [2]), (1, [3]), (2, [4])]
    world = snapshot(3, subscribers, [40.0, 12.0, 12.0, 12.0, 1.0])
    assert moves(plan(world, LDM)) == [("s1", "b1", "b2")]


def test_migration_stops_when_loads_are_even_enough() -> None:
    world = seeded(6, 300, 40, seed=1)
    loose, tight = plan(world, replace(LDM, alpha=0.3)), plan(world, replace(LDM, alpha=0.05))
    assert loose.after is not None and tight.after is not None and loose.before is not None
    assert loose.before.cov > 0.3 >= loose.after.cov > 0.05 >= tight.after.cov
    assert len(loose.moves) < len(tight.moves)
    assert moves(tight)[: len(loose.moves)] == moves(loose)


def test_gsh_places_heaviest_first_on_least_loaded_broker() -> None:
    world = snapshot(2, [(0, [0]), (0, [1]), (0, [2]), (0, [3])], [8.0, 7.0, 6.0, 5.0])
    made = plan(world, GSH)
    assert moves(made) == [("s1", "b0", "b1"), ("s2", "b0", "b1")]
    assert made.after is not None and made.after.cov == 0.0


def test_gsh_keeps_unmovable_subscribers_and_counts_their_load() -> None:
    world = snapshot(2, [(0, [0]), (0, [1]), (0, [2])], [8.0, 7.0, 6.0], unmovable=[0])
    assert moves(plan(world, GSH)) == [("s1", "b0", "b1"), ("s2", "b0", "b1")]


@pytest.mark.parametrize("name", sorted(EVERY))
def test_subscribers_without_subscriptions_do_not_move(name: str) -> None:
    """They weigh nothing: a shuffle would put all of them on one broker."""
    subscribers = [(0, [k]) for k in range(8)] + [(0, []) for _ in range(8)]
    made = plan(snapshot(4, subscribers, [5.0] * 8), EVERY[name])
    assert {move.subscriber for move in made.moves} < {f"s{i}" for i in range(8)}


def test_broker_with_more_capacity_gets_more_subscribers() -> None:
    subscribers = [(0, [k]) for k in range(40)]
    world = snapshot(2, subscribers, [5.0] * 40, capacity=[1.0, 3.0])
    for settings in (replace(LDM, alpha=0.02), GSH):
        after = applied(world, plan(world, settings))
        assert np.bincount(after.broker_of).tolist() == [10, 30]


def test_plan_shuffles_above_gamma_and_migrates_above_alpha() -> None:
    both = BalanceSettings(scheme="ldm", shuffle="gsh", hits=1)
    assert plan(seeded(5, 300, 40, seed=2, skew=2.0), both).policy == "gsh"
    assert plan(seeded(5, 300, 40, seed=2, skew=0.5), both).policy == "ldm"
    even = plan(seeded(5, 300, 40, seed=2, skew=0.0), both)
    assert (even.policy, even.moves) == ("none", ())
    assert "even enough" in even.note


def test_network_with_low_mean_load_is_not_balanced() -> None:
    world = seeded(5, 300, 40, seed=2, skew=2.0)
    quiet = BalanceSettings(hits=1, beta_bytes_per_s=1e12, theta_bytes_per_s=1e12)
    assert plan(world, quiet).moves == ()


def test_imbalance_must_be_seen_in_consecutive_rounds() -> None:
    world = seeded(5, 300, 40, seed=2, skew=0.5)
    even = seeded(5, 300, 40, seed=2, skew=0.0)
    twice = BalanceSettings(hits=2)
    first = plan(world, twice)
    assert first.moves == () and "1 of 2" in first.note
    assert plan(replace(world, memory=first.memory), twice).moves
    calmed = plan(replace(even, memory=first.memory), twice)
    assert plan(replace(world, memory=calmed.memory), twice).moves == ()


def test_second_shuffle_waits_and_memory_of_other_policies_is_kept() -> None:
    world = replace(seeded(5, 300, 40, seed=2, skew=2.0), memory={"another.policy": 4.0})
    both = BalanceSettings(hits=1, rest_s=0.0)
    first = plan(world, both)
    assert first.memory["another.policy"] == 4.0 and first.memory[SHUFFLED_AT_S] == world.at_s
    again = plan(replace(world, memory=first.memory, at_s=world.at_s + 10.0), both)
    assert again.policy == "ldm" and "no shuffle: the last was 10 s ago" in again.note


def test_shuffle_with_little_gain_or_many_moves_becomes_migration() -> None:
    giant = snapshot(3, [(0, [0]), (1, [1]), (2, [2])], [100.0, 1.0, 1.0])
    assert plan(giant, BalanceSettings(hits=1)).moves == ()
    world = seeded(5, 300, 40, seed=2, skew=2.0)
    capped = plan(world, BalanceSettings(hits=1, max_shuffle_moves=10))
    assert capped.policy == "ldm" and "more than 10" in capped.note


def test_plan_has_at_most_max_moves_moves() -> None:
    assert len(plan(seeded(5, 300, 40, seed=2), replace(LDM, max_moves=3)).moves) == 3


@pytest.mark.parametrize("name", sorted(EVERY))
def test_worlds_with_nothing_to_do_give_an_empty_plan(name: str) -> None:
    closed = snapshot(2, [(0, [0]), (0, [0])], [1.0], closed=[0, 1])
    for world in (snapshot(0, [], []), snapshot(2, [], [1.0]), snapshot(2, [(-1, [0])], [1.0]), closed):
        assert plan(world, EVERY[name]).moves == ()


@pytest.mark.parametrize("name", sorted(EVERY))
@given(world=snapshots())
@hypothesis_settings(max_examples=80)
def test_every_plan_keeps_its_invariants(name: str, world: Snapshot) -> None:
    made = plan(world, EVERY[name])
    assert made.generation == world.generation
    movers = [move.subscriber for move in made.moves]
    assert len(movers) == len(set(movers)), "a subscriber moves twice"
    for move in made.moves:
        i = world.subscribers.index(move.subscriber)
        assert world.movable[i] and world.broker_of[i] >= 0 and world.moved_at_s[i] < 940.0
        assert world.accepting[world.brokers.index(move.target)]
        assert move.source != move.target and move.reason
    after = applied(world, made)
    assert made.before is not None and made.after is not None
    capacity = world.capacity[world.accepting]
    if capacity.size:
        mean = 1.0 if len(set(world.capacity.tolist())) == 1 else capacity.mean()
        scale = np.ones(len(world.brokers)) if len(set(world.capacity.tolist())) == 1 else mean / world.capacity
        assert np.allclose(made.after.loads, loads_by_definition(after) * scale)
        assert np.allclose(made.before.loads, loads_by_definition(world) * scale)
    if made.policy in MIGRATIONS and not (~world.accepting).any():
        assert made.after.maximum <= made.before.maximum + 1e-9


@pytest.mark.parametrize("name", sorted(EVERY))
@given(world=snapshots())
@hypothesis_settings(max_examples=40)
def test_repeated_planning_on_unchanged_world_reaches_fixed_point(name: str, world: Snapshot) -> None:
    settings = replace(EVERY[name], rest_s=0.0, shuffle_rest_s=0.0)
    world = replace(world, moved_at_s=np.full(len(world.subscribers), -np.inf))
    for _ in range(20):
        made = plan(world, settings)
        if not made.moves:
            return
        world = applied(world, made)
    raise AssertionError(f"still moving after 20 plans: {moves(made)}")


@pytest.mark.parametrize(
    ("change", "setting"),
    [
        ({"scheme": "nope"}, "scheme"),
        ({"shuffle": "nope"}, "shuffle"),
        ({"alpha": -1.0}, "alpha"),
        ({"hits": 0}, "hits"),
        ({"settle": 0.0}, "settle"),
        ({"gamma": float("nan")}, "gamma"),
    ],
)
def test_invalid_setting_is_refused_by_name(change: dict[str, object], setting: str) -> None:
    with pytest.raises(ValueError, match=setting):
        replace(BalanceSettings(), **change)  # type: ignore[arg-type]


def test_settings_name_exactly_the_registered_policies() -> None:
    assert set(MIGRATION_NAMES) == {*MIGRATIONS, NONE}
    assert set(SHUFFLE_NAMES) == {*SHUFFLES, NONE}
