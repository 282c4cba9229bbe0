"""Builds the snapshot that policies see: arrays over brokers, subscribers and their subscriptions [BAD §4].

The builder makes the arrays of a generation once, in one walk over all subscribers. It reads the rates at every call.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from tocsin.coordinator.loads import BrokerLoads
from tocsin.coordinator.records import Health, SubscriberRecord
from tocsin.coordinator.registry import Registry
from tocsin.model.ids import BrokerId, SubscriptionId
from tocsin.model.snapshot import UNPLACED, Snapshot


class SnapshotBuilder:
    """Caches the part of the snapshot that depends only on the generation."""

    def __init__(self) -> None:
        self._cached: Snapshot | None = None
        self._subscriptions: list[SubscriptionId] = []

    def build(self, registry: Registry, loads: BrokerLoads, now_s: float, memory: Mapping[str, float]) -> Snapshot:
        if self._cached is None or self._cached.generation != registry.generation:
            self._cached, self._subscriptions = _without_rates(registry)
        rates = [loads.rates.get(subscription, 0.0) for subscription in self._subscriptions]
        return replace(self._cached, at_s=now_s, rate=np.array(rates, np.float64), memory=dict(memory))


def _without_rates(registry: Registry) -> tuple[Snapshot, list[SubscriptionId]]:
    """The snapshot without rates, and the BE subscriptions in the order in which their rates belong there."""
    # Dead brokers do not take part in balancing; failover re-places their subscribers.
    brokers = [broker for broker in registry.brokers.values() if broker.health is not Health.DEAD]
    index = {broker.id: number for number, broker in enumerate(brokers)}
    subscribers = [subscriber for subscriber in registry.subscribers.values() if not subscriber.deleted]
    numbers: dict[SubscriptionId, int] = {}
    wants: list[int] = []
    start = [0]
    for subscriber in subscribers:
        wants += [numbers.setdefault(subscription, len(numbers)) for subscription in subscriber.subscriptions]
        start.append(len(wants))
    snapshot = Snapshot(
        registry.generation,
        0.0,
        brokers=tuple(index),
        capacity=np.array([broker.capacity for broker in brokers], np.float64),
        accepting=np.array([registry.accepting(broker) for broker in brokers], np.bool_),
        subscribers=tuple(subscriber.id for subscriber in subscribers),
        broker_of=np.array([_broker_of(registry, subscriber, index) for subscriber in subscribers], np.int32),
        wants_start=np.array(start, np.int32),
        wants=np.array(wants, np.int32),
        rate=np.zeros(0),
        movable=np.array([_movable(registry, subscriber) for subscriber in subscribers], np.bool_),
        moved_at_s=np.array([subscriber.moved_at_s for subscriber in subscribers], np.float64),
    )
    return snapshot, list(numbers)


def _broker_of(registry: Registry, subscriber: SubscriberRecord, index: Mapping[BrokerId, int]) -> int:
    """The index of a subscriber's broker. A migration in progress counts as made."""
    migration = registry.moving.get(subscriber.id)
    broker = subscriber.home if migration is None else migration.target
    return UNPLACED if broker is None else index.get(broker, UNPLACED)


def _movable(registry: Registry, subscriber: SubscriberRecord) -> bool:
    return subscriber.id not in registry.moving and subscriber.session_at is not None and subscriber.home is not None
