"""Subscribers of dead brokers get new homes, at a bounded rate; dead brokers without any are forgotten in the end."""

from __future__ import annotations

from itertools import islice

from tocsin.coordinator.effects import ForgetBroker, ReleaseAtCluster
from tocsin.coordinator.placing import choose
from tocsin.coordinator.records import BrokerRecord, Health, SubscriberRecord
from tocsin.coordinator.turn import Turn
from tocsin.model.ids import BrokerId

_AT_ONCE = 500
"""Re-placed in one turn at most: a coordinator that slept does not freeze when it wakes."""


class Failover:
    """Remembers how many may be re-placed by now, and nothing else: who is left is in the registry."""

    def __init__(self) -> None:
        self._allowed = 0.0
        self._at_s: float | None = None

    def check_time(self, turn: Turn) -> None:
        elapsed_s = 0.0 if self._at_s is None else turn.now_s - self._at_s
        self._at_s = turn.now_s
        # What is not used is saved up for a second at most: a rate is a rate also after a quiet year.
        most = min(_AT_ONCE, max(1.0, turn.rules.failover_per_s))
        self._allowed = min(most, self._allowed + elapsed_s * turn.rules.failover_per_s)
        for broker in list(turn.registry.brokers.values()):
            if broker.health is Health.DEAD:
                self._replace_some(turn, broker)
                _forget_if_long_dead(turn, broker)

    def _replace_some(self, turn: Turn, broker: BrokerRecord) -> None:
        registry = turn.registry
        waiting = (registry.subscribers[one] for one in registry.hosted(broker.id) if one not in registry.moving)
        adopted: dict[BrokerId, list[SubscriberRecord]] = {}
        for subscriber in list(islice(waiting, int(self._allowed))):
            if subscriber.deleted:
                turn.forget_subscriber(subscriber)
                continue
            target = replace(turn, subscriber)
            if target is None:
                break
            self._allowed -= 1
            adopted.setdefault(target, []).append(subscriber)
        for target, subscribers in adopted.items():
            turn.adopt(target, subscribers)
            turn.note("subscribers re-placed", source=broker.id, target=target, subscribers=len(subscribers))


def replace(turn: Turn, subscriber: SubscriberRecord) -> BrokerId | None:
    """A new home for somebody whose broker is dead; the caller has it adopted. None when nobody accepts."""
    target = choose(turn, subscriber, turn.rules.replacement)
    if target is not None:
        turn.set_home(subscriber, target)
    return target


def dismiss(turn: Turn, broker: BrokerRecord) -> None:
    """It is not to come back: what it holds at the data cluster is let go, then it is forgotten."""
    broker.dismissed = True
    turn.store_broker(broker)
    turn.do(ReleaseAtCluster(broker.id))


def released_at_cluster(turn: Turn, broker: BrokerId) -> None:
    found = turn.registry.brokers.get(broker)
    if found is None or not found.dismissed or turn.registry.hosted(broker):
        return  # it came back in time
    turn.close_link(found, "this broker was dismissed")
    turn.registry.remove_broker(broker)
    turn.loads.gone(broker)
    turn.do(ForgetBroker(broker))
    turn.note("broker is forgotten", broker=broker)


def _forget_if_long_dead(turn: Turn, broker: BrokerRecord) -> None:
    long_dead = turn.now_s - broker.since_s > turn.rules.forget_broker_s
    if long_dead and not broker.dismissed and not turn.registry.hosted(broker.id):
        dismiss(turn, broker)
