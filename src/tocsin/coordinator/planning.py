"""The planner decides when plans are made, and by which policy.

Failover and drain plan at every tick, roaming when a subscriber has travelled, the multistage policy on a period, and
every policy by name on request.

A balancing policy is the simulator's own function from a snapshot to a plan. Balancing waits until the moves of its
last plan have started: until then the snapshot shows neither the old nor the new assignment. A surge that brokers
report makes the next round due at once.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from tocsin.coordinator import topic_control
from tocsin.coordinator.arbiter import Arbiter, Decision
from tocsin.coordinator.effects import RequestRejection, StoreFact
from tocsin.coordinator.evacuation import EVACUATIONS, forget_deleted
from tocsin.coordinator.events import PlanProposed
from tocsin.coordinator.roaming import ROAMING, forget_judged, roaming_plan
from tocsin.coordinator.snapshots import SnapshotBuilder
from tocsin.coordinator.turn import Turn
from tocsin.model.ids import BrokerId, SubscriberId
from tocsin.model.plan import Move, Plan, Urgency
from tocsin.model.snapshot import Snapshot
from tocsin.model.trace import Kind
from tocsin.policies.balance import multistage
from tocsin.policies.balance.load import snapshot_loads
from tocsin.policies.balance.multistage import MIGRATIONS, SHUFFLES
from tocsin.policies.balance.settings import NONE, BalanceSettings
from tocsin.wire.errors import Code

Planner = Callable[[Snapshot], Plan]

_MODELLED_PER_S: Final = 10_000
"""Subscribers whose load is modelled for status pages, per second: a million take a second of the coordinator's time,
which a page that is open may cost once in 100 s."""
_SURGE_SETTLE_S: Final = 1.0
"""The pause between the first report of a surge and the round that answers it: the other brokers report it too."""

_MULTISTAGE: Final = "multistage"
"""The policy with its settings and its memory."""
_MULTISTAGE_ONCE: Final = "multistage-once"
"""The same policy without waiting: it acts on an imbalance that one snapshot shows."""
_BALANCING_POLICIES: Final = frozenset({_MULTISTAGE, _MULTISTAGE_ONCE, *MIGRATIONS, *SHUFFLES})
"""Policies by name. A single migration scheme or shuffle runs regardless of α, γ and the rests."""


class Planning:
    def __init__(self, arbiter: Arbiter, planners: Mapping[str, Planner], memory: Mapping[str, float]) -> None:
        """`planners` are additional policies by name; `memory` is the policies' state after their last plan."""
        self.planners = dict(planners)
        self.last_round: Decision | None = None
        """The last decision of the periodic balancing, for status pages."""
        self._arbiter = arbiter
        self._memory = dict(memory)
        self._snapshots = SnapshotBuilder()
        self._next_round_s: float | None = None
        self._next_roaming_s = -math.inf
        self._surge_answered_s = -math.inf
        self._modelled: tuple[float, dict[BrokerId, float]] = (-math.inf, {})
        """(time, load of each broker before it is multiplied by the level)."""

    @property
    def policy_names(self) -> list[str]:
        return sorted({*map(str, EVACUATIONS), ROAMING, *_BALANCING_POLICIES, *self.planners})

    def snapshot(self, turn: Turn) -> Snapshot:
        return self._snapshots.build(turn.registry, turn.loads, turn.now_s, self._memory)

    def modelled_loads(self, turn: Turn) -> dict[BrokerId, float]:
        """F_j of each broker as policies see it, in bytes/s; as old as a load report, older in a large network."""
        level = turn.loads.level.factor
        return {broker: level * load for broker, load in self._loads_before_level(turn).items()}

    def note_promise(self, turn: Turn, broker: BrokerId) -> None:
        """Keep the model's load of a broker until its next report, which shows what the broker transferred."""
        turn.loads.of(broker).promised_bytes_per_s = self._loads_before_level(turn).get(broker, 0.0)

    def _loads_before_level(self, turn: Turn) -> dict[BrokerId, float]:
        made_s, _ = self._modelled
        fresh_s = max(turn.rules.report_s, len(turn.registry.subscribers) / _MODELLED_PER_S)
        if not 0.0 <= turn.now_s - made_s < fresh_s:
            snapshot = self.snapshot(turn)
            loads = (snapshot_loads(snapshot) / turn.loads.level.factor).tolist()
            self._modelled = turn.now_s, dict(zip(snapshot.brokers, loads, strict=True))
        return self._modelled[1]

    def evacuate(self, turn: Turn) -> None:
        """Make the failover and drain plans of this tick and have the arbiter carry them out."""
        for urgency, plan in EVACUATIONS.items():
            allowed = self._arbiter.allowance(turn, urgency)
            if urgency is Urgency.FAILOVER:
                forget_deleted(turn, allowed)
            self._arbiter.carry_out(turn, plan(turn, allowed))

    def follow_roaming(self, turn: Turn) -> None:
        """Give subscribers that have travelled nearer brokers, as often as balancing plans: a plan needs a snapshot."""
        if turn.registry.roaming and turn.now_s >= self._next_roaming_s:
            self._next_roaming_s = turn.now_s + turn.rules.balance_s
            decision = self.propose(turn, PlanProposed(0, ROAMING, dry_run=False))
            assert isinstance(decision, Decision)
            forget_judged(turn)

    def balance(self, turn: Turn) -> None:
        """Run the multistage policy if its next round is due."""
        if self._is_round_due(turn):
            decision = self.propose(turn, PlanProposed(0, _MULTISTAGE, dry_run=False))
            assert isinstance(decision, Decision)
            self.last_round = decision
            turn.loads.surge_since_s = None

    def _is_round_due(self, turn: Turn) -> bool:
        """True if a round is due. The first is a whole period after the start: rates are moving averages."""
        rules = turn.rules
        if self._next_round_s is None or not rules.balancing:
            self._next_round_s = turn.now_s + rules.balance_s
            turn.loads.surge_since_s = None  # balancing that is switched on later must not answer an old surge
            return False
        urgent = rules.balance.surges or rules.balance.overload_bytes_per_s > 0.0
        surge_s = turn.loads.surge_since_s if urgent else None
        due_s = self._next_round_s
        if surge_s is not None:
            settled_s = max(surge_s + _SURGE_SETTLE_S, self._surge_answered_s + rules.balance_s / 2)
            due_s = min(due_s, settled_s)
        if turn.now_s < due_s or self._arbiter.balancing_waits:
            return False
        if surge_s is not None:
            self._surge_answered_s = turn.now_s
        self._next_round_s = turn.now_s + rules.balance_s
        return True

    def propose(self, turn: Turn, event: PlanProposed) -> Decision | RequestRejection:
        """Judge a plan and, unless it is a dry run, have the arbiter carry it out."""
        snapshot = self.snapshot(turn)
        plan = _manual_plan(turn, event) if event.policy is None else self._plan_by(turn, event.policy, snapshot)
        if plan is None:
            names = ", ".join(self.policy_names)
            return RequestRejection(Code.NOT_FOUND, f"there is no policy {event.policy!r} (there are: {names})")
        decision = self._arbiter.decide(turn, plan, snapshot)
        if not event.dry_run:
            _trace_plan(turn, decision)
            self._arbiter.take(turn, decision)
            if plan.memory and plan.memory != self._memory:
                self._memory = dict(plan.memory)
                turn.do(StoreFact("policy_memory", json.dumps(self._memory)))
        return decision

    def _plan_by(self, turn: Turn, policy: str, snapshot: Snapshot) -> Plan | None:
        """The plan of a policy; None if there is no such policy."""
        for urgency, evacuation in EVACUATIONS.items():
            if policy == urgency:
                return evacuation(turn, None)
        if policy == ROAMING:
            return roaming_plan(turn, snapshot, self.modelled_loads(turn))
        if policy in _BALANCING_POLICIES:
            return balancing_plan(policy, snapshot, turn.rules.balance)
        planner = self.planners.get(policy)
        return None if planner is None else planner(snapshot)


