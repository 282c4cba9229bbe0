"""A broker registers: compare what it holds with what the coordinator has assigned to it, and settle the differences.

This step is the same after a restart of the broker, a restart of the coordinator and a broken link. It repeats the
messages that were lost. An open session takes precedence over the coordinator's records, and these take precedence over
a subscriber that a broker holds without a session.
"""

from __future__ import annotations

from collections.abc import Mapping

from tocsin.coordinator import liveness, migrations, sessions, topic_logs, topic_reports
from tocsin.coordinator.records import BrokerRecord, Health, MigrationStep, SubscriberRecord
from tocsin.coordinator.turn import Turn
from tocsin.model.ids import BrokerId, SubscriberId
from tocsin.model.snapshot import Place
from tocsin.wire.link import Accepting, Register, Registered


def register_broker(turn: Turn, link: int, message: Register) -> None:
    broker = _record_broker(turn, link, message)
    turn.loads.rates.remove_broker(broker.id)  # it reports all its rates again, without those that it has released
    accepting = broker.announced_accepting = turn.registry.accepting(broker)
    broker.announced_limit_bytes_per_s = 0.0
    turn.send(broker.id, Registered(turn.rules.heartbeat_s, turn.rules.report_s, accepting))
    if broker.draining:
        turn.send(broker.id, Accepting(False, draining=True))
    topic_reports.settle_broker(turn, broker)
    named = set(message.hosting) | set(message.online)
    proven = {name for name in named if turn.may_serve(broker.id, name, message.tokens.get(name))}
    _settle_sessions(turn, broker.id, {name: message.tokens.get(name) for name in message.online if name in proven})
    _settle_holdings(turn, broker.id, proven)
    for name in sorted(named - proven):
        turn.release(broker.id, name)
    _settle_migrations(turn, broker.id, set(message.hosting) & proven)


def _record_broker(turn: Turn, link: int, message: Register) -> BrokerRecord:
    broker = turn.registry.brokers.get(message.broker)
    if broker is None:
        broker = BrokerRecord(message.broker, since_s=turn.now_s)
        turn.registry.add_broker(broker)
        turn.note("broker registers for the first time", broker=message.broker, address=message.address)
    elif broker.link not in (None, link):
        turn.close_link(broker, "this broker has registered over another connection")
        if broker.incarnation != message.incarnation:
            broker.health = Health.SUSPECT  # the process restarted before its old link was closed
    turn.registry.clear_releases(broker.id)
    broker.link, broker.heard_s = link, turn.now_s
    if broker.health in (Health.SUSPECT, Health.DEAD):
        liveness.welcome_back(turn, broker)
    moved = broker.address not in ("", message.address)
    if broker.incarnation != message.incarnation or not message.coordinates:
        broker.coordinate = None
    broker.measures, broker.peers = message.coordinates, None
    broker.address, broker.incarnation = message.address, message.incarnation
    if moved:
        topic_logs.readdress(turn, broker)
    broker.capacity = message.capacity if 0 < message.capacity < 1e12 else 1.0
    broker.topics = message.topics
    turn.registry.set_role(broker, message.role, message.standby)
    broker.place = None if message.lat is None or message.lon is None else Place(message.lat, message.lon)
    turn.registry.generation += 1
    turn.store_broker(broker)
    turn.note("broker registers", broker=broker.id, hosting=len(message.hosting), online=len(message.online))
    return broker


def _settle_sessions(turn: Turn, broker: BrokerId, online: Mapping[SubscriberId, str | None]) -> None:
    """`online` has the token of each subscriber with an open session, if the broker sent it."""
    for name in [name for name in turn.registry.sessions(broker) if name not in online]:
        sessions.close_session(turn, broker, name)
    for name in sorted(online):
        subscriber = turn.registry.subscribers.get(name)
        if subscriber is None or not (subscriber.session_at == subscriber.home == broker):
            _settle_session(turn, broker, name, online[name])


def _settle_session(turn: Turn, broker: BrokerId, name: SubscriberId, token: str | None) -> None:
    """Accept a session that the coordinator did not expect, unless another linked broker reported one before."""
    subscriber, migration = turn.registry.subscribers.get(name), turn.registry.moving.get(name)
    is_target = migration is not None and migration.target == broker
    elsewhere = None if subscriber is None or subscriber.session_at in (None, broker) else subscriber.session_at
    if elsewhere is None or not turn.registry.brokers[elsewhere].linked or is_target:
        sessions.open_session(turn, broker, name, token)


def _settle_holdings(turn: Turn, broker: BrokerId, holds: set[SubscriberId]) -> None:
    for name in sorted(holds):
        subscriber = turn.registry.subscribers.get(name)
        if subscriber is None or subscriber.deleted:
            turn.release(broker, name)
        elif not _belongs(turn, broker, subscriber):
            _settle_stray(turn, broker, subscriber)
    missing = []
    unconfirmed = turn.registry.pop_unconfirmed_adoptions(broker)
    for name in list(turn.registry.hosted(broker)):
        subscriber = turn.registry.subscribers[name]
        if name in holds and name not in unconfirmed and not subscriber.uncertain:
            continue
        if subscriber.deleted:
            turn.forget_subscriber(subscriber)
        else:
            missing.append(subscriber)
    turn.adopt(broker, missing)


def _settle_stray(turn: Turn, broker: BrokerId, subscriber: SubscriberRecord) -> None:
    """Decide about a subscriber held without a session. A linked broker is preferred to a home without a link."""
    home = turn.registry.broker(subscriber.home)
    migration = turn.registry.moving.get(subscriber.id)
    if migration is not None and migration.step is MigrationStep.RELEASING and (home is None or not home.linked):
        turn.forget_migration(migration)
        migration = None
    if (home is None or not home.linked) and migration is None:
        turn.note(
            "home set to the broker that holds the subscriber",
            subscriber=subscriber.id,
            broker=broker,
            instead_of=subscriber.home,
        )
        turn.set_home(subscriber, broker)
        turn.adopt(broker, [subscriber])
    else:
        turn.release(broker, subscriber.id)


def _belongs(turn: Turn, broker: BrokerId, subscriber: SubscriberRecord) -> bool:
    migration = turn.registry.moving.get(subscriber.id)
    is_target = migration is not None and migration.target == broker
    return subscriber.home == broker or is_target or subscriber.session_at == broker


def _settle_migrations(turn: Turn, broker: BrokerId, hosting: set[SubscriberId]) -> None:
    """Repeat messages that the broken link may have lost. A target that lost its preparation prepares again."""
    for migration in turn.registry.migrations_with(broker):
        step = migration.step
        if migration.target == broker:
            if step is MigrationStep.PREPARING:
                migrations.send_prepare(turn, migration)
            elif migration.claimed:
                turn.adopt(broker, [turn.registry.subscribers[migration.subscriber]])
            elif step is not MigrationStep.RELEASING:
                migrations.restart(turn, migration)
        elif step is MigrationStep.RELEASING and migration.subscriber not in hosting:
            migrations.handle_released(turn, broker, migration.subscriber)
        elif step is MigrationStep.HANDING_OVER:
            turn.send_hand_over(migration)
