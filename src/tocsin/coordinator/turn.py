"""One event being handled: what is known, what time it is, and what is to be done about it.

Handed from module to module; the few steps that several of them take (telling a broker, giving a subscriber a home) are
here, so that what must go together (memory, disk, load, index) cannot be forgotten apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tocsin.coordinator.effects import (
    CloseLink,
    Effect,
    ForgetMigration,
    ForgetSubscriber,
    Note,
    RecordTrace,
    SendHandOver,
    SendToBroker,
    StoreBroker,
    StoreMigration,
    StoreSubscriber,
)
from tocsin.coordinator.loads import BrokerLoads
from tocsin.coordinator.records import BrokerRecord, Health, MigrationRecord, SubscriberRecord
from tocsin.coordinator.registry import Registry
from tocsin.coordinator.rules import CoordinatorRules
from tocsin.model.ids import BrokerId, SubscriberId
from tocsin.model.trace import Kind, TraceRow
from tocsin.wire.link import Adopt, FromCoordinator, Release, SubscriberState

_ADOPTED_AT_ONCE = 200
"""Subscribers in one message."""


class Turn:
    def __init__(self, registry: Registry, loads: BrokerLoads, rules: CoordinatorRules, now_s: float) -> None:
        self.registry = registry
        self.loads = loads
        self.rules = rules
        self.now_s = now_s
        self.effects: list[Effect] = []

    def do(self, effect: Effect) -> None:
        self.effects.append(effect)

    def note(self, event: str, level: str = "info", **fields: Any) -> None:
        self.effects.append(Note(event, fields, level))

    def watched(self, kind: Kind, **columns: Any) -> None:
        self.effects.append(RecordTrace(TraceRow(self.now_s, kind, **columns)))

    # -- telling brokers -----------------------------------------------------------------------------------------------

    def send(self, broker: BrokerId | None, message: FromCoordinator) -> bool:
        """False if there is no link: whatever it would have learnt, it learns when it registers."""
        known = None if broker is None else self.registry.brokers.get(broker)
        if known is None or known.link is None:
            return False
        known.spoke_s = self.now_s
        self.effects.append(SendToBroker(known.id, known.link, message))
        return True

    def release(self, broker: BrokerId | None, subscriber: SubscriberId, migration: str | None = None) -> None:
        if broker is not None and self.send(broker, Release(subscriber, migration)):
            self.registry.release_sent(broker, subscriber)

    def send_hand_over(self, migration: MigrationRecord) -> bool:
        source = self.registry.brokers.get(migration.source)
        target = self.registry.brokers.get(migration.target)
        if source is None or source.link is None or target is None:
            return False
        left_s = max(1.0, migration.deadline_s - self.now_s)
        self.effects.append(
            SendHandOver(source.id, source.link, migration.id, migration.subscriber, target.id, target.address, left_s)
        )
        return True

    def adopt(self, broker: BrokerId, subscribers: Sequence[SubscriberRecord], *, asked: bool = False) -> None:
        """Of somebody who holds nothing there is nothing to serve before it logs in, unless the broker has to know."""
        states: list[SubscriberState] = [
            one.state() for one in subscribers if asked or one.subscriptions or one.webhook
        ]
        for start in range(0, len(states), _ADOPTED_AT_ONCE):
            some = states[start : start + _ADOPTED_AT_ONCE]
            self.send(broker, Adopt(some))
            for state in some:
                self.registry.adoption_sent(broker, state.subscriber, self.now_s)

    def close_link(self, broker: BrokerRecord, reason: str) -> None:
        if broker.link is not None:
            self.effects.append(CloseLink(broker.id, broker.link, reason))
            broker.link = None
            self.registry.releases_lost(broker.id)

    # -- what is stored ------------------------------------------------------------------------------------------------

    def store_broker(self, broker: BrokerRecord) -> None:
        self.effects.append(
            StoreBroker(
                broker.id, broker.address, broker.incarnation, broker.capacity, broker.place, broker.draining,
                broker.health == "dead", broker.failures, broker.dismissed,
            )
        )  # fmt: skip

    def store_subscriber(self, subscriber: SubscriberRecord) -> None:
        self.effects.append(
            StoreSubscriber(
                subscriber.id, subscriber.place, subscriber.coordinate, subscriber.home, subscriber.moved_at_s,
                subscriber.deleted, subscriber.uncertain,
            )
        )  # fmt: skip

    def store_migration(self, migration: MigrationRecord) -> None:
        self.effects.append(
            StoreMigration(
                migration.id, migration.subscriber, migration.source, migration.target, str(migration.step),
                str(migration.urgency), migration.reason, migration.began_s, migration.claimed, migration.adopted,
            )
        )  # fmt: skip

    def forget_migration(self, migration: MigrationRecord) -> None:
        self.registry.remove_migration(migration)
        self.effects.append(ForgetMigration(migration.id))

    # -- subscribers ---------------------------------------------------------------------------------------------------

    def known(self, subscriber: SubscriberId) -> SubscriberRecord:
        """Its record; a new one for somebody with a valid token whom nobody registered."""
        found = self.registry.subscribers.get(subscriber)
        if found is None:
            found = SubscriberRecord(subscriber)
            self.registry.add_subscriber(found)
            self.store_subscriber(found)
        return found

    def set_home(self, subscriber: SubscriberRecord, home: BrokerId, *, confirmed: bool = False) -> None:
        """From here on this broker is the one that holds its subscriptions; `confirmed` if it said that it does."""
        if subscriber.home == home:
            return
        if not confirmed and (subscriber.subscriptions or subscriber.webhook):
            subscriber.uncertain = True
        self._watched_home(subscriber, home)
        if subscriber.home is not None:
            self.loads.taken(subscriber.home, subscriber.id)
            subscriber.moved_at_s = self.now_s
        self.registry.set_home(subscriber, home)
        self.loads.given(home, subscriber, len(self.registry.subscribers))
        self.store_subscriber(subscriber)

    def _watched_home(self, subscriber: SubscriberRecord, home: BrokerId) -> None:
        """Every change of a home leaves exactly one row: whoever folds them knows where everybody is."""
        former = None if subscriber.home is None else self.registry.brokers.get(subscriber.home)
        if subscriber.home is None:
            self.watched(Kind.JOIN, subscriber=subscriber.id, broker=home)
        elif subscriber.id not in self.registry.moving and (former is None or former.health is Health.DEAD):
            self.watched(Kind.FAILOVER, subscriber=subscriber.id, target=home)
        else:
            self.watched(Kind.MOVED, subscriber=subscriber.id, broker=subscriber.home, target=home)

    def forget_subscriber(self, subscriber: SubscriberRecord) -> None:
        if subscriber.home is not None:
            self.watched(Kind.LEAVE, subscriber=subscriber.id, broker=subscriber.home)
            self.loads.taken(subscriber.home, subscriber.id)
        self.registry.remove_subscriber(subscriber)
        self.effects.append(ForgetSubscriber(subscriber.id))
