"""Policies by name: the door by which balancing enters. A planner turns a snapshot into a plan and does nothing else.

`failover` and `drain` are the coordinator's own and run by themselves; naming them shows what they are about to do. The
balancing policies are registered by whoever builds the coordinator, with their settings inside.
"""

from __future__ import annotations

from collections.abc import Callable

from tocsin.coordinator.placing import choose
from tocsin.coordinator.records import Health, SubscriberRecord
from tocsin.coordinator.turn import Turn
from tocsin.model.plan import Move, Plan, Urgency
from tocsin.model.snapshot import Snapshot

Planner = Callable[[Snapshot], Plan]
OwnPlanner = Callable[[Turn], Plan]


def failover_plan(turn: Turn) -> Plan:
    dead = [broker.id for broker in turn.registry.brokers.values() if broker.health is Health.DEAD]
    return _evacuation(turn, Urgency.FAILOVER, [
        (turn.registry.subscribers[one], f"its broker {broker} is dead")
        for broker in dead for one in turn.registry.hosted(broker)
    ])  # fmt: skip


def drain_plan(turn: Turn) -> Plan:
    draining = [broker.id for broker in turn.registry.brokers.values() if broker.draining]
    return _evacuation(turn, Urgency.DRAIN, [
        (turn.registry.subscribers[one], f"{broker} is drained")
        for broker in draining for one in turn.registry.hosted(broker)
    ])  # fmt: skip


def _evacuation(turn: Turn, urgency: Urgency, leaving: list[tuple[SubscriberRecord, str]]) -> Plan:
    placed = turn.registry.placed
    moves = []
    for subscriber, reason in leaving:
        if subscriber.deleted or subscriber.id in turn.registry.moving:
            continue
        target = choose(turn, subscriber, turn.rules.replacement, () if subscriber.home is None else (subscriber.home,))
        if target is None:
            break
        moves.append(Move(subscriber.id, subscriber.home, target, reason, turn.loads.demand(subscriber)))
    turn.registry.placed = placed  # a plan is only a plan
    note = "" if moves else "nobody to move" if not leaving else "no broker accepts, or all are on their way"
    return Plan(turn.registry.generation, str(urgency), urgency, tuple(moves), note=note)


OWN: dict[str, OwnPlanner] = {"failover": failover_plan, "drain": drain_plan}
