"""Where subscribers are connected. A session is the truth: whoever has it open becomes home, the former home lets go.

Of two sessions of one subscriber the later one counts; the earlier is closed as `moved` when its broker is released.
What a broker says of a subscriber between our `Release` and its `Released` crossed it on the way: no longer true.
"""

from __future__ import annotations

from tocsin.coordinator import migrations
from tocsin.coordinator.records import Health, MigrationRecord, MigrationStep
from tocsin.coordinator.turn import Turn
from tocsin.model.ids import BrokerId, SubscriberId


def opened(turn: Turn, broker: BrokerId, subscriber: SubscriberId) -> None:
    if turn.registry.is_releasing(broker, subscriber):
        return
    found = turn.known(subscriber)
    if found.deleted:
        turn.release(broker, subscriber)
        return
    turn.registry.begin_session(found, broker)
    migration = turn.registry.moving.get(subscriber)
    if migration is not None and migration.step is not MigrationStep.RELEASING:
        if migration.target == broker:
            migrations.arrive(turn, migration)
            return
        if migration.source == broker:
            migrations.back_at_source(turn, migration)
            return
        migrations.abort(turn, migration, f"it connected to {broker} instead")
    if found.home != broker:
        _move_in(turn, broker, subscriber)


def _move_in(turn: Turn, broker: BrokerId, subscriber: SubscriberId) -> None:
    found = turn.registry.subscribers[subscriber]
    former = found.home
    migration = turn.registry.moving.get(subscriber)
    if migration is not None:  # it had just moved, and went on or back
        if migration.source != broker:
            turn.release(migration.source, subscriber, migration.id)
        turn.forget_migration(migration)
    turn.set_home(found, broker)
    turn.adopt(broker, [found])  # it may be about to hear that a preparation was abandoned, or hold an old state
    if former is not None:
        turn.release(former, subscriber)
        turn.note("subscriber moved by itself", subscriber=subscriber, source=former, target=broker)


def closed(turn: Turn, broker: BrokerId, subscriber: SubscriberId) -> None:
    found = turn.registry.subscribers.get(subscriber)
    if found is None or found.session_at != broker:
        return
    turn.registry.end_session(found)
    migration = turn.registry.moving.get(subscriber)
    if migration is not None and migration.source == broker:
        migrations.left_source(turn, migration)


def wanted(turn: Turn, broker: BrokerId, subscriber: SubscriberId, identity: str) -> None:
    """A broker asks what somebody holds who logged in there. It becomes home once it says that the session is open."""
    if turn.registry.is_releasing(broker, subscriber):
        return  # if it still wants to know when it has let go, it says that a session is open
    found = turn.known(subscriber)
    if found.deleted:
        turn.release(broker, subscriber)
        return
    migration = turn.registry.moving.get(subscriber)
    if migration is not None and broker not in (migration.source, migration.target):
        _end_for(turn, migration, broker)
        migration = None
    home = None if found.home is None else turn.registry.brokers.get(found.home)
    if migration is not None:
        if migration.target == broker and migration.step is not MigrationStep.RELEASING:
            migrations.adopted_by_target(turn, migration)
    elif home is None or home.health is Health.DEAD:
        turn.set_home(found, broker)
    elif found.home != broker:
        migrations.claim(turn, identity, found, broker)
    turn.adopt(broker, [found], asked=True)


def _end_for(turn: Turn, migration: MigrationRecord, broker: BrokerId) -> None:
    """It has gone to a third broker: wherever it was going does not matter any more."""
    if migration.step is MigrationStep.RELEASING:
        turn.release(migration.source, migration.subscriber, migration.id)
        turn.forget_migration(migration)
    else:
        migrations.abort(turn, migration, f"it connected to {broker} instead")


def deleted(turn: Turn, subscriber: SubscriberId) -> None:
    """Forgotten at once if nobody holds anything of it, otherwise when its broker has let go."""
    found = turn.registry.subscribers[subscriber]
    migration = turn.registry.moving.get(subscriber)
    if migration is not None and migration.step is MigrationStep.RELEASING:
        turn.forget_migration(migration)
    elif migration is not None:
        migrations.abort(turn, migration, "the user is deleted")
    home = None if found.home is None else turn.registry.brokers.get(found.home)
    if home is None or home.health is Health.DEAD:
        turn.forget_subscriber(found)
        return
    found.deleted = True
    turn.store_subscriber(found)
    turn.release(home.id, subscriber)


def released(turn: Turn, broker: BrokerId, subscriber: SubscriberId) -> None:
    turn.registry.release_confirmed(broker, subscriber)
    found = turn.registry.subscribers.get(subscriber)
    if found is None:
        return
    if found.session_at == broker and found.home != broker:
        turn.registry.end_session(found)
    migrations.released(turn, broker, subscriber)
    if found.deleted and found.home == broker:
        turn.forget_subscriber(found)
