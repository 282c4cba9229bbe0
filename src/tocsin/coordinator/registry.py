"""Who is where: brokers, subscribers, sessions and migrations, with the indices that keep every question cheap.

Keeps them consistent and nothing else: what to do about anything is decided by the modules that use it.
"""

from __future__ import annotations

from collections.abc import Iterator

from tocsin.coordinator.records import BrokerRecord, Health, MigrationRecord, MigrationStep, SubscriberRecord
from tocsin.model.ids import BrokerId, SubscriberId

_DELETED = 10_000
"""Remembered of those who were deleted. Not on disk: it matters while a broker is away, which is rarely long."""


class Registry:
    def __init__(self) -> None:
        self.brokers: dict[BrokerId, BrokerRecord] = {}
        self.subscribers: dict[SubscriberId, SubscriberRecord] = {}
        self.migrations: dict[str, MigrationRecord] = {}
        self.moving: dict[SubscriberId, MigrationRecord] = {}
        """The one migration each subscriber is in."""
        self.generation = 1
        """Grows with every change of assignment or membership."""
        self.placed = 0
        """How many were given a broker since the start."""
        self.migrated = 0
        """Migrations that arrived since the start."""
        self.deleted: dict[SubscriberId, None] = {}
        """The last that were forgotten, latest last: a broker that was away may still hand something in for them."""
        self._hosted: dict[BrokerId, dict[SubscriberId, None]] = {}
        self._sessions: dict[BrokerId, dict[SubscriberId, None]] = {}
        self._involved: dict[tuple[BrokerId, bool], int] = {}
        """(broker, whether as target) → migrations under way."""
        self._releasing: dict[BrokerId, dict[SubscriberId, int]] = {}
        """Releases that were sent and not confirmed yet."""
        self._adopting: dict[BrokerId, dict[SubscriberId, float]] = {}
        """Adoptions that were sent and, having no answer, may not have arrived: when."""

    # -- brokers -------------------------------------------------------------------------------------------------------

    def add_broker(self, broker: BrokerRecord) -> None:
        self.brokers[broker.id] = broker
        self.generation += 1

    def remove_broker(self, broker: BrokerId) -> None:
        del self.brokers[broker]
        self._hosted.pop(broker, None)
        self._sessions.pop(broker, None)
        self._releasing.pop(broker, None)
        self._adopting.pop(broker, None)
        self.generation += 1

    def accepting(self, broker: BrokerRecord) -> bool:
        """May be given newcomers. Those on probation may when there is nobody else: late is better than nowhere."""
        if broker.trusted:
            return True
        return (
            broker.health is Health.PROBATION
            and broker.linked
            and not broker.draining
            and not any(other.trusted for other in self.brokers.values())
        )

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
        self.deleted[subscriber.id] = None
        if len(self.deleted) > _DELETED:
            del self.deleted[next(iter(self.deleted))]
        self.generation += 1

    def set_home(self, subscriber: SubscriberRecord, home: BrokerId | None) -> None:
        self._leave_home(subscriber)
        subscriber.home = home
        if home is not None:
            self._hosted.setdefault(home, {})[subscriber.id] = None
        self.generation += 1

    def _leave_home(self, subscriber: SubscriberRecord) -> None:
        if subscriber.home is not None:
            self._hosted.get(subscriber.home, {}).pop(subscriber.id, None)

    def hosted(self, broker: BrokerId) -> dict[SubscriberId, None]:
        """Whose home this is, longest there first."""
        return self._hosted.get(broker, {})

    def webhooks_first(self, broker: BrokerId) -> None:
        """Who is called instead of connecting cannot help itself when its broker dies: those come first."""
        hosted = self._hosted.get(broker, {})
        called = [one for one in hosted if self.subscribers[one].webhook is not None]
        self._hosted[broker] = dict.fromkeys(called) | hosted

    def begin_session(self, subscriber: SubscriberRecord, broker: BrokerId) -> None:
        self.end_session(subscriber)
        subscriber.session_at = broker
        self._sessions.setdefault(broker, {})[subscriber.id] = None

    def end_session(self, subscriber: SubscriberRecord) -> None:
        if subscriber.session_at is not None:
            self._sessions.get(subscriber.session_at, {}).pop(subscriber.id, None)
            subscriber.session_at = None

    def end_sessions(self, broker: BrokerId) -> None:
        for one in list(self._sessions.get(broker, {})):
            self.end_session(self.subscribers[one])

    def sessions(self, broker: BrokerId) -> dict[SubscriberId, None]:
        return self._sessions.get(broker, {})

    # -- releases on their way -----------------------------------------------------------------------------------------

    def release_sent(self, broker: BrokerId, subscriber: SubscriberId) -> None:
        waiting = self._releasing.setdefault(broker, {})
        waiting[subscriber] = waiting.get(subscriber, 0) + 1

    def release_confirmed(self, broker: BrokerId, subscriber: SubscriberId) -> None:
        waiting = self._releasing.get(broker, {})
        left = waiting.pop(subscriber, 0) - 1
        if left > 0:
            waiting[subscriber] = left

    def releases_lost(self, broker: BrokerId) -> None:
        """Its link is gone; what it still holds it says when it registers."""
        self._releasing.pop(broker, None)

    def is_releasing(self, broker: BrokerId, subscriber: SubscriberId) -> bool:
        """What this broker says of this subscriber's sessions was said before it heard that it has to let go."""
        return subscriber in self._releasing.get(broker, {})

    def adoption_sent(self, broker: BrokerId, subscriber: SubscriberId, now_s: float) -> None:
        sent = self._adopting.setdefault(broker, {})
        sent.pop(subscriber, None)
        sent[subscriber] = now_s

    def adoptions_settled(self, broker: BrokerId, until_s: float) -> None:
        """Whatever was sent until then has arrived: the broker has been talking over the same link ever since."""
        sent = self._adopting.get(broker, {})
        while sent and next(iter(sent.values())) <= until_s:
            del sent[next(iter(sent))]

    def adoptions_unsure(self, broker: BrokerId) -> set[SubscriberId]:
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
            self._involved[key] = self._involved.get(key, 0) + by

    def involved(self, broker: BrokerId, *, as_target: bool) -> int:
        return self._involved.get((broker, as_target), 0)

    def migrations_with(self, broker: BrokerId) -> Iterator[MigrationRecord]:
        """As source or target; may be changed while it is walked."""
        return iter([one for one in self.migrations.values() if broker in (one.source, one.target)])

    def broken_invariants(self) -> list[str]:
        """What must never be; for tests and for whoever doubts."""
        wrong = [
            f"{one.id} is not hosted by its home {one.home}"
            for one in self.subscribers.values()
            if one.home is not None and one.id not in self.hosted(one.home)
        ]
        wrong += [
            f"{broker} hosts {one}, whose home it is not"
            for broker, hosted in self._hosted.items()
            for one in hosted
            if one not in self.subscribers or self.subscribers[one].home != broker
        ]
        for migration in self.migrations.values():
            if self.moving.get(migration.subscriber) is not migration:
                wrong.append(f"{migration.id} is not the migration {migration.subscriber} is in")
            owner = self.subscribers.get(migration.subscriber)
            expected = migration.target if migration.step is MigrationStep.RELEASING else migration.source
            if owner is None or owner.home != expected:
                wrong.append(f"{migration.id} is {migration.step} but the home is not {expected}")
        return wrong
