"""A broker registers: what it holds and what we think it holds are brought together.

The same after its restart, after ours and after a broken link: whatever was said into the void is found out here. A
session counts for more than our memory; our memory counts for more than what a broker holds without a session.
"""

from __future__ import annotations

from tocsin.coordinator import liveness, migrations, sessions
from tocsin.coordinator.records import BrokerRecord, Health, MigrationStep, SubscriberRecord
from tocsin.coordinator.turn import Turn
from tocsin.model.ids import BrokerId, SubscriberId
from tocsin.model.snapshot import Place
from tocsin.wire.link import Accepting, Register, Registered


def registered(turn: Turn, link: int, message: Register) -> None:
    broker = _welcome(turn, link, message)
    turn.send(
        broker.id,
        Registered(turn.rules.heartbeat_s, turn.rules.report_s, turn.registry.accepting(broker)),
    )
    broker.told_accepting = turn.registry.accepting(broker)
    if broker.draining:
        turn.send(broker.id, Accepting(False, draining=True))
    _match_sessions(turn, broker.id, set(message.online))
    _match_holdings(turn, broker.id, set(message.hosting) | set(message.online))
    _match_migrations(turn, broker.id, set(message.hosting))


def _welcome(turn: Turn, link: int, message: Register) -> BrokerRecord:
    broker = turn.registry.brokers.get(message.broker)
    if broker is None:
        broker = BrokerRecord(message.broker, since_s=turn.now_s)
        turn.registry.add_broker(broker)
        turn.note("broker registers for the first time", broker=message.broker, address=message.address)
    elif broker.link not in (None, link):
        turn.close_link(broker, "this broker has registered over another connection")
        if broker.incarnation != message.incarnation:
            broker.health = Health.SUSPECT  # it died without our noticing
    turn.registry.releases_lost(broker.id)
    broker.link, broker.heard_s = link, turn.now_s
    if broker.health in (Health.SUSPECT, Health.DEAD):
        liveness.returned(turn, broker)
    broker.address, broker.incarnation = message.address, message.incarnation
    broker.capacity = message.capacity if 0 < message.capacity < 1e12 else 1.0
    broker.place = None if message.lat is None or message.lon is None else Place(message.lat, message.lon)
    turn.registry.generation += 1
    turn.store_broker(broker)
    turn.note("broker registers", broker=broker.id, hosting=len(message.hosting), online=len(message.online))
    return broker


def _match_sessions(turn: Turn, broker: BrokerId, online: set[SubscriberId]) -> None:
    for one in [one for one in turn.registry.sessions(broker) if one not in online]:
        sessions.closed(turn, broker, one)
    for one in sorted(online):
        found = turn.registry.subscribers.get(one)
        if found is None or broker not in (found.session_at, found.home) or found.session_at != found.home:
            _session_seen(turn, broker, one, found)


def _session_seen(turn: Turn, broker: BrokerId, identity: SubscriberId, found: SubscriberRecord | None) -> None:
    """It is connected there and we did not know. If another broker that is here said the same before, that stands."""
    arriving = turn.registry.moving.get(identity)
    expected = arriving is not None and arriving.target == broker
    elsewhere = None if found is None or found.session_at in (None, broker) else found.session_at
    if elsewhere is None or not turn.registry.brokers[elsewhere].linked or expected:
        sessions.opened(turn, broker, identity)


def _match_holdings(turn: Turn, broker: BrokerId, holds: set[SubscriberId]) -> None:
    for one in sorted(holds):
        found = turn.registry.subscribers.get(one)
        if found is None or found.deleted:
            turn.release(broker, one)
        elif not _belongs(turn, broker, found):
            _settle_stray(turn, broker, found)
    missing = []
    unsure = turn.registry.adoptions_unsure(broker)
    for one in list(turn.registry.hosted(broker)):
        found = turn.registry.subscribers[one]
        if one in holds and one not in unsure and not found.uncertain:
            continue
        if found.deleted:
            turn.forget_subscriber(found)
        else:
            missing.append(found)
    turn.adopt(broker, missing)


def _settle_stray(turn: Turn, broker: BrokerId, subscriber: SubscriberRecord) -> None:
    """Somebody who is here and holds it is worth more than a home that is away and may have lost it."""
    home = None if subscriber.home is None else turn.registry.brokers.get(subscriber.home)
    migration = turn.registry.moving.get(subscriber.id)
    if migration is not None and migration.step is MigrationStep.RELEASING and (home is None or not home.linked):
        turn.forget_migration(migration)
        migration = None
    if (home is None or not home.linked) and migration is None:
        turn.note("subscriber stays where it was", subscriber=subscriber.id, broker=broker, instead_of=subscriber.home)
        turn.set_home(subscriber, broker)
        turn.adopt(broker, [subscriber])
    else:
        turn.release(broker, subscriber.id)


def _belongs(turn: Turn, broker: BrokerId, subscriber: SubscriberRecord) -> bool:
    migration = turn.registry.moving.get(subscriber.id)
    arriving = migration is not None and migration.target == broker
    return subscriber.home == broker or arriving or subscriber.session_at == broker


def _match_migrations(turn: Turn, broker: BrokerId, hosting: set[SubscriberId]) -> None:
    """What was said while the link was broken is said again; a target that forgot what it prepared begins anew."""
    for migration in turn.registry.migrations_with(broker):
        if migration.target == broker and migration.step is MigrationStep.PREPARING:
            migrations.prepare_again(turn, migration)
        elif migration.target == broker and migration.claimed:
            turn.adopt(broker, [turn.registry.subscribers[migration.subscriber]])
        elif migration.target == broker and migration.step is not MigrationStep.RELEASING:
            migrations.start_again(turn, migration)
        elif (
            migration.source == broker
            and migration.step is MigrationStep.RELEASING
            and migration.subscriber not in hosting
        ):
            migrations.released(turn, broker, migration.subscriber)
        elif migration.source == broker and migration.step is MigrationStep.HANDING_OVER:
            turn.send_hand_over(migration)
