"""Weighted max-min: hand-made worlds with exact rates, and the two properties that define it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tocsin.policies.sites.fair import Floats, max_min


def shared(demand: list[float], weight: list[float], cost: list[list[float]], room: list[float]) -> list[float]:
    arrays = (np.array(part, dtype=float) for part in (demand, weight, cost, room))
    granted: list[float] = max_min(*arrays).tolist()
    return granted


def test_rates_are_proportional_to_weights_until_demands_are_met() -> None:
    assert shared([100, 100], [1, 3], [[1], [1]], [80]) == pytest.approx([20, 60])
    assert shared([100, 30], [1, 3], [[1], [1]], [80]) == pytest.approx([50, 30])
    assert shared([10, 30], [1, 3], [[1], [1]], [80]) == pytest.approx([10, 30])


def test_full_resource_stops_only_demands_that_use_it() -> None:
    rates = shared([100, 100, 100], [1, 1, 1], [[1, 0], [1, 1], [0, 1]], [20, 90])
    assert rates == pytest.approx([10, 10, 80])


def test_demand_without_weight_or_room_gets_nothing() -> None:
    assert shared([5, 5, 5], [0, 1, 1], [[1, 0], [1, 0], [1, 1]], [10, 0]) == pytest.approx([0, 5, 0])
    assert max_min(np.zeros(0), np.zeros(0), np.zeros((0, 2)), np.ones(2)).tolist() == []


@st.composite
def worlds(draw: st.DrawFn) -> tuple[Floats, Floats, Floats, Floats]:
    demands, resources = draw(st.integers(1, 12)), draw(st.integers(1, 5))
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))
    demand = rng.uniform(0.0, 100.0, demands) * (rng.random(demands) < 0.9)
    weight = rng.choice([0.0, 0.01, 0.5, 1.0], demands)
    cost = rng.uniform(0.1, 5.0, (demands, resources)) * (rng.random((demands, resources)) < 0.6)
    return demand, weight, cost, rng.uniform(0.0, 300.0, resources) * (rng.random(resources) < 0.9)


@settings(max_examples=300)
@given(worlds())
def test_no_resource_is_exceeded_and_none_is_idle(world: tuple[Floats, Floats, Floats, Floats]) -> None:
    demand, weight, cost, room = world
    granted = max_min(*world)
    used = granted @ cost
    assert (granted <= demand + 1e-6).all()
    assert (used <= room + 1e-5).all()
    full = used >= room - 1e-5
    for number in np.flatnonzero((granted < demand - 1e-5) & (weight > 0.0)):
        bottlenecks = full & (cost[number] > 0.0)
        assert bottlenecks.any(), "capacity is idle"
        levels = granted / np.maximum(weight, 1e-12)
        others = [np.flatnonzero((cost[:, at] > 0.0) & (weight > 0.0)) for at in np.flatnonzero(bottlenecks)]
        highest = min((float(levels[users].max()) for users in others), default=0.0)
        assert highest <= levels[number] * (1.0 + 1e-6) + 1e-6, "a higher rate could give way at its bottleneck"
