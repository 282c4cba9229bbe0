"""The arbiter decides which moves of a plan are made. Only the arbiter carries out plans, most urgent first.

The order is failover > drain > latency > overload > imbalance. Limits bound the migrations in progress. The arbiter
refuses a plan made from an older snapshot as a whole. It judges every move of any other plan separately and gives a
reason. Projected loads count migrations in progress as made. Accepted moves wait for a free place, and the arbiter
checks them again before it starts them.

Failover and drain plans are made anew at every tick, within a rate per second, so their moves do not wait: a move that
cannot start now is in the next plan again. A failover move needs no place: the home broker is dead, so the target
gets the subscriber without a hand-over.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from tocsin.coordinator import migrations
from tocsin.coordinator.records import SubscriberRecord
from tocsin.coordinator.turn import Turn
from tocsin.model.ids import BrokerId, SubscriberId
from tocsin.model.plan import Balance, Move, Plan, Urgency
from tocsin.model.snapshot import Snapshot
from tocsin.policies.balance.load import snapshot_balance

_RANK = {urgency: rank for rank, urgency in enumerate(Urgency)}
_EVENS_OUT = (Urgency.OVERLOAD, Urgency.IMBALANCE)
_WORSE = 1.01
"""A plan that only evens out loads is refused if it raises the highest load by more than this factor."""
_REPLACED_AT_ONCE = 500
"""Subscribers re-placed in one turn at most, so that a coordinator that was suspended does not block afterwards."""

_WaitingMove = tuple[int, int, Move, Urgency]
"""(rank, order of arrival, move, urgency) in a heap."""
_Replaced = dict[tuple[BrokerId | None, BrokerId, str], list[SubscriberRecord]]
"""Subscribers of dead brokers that got a new home in this turn, by (source, target, reason)."""


@dataclass(frozen=True, slots=True)
class Verdict:
    move: Move
    taken: bool
    reason: str
    """The reason why the subscriber moves, or why it does not."""


@dataclass(frozen=True, slots=True)
class Decision:
    plan: Plan
    verdicts: tuple[Verdict, ...]
    before: Balance
    after: Balance
    """The modelled balance once the taken moves are made, if nothing else changes."""
    at_s: float = 0.0
    """The time of the decision."""


class _Allowance:
    """The number of moves that a rate allows now. Unused moves are saved, up to `most`."""

    def __init__(self) -> None:
        self.moves = 0.0
        self._at_s: float | None = None

    def refill(self, now_s: float, per_s: float, most: float) -> None:
        elapsed_s = 0.0 if self._at_s is None else now_s - self._at_s
        self._at_s = now_s
        self.moves = min(most, max(1.0, per_s), self.moves + elapsed_s * per_s)


class Arbiter:
    def __init__(self, epoch: str) -> None:
        """`epoch` makes migration ids of this process different from those of earlier processes."""
        self._epoch = epoch
        self._number = count(1)
        self._order = count()
        self._waiting: list[_WaitingMove] = []
        self._queued: set[SubscriberId] = set()
        self._allowances = {Urgency.FAILOVER: _Allowance(), Urgency.DRAIN: _Allowance()}

    def new_id(self) -> str:
        return f"{self._epoch}-{next(self._number)}"

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def balancing_waits(self) -> bool:
        """True while a move that evens out loads waits for a place."""
        return any(urgency in _EVENS_OUT for _, _, _, urgency in self._waiting)

    # -- proposed plans ------------------------------------------------------------------------------------------------

    def decide(self, turn: Turn, plan: Plan, snapshot: Snapshot) -> Decision:
        """Judge a plan without carrying it out; `snapshot` is the present snapshot."""
        before = after = snapshot_balance(snapshot)
        verdicts = self._judge(turn, plan, self._queued)
        if any(verdict.taken for verdict in verdicts):
            after = snapshot_balance(_after(snapshot, verdicts))
        if plan.urgency in _EVENS_OUT and after.maximum > before.maximum * _WORSE:
            reason = f"it would raise the highest load from {before.maximum:.4g} to {after.maximum:.4g}"
            verdicts = [replace(v, taken=False, reason=reason) if v.taken else v for v in verdicts]
            after = before
        return Decision(plan, tuple(verdicts), before, after, turn.now_s)

    def take(self, turn: Turn, decision: Decision) -> None:
        """Queue the accepted moves of a decision and start those that have a free place."""
        plan = decision.plan
        for verdict in decision.verdicts:
            move = verdict.move
            _log(turn, plan, verdict)
            if verdict.taken:
                self._queued.add(move.subscriber)
                heapq.heappush(self._waiting, (_RANK[plan.urgency], next(self._order), move, plan.urgency))
        self.start(turn)

    def start(self, turn: Turn) -> None:
        """Start as many of the waiting moves as have a free place."""
        replaced: _Replaced = {}
        held_back: list[_WaitingMove] = []
        while self._waiting and not _is_full(turn) and len(held_back) <= 4 * turn.rules.migrations:
            entry = heapq.heappop(self._waiting)
            _, _, move, urgency = entry
            refusal = _why_not(turn, move)
            if refusal is None and not self._make(turn, move, urgency, replaced):
                held_back.append(entry)
                continue
            self._queued.discard(move.subscriber)
            if refusal is not None:
                turn.note("move dropped", subscriber=move.subscriber, target=move.target, reason=refusal)
        for entry in held_back:
            heapq.heappush(self._waiting, entry)
        _adopt(turn, replaced)

    # -- failover and drain --------------------------------------------------------------------------------------------

    def allowance(self, turn: Turn, urgency: Urgency) -> int:
        """How many failover or drain moves may be made now."""
        rules, allowance = turn.rules, self._allowances[urgency]
        if urgency is Urgency.FAILOVER:
            allowance.refill(turn.now_s, rules.failover_per_s, _REPLACED_AT_ONCE)
        else:
            allowance.refill(turn.now_s, rules.drain_per_s, rules.migrations_per_broker)
        return int(allowance.moves)

    def carry_out(self, turn: Turn, plan: Plan) -> None:
        """Make the moves of a failover or drain plan. `start` later drops waiting moves of the same subscribers."""
        replaced: _Replaced = {}
        verdicts = self._judge(turn, plan, ())
        made = 0
        for verdict in verdicts:
            if verdict.taken:  # logged when it begins
                made += self._make(turn, verdict.move, plan.urgency, replaced)
            else:
                _log(turn, plan, verdict)
        self._allowances[plan.urgency].moves -= made
        turn.registry.placed += len(plan.moves)
        _adopt(turn, replaced)

    # -- one move ------------------------------------------------------------------------------------------------------

    def _judge(self, turn: Turn, plan: Plan, queued: Collection[SubscriberId]) -> list[Verdict]:
        present = turn.registry.generation
        if plan.generation != present:
            stale = f"the plan is of generation {plan.generation}, the present is {present}: plan again"
            return [Verdict(move, False, stale) for move in plan.moves]
        verdicts = []
        for move in plan.moves:
            refusal = _why_not(turn, move)
            if refusal is None and move.subscriber in queued:
                refusal = "the subscriber waits for another move already"
            verdicts.append(Verdict(move, refusal is None, refusal or move.reason))
        return verdicts

    def _make(self, turn: Turn, move: Move, urgency: Urgency, replaced: _Replaced) -> bool:
        """Start one move. False if no place is free."""
        subscriber = turn.registry.subscribers[move.subscriber]
        if turn.registry.is_dead(subscriber.home):
            replaced.setdefault((subscriber.home, move.target, move.reason), []).append(subscriber)
            turn.set_home(subscriber, move.target)
            return True
        if not _has_place(turn, move):
            return False
        migrations.begin(turn, self.new_id(), move, urgency)
        return True


def _log(turn: Turn, plan: Plan, verdict: Verdict) -> None:
    move = verdict.move
    names: dict[str, Any] = {"subscriber": move.subscriber, "source": move.source, "target": move.target}
    event = "move taken" if verdict.taken else "move refused"
    turn.note(event, policy=plan.policy, **names, reason=verdict.reason)


def _adopt(turn: Turn, replaced: _Replaced) -> None:
    """Send one adoption message per source and target, and log it."""
    for (source, target, reason), subscribers in replaced.items():
        turn.adopt(target, subscribers)
        number = len(subscribers)
        turn.note("subscribers re-placed", source=source, target=target, subscribers=number, reason=reason)


def _why_not(turn: Turn, move: Move) -> str | None:
    """The reason to refuse a move; None if it may be made."""
    registry = turn.registry
    subscriber = registry.subscribers.get(move.subscriber)
    target = registry.brokers.get(move.target)
    if subscriber is None or subscriber.deleted:
        return "there is no such subscriber"
    if subscriber.id in registry.moving:
        return f"the subscriber is moving to {registry.moving[subscriber.id].target}"
    if subscriber.home is None:
        return "the subscriber has no broker yet: it gets one when it requests one"
    if move.source is not None and subscriber.home != move.source:
        return f"the subscriber is not at {move.source} but at {subscriber.home}"
    if target is None:
        return f"there is no broker {move.target}"
    if target.id == subscriber.home:
        return "the subscriber is there already"
    if not registry.accepting(target):
        return f"{target.id} does not accept subscribers: it is {target.state}"
    return None


def _is_full(turn: Turn) -> bool:
    return len(turn.registry.migrations) >= turn.rules.migrations


def _has_place(turn: Turn, move: Move) -> bool:
    source = turn.registry.subscribers[move.subscriber].home
    limit = turn.rules.migrations_per_broker
    return (
        not _is_full(turn)
        and turn.registry.count_migrations(move.target, as_target=True) < limit
        and (source is None or turn.registry.count_migrations(source, as_target=False) < limit)
    )


def _after(snapshot: Snapshot, verdicts: list[Verdict]) -> Snapshot:
    """The snapshot with the taken moves made."""
    targets = {verdict.move.subscriber: verdict.move.target for verdict in verdicts if verdict.taken}
    index = {broker: number for number, broker in enumerate(snapshot.brokers)}
    broker_of = snapshot.broker_of.copy()
    for row, subscriber in enumerate(snapshot.subscribers):
        if subscriber in targets:
            broker_of[row] = index.get(targets[subscriber], broker_of[row])
    return replace(snapshot, broker_of=broker_of)
