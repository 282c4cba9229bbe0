"""The stored state: how a coordinator starts from it, and a store in memory for simulations and tests.

`runtime/coordinator/store.py` stores the same rows in SQL; the tests compare the two.
"""

from __future__ import annotations

from collections.abc import Iterable

from tocsin.coordinator import liveness
from tocsin.coordinator.effects import (
    Effect,
    ForgetBroker,
    ForgetMigration,
    ForgetSubscriber,
    ForgetTopic,
    ForgetTopicMove,
    StoreBroker,
    StoreCapacity,
    StoredState,
    StoreFact,
    StoreMigration,
    StoreRevocation,
    StoreSubscriber,
    StoreSubscriptions,
    StoreTopic,
    StoreTopicLog,
    StoreTopicMove,
    StoreWebhook,
)
from tocsin.coordinator.records import BrokerRecord, Health, MigrationRecord, MigrationStep, SubscriberRecord
from tocsin.coordinator.topic_homes import LEASE_MARGIN
from tocsin.coordinator.topic_records import TopicLog, TopicMove, TopicMoveStep, TopicRecord
from tocsin.coordinator.turn import TOPIC_EPOCH, TOPIC_LEASE_S, Turn
from tocsin.model.ids import BrokerId, DatasetName, SubscriberId, SubscriptionId, TopicName
from tocsin.model.plan import Urgency
from tocsin.model.topic_persistence import Persistence
from tocsin.wire.link import Frontend
from tocsin.wire.site_link import Capacity
from tocsin.wire.topic_link import RecordPlan


def restore(turn: Turn, state: StoredState) -> dict[str, str]:
    """Fill the registry and return the facts by name. Brokers are awaited; migrations get new deadlines.

    A dismissal in progress is not restored: it begins again when the broker has been dead for long enough, or an
    administrator dismisses it again.
    """
    registry = turn.registry
    for row in state.brokers:
        broker = BrokerRecord(row.broker, row.address, row.incarnation, row.capacity, row.place)
        broker.draining, broker.failures = row.draining, row.failures
        registry.add_broker(broker)
        registry.set_role(broker, row.role, row.standby)
        turn.loads.sites.set_role(broker.id, row.role)
        if row.dead:
            broker.health, broker.since_s = Health.DEAD, turn.now_s
        else:
            liveness.await_return(turn, broker)
    for capacity in state.capacities:
        if (record := registry.broker(capacity.broker)) is not None:
            record.ordered = Capacity(capacity.in_bytes_per_s, capacity.out_bytes_per_s, capacity.matched_per_s)
            turn.loads.sites.set_capacity(record.id, record.ordered)
    for stored in state.subscribers:
        subscriber = SubscriberRecord(stored.subscriber, stored.place, stored.coordinate, stored.home)
        subscriber.moved_at_s, subscriber.deleted = stored.moved_at_s, stored.deleted
        subscriber.uncertain = stored.uncertain
        registry.add_subscriber(subscriber)
    for held in state.subscriptions:
        if held.subscriber in registry.subscribers:
            subscriptions = {frontend.subscription: frontend for frontend in held.held}
            registry.subscribers[held.subscriber].subscriptions |= subscriptions
    for webhook in state.webhooks:
        if webhook.subscriber in registry.subscribers:
            registry.subscribers[webhook.subscriber].webhook = webhook.webhook
    for revocation in state.revocations:
        registry.add_revocation(revocation.kind, revocation.name, revocation.at_s)
    for migration in state.migrations:
        _restore_migration(turn, migration)
    facts = {fact.name: fact.value for fact in state.facts}
    turn.registry.topics.epoch = int(facts.get(TOPIC_EPOCH, "0"))
    turn.registry.topics.stored_lease_s = float(facts.get(TOPIC_LEASE_S, "0"))
    _restore_topics(turn, state)
    return facts


def _restore_topics(turn: Turn, state: StoredState) -> None:
    """Every home may have got its lease at this moment, from the process before.

    Moves in progress are forgotten, except those whose target may have opened the topic.
    """
    topics = turn.registry.topics
    if topics.epoch:
        longest_s = max(topics.stored_lease_s, turn.rules.topic_lease_s)
        topics.settled_s = turn.now_s + LEASE_MARGIN * longest_s
    logs = {row.topic: row for row in state.topic_logs}
    for row in state.topics:
        holder = None if row.home is None else (row.home, row.incarnation)
        record = TopicRecord(row.topic, row.created, row.within_s, row.made_on_use, holder, row.epoch)
        record.made_by = row.made_by
        record.delay_s, record.protected_per_s = row.delay_s, row.protected_per_s
        if row.record_into is not None:
            record.record = RecordPlan(DatasetName(row.record_into), row.recording or "")
        if (kept := logs.get(row.topic)) is not None:
            persistence = Persistence(len(kept.replicas), kept.quorum, kept.retain_bytes, kept.retain_s)
            record.log = TopicLog(persistence, kept.replicas)
        topics.add(record)
        if holder is not None:
            topics.leases[holder] = topics.settled_s
    for move in state.topic_moves:
        _restore_move(turn, move)


