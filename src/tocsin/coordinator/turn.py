"""`Turn`: the handling of one event. It carries the registry, the loads, the rules, the time and the effects so far.

Steps that several modules take (send to a broker, assign a home) are here, so that memory, store, loads and indices
always change together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    StoreFact,
    StoreMigration,
    StoreSubscriber,
    StoreTopic,
    StoreTopicLog,
    StoreTopicMove,
)
from tocsin.coordinator.loads import BrokerLoads
from tocsin.coordinator.records import BrokerRecord, Health, MigrationRecord, SubscriberRecord
from tocsin.coordinator.registry import Registry
from tocsin.coordinator.rules import CoordinatorRules
from tocsin.coordinator.topic_records import TopicRecord
from tocsin.model.ids import BrokerId, SubscriberId
from tocsin.model.trace import Kind, TraceRow
from tocsin.wire.link import Adopt, FromCoordinator, Release

TOPIC_EPOCH = "topic_epoch"
"""The name of the fact with the last epoch of a topic."""
TOPIC_LEASE_S = "topic_lease_s"
"""The name of the fact with the longest lease that a broker may hold."""
_ADOPTED_AT_ONCE = 200
"""The most subscribers in one `Adopt` message."""


Proves = Callable[[BrokerId, SubscriberId, str], bool]
"""Whether a token proves that a broker has a session of a subscriber. The driver checks it: the logic holds no key."""


class Turn:
    def __init__(
        self,
        registry: Registry,
        loads: BrokerLoads,
        rules: CoordinatorRules,
        now_s: float,
        proves: Proves = lambda broker, subscriber, token: True,
    ) -> None:
        self.registry = registry
        self.loads = loads
        self.rules = rules
        self.now_s = now_s
        self._proves = proves
        self.effects: list[Effect] = []

    def do(self, effect: Effect) -> None:
        self.effects.append(effect)

    def note(self, event: str, level: str = "info", **fields: Any) -> None:
        self.effects.append(Note(event, fields, level))

    def trace(self, kind: Kind, **columns: Any) -> None:
        self.effects.append(RecordTrace(TraceRow(self.now_s, kind, **columns)))

    def may_serve(self, broker: BrokerId, subscriber: SubscriberId, token: str | None) -> bool:
        """True if a broker may report and receive this subscriber's state.

        The subscriber is assigned to the broker, or its token proves its session there. A broker's own token opens no
        subscriber's state.
        """
        if self.registry.serves(broker, subscriber) or self._proves(broker, subscriber, token or ""):
            return True
        self.note("a broker named a subscriber without proof", "warning", broker=broker, subscriber=subscriber)
        return False

    # -- messages to brokers -------------------------------------------------------------------------------------------

    def send(self, broker: BrokerId, message: FromCoordinator) -> bool:
        """Send a message. False if the broker has no link: it gets the present state when it registers."""
        record = self.registry.brokers.get(broker)
        if record is None or record.link is None:
            return False
        record.sent_s = self.now_s
        self.effects.append(SendToBroker(broker, record.link, message))
        return True

    def release(self, broker: BrokerId, subscriber: SubscriberId, migration: str | None = None) -> None:
        if self.send(broker, Release(subscriber, migration)):
            self.registry.add_release(broker, subscriber)

    def send_hand_over(self, migration: MigrationRecord) -> None:
        source = self.registry.brokers.get(migration.source)
        target = self.registry.brokers.get(migration.target)
        if source is not None and source.link is not None and target is not None:
            left_s = max(1.0, migration.deadline_s - self.now_s)
            names = (source.id, source.link, migration.id, migration.subscriber, target.id, target.address)
            token = self.registry.subscribers[migration.subscriber].session_token
            self.effects.append(SendHandOver(*names, left_s, token))

    def adopt(self, broker: BrokerId, subscribers: Sequence[SubscriberRecord], *, even_empty: bool = False) -> None:
        """Send the subscribers' states. Leave out a subscriber without subscriptions and webhook, unless `even_empty`:
        the broker has nothing to serve before that subscriber logs in."""
        states = [
            subscriber.state()
            for subscriber in subscribers
            if even_empty or subscriber.subscriptions or subscriber.webhook
        ]
        for start in range(0, len(states), _ADOPTED_AT_ONCE):
            batch = states[start : start + _ADOPTED_AT_ONCE]
            self.send(broker, Adopt(batch))
            for state in batch:
                self.registry.add_adoption(broker, state.subscriber, self.now_s)

    def close_link(self, broker: BrokerRecord, reason: str) -> None:
        if broker.link is not None:
            self.effects.append(CloseLink(broker.id, broker.link, reason))
            broker.link = None
            self.registry.clear_releases(broker.id)

    # -- the store -----------------------------------------------------------------------------------------------------

    def store_broker(self, broker: BrokerRecord) -> None:
        state = (broker.draining, broker.health is Health.DEAD, broker.failures, broker.dismissed)
        where = (broker.address, broker.incarnation, broker.capacity, broker.place)
        self.do(StoreBroker(broker.id, *where, *state, broker.role, broker.standby))

    def store_subscriber(self, subscriber: SubscriberRecord) -> None:
        where = (subscriber.place, subscriber.coordinate, subscriber.home, subscriber.moved_at_s)
        self.do(StoreSubscriber(subscriber.id, *where, subscriber.deleted, subscriber.uncertain))

    def store_migration(self, migration: MigrationRecord) -> None:
        names = (migration.id, migration.subscriber, migration.source, migration.target)
        why = (str(migration.step), str(migration.urgency), migration.reason)
        self.do(StoreMigration(*names, *why, migration.began_s, migration.claimed, migration.adopted))

    def forget_migration(self, migration: MigrationRecord) -> None:
        self.registry.remove_migration(migration)
        self.effects.append(ForgetMigration(migration.id))

    # -- topics --------------------------------------------------------------------------------------------------------

    def next_topic_epoch(self) -> int:
        """An epoch that no topic has had. It is stored, so that it is never used again."""
        topics = self.registry.topics
        topics.epoch += 1
        self.do(StoreFact(TOPIC_EPOCH, str(topics.epoch)))
        self.store_lease_s()
        return topics.epoch

    def store_lease_s(self) -> None:
        """Store the duration of leases before a longer one is granted, and when no longer one is left."""
        topics, lease_s = self.registry.topics, self.rules.topic_lease_s
        if lease_s > topics.stored_lease_s or (lease_s < topics.stored_lease_s and self.now_s >= topics.settled_s):
            topics.stored_lease_s = lease_s
            self.do(StoreFact(TOPIC_LEASE_S, str(lease_s)))

    def store_topic(self, record: TopicRecord) -> None:
        home, incarnation = record.holder or (None, "")
        what = (record.name, record.created, record.within_s, record.made_on_use)
        dataset, recording = (None, None) if record.record is None else (record.record.dataset, record.record.recording)
        service = (record.delay_s, record.protected_per_s)
        self.do(StoreTopic(*what, home, incarnation, record.epoch, dataset, recording, record.made_by, *service))
        if record.log is not None:
            keep = record.log.persistence
            self.do(StoreTopicLog(record.name, record.log.replicas, keep.quorum, keep.retain_bytes, keep.retain_s))

    def store_topic_move(self, record: TopicRecord) -> None:
        """Store before the source may hand over: after a restart the target may be the home."""
        if record.move is not None:
            self.do(StoreTopicMove(record.name, record.move.target, record.move.target_run, record.move.epoch))

    # -- subscribers ---------------------------------------------------------------------------------------------------

    def known_subscriber(self, subscriber: SubscriberId) -> SubscriberRecord:
        """The record of this subscriber. An unregistered subscriber with a valid token gets a new record."""
        record = self.registry.subscribers.get(subscriber)
        if record is None:
            record = SubscriberRecord(subscriber)
            self.registry.add_subscriber(record)
            self.store_subscriber(record)
        return record

    def set_home(self, subscriber: SubscriberRecord, home: BrokerId, *, confirmed: bool = False) -> None:
        """Assign the broker that holds the subscriptions. `confirmed`: that broker has reported that it holds them."""
        if subscriber.home == home:
            return
        if not confirmed and (subscriber.subscriptions or subscriber.webhook):
            subscriber.uncertain = True
        self._trace_home(subscriber, home)
        if subscriber.home is not None:
            self.loads.remove_expected(subscriber.home, subscriber.id)
            subscriber.moved_at_s = self.now_s
        subscriber.placed_at = subscriber.place
        self.registry.roaming.pop(subscriber.id, None)
        self.registry.set_home(subscriber, home)
        self.loads.add_expected(home, subscriber, len(self.registry.subscribers))
        self.store_subscriber(subscriber)

    def _trace_home(self, subscriber: SubscriberRecord, home: BrokerId) -> None:
        """Record exactly one row for a change of home: folding the rows gives every subscriber's present home."""
        if subscriber.home is None:
            self.trace(Kind.JOIN, subscriber=subscriber.id, broker=home)
        elif subscriber.id not in self.registry.moving and self.registry.is_dead(subscriber.home):
            self.trace(Kind.FAILOVER, subscriber=subscriber.id, target=home)
        else:
            self.trace(Kind.MOVED, subscriber=subscriber.id, broker=subscriber.home, target=home)

    def forget_subscriber(self, subscriber: SubscriberRecord) -> None:
        if subscriber.home is not None:
            self.trace(Kind.LEAVE, subscriber=subscriber.id, broker=subscriber.home)
            self.loads.remove_expected(subscriber.home, subscriber.id)
        self.registry.remove_subscriber(subscriber)
        self.effects.append(ForgetSubscriber(subscriber.id))
