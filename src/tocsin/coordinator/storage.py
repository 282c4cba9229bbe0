"""What was stored, in memory: the store of simulations and tests, and what the SQL stores are compared with."""

from __future__ import annotations

from collections.abc import Iterable

from tocsin.coordinator.effects import (
    Effect,
    ForgetBroker,
    ForgetMigration,
    ForgetSubscriber,
    StoreBroker,
    StoredState,
    StoreFact,
    StoreMigration,
    StoreSubscriber,
    StoreSubscriptions,
    StoreWebhook,
)
from tocsin.model.ids import BrokerId, SubscriberId, SubscriptionId
from tocsin.wire.link import Frontend


class InMemoryStore:
    def __init__(self) -> None:
        self._brokers: dict[BrokerId, StoreBroker] = {}
        self._subscribers: dict[SubscriberId, StoreSubscriber] = {}
        self._held: dict[SubscriberId, dict[SubscriptionId, Frontend]] = {}
        self._webhooks: dict[SubscriberId, StoreWebhook] = {}
        self._migrations: dict[str, StoreMigration] = {}
        self._facts: dict[str, StoreFact] = {}

    def commit(self, effects: Iterable[Effect]) -> None:
        """What is not to be stored is passed over."""
        for effect in effects:
            self._apply(effect)

    def _apply(self, effect: Effect) -> None:
        match effect:
            case StoreBroker():
                self._brokers[effect.broker] = effect
            case ForgetBroker(broker):
                self._brokers.pop(broker, None)
            case StoreSubscriber():
                self._subscribers[effect.subscriber] = effect
            case ForgetSubscriber(subscriber):
                self._subscribers.pop(subscriber, None)
                self._held.pop(subscriber, None)
                self._webhooks.pop(subscriber, None)
            case StoreSubscriptions(subscriber, held, removed):
                rows = self._held.setdefault(subscriber, {})
                rows |= {one.subscription: one for one in held}
                for one in removed:
                    rows.pop(one, None)
            case StoreWebhook(subscriber, webhook):
                self._webhooks.pop(subscriber, None)
                if webhook is not None:
                    self._webhooks[subscriber] = effect
            case StoreMigration():
                self._migrations[effect.migration] = effect
            case ForgetMigration(migration):
                self._migrations.pop(migration, None)
            case StoreFact(name, _):
                self._facts[name] = effect

    def load(self) -> StoredState:
        return StoredState(
            tuple(self._brokers.values()),
            tuple(self._subscribers.values()),
            tuple(
                StoreSubscriptions(subscriber, (one,))
                for subscriber, rows in self._held.items()
                for one in rows.values()
            ),
            tuple(self._webhooks.values()),
            tuple(self._migrations.values()),
            tuple(self._facts.values()),
        )
