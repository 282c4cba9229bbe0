"""Brokers, subscribers, sessions and migrations, with indices that make every lookup cheap.

The registry keeps these records consistent. It makes no decisions: the modules that use it do.
"""

from __future__ import annotations

from tocsin.coordinator.records import BrokerRecord, Health, MigrationRecord, SubscriberRecord
from tocsin.coordinator.topic_records import TopicRegistry
from tocsin.model.ids import BrokerId, SubscriberId
from tocsin.wire.site_link import Role

_REMEMBERED_DELETIONS = 10_000
"""The most deleted subscribers in memory. They matter only while a broker is away, which is rarely long."""


class Registry:
    def __init__(self) -> None:
        self.brokers: dict[BrokerId, BrokerRecord] = {}
        self.subscribers: dict[SubscriberId, SubscriberRecord] = {}
        self.migrations: dict[str, MigrationRecord] = {}
        self.moving: dict[SubscriberId, MigrationRecord] = {}
        """The migration of each subscriber that has one."""
        self.topics = TopicRegistry()
        self.heads: dict[BrokerId, None] = {}
        """Brokers with the role head, alive or not."""
        self.edges: dict[BrokerId, None] = {}
        """The same for edges."""
        self.measuring: frozenset[tuple[BrokerId, str]] = frozenset()
        """(broker, address) of the brokers that measured each other at the last choice of peers."""
        self.peers_due_s = float("-inf")
        """When `network_coordinates` chooses peers again, if no broker arrives or leaves before."""
        self.generation = 1
        """The number of the present assignment. It grows with every change of assignment or membership."""
        self.revision = 0
        """The number of changes of sessions, webhooks and positions. They do not make a plan stale."""
        self.placed = 0
        """Placements since the start."""
        self.migrated = 0
        """Migrations that arrived since the start."""
        self.roaming: dict[SubscriberId, None] = {}
        """Subscribers that have travelled since their broker was chosen (`roaming`)."""
        self.deleted: dict[SubscriberId, None] = {}
        """Recently deleted subscribers, latest last: a broker that was away may still report changes of them."""
        self.revocations: dict[tuple[str, str], float] = {}
        """(kind, name) of each revocation → its time."""
        self.revocation_changes = 0
        """Grows with every revocation."""
        self._hosted: dict[BrokerId, dict[SubscriberId, None]] = {}
        self._sessions: dict[BrokerId, dict[SubscriberId, None]] = {}
        self._migration_counts: dict[tuple[BrokerId, bool], int] = {}
        """(broker, whether it is the target) → migrations in progress."""
        self._releasing: dict[BrokerId, dict[SubscriberId, int]] = {}
        """`Release` messages sent and not confirmed yet."""
        self._adopting: dict[BrokerId, dict[SubscriberId, float]] = {}
        """The time when `Adopt` was sent. `Adopt` has no answer, so it may not have arrived."""

    def add_revocation(self, kind: str, name: str, at_s: float) -> None:
        self.revocations[kind, name] = max(at_s, self.revocations.get((kind, name), at_s))
        self.revocation_changes += 1

    # -- brokers -------------------------------------------------------------------------------------------------------

    def add_broker(self, broker: BrokerRecord) -> None:
        self.brokers[broker.id] = broker
        self.generation += 1

    def remove_broker(self, broker: BrokerId) -> None:
        del self.brokers[broker]
        self.heads.pop(broker, None)
        self.edges.pop(broker, None)
        self._hosted.pop(broker, None)
        self._sessions.pop(broker, None)
        self._releasing.pop(broker, None)
        self._adopting.pop(broker, None)
        self.generation += 1

    def set_role(self, broker: BrokerRecord, role: Role, standby: bool) -> None:
        broker.role, broker.standby = role, standby
        for of_role, brokers in ((Role.HEAD, self.heads), (Role.EDGE, self.edges)):
            brokers.pop(broker.id, None)
            if role is of_role:
                brokers[broker.id] = None

    def broker(self, broker: BrokerId | None) -> BrokerRecord | None:
        return None if broker is None else self.brokers.get(broker)

    def accepting(self, broker: BrokerRecord) -> bool:
        """True if the broker may get new subscribers. A broker on probation may, if no broker is trusted."""
        if broker.trusted:
            return True
        return (
            broker.health is Health.PROBATION
            and broker.linked
            and not broker.draining
            and not any(other.trusted for other in self.brokers.values())
        )

    def is_dead(self, broker: BrokerId | None) -> bool:
        """True if the broker is dead or unknown; also for None."""
        record = self.broker(broker)
        return record is None or record.health is Health.DEAD

    # -- subscribers ---------------------------------------------------------------------------------------------------

    def add_subscriber(self, subscriber: SubscriberRecord) -> None:
        self.subscribers[subscriber.id] = subscriber
        self.deleted.pop(subscriber.id, None)
        if subscriber.home is not None:
            self._hosted.setdefault(subscriber.home, {})[subscriber.id] = None
        self.generation += 1

    def remove_subscriber(self, subscriber: SubscriberRecord) -> None:
        self.end_session(subscriber)
        self._leave_home(subscriber)
        del self.subscribers[subscriber.id]
        self.roaming.pop(subscriber.id, None)
        self.deleted[subscriber.id] = None
        if len(self.deleted) > _REMEMBERED_DELETIONS:
            del self.deleted[next(iter(self.deleted))]
        self.generation += 1

    def set_home(self, subscriber: SubscriberRecord, home: BrokerId) -> None:
        self._leave_home(subscriber)
        subscriber.home = home
        self._hosted.setdefault(home, {})[subscriber.id] = None
        self.generation += 1

    def _leave_home(self, subscriber: SubscriberRecord) -> None:
        if subscriber.home is not None:
            self._hosted.get(subscriber.home, {}).pop(subscriber.id, None)

    def hosted(self, broker: BrokerId) -> dict[SubscriberId, None]:
        """The subscribers whose home is this broker, the earliest first."""
        return self._hosted.get(broker, {})

    def put_webhooks_first(self, broker: BrokerId) -> None:
        """Move webhook subscribers to the front of `hosted`: they never connect, so only failover can serve them."""
        hosted = self._hosted.get(broker, {})
        with_webhook = [name for name in hosted if self.subscribers[name].webhook is not None]
        self._hosted[broker] = dict.fromkeys(with_webhook) | hosted

    def begin_session(self, subscriber: SubscriberRecord, broker: BrokerId) -> None:
        self.end_session(subscriber)
        subscriber.session_at = broker
        self._sessions.setdefault(broker, {})[subscriber.id] = None
        self.revision += 1

    def end_session(self, subscriber: SubscriberRecord) -> None:
        if subscriber.session_at is not None:
            self._sessions.get(subscriber.session_at, {}).pop(subscriber.id, None)
            subscriber.session_at = None
            self.revision += 1

    def end_sessions(self, broker: BrokerId) -> None:
        for name in list(self._sessions.get(broker, {})):
            self.end_session(self.subscribers[name])

    def sessions(self, broker: BrokerId) -> dict[SubscriberId, None]:
        return self._sessions.get(broker, {})

    def serves(self, broker: BrokerId, name: SubscriberId) -> bool:
        """True if this coordinator has assigned the subscriber to the broker, or knows of its session there."""
        subscriber = self.subscribers.get(name)
        if subscriber is None or subscriber.deleted:
            return False
        migration = self.moving.get(name)
        is_moving = migration is not None and broker in (migration.source, migration.target)
        return is_moving or broker in (subscriber.home, subscriber.session_at)

    # -- messages without a confirmation -------------------------------------------------------------------------------

    def add_release(self, broker: BrokerId, subscriber: SubscriberId) -> None:
        pending = self._releasing.setdefault(broker, {})
        pending[subscriber] = pending.get(subscriber, 0) + 1

    def confirm_release(self, broker: BrokerId, subscriber: SubscriberId) -> None:
        pending = self._releasing.get(broker, {})
        left = pending.pop(subscriber, 0) - 1
        if left > 0:
            pending[subscriber] = left

    def clear_releases(self, broker: BrokerId) -> None:
        """Forget pending releases, because the link is closed. A broker reports its subscribers when it registers."""
        self._releasing.pop(broker, None)

    def is_releasing(self, broker: BrokerId, subscriber: SubscriberId) -> bool:
        """True if the broker's reports about this subscriber's sessions may be older than our `Release`."""
        return subscriber in self._releasing.get(broker, {})

    def add_adoption(self, broker: BrokerId, subscriber: SubscriberId, now_s: float) -> None:
        sent = self._adopting.setdefault(broker, {})
        sent.pop(subscriber, None)
        sent[subscriber] = now_s

    def confirm_adoptions(self, broker: BrokerId, until_s: float) -> None:
        """Count adoptions sent until `until_s` as received: the broker has used the same link ever since."""
        sent = self._adopting.get(broker, {})
        while sent and next(iter(sent.values())) <= until_s:
            del sent[next(iter(sent))]

    def pop_unconfirmed_adoptions(self, broker: BrokerId) -> set[SubscriberId]:
        return set(self._adopting.pop(broker, {}))

    # -- migrations ----------------------------------------------------------------------------------------------------

    def add_migration(self, migration: MigrationRecord) -> None:
        self.migrations[migration.id] = migration
        self.moving[migration.subscriber] = migration
        self._count(migration, 1)
        self.generation += 1

    def remove_migration(self, migration: MigrationRecord) -> None:
        del self.migrations[migration.id]
        del self.moving[migration.subscriber]
        self._count(migration, -1)
        self.generation += 1

    def _count(self, migration: MigrationRecord, by: int) -> None:
        for key in ((migration.source, False), (migration.target, True)):
            self._migration_counts[key] = self._migration_counts.get(key, 0) + by

    def count_migrations(self, broker: BrokerId, *, as_target: bool) -> int:
        return self._migration_counts.get((broker, as_target), 0)

    def migrations_with(self, broker: BrokerId) -> list[MigrationRecord]:
        """Migrations with this broker as source or target."""
        return [migration for migration in self.migrations.values() if broker in (migration.source, migration.target)]
