"""Worlds for the balancing policies: made by hand, by hypothesis, or drawn from a seed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tocsin.model.ids import BrokerId, SubscriberId
from tocsin.model.snapshot import Floats, Snapshot


def snapshot(
    brokers: int,
    subscribers: Sequence[tuple[int, Sequence[int]]],
    rates: Sequence[float],
    *,
    capacity: Sequence[float] | None = None,
    closed: Sequence[int] = (),
    unmovable: Sequence[int] = (),
    moved_at_s: dict[int, float] | None = None,
    at_s: float = 1_000.0,
    memory: dict[str, float] | None = None,
) -> Snapshot:
    """`subscribers` as (broker, BE subscriptions); `closed` brokers accept no subscribers."""
    count = len(subscribers)
    wants = [list(subscriptions) for _, subscriptions in subscribers]
    last_move_s = np.full(count, -np.inf)
    for i, when_s in (moved_at_s or {}).items():
        last_move_s[i] = when_s
    return Snapshot(
        generation=7,
        at_s=at_s,
        brokers=tuple(BrokerId(f"b{j}") for j in range(brokers)),
        capacity=np.array(capacity if capacity is not None else [1.0] * brokers),
        accepting=np.array([j not in closed for j in range(brokers)], dtype=np.bool_),
        subscribers=tuple(SubscriberId(f"s{i}") for i in range(count)),
        broker_of=np.array([broker for broker, _ in subscribers], dtype=np.int32),
        wants_start=np.cumsum([0, *map(len, wants)]).astype(np.int32),
        wants=np.array([k for subscriptions in wants for k in subscriptions], dtype=np.int32),
        rate=np.array(rates, dtype=np.float64),
        movable=np.array([i not in unmovable for i in range(count)], dtype=np.bool_),
        moved_at_s=last_move_s,
        memory=memory or {},
    )


@st.composite
def snapshots(draw: st.DrawFn, *, odd: bool = True) -> Snapshot:
    """Small worlds; rates are eighths, so that sums are exact. `odd`: also unequal and closed brokers, unmovable and
    unplaced subscribers."""
    m, q = draw(st.integers(1, 5)), draw(st.integers(1, 8))
    lowest = -1 if odd else 0
    subscribers = draw(
        st.lists(
            st.tuples(st.integers(lowest, m - 1), st.lists(st.integers(0, q - 1), max_size=q, unique=True)), max_size=14
        )
    )
    rates = [draw(st.integers(0, 80)) / 8 for _ in range(q)]
    extra: dict[str, Any] = {}
    if odd:
        extra["capacity"] = [draw(st.sampled_from([0.5, 1.0, 1.0, 2.0])) for _ in range(m)]
        extra["closed"] = draw(st.lists(st.integers(0, m - 1), max_size=2))
        extra["unmovable"] = draw(st.lists(st.integers(0, 13), max_size=3))
        if subscribers:
            resting = draw(st.lists(st.integers(0, len(subscribers) - 1), max_size=2))
            extra["moved_at_s"] = dict.fromkeys(resting, 990.0)
    return snapshot(m, subscribers, rates, **extra)


def seeded(
    brokers: int, subscribers: int, subscriptions: int, seed: int, *, skew: float = 1.0, most: int = 12
) -> Snapshot:
    """A world from a seed: broker j gets subscribers in proportion to 1/(j + 1)^skew."""
    rng = np.random.default_rng(seed)
    share = 1.0 / np.arange(1, brokers + 1) ** skew
    placed = [
        (int(broker), rng.choice(subscriptions, int(rng.integers(1, most + 1)), replace=False).tolist())
        for broker in rng.choice(brokers, subscribers, p=share / share.sum())
    ]
    return snapshot(brokers, placed, np.maximum(1.0, rng.normal(100.0, 30.0, subscriptions)).tolist())


def communities(brokers: int, neighbourhoods: int, seed: int, *, size: int = 50, own: float = 0.85) -> Snapshot:
    """Neighbourhoods of about `size` subscribers near one broker each; low broker numbers have more neighbourhoods.

    A subscriber draws 8 to 16 interests: each with probability `own` from the 20 of its neighbourhood, else from all.
    """
    rng = np.random.default_rng(seed)
    share = 1.0 / np.arange(1, brokers + 1)
    near = rng.choice(brokers, neighbourhoods, p=share / share.sum())
    placed: list[tuple[int, list[int]]] = []
    for home in rng.integers(0, neighbourhoods, size * neighbourhoods):
        count = int(rng.integers(8, 17))
        local = home + neighbourhoods * rng.integers(0, 20, count)
        drawn = np.where(rng.random(count) < own, local, rng.integers(0, 20 * neighbourhoods, count))
        placed.append((int(near[home]), np.unique(drawn).tolist()))
    rates = np.maximum(100.0, rng.normal(1_000.0, 250.0, 20 * neighbourhoods))
    return snapshot(brokers, placed, rates.tolist())


def loads_by_definition(world: Snapshot, broker_of: Sequence[int] | None = None) -> Floats:
    """[BAD eq. 1–5] written out over every subscriber, broker and BE subscription."""
    placed = world.broker_of if broker_of is None else np.asarray(broker_of)
    m, n, q = len(world.brokers), len(world.subscribers), len(world.rate)
    y = np.zeros((n, q))
    for i in range(n):
        y[i, world.wants[world.wants_start[i] : world.wants_start[i + 1]]] = 1
    x = np.zeros((n, m))
    for i in range(n):
        if placed[i] >= 0:
            x[i, placed[i]] = 1
    z = np.array([[1 - np.prod(1 - x[:, j] * y[:, k]) for k in range(q)] for j in range(m)]).reshape(m, q)
    counts = x.T @ y
    incoming, outgoing = z @ world.rate, counts @ world.rate
    loads: Floats = (z * (1 + counts)) @ world.rate
    assert np.allclose(loads, incoming + outgoing, rtol=1e-12)
    return loads
