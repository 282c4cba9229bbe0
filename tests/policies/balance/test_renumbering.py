"""Numbering a world anew changes where things lie, not what is decided."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from tests.policies.balance.balance_worlds import drawn, snapshots
from tests.policies.balance.test_multistage import EVERY
from tocsin.model.plan import Plan
from tocsin.model.snapshot import Snapshot
from tocsin.policies.balance.load import standing_balance
from tocsin.policies.balance.multistage import plan
from tocsin.policies.balance.renumbering import renumber


def wanted(world: Snapshot, i: int) -> list[float]:
    """The rates of what subscriber i wants, in its order: what a subscription is called does not matter."""
    rates: list[float] = world.rate[world.wants[world.wants_start[i] : world.wants_start[i + 1]]].tolist()
    return rates


@given(world=snapshots())
@hypothesis_settings(max_examples=100)
def test_everybody_keeps_what_is_theirs(world: Snapshot) -> None:
    near = renumber(world)
    n = len(world.subscribers)
    assert sorted(near.order.tolist()) == list(range(n))
    assert near.order[near.number].tolist() == list(range(n))
    assert list(near.named(np.arange(n))) == [world.subscribers[i] for i in near.order]
    for new, old in enumerate(near.order.tolist()):
        assert wanted(near.world, new) == wanted(world, old)
    for name in ("broker_of", "movable", "moved_at_s"):
        assert getattr(near.world, name).tolist() == getattr(world, name)[near.order].tolist()
    assert sorted(near.world.rate.tolist()) == sorted(world.rate.tolist())
    assert (np.diff(near.world.broker_of) >= 0).all()
    assert standing_balance(near.world) == standing_balance(world)


@given(world=snapshots())
@hypothesis_settings(max_examples=60)
def test_subscriptions_are_numbered_as_they_are_first_wanted(world: Snapshot) -> None:
    first = list(dict.fromkeys(renumber(world).world.wants.tolist()))
    assert first == list(range(len(first)))


@pytest.mark.parametrize("name", ["ldm", "sdm", "gsh shuffle"])
@given(seed=st.integers(0, 10_000))
@hypothesis_settings(max_examples=15)
def test_in_which_order_people_were_entered_does_not_matter(name: str, seed: int) -> None:
    """Of two that want the same either may go. Affinity is left out: its groups depend on who is asked first."""
    world = drawn(5, 60, 400, seed)
    order = np.random.default_rng(seed).permutation(60)
    rows = [world.wants[world.wants_start[i] : world.wants_start[i + 1]] for i in order]
    other = replace(
        world, subscribers=tuple(world.subscribers[i] for i in order), broker_of=world.broker_of[order],
        wants_start=np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int32),
        wants=np.concatenate(rows).astype(np.int32), movable=world.movable[order], moved_at_s=world.moved_at_s[order],
    )  # fmt: skip
    found, again = plan(world, EVERY[name]), plan(other, EVERY[name])
    assert found.moves and found.after is not None and again.after is not None
    assert again.after.loads == pytest.approx(found.after.loads)
    assert what_moves(other, again) == what_moves(world, found)


def what_moves(world: Snapshot, found: Plan) -> Counter[tuple[object, ...]]:
    number = {name: i for i, name in enumerate(world.subscribers)}
    return Counter((*wanted(world, number[one.subscriber]), one.source, one.target) for one in found.moves)
