"""`tocsin bench plan` checks plans by an independent calculation, and the check detects wrong plans."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tocsin.benchmarks import plan as bench
from tocsin.policies.balance.multistage import plan
from tocsin.policies.balance.settings import BalanceSettings


@pytest.mark.parametrize("policy", sorted(bench.POLICIES))
def test_check_accepts_each_policys_plan_and_rejects_altered_moves(policy: str) -> None:
    snapshot = bench.warm_up_snapshot()
    made = plan(snapshot, BalanceSettings(**bench.POLICIES[policy], hits=1, max_moves=0))
    assert made.moves and made.after is not None
    assert bench.is_correct(snapshot, made)
    assert not bench.is_correct(snapshot, replace(made, moves=made.moves[1:]))
    assert not bench.is_correct(snapshot, replace(made, moves=(*made.moves, made.moves[0])))
