"""Balancing does not flap: on unequal brokers and with jittering rates it makes few moves, then none."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.policies.balance.balance_worlds import seeded
from tocsin.model.snapshot import Snapshot
from tocsin.policies.balance.multistage import plan
from tocsin.policies.balance.settings import BalanceSettings

ROUND_S = 10.0
CALM = BalanceSettings(settle=0.8)


def unequal(seed: int, skew: float = 0.6) -> Snapshot:
    world = seeded(6, 400, 60, seed, skew=skew)
    return replace(world, capacity=np.array([1.0, 1.0, 2.0, 2.0, 4.0, 0.5]))


def plan_rounds(
    world: Snapshot, settings: BalanceSettings, rounds: int, jitter: float, seed: int
) -> list[tuple[float, str]]:
    """Plan `rounds` times; in each round every rate is within `jitter` of its own. Returns (time, subscriber) pairs."""
    rng = np.random.default_rng(seed)
    rate, index = world.rate, {name: j for j, name in enumerate(world.brokers)}
    number = {name: i for i, name in enumerate(world.subscribers)}
    moves: list[tuple[float, str]] = []
    for _ in range(rounds):
        made = plan(replace(world, rate=rate * rng.uniform(1.0 - jitter, 1.0 + jitter, len(rate))), settings)
        broker_of, moved_at_s = world.broker_of.copy(), world.moved_at_s.copy()
        for move in made.moves:
            i = number[move.subscriber]
            broker_of[i], moved_at_s[i] = index[move.target], world.at_s
            moves.append((world.at_s, move.subscriber))
        world = replace(
            world, at_s=world.at_s + ROUND_S, broker_of=broker_of, moved_at_s=moved_at_s, memory=made.memory
        )
    return moves


@pytest.mark.parametrize("scheme", ["ldm", "sdm", "affinity"])
def test_jittering_rates_cause_few_moves_an_hour(scheme: str) -> None:
    """Once 400 subscribers are balanced, an hour of ±30 % on every rate moves fewer than one in ten."""
    shuffle = "affinity" if scheme == "affinity" else "gsh"
    for seed in range(3):
        made = plan_rounds(unequal(seed), replace(CALM, scheme=scheme, shuffle=shuffle), 361, 0.3, seed)
        settled = [subscriber for at_s, subscriber in made if at_s > 1_300.0]
        assert len(made) > 0
        assert len(settled) <= 40, f"seed {seed}: {len(settled)} moves in an hour"


def test_subscriber_rests_between_two_moves() -> None:
    made = plan_rounds(unequal(1), BalanceSettings(hits=1, alpha=0.02, shuffle="none", rest_s=60.0), 200, 0.5, 1)
    last: dict[str, float] = {}
    for at_s, subscriber in made:
        assert at_s - last.get(subscriber, -np.inf) >= 60.0
        last[subscriber] = at_s
    assert len(made) > len(last), "no subscriber moved twice: the world tests nothing"


def test_hysteresis_halves_the_moves() -> None:
    """Few subscribers and wild rates: the paper's algorithm without hysteresis moves them twice as often."""
    eager = BalanceSettings(hits=1, rest_s=0.0, shuffle="none")
    calm = replace(eager, hits=3, rest_s=60.0, settle=0.8)
    late = [
        sum(at_s > 1_100.0 for at_s, _ in plan_rounds(seeded(8, 40, 20, seed, most=2), settings, 180, 0.9, seed))
        for settings in (eager, calm)
        for seed in range(3)
    ]
    assert sum(late[:3]) > 2 * sum(late[3:]) > 0, late


@pytest.mark.parametrize("scheme", ["ldm", "sdm", "affinity"])
@pytest.mark.parametrize("shuffle", ["none", "gsh", "affinity"])
def test_planning_on_unchanged_world_reaches_fixed_point(scheme: str, shuffle: str) -> None:
    for seed in range(3):
        settings = replace(CALM, scheme=scheme, shuffle=shuffle, alpha=0.05, rest_s=20.0, shuffle_rest_s=60.0)
        made = plan_rounds(unequal(seed, skew=1.5), settings, 60, 0.0, seed)
        assert made, "the world was even from the start"
        assert max(at_s for at_s, _ in made) < 1_000.0 + 40 * ROUND_S


def test_moves_per_round_are_bounded() -> None:
    made = plan_rounds(unequal(1, skew=1.5), BalanceSettings(hits=1, shuffle="none", max_moves=7), 30, 0.0, 1)
    rounds = [sum(at_s == when for at_s, _ in made) for when in {at_s for at_s, _ in made}]
    assert max(rounds) == 7 and len(rounds) > 3
