"""The load model on arrays is eq. 1–8 of [BAD §4], after any sequence of moves."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.policies.balance.balance_worlds import loads_by_definition, snapshot, snapshots
from tocsin.model.snapshot import Snapshot
from tocsin.policies.balance.load import LoadModel, fetches_added, fetches_saved, movable_now, standing_balance


def test_a_load_by_hand() -> None:
    """Two share BE subscription 0: fetched once, delivered twice."""
    model = LoadModel(snapshot(2, [(0, [0, 1]), (0, [0]), (1, [1])], [10.0, 3.0]))
    assert model.loads.tolist() == [10 + 3 + 13 + 10, 3 + 3]
    balance = model.balance()
    assert (balance.mean, balance.maximum) == (21.0, 36.0)
    assert balance.cov == pytest.approx(15 / 21)


@given(world=snapshots(), data=st.data())
@settings(max_examples=100)
def test_moves_keep_exact_agreement_with_the_equations(world: Snapshot, data: st.DataObject) -> None:
    model = LoadModel(world)
    n, m = len(world.subscribers), len(world.brokers)
    assert np.array_equal(model.loads, loads_by_definition(world))
    for _ in range(data.draw(st.integers(0, 6)) if n else 0):
        i, j = data.draw(st.integers(0, n - 1)), data.draw(st.integers(-1, m - 1))
        expected = model.loads
        if model.broker_of[i] >= 0:
            expected[model.broker_of[i]] -= model.weight[i] + fetches_saved(model.arrays, i)
        model.move(i, -1)
        if j >= 0:
            expected[j] += model.weight[i] + fetches_added(model.arrays, i, j)
        model.move(i, j)
        assert np.array_equal(model.loads, expected)
        assert np.array_equal(model.loads, loads_by_definition(world, model.broker_of.tolist()))
        _check_holders(model, world)


def _check_holders(model: LoadModel, world: Snapshot) -> None:
    a = model.arrays
    for k in range(len(world.rate)):
        entries = slice(a.row[k, 0], a.row[k, 1])
        listed = dict(zip(a.holder[entries].tolist(), a.counts[entries].tolist(), strict=True))
        assert listed == Counter(
            int(model.broker_of[i])
            for i in range(len(world.subscribers))
            if model.broker_of[i] >= 0 and k in world.wants[world.wants_start[i] : world.wants_start[i + 1]]
        )


@given(world=snapshots())
@settings(max_examples=60)
def test_one_look_and_the_model_see_the_same_balance(world: Snapshot) -> None:
    assert standing_balance(world) == LoadModel(world).balance()


def test_rounding_does_not_pile_up_over_many_moves() -> None:
    rng = np.random.default_rng(3)
    people = [(int(rng.integers(4)), rng.choice(30, 6, replace=False).tolist()) for _ in range(200)]
    world = snapshot(4, people, rng.uniform(0.1, 1e6, 30).tolist())
    model = LoadModel(world)
    for _ in range(5_000):
        model.move(int(rng.integers(200)), int(rng.integers(4)))
    again = loads_by_definition(world, model.broker_of.tolist())
    assert np.allclose(model.loads, again, rtol=1e-12)


def test_a_row_that_outgrows_its_room_loses_nobody() -> None:
    """Everybody wants the same and is with one broker: rows for one holder each. Then everybody has its own."""
    world = snapshot(60, [(0, [0, 1 + i % 3]) for i in range(60)], [1.0, 2.0, 4.0, 8.0])
    model = LoadModel(world)
    for i in range(60):
        model.move(i, i)
    _check_holders(model, world)
    assert np.array_equal(model.loads, loads_by_definition(world, list(range(60))))
    for i in range(60):
        model.move(i, 7)
    _check_holders(model, world)
    assert model.arrays.end[0] <= len(model.arrays.holder)


def test_rows_have_room_for_the_worst_order_of_arrivals() -> None:
    """Nobody is placed at first, so every row begins with room for one and doubles until all brokers hold it."""
    for m in range(1, 40):
        world = snapshot(m, [(-1, [0])] * m, [1.0])
        model = LoadModel(world)
        for i in range(m):
            model.move(i, i)
        assert model.arrays.end[0] <= len(model.arrays.holder)
        _check_holders(model, world)


def test_an_emptied_broker_has_no_load_at_all() -> None:
    model = LoadModel(snapshot(2, [(0, [0, 1, 2]), (0, [1, 2])], [0.1, 0.2, 0.3]))
    model.move(0, 1)
    model.move(1, 1)
    assert model.loads[0] == 0.0


def test_utilisation_is_load_when_capacities_are_equal_and_relative_to_the_mean_otherwise() -> None:
    people = [(0, [0]), (1, [0])]
    assert LoadModel(snapshot(2, people, [6.0], capacity=[5.0, 5.0])).utilisations.tolist() == [12.0, 12.0]
    assert LoadModel(snapshot(2, people, [6.0], capacity=[1.0, 3.0])).utilisations.tolist() == [24.0, 8.0]


def test_a_broker_that_accepts_nobody_does_not_make_the_others_uneven() -> None:
    world = snapshot(3, [(0, [0]), (1, [0])], [5.0], closed=[2])
    assert standing_balance(world).cov == 0.0


def test_a_subscription_nobody_has_measured_counts_as_the_mean_of_the_others() -> None:
    world = snapshot(1, [(0, [0, 1, 2])], [4.0, float("nan"), 8.0])
    assert LoadModel(world).loads.tolist() == [2 * (4.0 + 6.0 + 8.0)]
    assert LoadModel(snapshot(1, [(0, [0])], [float("nan")])).loads.tolist() == [0.0]


def test_who_is_unplaced_stuck_or_resting_does_not_move() -> None:
    world = snapshot(1, [(0, []), (-1, []), (0, []), (0, [])], [], stuck=[2], moved_at_s={3: 990.0})
    assert movable_now(world, 60.0).tolist() == [True, False, False, False]
    assert movable_now(world, 10.0).tolist() == [True, False, False, True]
