"""Plans that move subscribers away from dead brokers (`failover`) and from draining brokers (`drain`).

The coordinator makes these plans anew at every tick, from the registry alone. So failover and drain continue after a
restart of the coordinator, and a subscriber whose migration failed is in a later plan again, with another target.
The arbiter carries the plans out; `POST /v1/plans` shows them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice

from tocsin.coordinator.placing import Placer
from tocsin.coordinator.records import BrokerRecord, Health, SubscriberRecord
from tocsin.coordinator.turn import Turn
from tocsin.model.ids import BrokerId
from tocsin.model.plan import Move, Plan, Urgency

_TargetedSubscriber = tuple[SubscriberRecord, BrokerId | None]
"""A subscriber and its new broker; None if no broker accepts it."""


def failover_plan(turn: Turn, limit: int | None = None) -> Plan:
    """New homes for the subscribers of dead brokers, `limit` at most."""
    placer, dead = Placer(turn, turn.rules.replacement), _dead(turn)
    moves = ((subscriber, placer.choose(subscriber)) for broker in dead for subscriber in _leaving(turn, broker))
    return _plan(turn, Urgency.FAILOVER, dead, islice(moves, limit), "its broker {} is dead")


def drain_plan(turn: Turn, limit: int | None = None) -> Plan:
    """Moves away from draining brokers. With `limit`, at most that many, and only moves that can start now."""
    registry, placer = turn.registry, Placer(turn, turn.rules.replacement)
    draining = [b for b in registry.brokers.values() if b.draining and b.health in (Health.ALIVE, Health.PROBATION)]
    most = turn.rules.migrations_per_broker
    incoming = {broker: registry.count_migrations(broker, as_target=True) for broker in registry.brokers}

    def target(subscriber: SubscriberRecord) -> BrokerId | None:
        avoid = [name for name in (subscriber.home, subscriber.shunned) if name is not None]
        return placer.choose(subscriber, avoid) or placer.choose(subscriber, avoid[:1])

    def startable(broker: BrokerRecord) -> Iterator[_TargetedSubscriber]:
        """Skip subscribers whose target is full, but not for long: other brokers drain too."""
        places, misses = most - registry.count_migrations(broker.id, as_target=False), 0
        for subscriber in (s for s in _leaving(turn, broker) if s.rests_until_s <= turn.now_s):
            if limit is not None and (places <= 0 or misses > len(registry.brokers)):
                return
            chosen = target(subscriber)
            if limit is not None and chosen is not None and incoming[chosen] >= most:
                misses += 1
                continue
            if chosen is not None:
                incoming[chosen] += 1
            places -= 1
            yield subscriber, chosen

    moves = chain.from_iterable(startable(broker) for broker in draining)
    return _plan(turn, Urgency.DRAIN, draining, islice(moves, limit), "{} is drained")


EVACUATIONS: dict[Urgency, Callable[[Turn, int | None], Plan]] = {
    Urgency.FAILOVER: failover_plan,
    Urgency.DRAIN: drain_plan,
}
"""The functions that make failover and drain plans, in the order in which the arbiter carries the plans out."""


def forget_deleted(turn: Turn, limit: int) -> None:
    """Forget users that were deleted before their broker died: a dead broker cannot confirm the release.

    Checks the first `limit` subscribers of each dead broker; later ticks reach the others.
    """
    for broker in _dead(turn):
        for name in list(islice(turn.registry.hosted(broker.id), limit)):
            subscriber = turn.registry.subscribers[name]
            if subscriber.deleted:
                turn.forget_subscriber(subscriber)


def _plan(
    turn: Turn,
    urgency: Urgency,
    sources: list[BrokerRecord],
    targeted: Iterable[_TargetedSubscriber],
    reason: str,
) -> Plan:
    """`{}` in the reason is replaced by the source. The plan's note says why the plan has no moves."""
    left = any(turn.registry.hosted(broker.id) for broker in sources)
    moves, note = [], "every subscriber left is moving or rests" if left else "no subscriber has to move"
    for subscriber, target in targeted:
        if target is None:
            note = "no broker accepts subscribers"
            break
        load = turn.loads.demand(subscriber)
        moves.append(Move(subscriber.id, subscriber.home, target, reason.format(subscriber.home), load))
    return Plan(turn.registry.generation, str(urgency), urgency, tuple(moves), note="" if moves else note)


def _dead(turn: Turn) -> list[BrokerRecord]:
    return [broker for broker in turn.registry.brokers.values() if broker.health is Health.DEAD]


def _leaving(turn: Turn, broker: BrokerRecord) -> Iterator[SubscriberRecord]:
    """Subscribers of this broker that are neither moving already nor deleted."""
    registry = turn.registry
    for name in registry.hosted(broker.id):
        subscriber = registry.subscribers[name]
        if name not in registry.moving and not subscriber.deleted:
            yield subscriber
