"""Renumbering a world changes its memory layout, not the plans."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from tests.policies.balance.balance_worlds import seeded, snapshots
from tests.policies.balance.test_multistage import EVERY
from tocsin.model.plan import Plan
from tocsin.model.snapshot import Snapshot
from tocsin.policies.balance.load import snapshot_balance
from tocsin.policies.balance.multistage import plan
from tocsin.policies.balance.renumbering import renumber


def rates_of(world: Snapshot, i: int) -> list[float]:
    """The rates of subscriber i's BE subscriptions, in order. Their numbers do not matter."""
    rates: list[float] = world.rate[world.wants[world.wants_start[i] : world.wants_start[i + 1]]].tolist()
    return rates


@given(world=snapshots())
@hypothesis_settings(max_examples=100)
def test_every_subscriber_keeps_its_data(world: Snapshot) -> None:
    renumbered = renumber(world)
    n = len(world.subscribers)
    assert sorted(renumbered.order.tolist()) == list(range(n))
    assert renumbered.order[renumbered.number].tolist() == list(range(n))
    assert list(renumbered.named(np.arange(n))) == [world.subscribers[i] for i in renumbered.order]
    for new, old in enumerate(renumbered.order.tolist()):
        assert rates_of(renumbered.world, new) == rates_of(world, old)
    for name in ("broker_of", "movable", "moved_at_s"):
        assert getattr(renumbered.world, name).tolist() == getattr(world, name)[renumbered.order].tolist()
    assert sorted(renumbered.world.rate.tolist()) == sorted(world.rate.tolist())
    assert (np.diff(renumbered.world.broker_of) >= 0).all()
    assert snapshot_balance(renumbered.world) == snapshot_balance(world)


@given(world=snapshots())
@hypothesis_settings(max_examples=60)
def test_subscriptions_are_numbered_in_order_of_first_use(world: Snapshot) -> None:
    first = list(dict.fromkeys(renumber(world).world.wants.tolist()))
    assert first == list(range(len(first)))


@pytest.mark.parametrize("name", ["ldm", "sdm", "gsh shuffle"])
@given(seed=st.integers(0, 10_000))
@hypothesis_settings(max_examples=15)
def test_order_of_registration_does_not_change_plans(name: str, seed: int) -> None:
    """Of two equal subscribers either may move. Not for affinity: its groups depend on the order of subscribers."""
    world = seeded(5, 60, 400, seed)
    order = np.random.default_rng(seed).permutation(60)
    rows = [world.wants[world.wants_start[i] : world.wants_start[i + 1]] for i in order]
    other = replace(
        world,
        subscribers=tuple(world.subscribers[i] for i in order),
        broker_of=world.broker_of[order],
        wants_start=np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int32),
        wants=np.concatenate(rows).astype(np.int32),
        movable=world.movable[order],
        moved_at_s=world.moved_at_s[order],
    )
    made, again = plan(world, EVERY[name]), plan(other, EVERY[name])
    assert made.moves and made.after is not None and again.after is not None
    assert again.after.loads == pytest.approx(made.after.loads)
    assert moved_rates(other, again) == moved_rates(world, made)


def moved_rates(world: Snapshot, made: Plan) -> Counter[tuple[object, ...]]:
    number = {name: i for i, name in enumerate(world.subscribers)}
    return Counter((*rates_of(world, number[move.subscriber]), move.source, move.target) for move in made.moves)
