"""What policies see, from what the coordinator knows: arrays over brokers, subscribers and wants [BAD §4].

Rebuilt when asked for and something changed; rates are read anew each time. One walk over subscribers and their wants.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tocsin.coordinator.loads import BrokerLoads
from tocsin.coordinator.records import Health, SubscriberRecord
from tocsin.coordinator.registry import Registry
from tocsin.model.ids import BrokerId, SubscriptionId
from tocsin.model.plan import Balance
from tocsin.model.snapshot import UNPLACED, Floats, Ints, Snapshot


class SnapshotBuilder:
    """Keeps what depends only on the generation."""

    def __init__(self) -> None:
        self._generation = -1
        self._fixed: Snapshot | None = None
        self._wanted: list[SubscriptionId] = []

    def build(self, registry: Registry, loads: BrokerLoads, now_s: float, memory: Mapping[str, float]) -> Snapshot:
        if self._fixed is None or self._generation != registry.generation:
            self._fixed, self._wanted = _fixed(registry)
            self._generation = registry.generation
        fixed = self._fixed
        return Snapshot(
            registry.generation, now_s, fixed.brokers, fixed.capacity, fixed.accepting, fixed.subscribers,
            fixed.broker_of, fixed.wants_start, fixed.wants,
            np.array([loads.rates.get(one, 0.0) for one in self._wanted], np.float64),
            fixed.movable, fixed.moved_at_s, dict(memory),
        )  # fmt: skip


def _fixed(registry: Registry) -> tuple[Snapshot, list[SubscriptionId]]:
    # Dead brokers are no part of the world to be balanced; whoever is left on them is failover's business.
    brokers = [broker for broker in registry.brokers.values() if broker.health is not Health.DEAD]
    at = {broker.id: number for number, broker in enumerate(brokers)}
    subscribers = [one for one in registry.subscribers.values() if not one.deleted]
    numbers: dict[SubscriptionId, int] = {}
    wants: list[int] = []
    start = [0]
    for one in subscribers:
        wants += [numbers.setdefault(subscription, len(numbers)) for subscription in one.subscriptions]
        start.append(len(wants))
    snapshot = Snapshot(
        registry.generation,
        0.0,
        tuple(broker.id for broker in brokers),
        np.array([broker.capacity for broker in brokers], np.float64),
        np.array([registry.accepting(broker) for broker in brokers], np.bool_),
        tuple(one.id for one in subscribers),
        np.array([_broker_of(registry, one, at) for one in subscribers], np.int32),
        np.array(start, np.int32),
        np.array(wants, np.int32),
        np.zeros(0),
        np.array([_movable(registry, one) for one in subscribers], np.bool_),
        np.array([one.moved_at_s for one in subscribers], np.float64),
    )
    return snapshot, list(numbers)


def _broker_of(registry: Registry, subscriber: SubscriberRecord, at: Mapping[BrokerId, int]) -> int:
    migration = registry.moving.get(subscriber.id)
    broker = subscriber.home if migration is None else migration.target
    return UNPLACED if broker is None else at.get(broker, UNPLACED)


def _movable(registry: Registry, subscriber: SubscriberRecord) -> bool:
    return subscriber.id not in registry.moving and subscriber.session_at is not None and subscriber.home is not None


def balance_of(snapshot: Snapshot, broker_of: Ints | None = None) -> Balance:
    """F_j = Σ_k z_jk (1 + n_jk) λ_k of each broker, over its capacity, and how even that is [BAD eq. 1–8]."""
    where = snapshot.broker_of if broker_of is None else broker_of
    owner = np.repeat(where, np.diff(snapshot.wants_start))
    placed = owner != UNPLACED
    owner, wants = owner[placed].astype(np.int64), snapshot.wants[placed].astype(np.int64)
    loads: Floats = np.bincount(owner, snapshot.rate[wants], len(snapshot.brokers)).astype(np.float64)
    pairs = np.unique(owner * max(1, len(snapshot.rate)) + wants)
    held_by, held = pairs // max(1, len(snapshot.rate)), pairs % max(1, len(snapshot.rate))
    loads += np.bincount(held_by, snapshot.rate[held], len(snapshot.brokers))
    loads /= snapshot.capacity
    mean = float(loads.mean()) if len(loads) else 0.0
    cov = float(loads.std() / mean) if mean > 0 else 0.0
    return Balance(tuple(loads.tolist()), mean, cov, float(loads.max()) if len(loads) else 0.0)