def _restore_move(turn: Turn, stored: StoreTopicMove) -> None:
    topics = turn.registry.topics
    record = topics.topics.get(stored.topic)
    if record is not None and record.home is not None:
        where = (record.home, record.epoch, stored.target, stored.epoch)
        deadline_s = turn.now_s + turn.rules.grace_s + turn.rules.topic_move_s
        move = TopicMove(*where, "it was in progress", turn.now_s, deadline_s, TopicMoveStep.STOPPING, direct=True)
        move.target_run = stored.incarnation
        topics.set_move(record, move)
        topics.leases[stored.target, stored.incarnation] = topics.settled_s


def _restore_migration(turn: Turn, stored: StoreMigration) -> None:
    names = (stored.migration, stored.subscriber, stored.source, stored.target)
    deadline_s = turn.now_s + turn.rules.grace_s + turn.rules.hand_over_s
    migration = MigrationRecord(*names, Urgency(stored.urgency), stored.reason, turn.now_s, deadline_s)
    migration.step, migration.claimed, migration.adopted = MigrationStep(stored.step), stored.claimed, stored.adopted
    turn.registry.add_migration(migration)


class InMemoryStore:
    def __init__(self) -> None:
        self._brokers: dict[BrokerId, StoreBroker] = {}
        self._capacities: dict[BrokerId, StoreCapacity] = {}
        self._subscribers: dict[SubscriberId, StoreSubscriber] = {}
        self._subscriptions: dict[SubscriberId, dict[SubscriptionId, Frontend]] = {}
        self._webhooks: dict[SubscriberId, StoreWebhook] = {}
        self._migrations: dict[str, StoreMigration] = {}
        self._facts: dict[str, StoreFact] = {}
        self._revocations: dict[tuple[str, str], StoreRevocation] = {}
        self._topics: dict[TopicName, StoreTopic] = {}
        self._topic_logs: dict[TopicName, StoreTopicLog] = {}
        self._topic_moves: dict[TopicName, StoreTopicMove] = {}

    def commit(self, effects: Iterable[Effect]) -> None:
        """Store the rows of `Store…` and `Forget…` effects; other effects are skipped."""
        for effect in effects:
            self._apply(effect)

    def _apply(self, effect: Effect) -> None:
        match effect:
            case StoreBroker():
                self._brokers[effect.broker] = effect
            case ForgetBroker(broker):
                self._brokers.pop(broker, None)
                self._capacities.pop(broker, None)
            case StoreCapacity(broker):
                self._capacities[broker] = effect
            case StoreSubscriber():
                self._subscribers[effect.subscriber] = effect
            case ForgetSubscriber(subscriber):
                self._subscribers.pop(subscriber, None)
                self._subscriptions.pop(subscriber, None)
                self._webhooks.pop(subscriber, None)
            case StoreSubscriptions(subscriber, held, removed):
                rows = self._subscriptions.setdefault(subscriber, {})
                rows |= {frontend.subscription: frontend for frontend in held}
                for subscription in removed:
                    rows.pop(subscription, None)
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
            case StoreRevocation(kind, name):
                self._revocations[kind, name] = effect
            case StoreTopic(topic):
                self._topics[topic] = effect
            case StoreTopicLog(topic):
                self._topic_logs[topic] = effect
            case StoreTopicMove(topic):
                self._topic_moves[topic] = effect
            case ForgetTopicMove(topic):
                self._topic_moves.pop(topic, None)
            case ForgetTopic(topic):
                self._topics.pop(topic, None)
                self._topic_logs.pop(topic, None)
                self._topic_moves.pop(topic, None)

    def load(self) -> StoredState:
        return StoredState(
            tuple(self._brokers.values()),
            tuple(self._subscribers.values()),
            tuple(
                StoreSubscriptions(subscriber, (frontend,))
                for subscriber, rows in self._subscriptions.items()
                for frontend in rows.values()
            ),
            tuple(self._webhooks.values()),
            tuple(self._migrations.values()),
            tuple(self._facts.values()),
            tuple(self._revocations.values()),
            tuple(self._topics.values()),
            tuple(self._topic_logs.values()),
            tuple(self._topic_moves.values()),
            tuple(self._capacities.values()),
        )
