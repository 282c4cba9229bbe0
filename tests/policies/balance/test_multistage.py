"""LDM, SDM and GSH as [BAD §5.2, §5.3] describe them, and the driver that chooses among them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings

from tests.policies.balance.balance_worlds import drawn, loads_by_definition, snapshot, snapshots
from tocsin.model.plan import Plan
from tocsin.model.snapshot import Snapshot
from tocsin.policies.balance.multistage import MIGRATIONS, SHUFFLED_AT_S, SHUFFLES, BalanceSettings, plan

LDM = BalanceSettings(scheme="ldm", shuffle="none", hits=1, alpha=0.0)
SDM = replace(LDM, scheme="sdm")
GSH = BalanceSettings(scheme="none", shuffle="gsh", hits=1, gamma=0.0, shuffle_gain=0.0)
EVERY = {
    **{name: replace(LDM, scheme=name) for name in MIGRATIONS},
    **{f"{name} shuffle": replace(GSH, shuffle=name) for name in SHUFFLES},
}


def moves(found: Plan) -> list[tuple[str, str | None, str]]:
    return [(move.subscriber, move.source, move.target) for move in found.moves]


def applied(world: Snapshot, found: Plan) -> Snapshot:
    """The world after the plan."""
    index = {name: number for number, name in enumerate(world.brokers)}
    who = {name: number for number, name in enumerate(world.subscribers)}
    broker_of, moved_at_s = world.broker_of.copy(), world.moved_at_s.copy()
    for move in found.moves:
        assert world.brokers[broker_of[who[move.subscriber]]] == move.source
        broker_of[who[move.subscriber]] = index[move.target]
        moved_at_s[who[move.subscriber]] = world.at_s
    return replace(world, broker_of=broker_of, moved_at_s=moved_at_s, memory=found.memory)


def test_ldm_takes_the_heaviest_that_fits_to_the_least_loaded() -> None:
    """b0 carries 2 × (8 + 4 + 2): the 8 fits into the empty b2; then b0 has 12, b1 6, and only the 2 fits there."""
    world = snapshot(3, [(0, [0]), (0, [1]), (0, [2]), (1, [3])], [8.0, 4.0, 2.0, 3.0])
    assert moves(plan(world, LDM)) == [("s0", "b0", "b2"), ("s2", "b0", "b1")]
    assert plan(world, LDM).moves[0].load_bytes_per_s == 8.0
    assert "b0 was most loaded" in plan(world, LDM).moves[0].reason


def test_ldm_passes_over_a_subscriber_too_heavy_to_be_worth_it() -> None:
    world = snapshot(2, [(0, [0]), (0, [1]), (1, [2])], [10.0, 1.0, 8.0])
    assert moves(plan(world, LDM)) == [("s1", "b0", "b1")]


def test_a_move_that_would_only_swap_two_brokers_is_not_made() -> None:
    """The target would get exactly the source's load: the paper's text allows it, its argument does not."""
    assert moves(plan(snapshot(2, [(0, [0])], [5.0]), LDM)) == []


def test_sdm_goes_where_the_subscriptions_are_and_ldm_where_the_load_is_not() -> None:
    people = [(0, [0, 1]), (0, [2]), (0, [3]), (1, [0, 1]), (2, [4])]
    world = snapshot(3, people, [6.0, 6.0, 5.0, 5.0, 1.0])
    assert moves(plan(world, LDM))[0] == ("s0", "b0", "b2")
    assert moves(plan(world, replace(SDM, max_moves=1)))[0] == ("s0", "b0", "b2")  # b1 is not below the mean: it is 24
    lighter = snapshot(3, [*people[:3], (1, [0]), people[4]], [6.0, 6.0, 5.0, 5.0, 1.0])
    assert moves(plan(lighter, SDM))[0] == ("s0", "b0", "b1")
    assert "shares most" in plan(lighter, SDM).moves[0].reason


def test_a_broker_with_nothing_valid_is_set_aside_and_the_next_above_the_mean_gives() -> None:
    """b0 has one giant; b1 is above the mean as well and can give."""
    people = [(0, [0]), (1, [1]), (1, [2]), (1, [3]), (2, [4])]
    world = snapshot(3, people, [40.0, 12.0, 12.0, 12.0, 1.0])
    found = plan(world, LDM)
    assert moves(found) == [("s1", "b1", "b2")]


def test_migration_stops_as_soon_as_the_loads_are_even_enough() -> None:
    world = drawn(6, 300, 40, seed=1)
    loose, tight = plan(world, replace(LDM, alpha=0.3)), plan(world, replace(LDM, alpha=0.05))
    assert loose.after is not None and tight.after is not None and loose.before is not None
    assert loose.before.cov > 0.3 >= loose.after.cov > 0.05 >= tight.after.cov
    assert len(loose.moves) < len(tight.moves)
    assert moves(tight)[: len(loose.moves)] == moves(loose)


def test_gsh_puts_the_heaviest_first_on_the_least_loaded() -> None:
    world = snapshot(2, [(0, [0]), (0, [1]), (0, [2]), (0, [3])], [8.0, 7.0, 6.0, 5.0])
    found = plan(world, GSH)
    assert moves(found) == [("s1", "b0", "b1"), ("s2", "b0", "b1")]
    assert found.after is not None and found.after.cov == 0.0


def test_gsh_leaves_those_that_may_not_move_and_counts_their_load() -> None:
    world = snapshot(2, [(0, [0]), (0, [1]), (0, [2])], [8.0, 7.0, 6.0], stuck=[0])
    assert moves(plan(world, GSH)) == [("s1", "b0", "b1"), ("s2", "b0", "b1")]


@pytest.mark.parametrize("name", sorted(EVERY))
def test_who_has_subscribed_to_nothing_is_left_where_it_is(name: str) -> None:
    """They weigh nothing, so a shuffle would put all of them on one broker."""
    people = [(0, [k]) for k in range(8)] + [(0, []) for _ in range(8)]
    found = plan(snapshot(4, people, [5.0] * 8), EVERY[name])
    assert {move.subscriber for move in found.moves} < {f"s{i}" for i in range(8)}


def test_a_larger_broker_gets_more() -> None:
    people = [(0, [k]) for k in range(40)]
    world = snapshot(2, people, [5.0] * 40, capacity=[1.0, 3.0])
    for settings in (replace(LDM, alpha=0.02), GSH):
        after = applied(world, plan(world, settings))
        assert np.bincount(after.broker_of).tolist() == [10, 30]


def test_shuffle_above_gamma_migration_above_alpha_otherwise_peace() -> None:
    both = BalanceSettings(scheme="ldm", shuffle="gsh", hits=1)
    assert plan(drawn(5, 300, 40, seed=2, skew=2.0), both).policy == "gsh"
    assert plan(drawn(5, 300, 40, seed=2, skew=0.5), both).policy == "ldm"
    peace = plan(drawn(5, 300, 40, seed=2, skew=0.0), both)
    assert (peace.policy, peace.moves) == ("none", ())
    assert "even enough" in peace.note


def test_a_quiet_network_is_left_alone() -> None:
    world = drawn(5, 300, 40, seed=2, skew=2.0)
    quiet = BalanceSettings(hits=1, beta_bytes_per_s=1e12, theta_bytes_per_s=1e12)
    assert plan(world, quiet).moves == ()


def test_an_imbalance_must_be_seen_twice_in_a_row() -> None:
    world = drawn(5, 300, 40, seed=2, skew=0.5)
    even = drawn(5, 300, 40, seed=2, skew=0.0)
    twice = BalanceSettings(hits=2)
    first = plan(world, twice)
    assert first.moves == () and "1 of 2" in first.note
    assert plan(replace(world, memory=first.memory), twice).moves
    calmed = plan(replace(even, memory=first.memory), twice)
    assert plan(replace(world, memory=calmed.memory), twice).moves == ()


def test_a_shuffle_rests_and_what_other_policies_remember_is_kept() -> None:
    world = replace(drawn(5, 300, 40, seed=2, skew=2.0), memory={"somebody.else": 4.0})
    both = BalanceSettings(hits=1, rest_s=0.0)
    first = plan(world, both)
    assert first.memory["somebody.else"] == 4.0 and first.memory[SHUFFLED_AT_S] == world.at_s
    again = plan(replace(world, memory=first.memory, at_s=world.at_s + 10.0), both)
    assert again.policy == "ldm" and "no shuffle: the last was 10 s ago" in again.note


def test_a_shuffle_that_gains_too_little_or_moves_too_many_gives_way_to_migration() -> None:
    giant = snapshot(3, [(0, [0]), (1, [1]), (2, [2])], [100.0, 1.0, 1.0])
    assert plan(giant, BalanceSettings(hits=1)).moves == ()
    world = drawn(5, 300, 40, seed=2, skew=2.0)
    capped = plan(world, BalanceSettings(hits=1, max_shuffle_moves=10))
    assert capped.policy == "ldm" and "more than 10" in capped.note


def test_no_more_than_so_many_moves_in_one_plan() -> None:
    assert len(plan(drawn(5, 300, 40, seed=2), replace(LDM, max_moves=3)).moves) == 3


@pytest.mark.parametrize("name", sorted(EVERY))
def test_worlds_with_nothing_to_do_give_an_empty_plan(name: str) -> None:
    for world in (snapshot(0, [], []), snapshot(2, [], [1.0]), snapshot(2, [(-1, [0])], [1.0]),
                  snapshot(2, [(0, [0]), (0, [0])], [1.0], closed=[0, 1])):  # fmt: skip
        assert plan(world, EVERY[name]).moves == ()


@pytest.mark.parametrize("name", sorted(EVERY))
@given(world=snapshots())
@hypothesis_settings(max_examples=80)
def test_every_plan_keeps_the_rules(name: str, world: Snapshot) -> None:
    found = plan(world, EVERY[name])
    assert found.generation == world.generation
    movers = [move.subscriber for move in found.moves]
    assert len(movers) == len(set(movers)), "moved twice"
    for move in found.moves:
        i = world.subscribers.index(move.subscriber)
        assert world.movable[i] and world.broker_of[i] >= 0 and world.moved_at_s[i] < 940.0
        assert world.accepting[world.brokers.index(move.target)]
        assert move.source != move.target and move.reason
    after = applied(world, found)
    assert found.before is not None and found.after is not None
    capacity = world.capacity[world.accepting]
    if capacity.size:
        mean = 1.0 if len(set(world.capacity.tolist())) == 1 else capacity.mean()
        scale = np.ones(len(world.brokers)) if len(set(world.capacity.tolist())) == 1 else mean / world.capacity
        assert np.allclose(found.after.loads, loads_by_definition(after) * scale)
        assert np.allclose(found.before.loads, loads_by_definition(world) * scale)
    if found.policy in MIGRATIONS and not (~world.accepting).any():
        assert found.after.maximum <= found.before.maximum + 1e-9


@pytest.mark.parametrize("name", sorted(EVERY))
@given(world=snapshots())
@hypothesis_settings(max_examples=40)
def test_planning_again_and_again_on_an_unchanged_world_comes_to_rest(name: str, world: Snapshot) -> None:
    settings = replace(EVERY[name], rest_s=0.0, shuffle_rest_s=0.0)
    world = replace(world, moved_at_s=np.full(len(world.subscribers), -np.inf))
    for _ in range(20):
        found = plan(world, settings)
        if not found.moves:
            return
        world = applied(world, found)
    raise AssertionError(f"still moving after 20 plans: {moves(found)}")


@pytest.mark.parametrize(
    ("change", "named"),
    [({"scheme": "nope"}, "scheme"), ({"shuffle": "nope"}, "shuffle"), ({"alpha": -1.0}, "alpha"),
     ({"hits": 0}, "hits"), ({"settle": 0.0}, "settle"), ({"gamma": float("nan")}, "gamma")],
)  # fmt: skip
def test_settings_that_make_no_sense_are_named(change: dict[str, object], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        replace(BalanceSettings(), **change)  # type: ignore[arg-type]
