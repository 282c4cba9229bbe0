"""The migration of one subscriber, make-before-break: the target holds everything before the source lets go.

    PREPARING ──Prepared──▶ HANDING_OVER ──session at the source ends──▶ CONFIRMING
        │   (offline: nobody to hand over)      │  session at the target opens  │
        └──────────────────────────────────────▶┴──────────▶ RELEASING ◀────────┘ ──Released──▶ done

Until the target has confirmed, home is the source and every failure or time-out leaves it there (`Abandon`). From then
on home is the target and every failure or time-out leaves it *there*: the source is told a few times, and a source that
is away learns it when it registers. [ePulsar §3.6] has the source tell the clients the new address, which is kept; it
also has the source let go first, which is not: a move is made before it breaks.

What a broker says about a migration that is over is harmless: the session is the truth, see `sessions`.
"""

from __future__ import annotations

from tocsin.coordinator.records import Health, MigrationRecord, MigrationStep, SubscriberRecord
from tocsin.coordinator.turn import Turn
from tocsin.model.ids import BrokerId, SubscriberId
from tocsin.model.plan import Urgency
from tocsin.model.trace import Kind
from tocsin.wire.link import Abandon, HandOverFailed, Prepare, PrepareFailed


def begin(
    turn: Turn, identity: str, subscriber: SubscriberRecord, target: BrokerId, urgency: Urgency, reason: str
) -> MigrationRecord:
    """Whether it may begin was decided by the arbiter."""
    assert subscriber.home is not None and subscriber.id not in turn.registry.moving
    migration = MigrationRecord(
        identity, subscriber.id, subscriber.home, target, urgency, reason, MigrationStep.PREPARING, turn.now_s,
        turn.now_s + turn.rules.prepare_s,
    )  # fmt: skip
    turn.registry.add_migration(migration)
    turn.store_migration(migration)
    turn.note("migration begins", **_named(migration), urgency=str(urgency), reason=reason)
    _watched(turn, migration, Kind.MOVE, reason)
    _prepare(turn, migration, subscriber)
    return migration


def claim(turn: Turn, identity: str, subscriber: SubscriberRecord, target: BrokerId) -> None:
    """The subscriber logged in at `target` by itself: what the target asked for is its preparation."""
    assert subscriber.home is not None
    migration = MigrationRecord(
        identity, subscriber.id, subscriber.home, target, Urgency.LATENCY, "it connected there by itself",
        MigrationStep.CONFIRMING, turn.now_s, turn.now_s + turn.rules.hand_over_s, claimed=True, adopted=True,
    )  # fmt: skip
    turn.registry.add_migration(migration)
    turn.store_migration(migration)
    _watched(turn, migration, Kind.MOVE, migration.reason)


def adopted_by_target(turn: Turn, migration: MigrationRecord) -> None:
    """The target is told to serve it already: it asked, or something changed at the source."""
    if not migration.adopted:
        migration.adopted = True
        turn.store_migration(migration)


def _prepare(turn: Turn, migration: MigrationRecord, subscriber: SubscriberRecord) -> None:
    turn.send(migration.target, Prepare(migration.id, subscriber.state(), turn.rules.hold_s))


def prepare_again(turn: Turn, migration: MigrationRecord) -> None:
    """The target may not have heard, or what it prepared has changed."""
    _prepare(turn, migration, turn.registry.subscribers[migration.subscriber])


def start_again(turn: Turn, migration: MigrationRecord) -> None:
    """The target may have lost what it prepared. It gets a second chance, but not for ever."""
    rules = turn.rules
    if turn.now_s - migration.began_s > 2 * (rules.prepare_s + rules.hand_over_s + rules.confirm_s):
        abort(turn, migration, "the target came back too late")
        return
    _enter(turn, migration, MigrationStep.PREPARING, rules.prepare_s)
    prepare_again(turn, migration)


# -- what brokers say --------------------------------------------------------------------------------------------------


def prepared(turn: Turn, broker: BrokerId, identity: str) -> None:
    migration = turn.registry.migrations.get(identity)
    if migration is None or migration.target != broker or migration.step is not MigrationStep.PREPARING:
        return
    subscriber = turn.registry.subscribers[migration.subscriber]
    source = turn.registry.brokers.get(migration.source)
    offline = subscriber.session_at is None and source is not None and source.linked
    if source is None or source.health is Health.DEAD or offline or subscriber.session_at == broker:
        arrive(turn, migration)  # nobody to hand over: the target holds everything, which is all there is to confirm
        return
    _enter(turn, migration, MigrationStep.HANDING_OVER, turn.rules.hand_over_s)
    turn.send_hand_over(migration)


def prepare_failed(turn: Turn, broker: BrokerId, message: PrepareFailed) -> None:
    migration = turn.registry.migrations.get(message.migration)
    if migration is not None and migration.target == broker and migration.step is not MigrationStep.RELEASING:
        abort(turn, migration, f"the target could not prepare: {message.code}: {message.message}"[:300])


