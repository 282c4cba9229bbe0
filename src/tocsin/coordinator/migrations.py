"""The migration of one subscriber, make-before-break: the target holds everything before the source releases it.

    PREPARING ──Prepared──▶ HANDING_OVER ──session at the source ends──▶ CONFIRMING
        │   (subscriber is offline)             │  session at the target opens  │
        └──────────────────────────────────────▶┴──────────▶ RELEASING ◀────────┘ ──Released──▶ done

Until the target has confirmed, home is the source, and every failure or time-out leaves the subscriber there
(`Abandon`). After that home is the target, and every failure or time-out leaves the subscriber *there*: the coordinator
sends `Release` to the source a few times, and a source without a link receives it when it registers. As in [ePulsar
§3.6] the source announces the new address to the client; unlike there, the source does not release the client first.

A broker's message about a migration that has ended is harmless: the open session decides, see `sessions`.
"""

from __future__ import annotations

from tocsin.coordinator.records import MigrationRecord, MigrationStep
from tocsin.coordinator.turn import Turn
from tocsin.model.ids import BrokerId, SubscriberId
from tocsin.model.plan import Move, Urgency
from tocsin.model.trace import Kind
from tocsin.wire.link import Abandon, HandOverFailed, Prepare, PrepareFailed


def begin(turn: Turn, identity: str, move: Move, urgency: Urgency) -> None:
    """Start a move that the arbiter has taken."""
    migration = _new(turn, identity, move.subscriber, move.target, urgency, move.reason, turn.rules.prepare_s)
    turn.note("migration begins", **_log_fields(migration), urgency=str(urgency), reason=move.reason)
    _add(turn, migration)
    send_prepare(turn, migration)


def claim(turn: Turn, identity: str, subscriber: SubscriberId, target: BrokerId) -> None:
    """Start a migration for a subscriber that logged in at `target` by itself.

    The state that the target requested replaces `Prepare`.
    """
    reason = "the subscriber connected to the target by itself"
    migration = _new(turn, identity, subscriber, target, Urgency.LATENCY, reason, turn.rules.hand_over_s)
    migration.step, migration.claimed, migration.adopted = MigrationStep.CONFIRMING, True, True
    _add(turn, migration)


def _new(
    turn: Turn, identity: str, subscriber: SubscriberId, target: BrokerId, urgency: Urgency, reason: str, limit_s: float
) -> MigrationRecord:
    source = turn.registry.subscribers[subscriber].home
    assert source is not None and subscriber not in turn.registry.moving
    now_s = turn.now_s
    return MigrationRecord(identity, subscriber, source, target, urgency, reason, now_s, now_s + limit_s)


def _add(turn: Turn, migration: MigrationRecord) -> None:
    turn.registry.add_migration(migration)
    turn.store_migration(migration)
    _trace(turn, migration, Kind.MOVE, migration.reason)


def mark_adopted(turn: Turn, migration: MigrationRecord) -> None:
    """Record that the target got `Adopt` before it confirmed: it requested the state, or the state changed."""
    if not migration.adopted:
        migration.adopted = True
        turn.store_migration(migration)


def send_prepare(turn: Turn, migration: MigrationRecord) -> None:
    """Send `Prepare`, and again if the target may have missed it or the subscriber's state has changed."""
    state = turn.registry.subscribers[migration.subscriber].state()
    turn.send(migration.target, Prepare(migration.id, state, turn.rules.hold_s))


def restart(turn: Turn, migration: MigrationRecord) -> None:
    """Prepare again, unless the migration is too old: a target that registers may have lost its preparation."""
    rules = turn.rules
    if turn.now_s - migration.began_s > 2 * (rules.prepare_s + rules.hand_over_s + rules.confirm_s):
        abort(turn, migration, "the target came back too late")
        return
    _enter(turn, migration, MigrationStep.PREPARING, rules.prepare_s)
    send_prepare(turn, migration)


# -- messages and sessions ---------------------------------------------------------------------------------------------


def handle_prepared(turn: Turn, broker: BrokerId, identity: str) -> None:
    migration = turn.registry.migrations.get(identity)
    if migration is None or migration.target != broker or migration.step is not MigrationStep.PREPARING:
        return
    subscriber = turn.registry.subscribers[migration.subscriber]
    source = turn.registry.brokers.get(migration.source)
    offline = subscriber.session_at is None and source is not None and source.linked
    if turn.registry.is_dead(migration.source) or offline or subscriber.session_at == broker:
        arrive(turn, migration)  # there is no session to hand over, and the target holds everything
        return
    _enter(turn, migration, MigrationStep.HANDING_OVER, turn.rules.hand_over_s)
    turn.send_hand_over(migration)


def handle_prepare_failed(turn: Turn, broker: BrokerId, message: PrepareFailed) -> None:
    migration = turn.registry.migrations.get(message.migration)
    if migration is not None and migration.target == broker and migration.step is not MigrationStep.RELEASING:
        abort(turn, migration, f"the target could not prepare: {message.code}: {message.message}"[:300])