def _manual_plan(turn: Turn, event: PlanProposed) -> Plan:
    """The moves that an administrator requests. They rank as latency: above moves that only even out loads."""
    generation = turn.registry.generation if event.generation is None else event.generation
    moves = []
    for requested in event.moves or ():
        subscriber = turn.registry.subscribers.get(requested.subscriber)
        home = None if subscriber is None else subscriber.home
        load = 0.0 if subscriber is None else turn.loads.demand(subscriber)
        moves.append(Move(requested.subscriber, home, requested.target, requested.reason, load))
    return Plan(generation, "asked for", Urgency.LATENCY, tuple(moves))


def _trace_plan(turn: Turn, decision: Decision) -> None:
    plan, taken = decision.plan, sum(verdict.taken for verdict in decision.verdicts)
    if taken:
        detail = {"policy": plan.policy, "cov_before": decision.before.cov, "taken": taken}
        turn.trace(Kind.PLAN, cov=decision.after.cov, moves=len(plan.moves), note=plan.note, detail=detail)


def balancing_plan(policy: str, snapshot: Snapshot, settings: BalanceSettings) -> Plan:
    return multistage.plan(snapshot, _settings_for(policy, settings))


def _settings_for(policy: str, settings: BalanceSettings) -> BalanceSettings:
    if policy == _MULTISTAGE:
        return settings
    if policy == _MULTISTAGE_ONCE:
        return replace(settings, hits=1, shuffle_rest_s=0.0)
    if policy in MIGRATIONS:
        return replace(settings, scheme=policy, shuffle=NONE, hits=1, beta_bytes_per_s=0.0)
    at_once = replace(settings, gamma=0.0, theta_bytes_per_s=0.0, shuffle_rest_s=0.0, shuffle_gain=0.0)
    return replace(at_once, scheme=NONE, shuffle=policy, hits=1)


def compile_policies() -> None:
    """Run every balancing policy once on two subscribers: compiling their loops takes seconds and is done once."""
    toy = Snapshot(
        generation=0,
        at_s=0.0,
        brokers=(BrokerId("a"), BrokerId("b")),
        capacity=np.ones(2),
        accepting=np.ones(2, np.bool_),
        subscribers=(SubscriberId("x"), SubscriberId("y")),
        broker_of=np.zeros(2, np.int32),
        wants_start=np.array([0, 1, 2], np.int32),
        wants=np.array([0, 1], np.int32),
        rate=np.ones(2),
        movable=np.ones(2, np.bool_),
        moved_at_s=np.full(2, -np.inf),
    )
    for policy in sorted(_BALANCING_POLICIES):
        balancing_plan(policy, toy, BalanceSettings())
    topic_control.compile_policy()
