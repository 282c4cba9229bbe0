"""Affinity: its quality against SDM as numbers, and the parts that the quality depends on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings

from tests.policies.balance.balance_worlds import communities, seeded, snapshots
from tocsin.model.plan import Plan
from tocsin.model.snapshot import Snapshot
from tocsin.policies.balance import affinity
from tocsin.policies.balance.affinity import is_more_even, rebalance
from tocsin.policies.balance.affinity_candidates import candidates_by_relief
from tocsin.policies.balance.load import LoadModel, fetches_saved
from tocsin.policies.balance.multistage import plan
from tocsin.policies.balance.settings import BalanceSettings

SDM = BalanceSettings(scheme="sdm", shuffle="none", alpha=0.004, settle=0.5, hits=1, max_moves=0)
MIGRATION = replace(SDM, scheme="affinity")
SHUFFLE = replace(SDM, scheme="none", shuffle="affinity", gamma=0.0)


def maximum(made: Plan) -> float:
    assert made.after is not None
    return made.after.maximum


def fetched(world: Snapshot, made: Plan) -> float:
    """All fetched traffic after the plan, in units of the least possible: each BE subscription once."""
    broker = {name: j for j, name in enumerate(world.brokers)}
    number = {name: i for i, name in enumerate(world.subscribers)}
    broker_of = world.broker_of.copy()
    for move in made.moves:
        broker_of[number[move.subscriber]] = broker[move.target]
    incoming = LoadModel(world, broker_of=broker_of).arrays.incoming
    return float(incoming.sum() / world.rate[np.unique(world.wants)].sum())


@pytest.mark.parametrize("settings", [MIGRATION, SHUFFLE], ids=["migration", "shuffle"])
@pytest.mark.parametrize(
    ("size", "own", "most"), [(50, 0.85, 0.98), (20, 0.85, 0.975), (20, 1.0, 0.965)], ids=["50", "20", "20 separate"]
)
def test_maximum_in_communities_is_below_that_of_sdm(
    settings: BalanceSettings, size: int, own: float, most: float
) -> None:
    """5,000 subscribers on 20 brokers. A lower maximum needs more moves than SDM makes, but only a few more."""
    for seed in range(3):
        world = communities(20, 5_000 // size, seed, size=size, own=own)
        theirs, ours = plan(world, SDM), plan(world, settings)
        assert maximum(ours) <= most * maximum(theirs), seed
        assert len(ours.moves) <= 1.08 * len(theirs.moves), seed


def test_world_without_communities_costs_no_more_moves_than_sdm() -> None:
    for seed in range(3):
        world = seeded(10, 2_000, 200, seed)
        theirs, ours = plan(world, SDM), plan(world, MIGRATION)
        assert maximum(ours) <= 1.002 * maximum(theirs)
        assert len(ours.moves) <= 1.01 * len(theirs.moves)


def test_separate_neighbourhoods_stay_whole() -> None:
    """Nothing is shared between neighbourhoods, so nearly all fetches of SDM in addition to the first are avoidable."""
    world = communities(20, 250, 0, size=20, own=1.0)
    assert fetched(world, plan(world, SDM)) > 1.4
    assert fetched(world, plan(world, MIGRATION)) < 1.1


def test_redirected_movers_save_fetches_without_more_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    world = communities(20, 100, 1)
    with_sweeps = plan(world, MIGRATION)
    monkeypatch.setattr(affinity, "_redirect", lambda *arguments: 0)
    without = plan(world, MIGRATION)
    assert fetched(world, with_sweeps) < 0.97 * fetched(world, without)
    assert maximum(with_sweeps) < 0.99 * maximum(without)
    assert len(with_sweeps.moves) < 1.03 * len(without.moves)


def test_plan_cut_off_by_max_moves_lowers_the_maximum() -> None:
    world = communities(20, 100, 2)
    made = plan(world, replace(MIGRATION, max_moves=100))
    assert len(made.moves) == 100
    assert made.before is not None and maximum(made) < made.before.maximum


@given(world=snapshots())
@hypothesis_settings(max_examples=60)
def test_relief_is_weight_plus_fetches_saved(world: Snapshot) -> None:
    model = LoadModel(world)
    candidates, relief = candidates_by_relief(model, np.ones(len(world.subscribers), dtype=np.bool_))
    for i in range(len(world.subscribers)):
        if world.broker_of[i] >= 0:
            assert relief[i] == model.weight[i] + fetches_saved(model.arrays, i)
    for j in range(len(world.brokers)):
        here = candidates.order[candidates.first[j] : candidates.first[j + 1]]
        assert (np.diff(relief[here]) <= 0.0).all() and (world.broker_of[here] == j).all()


def test_only_lower_top_loads_count_as_more_even() -> None:
    before = np.array([5.0, 9.0, 1.0])
    assert is_more_even(np.array([8.0, 5.0, 2.0]), before)
    assert is_more_even(np.array([4.0, 2.0, 9.0]), before), "the largest is equal, the second is smaller"
    assert not is_more_even(before[::-1], before)
    assert not is_more_even(np.array([9.0, 6.0, 0.0]), before)
    assert not is_more_even(np.zeros(0), np.zeros(0))


def test_plan_that_is_not_more_even_is_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    model = LoadModel(communities(5, 20, 0, size=10))
    before, loads = model.broker_of.copy(), model.loads
    monkeypatch.setattr(affinity, "is_more_even", lambda after, before: False)
    everyone = np.ones(len(before), dtype=np.bool_)
    moved, _, _ = rebalance(model, everyone, goal_cov=0.0, max_moves=len(before), exchange=True)
    assert not len(moved)
    assert model.broker_of.tolist() == before.tolist() and np.allclose(model.loads, loads)
