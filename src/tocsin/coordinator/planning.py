"""The balancing policies at work: the multistage policy on a period, and every single policy by name when asked.

The policy is the simulator's, the same function; here is only when it is called. It plans on a settled world: not while
moves of its last plan still wait for a place, for those are neither where they were nor where they will be.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from tocsin.coordinator.rules import CoordinatorRules
from tocsin.model.ids import BrokerId, SubscriberId
from tocsin.model.plan import Plan
from tocsin.model.snapshot import Snapshot
from tocsin.policies.balance import multistage
from tocsin.policies.balance.multistage import MIGRATIONS, NONE, SHUFFLES, BalanceSettings

MULTISTAGE: Final = "multistage"
"""As it is set, with all it remembers."""
ONCE: Final = "multistage-once"
"""The same at once: an imbalance need not have been seen before."""
BALANCING_POLICIES: Final = frozenset({MULTISTAGE, ONCE, *MIGRATIONS, *SHUFFLES})
"""The policies one can ask for by name; a single migration or shuffle is tried whatever α, γ and pauses say."""


def planned(policy: str, snapshot: Snapshot, settings: BalanceSettings) -> Plan:
    return multistage.plan(snapshot, _settings_for(policy, settings))


def _settings_for(policy: str, settings: BalanceSettings) -> BalanceSettings:
    if policy == MULTISTAGE:
        return settings
    if policy == ONCE:
        return replace(settings, hits=1, shuffle_rest_s=0.0)
    if policy in MIGRATIONS:
        return replace(settings, scheme=policy, shuffle=NONE, hits=1, beta_bytes_per_s=0.0)
    return replace(
        settings, scheme=NONE, shuffle=policy, hits=1, gamma=0.0, theta_bytes_per_s=0.0, shuffle_rest_s=0.0,
        shuffle_gain=0.0,
    )  # fmt: skip


def compile_policies() -> None:
    """Run every policy once on a toy world: their loops are compiled on first use, which takes seconds and is kept."""
    toy = Snapshot(
        0, 0.0, (BrokerId("a"), BrokerId("b")), np.ones(2), np.ones(2, np.bool_),
        (SubscriberId("x"), SubscriberId("y")), np.zeros(2, np.int32), np.array([0, 1, 2], np.int32),
        np.array([0, 1], np.int32), np.ones(2), np.ones(2, np.bool_), np.full(2, -np.inf),
    )  # fmt: skip
    for policy in sorted(BALANCING_POLICIES):
        planned(policy, toy, BalanceSettings())


class Rounds:
    """When the next round is due, and nothing else."""

    def __init__(self) -> None:
        self._next_at_s: float | None = None

    def due(self, now_s: float, rules: CoordinatorRules, waiting: int) -> bool:
        """The first is a whole period after the start: rates are moving averages and need their time."""
        if self._next_at_s is None or not rules.balancing:
            self._next_at_s = now_s + rules.balance_s
            return False
        if now_s < self._next_at_s or waiting:
            return False
        self._next_at_s = now_s + rules.balance_s
        return True


def changed(settings: BalanceSettings, changes: Mapping[str, object]) -> BalanceSettings:
    """Raises ValueError, naming the setting, on what no policy could follow."""
    return replace(settings, **changes)  # type: ignore[arg-type]  # the caller's message type has checked the kinds
