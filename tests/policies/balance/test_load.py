"""The load model agrees with eq. 1–8 of [BAD §4] after any sequence of moves."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.policies.balance.balance_worlds import loads_by_definition, snapshot, snapshots
from tocsin.model.snapshot import Snapshot
from tocsin.policies.balance.load import LoadModel, fetches_added, fetches_saved, movable_now, snapshot_balance


def test_shared_subscription_is_fetched_once_and_delivered_twice() -> None:
    """Two subscribers share BE subscription 0."""
    model = LoadModel(snapshot(2, [(0, [0, 1]), (0, [0]), (1, [1])], [10.0, 3.0]))
    assert model.loads.tolist() == [10 + 3 + 13 + 10, 3 + 3]
    balance = model.balance()
    assert (balance.mean, balance.maximum) == (21.0, 36.0)
    assert balance.cov == pytest.approx(15 / 21)


@given(world=snapshots(), data=st.data())
@settings(max_examples=100)
def test_loads_follow_the_equations_exactly_after_moves(world: Snapshot, data: st.DataObject) -> None:
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
def test_snapshot_balance_equals_balance_of_load_model(world: Snapshot) -> None:
    assert snapshot_balance(world) == LoadModel(world).balance()


def test_rounding_does_not_accumulate_over_many_moves() -> None:
    rng = np.random.default_rng(3)
    subscribers = [(int(rng.integers(4)), rng.choice(30, 6, replace=False).tolist()) for _ in range(200)]
    world = snapshot(4, subscribers, rng.uniform(0.1, 1e6, 30).tolist())
    model = LoadModel(world)
    for _ in range(5_000):
        model.move(int(rng.integers(200)), int(rng.integers(4)))
    again = loads_by_definition(world, model.broker_of.tolist())
    assert np.allclose(model.loads, again, rtol=1e-12)


def test_row_that_outgrows_its_room_keeps_all_counts() -> None:
    """All 60 subscribers start on one broker, so each row has one holder. Then each moves to a broker of its own."""
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
    """No subscriber is placed at first, so a row begins with room for one and doubles until all brokers hold it."""
    for m in range(1, 40):
        world = snapshot(m, [(-1, [0])] * m, [1.0])
        model = LoadModel(world)
        for i in range(m):
            model.move(i, i)
        assert model.arrays.end[0] <= len(model.arrays.holder)
        _check_holders(model, world)


def test_emptied_broker_has_load_zero() -> None:
    model = LoadModel(snapshot(2, [(0, [0, 1, 2]), (0, [1, 2])], [0.1, 0.2, 0.3]))
    model.move(0, 1)
    model.move(1, 1)
    assert model.loads[0] == 0.0


def test_utilisation_is_load_scaled_by_mean_capacity() -> None:
    subscribers = [(0, [0]), (1, [0])]
    assert LoadModel(snapshot(2, subscribers, [6.0], capacity=[5.0, 5.0])).utilisations.tolist() == [12.0, 12.0]
    assert LoadModel(snapshot(2, subscribers, [6.0], capacity=[1.0, 3.0])).utilisations.tolist() == [24.0, 8.0]


def test_broker_that_accepts_no_subscribers_does_not_count_for_cov() -> None:
    world = snapshot(3, [(0, [0]), (1, [0])], [5.0], closed=[2])
    assert snapshot_balance(world).cov == 0.0


def test_unmeasured_subscription_counts_with_the_mean_rate() -> None:
    world = snapshot(1, [(0, [0, 1, 2])], [4.0, float("nan"), 8.0])
    assert LoadModel(world).loads.tolist() == [2 * (4.0 + 6.0 + 8.0)]
    assert LoadModel(snapshot(1, [(0, [0])], [float("nan")])).loads.tolist() == [0.0]


def test_unplaced_unmovable_and_resting_subscribers_may_not_move() -> None:
    world = snapshot(1, [(0, []), (-1, []), (0, []), (0, [])], [], unmovable=[2], moved_at_s={3: 990.0})
    assert movable_now(world, 60.0).tolist() == [True, False, False, False]
    assert movable_now(world, 10.0).tolist() == [True, False, False, True]
