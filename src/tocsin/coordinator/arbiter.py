"""Between policies and action: which moves of a plan are made, in which order, how many at a time, why not the rest.

A plan made from an older snapshot is refused as a whole. Of the others every move is looked at by itself, against loads
as they will be once what is under way has arrived. Moves that are taken wait here for a free place, most urgent first
(failover > drain > latency > overload > imbalance), and are looked at again when their turn comes: the world moves on.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, replace
from itertools import count

import numpy as np

from tocsin.coordinator import migrations
from tocsin.coordinator.records import Health
from tocsin.coordinator.snapshots import balance_of
from tocsin.coordinator.turn import Turn
from tocsin.model.ids import SubscriberId
from tocsin.model.plan import Balance, Move, Plan, Urgency
from tocsin.model.snapshot import Snapshot

_ORDER = {urgency: rank for rank, urgency in enumerate(Urgency)}
_EVENS_OUT = (Urgency.OVERLOAD, Urgency.IMBALANCE)
_WORSE = 1.01
"""A plan to even out loads that raises the highest by more than this is refused."""


@dataclass(frozen=True, slots=True)
class Verdict:
    move: Move
    taken: bool
    reason: str
    """Why it moves, or why not."""


@dataclass(frozen=True, slots=True)
class Decision:
    plan: Plan
    verdicts: tuple[Verdict, ...]
    before: Balance
    after: Balance
    """If the moves that were taken are made, and nothing else changes."""


class Arbiter:
    def __init__(self, epoch: str) -> None:
        """`epoch` makes the ids of this process's migrations different from those of the one before."""
        self._epoch = epoch
        self._number = count(1)
        self._order = count()
        self._waiting: list[tuple[int, int, Move, Urgency]] = []
        self._queued: set[SubscriberId] = set()

    def new_id(self) -> str:
        return f"{self._epoch}-{next(self._number)}"

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def decide(self, turn: Turn, plan: Plan, snapshot: Snapshot) -> Decision:
        """Nothing happens yet; `snapshot` is the present one."""
        before = balance_of(snapshot)
        if plan.generation != turn.registry.generation:
            stale = (
                f"the plan is of generation {plan.generation}, the present is {turn.registry.generation}: plan again"
            )
            return Decision(plan, tuple(Verdict(move, False, stale) for move in plan.moves), before, before)
        verdicts = [self._look_at(turn, move) for move in plan.moves]
        after = _after(snapshot, verdicts)
        if plan.urgency in _EVENS_OUT and after.maximum > before.maximum * _WORSE:
            worse = f"it would raise the highest load from {before.maximum:.4g} to {after.maximum:.4g}"
            verdicts = [replace(one, taken=False, reason=worse) if one.taken else one for one in verdicts]
            after = before
        return Decision(plan, tuple(verdicts), before, after)

    def _look_at(self, turn: Turn, move: Move) -> Verdict:
        refused = self._why_not(turn, move)
        if refused is None and move.subscriber in self._queued:
            refused = "it is about to move already"
        return Verdict(move, refused is None, refused or move.reason)

    def _why_not(self, turn: Turn, move: Move) -> str | None:
        registry = turn.registry
        subscriber = registry.subscribers.get(move.subscriber)
        target = registry.brokers.get(move.target)
        if subscriber is None or subscriber.deleted:
            return "there is no such subscriber"
        if subscriber.id in registry.moving:
            return f"it is on its way to {registry.moving[subscriber.id].target}"
        if subscriber.home is None:
            return "it has no broker yet: it gets one when it asks"
        if move.source is not None and subscriber.home != move.source:
            return f"it is not at {move.source} but at {subscriber.home}"
        if target is None:
            return f"there is no broker {move.target}"
        if target.id == subscriber.home:
            return "it is there already"
        if not registry.accepting(target):
            return f"{target.id} does not accept: it is {target.state}"
        return None

    def take(self, turn: Turn, decision: Decision) -> None:
        """Carry out what was decided."""
        for verdict in decision.verdicts:
            move = verdict.move
            turn.note(
                "move taken" if verdict.taken else "move refused", policy=decision.plan.policy,
                subscriber=move.subscriber, source=move.source, target=move.target, reason=verdict.reason,
            )  # fmt: skip
            if verdict.taken:
                self._queued.add(move.subscriber)
                rank = _ORDER[decision.plan.urgency]
                heapq.heappush(self._waiting, (rank, next(self._order), move, decision.plan.urgency))
        self.start(turn)

    def start(self, turn: Turn) -> None:
        """Begin as many of the waiting moves as there are places."""
        held_back = []
        while self._waiting and len(turn.registry.migrations) < turn.rules.migrations:
            entry = heapq.heappop(self._waiting)
            _, _, move, urgency = entry
            refused = self._why_not(turn, move)
            if refused is None and not self.has_place(turn, move):
                held_back.append(entry)
                if len(held_back) > 4 * turn.rules.migrations:
                    break
                continue
            self._queued.discard(move.subscriber)
            if refused is not None:
                turn.note("move dropped", subscriber=move.subscriber, target=move.target, reason=refused)
                continue
            subscriber = turn.registry.subscribers[move.subscriber]
            if not self.immediate(turn, move):
                migrations.begin(turn, self.new_id(), subscriber, move.target, urgency, move.reason)
        for entry in held_back:
            heapq.heappush(self._waiting, entry)

    def immediate(self, turn: Turn, move: Move) -> bool:
        """Whose broker is dead has nobody to be handed over by: the new one simply serves it."""
        subscriber = turn.registry.subscribers[move.subscriber]
        home = None if subscriber.home is None else turn.registry.brokers.get(subscriber.home)
        if home is not None and home.health is not Health.DEAD:
            return False
        turn.set_home(subscriber, move.target)
        turn.adopt(move.target, [subscriber])
        return True

    def has_place(self, turn: Turn, move: Move) -> bool:
        source = turn.registry.subscribers[move.subscriber].home
        limit = turn.rules.migrations_per_broker
        return (
            len(turn.registry.migrations) < turn.rules.migrations
            and turn.registry.involved(move.target, as_target=True) < limit
            and (source is None or turn.registry.involved(source, as_target=False) < limit)
        )


def _after(snapshot: Snapshot, verdicts: list[Verdict]) -> Balance:
    taken = {one.move.subscriber: one.move.target for one in verdicts if one.taken}
    if not taken:
        return balance_of(snapshot)
    at = {broker: number for number, broker in enumerate(snapshot.brokers)}
    broker_of = snapshot.broker_of.copy()
    for row in np.nonzero([one in taken for one in snapshot.subscribers])[0]:
        broker_of[row] = at.get(taken[snapshot.subscribers[row]], broker_of[row])
    return balance_of(snapshot, broker_of)