def handle_hand_over_failed(turn: Turn, broker: BrokerId, message: HandOverFailed) -> None:
    """The source could not reach the subscriber. An offline subscriber still moves; any other stays."""
    migration = turn.registry.migrations.get(message.migration)
    if migration is None or migration.source != broker or migration.step is not MigrationStep.HANDING_OVER:
        return
    if turn.registry.subscribers[migration.subscriber].session_at is None and _target_is_ready(turn, migration):
        arrive(turn, migration)
    else:
        abort(turn, migration, f"the source could not reach the subscriber: {message.code}: {message.message}"[:300])


def handle_session_end_at_source(turn: Turn, migration: MigrationRecord) -> None:
    """The subscriber is between the two brokers, or offline."""
    if migration.step is MigrationStep.HANDING_OVER:
        _enter(turn, migration, MigrationStep.CONFIRMING, turn.rules.confirm_s)


def handle_return_to_source(turn: Turn, migration: MigrationRecord) -> None:
    """The subscriber reconnected to the source: announce the move again, within the same deadline."""
    if migration.claimed:
        abort(turn, migration, "the subscriber reconnected to the source")
    elif migration.step in (MigrationStep.HANDING_OVER, MigrationStep.CONFIRMING):
        migration.step = MigrationStep.HANDING_OVER
        migration.renewed.clear()
        turn.send_hand_over(migration)


def arrive(turn: Turn, migration: MigrationRecord) -> None:
    """The target has confirmed: it becomes home, and the source has to release the subscriber."""
    subscriber = turn.registry.subscribers[migration.subscriber]
    turn.set_home(subscriber, migration.target, confirmed=True)
    turn.registry.migrated += 1
    turn.note("migration arrives", **_log_fields(migration), after_s=round(turn.now_s - migration.began_s, 3))
    # `Adopt` makes the preparation permanent and repeats changes that the target may have missed.
    if subscriber.session_at != migration.target or subscriber.uncertain:
        turn.adopt(migration.target, [subscriber])
    _enter(turn, migration, MigrationStep.RELEASING, turn.rules.release_s)
    _release_source(turn, migration)


def handle_released(turn: Turn, broker: BrokerId, subscriber: SubscriberId) -> None:
    migration = turn.registry.moving.get(subscriber)
    if migration is not None and migration.source == broker and migration.step is MigrationStep.RELEASING:
        turn.forget_migration(migration)


# -- time and failures -------------------------------------------------------------------------------------------------


def check_deadlines(turn: Turn) -> None:
    for migration in [m for m in turn.registry.migrations.values() if m.deadline_s <= turn.now_s]:
        if migration.step is not MigrationStep.RELEASING:
            abort(turn, migration, f"timed out while {migration.step}")
        elif migration.releases < turn.rules.releases:
            migration.deadline_s = turn.now_s + turn.rules.release_s
            _release_source(turn, migration)
        else:
            turn.note("source did not confirm its release", "warning", **_log_fields(migration))
            turn.forget_migration(migration)


def abort(turn: Turn, migration: MigrationRecord, reason: str) -> None:
    """Abandon a migration. Home stays the source, the subscriber rests, and a drain avoids this target next time."""
    assert migration.step is not MigrationStep.RELEASING
    turn.note("migration fails", "warning", **_log_fields(migration), step=str(migration.step), reason=reason)
    _trace(turn, migration, Kind.MOVE_FAILED, reason)
    subscriber = turn.registry.subscribers[migration.subscriber]
    subscriber.rests_until_s = turn.now_s + turn.rules.retry_s
    subscriber.shunned = migration.target
    turn.forget_migration(migration)
    if not migration.adopted:
        turn.send(migration.target, Abandon(migration.id, migration.subscriber))
    elif subscriber.session_at != migration.target:
        turn.release(migration.target, migration.subscriber)


def handle_broker_death(turn: Turn, broker: BrokerId) -> None:
    """End every migration of a dead broker, or continue it without the source."""
    for migration in turn.registry.migrations_with(broker):
        if migration.step is MigrationStep.RELEASING:
            turn.forget_migration(migration)  # a dead source holds nothing; failover handles a dead target
        elif migration.target == broker:
            abort(turn, migration, "the target died")
        elif _target_is_ready(turn, migration):
            arrive(turn, migration)


def _target_is_ready(turn: Turn, migration: MigrationRecord) -> bool:
    """True if the target has reported `Prepared` over a link that has not been broken since."""
    target = turn.registry.brokers.get(migration.target)
    prepared = migration.step in (MigrationStep.HANDING_OVER, MigrationStep.CONFIRMING) and not migration.claimed
    return prepared and target is not None and target.linked


def _enter(turn: Turn, migration: MigrationRecord, step: MigrationStep, limit_s: float) -> None:
    migration.step = step
    migration.deadline_s = turn.now_s + limit_s
    turn.registry.generation += 1
    turn.store_migration(migration)


def _release_source(turn: Turn, migration: MigrationRecord) -> None:
    migration.releases += 1
    if turn.registry.is_dead(migration.source):
        turn.forget_migration(migration)
    else:
        turn.release(migration.source, migration.subscriber, migration.id)


def _log_fields(migration: MigrationRecord) -> dict[str, str]:
    return {
        "migration": migration.id,
        "subscriber": migration.subscriber,
        "source": migration.source,
        "target": migration.target,
    }


def _trace(turn: Turn, migration: MigrationRecord, kind: Kind, note: str) -> None:
    turn.trace(kind, subscriber=migration.subscriber, broker=migration.source, target=migration.target, note=note)
