"""Builds the snapshot that policies see: arrays over brokers, subscribers and their subscriptions [BAD §4].

The builder makes the arrays of a generation once, in one walk over all subscribers, and those that follow sessions and
positions once per revision. It reads the rates at every call.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from tocsin.coordinator.loads import BrokerLoads
from tocsin.coordinator.records import Health, SubscriberRecord
from tocsin.coordinator.registry import Registry
from tocsin.model.ids import BrokerId, SubscriptionId
from tocsin.model.snapshot import UNPLACED, Floats, Place, Snapshot


class SnapshotBuilder:
    """Caches the parts of the snapshot that depend only on the generation and the revision."""

    def __init__(self) -> None:
        self._cached: Snapshot | None = None
        self._subscribers: list[SubscriberRecord] = []
        self._subscriptions: list[SubscriptionId] = []
        self._revision = -1

    def build(self, registry: Registry, loads: BrokerLoads, now_s: float, memory: Mapping[str, float]) -> Snapshot:
        cached, revision = self._cached, registry.revision
        if cached is None or cached.generation != registry.generation:
            self._subscribers = [subscriber for subscriber in registry.subscribers.values() if not subscriber.deleted]
            cached, self._subscriptions = _assignment(registry, self._subscribers)
            self._revision = -1
        if self._revision != revision:
            cached, self._revision = _with_sessions(cached, registry, self._subscribers), revision
        self._cached = cached
        known = loads.rates.known
        rates = [known.get(subscription, math.nan) for subscription in self._subscriptions]
        rate = np.array(rates, np.float64) * loads.level.factor
        return replace(
            cached,
            at_s=now_s,
            rate=rate,
            delivery_ratio=loads.delivery_ratio,
            surge=loads.surge_since_s is not None,
            memory=dict(memory),
        )


def _assignment(registry: Registry, subscribers: Sequence[SubscriberRecord]) -> tuple[Snapshot, list[SubscriptionId]]:
    """The snapshot without rates and sessions, and the BE subscriptions in the order in which their rates belong
    there."""
    # Dead brokers do not take part in balancing; failover re-places their subscribers.
    brokers = [broker for broker in registry.brokers.values() if broker.health is not Health.DEAD]
    index = {broker.id: number for number, broker in enumerate(brokers)}
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
        movable=np.zeros(len(subscribers), np.bool_),
        moved_at_s=np.array([subscriber.moved_at_s for subscriber in subscribers], np.float64),
        broker_places_deg=_degrees([broker.place for broker in brokers]),
    )
    return snapshot, list(numbers)


def _with_sessions(snapshot: Snapshot, registry: Registry, subscribers: Sequence[SubscriberRecord]) -> Snapshot:
    """The snapshot with the flags and positions that change without a change of the assignment."""
    return replace(
        snapshot,
        movable=np.array([_movable(registry, subscriber) for subscriber in subscribers], np.bool_),
        online=np.array([subscriber.online for subscriber in subscribers], np.bool_),
        places_deg=_degrees([subscriber.place for subscriber in subscribers]),
    )


def _degrees(places: Sequence[Place | None]) -> Floats:
    unknown = (math.nan, math.nan)
    degrees = [unknown if place is None else (place.lat, place.lon) for place in places]
    return np.array(degrees, np.float64).reshape(-1, 2)


def _broker_of(registry: Registry, subscriber: SubscriberRecord, index: Mapping[BrokerId, int]) -> int:
    """The index of a subscriber's broker. A migration in progress counts as made."""
    migration = registry.moving.get(subscriber.id)
    broker = subscriber.home if migration is None else migration.target
    return UNPLACED if broker is None else index.get(broker, UNPLACED)


def _movable(registry: Registry, subscriber: SubscriberRecord) -> bool:
    return subscriber.id not in registry.moving and subscriber.online and subscriber.home is not None
