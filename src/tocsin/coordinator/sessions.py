"""Sessions of subscribers. The broker with the open session becomes home, and the former home releases the subscriber.

If a subscriber has two sessions, the later one counts. A `Release` to the earlier broker closes its session as `moved`.
A broker's reports about a subscriber between our `Release` and its `Released` may be older than the `Release`, so the
coordinator ignores them.
"""

from __future__ import annotations

from tocsin.coordinator import migrations, revocations
from tocsin.coordinator.effects import RequestRejection
from tocsin.coordinator.records import MigrationRecord, MigrationStep, SubscriberRecord
from tocsin.coordinator.turn import Turn
from tocsin.model.ids import BrokerId, SubscriberId
from tocsin.wire.errors import Code


def open_session(turn: Turn, broker: BrokerId, name: SubscriberId, token: str | None = None) -> None:
    subscriber = _reported_subscriber(turn, broker, name)
    if subscriber is None:
        return
    turn.registry.begin_session(subscriber, broker)
    subscriber.session_token = token
    migration = turn.registry.moving.get(name)
    if migration is not None and migration.step is not MigrationStep.RELEASING:
        if migration.target == broker:
            migrations.arrive(turn, migration)
            return
        if migration.source == broker:
            migrations.handle_return_to_source(turn, migration)
            return
        migrations.abort(turn, migration, f"the subscriber connected to {broker} instead")
    if subscriber.home != broker:
        _make_home(turn, broker, subscriber)


def _reported_subscriber(turn: Turn, broker: BrokerId, name: SubscriberId) -> SubscriberRecord | None:
    """The subscriber that a broker reports. None for a deleted user, and if the report may precede our `Release`."""
    if turn.registry.is_releasing(broker, name):
        return None
    subscriber = turn.known_subscriber(name)
    if subscriber.deleted:
        turn.release(broker, name)
        return None
    return subscriber


def _make_home(turn: Turn, broker: BrokerId, subscriber: SubscriberRecord) -> None:
    former = subscriber.home
    migration = turn.registry.moving.get(subscriber.id)
    if migration is not None:  # in step RELEASING: the subscriber has just moved and connected to another broker
        if migration.source != broker:
            turn.release(migration.source, subscriber.id, migration.id)
        turn.forget_migration(migration)
    turn.set_home(subscriber, broker)
    turn.adopt(broker, [subscriber])  # the broker may hold an old state, or an `Abandon` may still be on the link
    if former is not None:
        turn.release(former, subscriber.id)
        turn.note("subscriber moved by itself", subscriber=subscriber.id, source=former, target=broker)


def close_session(turn: Turn, broker: BrokerId, name: SubscriberId) -> None:
    subscriber = turn.registry.subscribers.get(name)
    if subscriber is None or subscriber.session_at != broker:
        return
    turn.registry.end_session(subscriber)
    migration = turn.registry.moving.get(name)
    if migration is not None and migration.source == broker:
        migrations.handle_session_end_at_source(turn, migration)


def adopt_at(turn: Turn, broker: BrokerId, name: SubscriberId, migration_id: str) -> None:
    """Send a broker the state of a subscriber that logged in there. The broker becomes home when it opens a session."""
    subscriber = _reported_subscriber(turn, broker, name)
    if subscriber is None:  # a broker that still needs it after `Released` reports an open session
        return
    migration = turn.registry.moving.get(name)
    if migration is not None and broker not in (migration.source, migration.target):
        _end_for_third_broker(turn, migration, broker)
        migration = None
    if migration is not None:
        if migration.target == broker and migration.step is not MigrationStep.RELEASING:
            migrations.mark_adopted(turn, migration)
    elif turn.registry.is_dead(subscriber.home):
        turn.set_home(subscriber, broker)
    elif subscriber.home != broker:
        migrations.claim(turn, migration_id, name, broker)
    turn.adopt(broker, [subscriber], even_empty=True)


def _end_for_third_broker(turn: Turn, migration: MigrationRecord, broker: BrokerId) -> None:
    if migration.step is MigrationStep.RELEASING:
        turn.release(migration.source, migration.subscriber, migration.id)
        turn.forget_migration(migration)
    else:
        migrations.abort(turn, migration, f"the subscriber connected to {broker} instead")


def delete_user(turn: Turn, user: SubscriberId) -> bool | RequestRejection:
    """Forget the user at once if no broker holds its state, otherwise when its home broker has released it."""
    subscriber = turn.registry.subscribers.get(user)
    if subscriber is None or subscriber.deleted:
        return RequestRejection(Code.NOT_FOUND, f"there is no user {user!r}")
    migration = turn.registry.moving.get(user)
    if migration is not None and migration.step is MigrationStep.RELEASING:
        turn.forget_migration(migration)
    elif migration is not None:
        migrations.abort(turn, migration, "the user is deleted")
    revocations.revoke_user(turn, user)
    if subscriber.home is None or turn.registry.is_dead(subscriber.home):
        turn.forget_subscriber(subscriber)
        return True
    subscriber.deleted = True
    turn.store_subscriber(subscriber)
    turn.release(subscriber.home, user)
    return True


def handle_released(turn: Turn, broker: BrokerId, name: SubscriberId) -> None:
    turn.registry.confirm_release(broker, name)
    subscriber = turn.registry.subscribers.get(name)
    if subscriber is None:
        return
    if subscriber.session_at == broker and subscriber.home != broker:
        turn.registry.end_session(subscriber)
    migrations.handle_released(turn, broker, name)
    if subscriber.deleted and subscriber.home == broker:
        turn.forget_subscriber(subscriber)
