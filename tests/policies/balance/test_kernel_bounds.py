"""The compiled kernels stay within their arrays, which compiled code does not check.

A child process plans with the kernels as plain Python (`NUMBA_DISABLE_JIT`), where an index out of bounds raises
IndexError. This process then makes the same plans compiled.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from tests.policies.balance.balance_worlds import communities, snapshot
from tests.policies.balance.test_multistage import EVERY
from tests.policies.interpreted import interpreted
from tocsin.model.snapshot import Snapshot
from tocsin.policies.balance.affinity_candidates import groups_of
from tocsin.policies.balance.load import LoadModel
from tocsin.policies.balance.multistage import plan

QUIET = 400
Plans = dict[str, list[list[str]]]


def quiet_world(movers: int) -> Snapshot:
    """Three brokers. `movers` heavy subscribers of broker 0 share one busy and 400 quiet BE subscriptions.

    Both other brokers hold the quiet ones and are below the mean.
    """
    quiet = list(range(QUIET))
    heavy = [(0, [*quiet, QUIET]) for _ in range(movers)]
    return snapshot(3, [*heavy, (0, [QUIET + 1]), (1, quiet), (2, quiet)], [0.0] * QUIET + [8.0, 16.0])


def mixed_world(seed: int) -> Snapshot:
    """Five brokers, 60 subscribers, half of the BE subscriptions quiet."""
    rng = np.random.default_rng(seed)
    subscribers = [(int(rng.geometric(0.5)) % 5, rng.choice(40, 8, replace=False).tolist()) for _ in range(60)]
    return snapshot(5, subscribers, (rng.integers(0, 2, 40) * rng.integers(1, 80, 40) / 8).tolist())


def worlds() -> Iterator[tuple[str, Snapshot]]:
    subscribers = [(0, [k % 10, (k + 3) % 10]) for k in range(30)]
    rates = [float(1 + k % 4) for k in range(10)]
    yield "one mover with quiet subscriptions", quiet_world(1)
    yield "a group with quiet subscriptions", quiet_world(5)
    yield "only quiet subscriptions", snapshot(3, subscribers, [0.0] * 10)
    yield "one broker", snapshot(1, subscribers, rates)
    yield "no movable subscriber", snapshot(3, subscribers, rates, unmovable=range(30))
    yield "all subscribers on one broker", snapshot(4, subscribers, rates)
    yield "no broker with capacity", snapshot(3, subscribers, rates, capacity=[0.0] * 3)
    yield "one broker without capacity", snapshot(3, subscribers, rates, capacity=[1.0, 0.0, 2.0])
    yield "no broker", snapshot(0, [], rates)
    yield "communities", communities(5, 12, seed=1, size=10)
    yield (
        "communities in which a broker is closed",
        replace(communities(4, 8, seed=2, size=10, own=1.0), accepting=np.array([True, True, False, True])),
    )
    for seed in range(20):
        yield f"mixed {seed}", mixed_world(seed)
    for seed in range(6):
        yield f"mixed {seed}, half offline", replace(mixed_world(seed), online=np.arange(60) % 2 == 0)
        yield f"mixed {seed}, rates unknown", replace(mixed_world(seed), rate=np.full(40, np.nan))
    for brokers in (5, 70):  # the reach of 70 brokers needs two words
        yield f"{brokers} brokers along a road", road_world(brokers)
        none_near = np.arange(brokers) == brokers - 1
        yield f"{brokers} brokers, one accepts", replace(road_world(brokers), accepting=none_near)


def road_world(brokers: int) -> Snapshot:
    """Brokers 100 km apart; the subscribers of each live beside it, most of them near the first ones."""
    rng = np.random.default_rng(brokers)
    subscribers = [(int(rng.geometric(0.2)) % brokers, rng.choice(40, 6, replace=False).tolist()) for _ in range(90)]
    world = snapshot(brokers, subscribers, rng.integers(1, 80, 40).tolist())
    at = np.stack([np.zeros(brokers), 0.9 * np.arange(brokers)], axis=1)
    return replace(world, places_deg=at[world.broker_of] + 0.01, broker_places_deg=at)


def plans() -> Plans:
    """The moves of each policy in each world."""
    return {
        f"{policy}, {metres:g} m: {name}": [
            [move.subscriber, str(move.source), move.target]
            for move in plan(world, replace(settings, max_added_m=metres)).moves
        ]
        for name, world in worlds()
        for policy, settings in EVERY.items()
        for metres in ((0.0,) if world.places_deg is None else (0.0, 150_000.0, 1.0))
    }


def test_kernels_stay_in_bounds_and_plan_alike_interpreted_and_compiled() -> None:
    without_compilation: Plans = interpreted(plans)
    assert without_compilation == plans()
    for policy in EVERY:
        assert without_compilation[f"{policy}, 0 m: one mover with quiet subscriptions"], (
            f"{policy} does not reach its kernels"
        )


def test_quiet_subscribers_have_no_affinity_label_and_do_not_vote() -> None:
    """BE subscription 0 is quiet. Its subscribers must not take the label away from those of BE subscription 1."""
    world = snapshot(1, [(0, [1]), (0, [1, 0]), (0, [0]), (0, [0])], [0.0, 4.0])
    assert groups_of(LoadModel(world)).tolist() == [1, 1, -1, -1]
