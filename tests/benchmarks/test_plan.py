"""`bench plan` checks plans by an independent calculation, and the check can fail."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tocsin.benchmarks import plan as bench
from tocsin.policies.balance.multistage import plan
from tocsin.policies.balance.settings import BalanceSettings


@pytest.mark.parametrize("policy", sorted(bench.POLICIES))
def test_every_timed_policy_does_something_on_the_warm_up_world_and_is_found_correct(policy: str) -> None:
    world = bench._tiny()
    found = plan(world, BalanceSettings(**bench.POLICIES[policy], hits=1, max_moves=0))
    assert found.moves and found.after is not None
    assert bench._correct(world, found)
    assert not bench._correct(world, replace(found, moves=found.moves[1:]))
    assert not bench._correct(world, replace(found, moves=(*found.moves, found.moves[0])))
