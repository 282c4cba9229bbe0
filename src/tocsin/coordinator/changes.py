"""Durable changes that brokers hand in: subscriptions, acknowledged cursors, webhooks. Repeats do no harm.

Acknowledgements only ever advance. What a broker adds counts even if the subscriber has moved on since (its broker had
promised to hand it in later); what it removes counts only if it has a say in this subscriber, because an old removal,
repeated, must not take away what was subscribed again elsewhere. The source of a migration has a say to its end: what
was unsubscribed there just before the move may be heard of only after it. But not about what was subscribed at the
target. (A broker that is told of a removal it knows better about hands that subscription in again.)
"""

from __future__ import annotations

from tocsin.coordinator import migrations
from tocsin.coordinator.effects import StoreSubscriptions, StoreWebhook
from tocsin.coordinator.records import MigrationStep, SubscriberRecord
from tocsin.coordinator.turn import Turn
from tocsin.model.cursor import Cursor
from tocsin.model.ids import BrokerId, SubscriptionId
from tocsin.wire.link import Changed, Frontend


def changed(turn: Turn, broker: BrokerId, message: Changed) -> None:
    known = turn.registry.subscribers.get(message.subscriber)
    if known is None and (message.subscriber in turn.registry.deleted or not (message.added or message.webhook)):
        return  # who was deleted is not made again by a broker that was away, nor is anybody by letting something go
    if known is not None and known.deleted:
        return
    found = known or turn.known(message.subscriber)
    has_say = _has_say(turn, broker, found)
    renewed = _renewed(turn, broker, message)
    before = set(found.subscriptions)
    held = {one.subscription: one for one in (_merged(found, new) for new in message.added)}
    found.subscriptions |= held
    removed = [one for one in message.removed if has_say and one in found.subscriptions and one not in renewed]
    for one in removed:
        del found.subscriptions[one]
        held.pop(one, None)
    held |= _acknowledged(found, message.acked)
    if held or removed:
        turn.do(StoreSubscriptions(found.id, tuple(held.values()), tuple(removed)))
    if message.webhook is not None or (message.webhook_removed and has_say):
        found.webhook = message.webhook
        turn.do(StoreWebhook(found.id, message.webhook))
    if set(found.subscriptions) != before:
        turn.registry.generation += 1
        _tell_others(turn, broker, found)


def _has_say(turn: Turn, broker: BrokerId, subscriber: SubscriberRecord) -> bool:
    migration = turn.registry.moving.get(subscriber.id)
    return subscriber.home in (None, broker) or (
        migration is not None and broker in (migration.source, migration.target)
    )


def _renewed(turn: Turn, broker: BrokerId, message: Changed) -> set[SubscriptionId]:
    """What the subscriber has asked for at the broker it is moving to, if this is the other one."""
    migration = turn.registry.moving.get(message.subscriber)
    if migration is None:
        return set()
    if broker == migration.target:
        migration.renewed |= {one.subscription for one in message.added}
        migration.renewed -= set(message.removed)
        return set()
    return migration.renewed


def _merged(subscriber: SubscriberRecord, new: Frontend) -> Frontend:
    """A subscription handed in twice keeps the later cursor."""
    old = subscriber.subscriptions.get(new.subscription)
    return old if old is not None and _later(old.cursor, new.cursor) else new


def _acknowledged(subscriber: SubscriberRecord, acked: dict[SubscriptionId, str]) -> dict[SubscriptionId, Frontend]:
    advanced = {}
    for one, cursor in acked.items():
        old = subscriber.subscriptions.get(one)
        if old is not None and _later(cursor, old.cursor):
            advanced[one] = Frontend(one, old.channel, old.parameters, cursor)
    subscriber.subscriptions |= advanced
    return advanced


def _later(cursor: str, other: str) -> bool:
    one, two = Cursor.parse(cursor), Cursor.parse(other)
    return one is not None and (two is None or one > two)


def _tell_others(turn: Turn, broker: BrokerId, subscriber: SubscriberRecord) -> None:
    """Whoever else holds this subscriber, or is about to, must hold the same."""
    migration = turn.registry.moving.get(subscriber.id)
    if migration is not None and migration.step is MigrationStep.PREPARING and broker == migration.source:
        migrations.prepare_again(turn, migration)
        return
    other = subscriber.home
    if migration is not None and migration.step is not MigrationStep.RELEASING and broker == migration.source:
        other = migration.target
        migrations.adopted_by_target(turn, migration)
    if other is not None and other != broker:
        if not subscriber.uncertain:
            subscriber.uncertain = True
            turn.store_subscriber(subscriber)
        turn.adopt(other, [subscriber], asked=True)  # also that it holds nothing any more