def hand_over_failed(turn: Turn, broker: BrokerId, message: HandOverFailed) -> None:
    """The source could not tell it. If it is offline there is nobody to tell; otherwise it stays."""
    migration = turn.registry.migrations.get(message.migration)
    if migration is None or migration.source != broker or migration.step is not MigrationStep.HANDING_OVER:
        return
    if turn.registry.subscribers[migration.subscriber].session_at is None and _is_ready(turn, migration):
        arrive(turn, migration)
    else:
        abort(turn, migration, f"the subscriber could not be told: {message.code}: {message.message}"[:300])


def left_source(turn: Turn, migration: MigrationRecord) -> None:
    """Its session there has ended: it is on its way, or offline."""
    if migration.step is MigrationStep.HANDING_OVER:
        _enter(turn, migration, MigrationStep.CONFIRMING, turn.rules.confirm_s)


def back_at_source(turn: Turn, migration: MigrationRecord) -> None:
    """It reconnected where it was: tell it again, within the time it was given."""
    if migration.claimed:
        abort(turn, migration, "it went back to where it was")
    elif migration.step in (MigrationStep.HANDING_OVER, MigrationStep.CONFIRMING):
        migration.step = MigrationStep.HANDING_OVER
        migration.renewed.clear()
        turn.send_hand_over(migration)


def arrive(turn: Turn, migration: MigrationRecord) -> None:
    """The target has confirmed: from here on it is home."""
    subscriber = turn.registry.subscribers[migration.subscriber]
    turn.set_home(subscriber, migration.target, confirmed=True)
    turn.registry.migrated += 1
    turn.note("migration arrives", **_named(migration), after_s=round(turn.now_s - migration.began_s, 3))
    # What was a preparation with a deadline is for good now, and what changed meanwhile may have been lost.
    if subscriber.session_at != migration.target or subscriber.uncertain:
        turn.adopt(migration.target, [subscriber])
    _enter(turn, migration, MigrationStep.RELEASING, turn.rules.release_s)
    _release(turn, migration)


def released(turn: Turn, broker: BrokerId, subscriber: SubscriberId) -> None:
    migration = turn.registry.moving.get(subscriber)
    if migration is not None and migration.source == broker and migration.step is MigrationStep.RELEASING:
        turn.forget_migration(migration)


# -- time and failures -------------------------------------------------------------------------------------------------


def check_time(turn: Turn) -> None:
    for migration in [one for one in turn.registry.migrations.values() if one.deadline_s <= turn.now_s]:
        if migration.step is not MigrationStep.RELEASING:
            abort(turn, migration, f"no answer in time while {migration.step}")
        elif migration.releases < turn.rules.releases:
            migration.deadline_s = turn.now_s + turn.rules.release_s
            _release(turn, migration)
        else:
            turn.note("source did not confirm its release", "warning", **_named(migration))
            turn.forget_migration(migration)


def abort(turn: Turn, migration: MigrationRecord, why: str) -> None:
    """Home stays the source."""
    assert migration.step is not MigrationStep.RELEASING
    turn.note("migration fails", "warning", **_named(migration), step=str(migration.step), reason=why)
    _watched(turn, migration, Kind.MOVE_FAILED, why)
    subscriber = turn.registry.subscribers[migration.subscriber]
    subscriber.rests_until_s = turn.now_s + turn.rules.retry_s
    subscriber.shunned = migration.target
    turn.forget_migration(migration)
    if not migration.adopted:
        turn.send(migration.target, Abandon(migration.id, migration.subscriber))
    elif subscriber.session_at != migration.target:
        turn.release(migration.target, migration.subscriber)


def broker_died(turn: Turn, broker: BrokerId) -> None:
    """Every migration it took part in gets an end, or goes on without it."""
    for migration in turn.registry.migrations_with(broker):
        if migration.step is MigrationStep.RELEASING:
            turn.forget_migration(migration)  # a dead source holds nothing; a dead target is failover's business
        elif migration.target == broker:
            abort(turn, migration, "the target died")
        elif _is_ready(turn, migration):
            arrive(turn, migration)  # there is nowhere else


def _is_ready(turn: Turn, migration: MigrationRecord) -> bool:
    """The target said that it is prepared, over a link that has not been broken since."""
    target = turn.registry.brokers.get(migration.target)
    said = migration.step in (MigrationStep.HANDING_OVER, MigrationStep.CONFIRMING) and not migration.claimed
    return said and target is not None and target.linked


def _enter(turn: Turn, migration: MigrationRecord, step: MigrationStep, limit_s: float) -> None:
    migration.step = step
    migration.deadline_s = turn.now_s + limit_s
    turn.registry.generation += 1
    turn.store_migration(migration)


def _release(turn: Turn, migration: MigrationRecord) -> None:
    migration.releases += 1
    source = turn.registry.brokers.get(migration.source)
    if source is None or source.health is Health.DEAD:
        turn.forget_migration(migration)
    else:
        turn.release(migration.source, migration.subscriber, migration.id)


def _named(migration: MigrationRecord) -> dict[str, str]:
    return {
        "migration": migration.id,
        "subscriber": migration.subscriber,
        "source": migration.source,
        "target": migration.target,
    }


def _watched(turn: Turn, migration: MigrationRecord, kind: Kind, note: str) -> None:
    turn.watched(kind, subscriber=migration.subscriber, broker=migration.source, target=migration.target, note=note)
