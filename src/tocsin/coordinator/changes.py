"""Durable changes that brokers report: subscriptions, acknowledged cursors, webhooks. A repeated report is harmless.

- Acknowledged cursors only advance.
- An added subscription always counts, even if the subscriber has moved since: its former broker had granted it.
- A removal counts only from the home broker and, during a migration, from the source and the target. A repeated old
  removal from another broker must not remove a subscription made again elsewhere.
- A removal from the source does not count for a subscription made at the target. (A broker that receives a removal of
  a subscription it has granted itself reports that subscription again.)
"""

from __future__ import annotations

from tocsin.coordinator import migrations
from tocsin.coordinator.effects import StoreSubscriptions, StoreWebhook
from tocsin.coordinator.records import MigrationStep, SubscriberRecord
from tocsin.coordinator.turn import Turn
from tocsin.model.cursor import Cursor
from tocsin.model.ids import BrokerId, SubscriptionId
from tocsin.wire.link import Changed, Frontend


def apply_change(turn: Turn, broker: BrokerId, message: Changed) -> None:
    existing = turn.registry.subscribers.get(message.subscriber)
    if existing is None and (message.subscriber in turn.registry.deleted or not (message.added or message.webhook)):
        return  # neither a late report about a deleted user nor a removal creates a user
    if existing is not None and existing.deleted:
        return
    subscriber = existing or turn.known_subscriber(message.subscriber)
    may_remove = _may_remove(turn, broker, subscriber)
    renewed = _renewed_at_target(turn, broker, message)
    before = set(subscriber.subscriptions)
    stored = {frontend.subscription: _merged(subscriber, frontend) for frontend in message.added}
    subscriber.subscriptions |= stored
    removed = [
        subscription
        for subscription in message.removed
        if may_remove and subscription in subscriber.subscriptions and subscription not in renewed
    ]
    for subscription in removed:
        del subscriber.subscriptions[subscription]
        stored.pop(subscription, None)
    stored |= _advance_cursors(subscriber, message.acked)
    if stored or removed:
        turn.do(StoreSubscriptions(subscriber.id, tuple(stored.values()), tuple(removed)))
    if message.webhook is not None or (message.webhook_removed and may_remove):
        subscriber.webhook = message.webhook
        turn.registry.revision += 1
        turn.do(StoreWebhook(subscriber.id, message.webhook))
    if set(subscriber.subscriptions) != before:
        turn.registry.generation += 1
        _update_other_broker(turn, broker, subscriber)


def _may_remove(turn: Turn, broker: BrokerId, subscriber: SubscriberRecord) -> bool:
    migration = turn.registry.moving.get(subscriber.id)
    return subscriber.home in (None, broker) or (
        migration is not None and broker in (migration.source, migration.target)
    )


def _renewed_at_target(turn: Turn, broker: BrokerId, message: Changed) -> set[SubscriptionId]:
    """Subscriptions made at the migration's target, which the source cannot remove. An empty set for the target."""
    migration = turn.registry.moving.get(message.subscriber)
    if migration is None:
        return set()
    if broker == migration.target:
        migration.renewed |= {frontend.subscription for frontend in message.added}
        migration.renewed -= set(message.removed)
        return set()
    return migration.renewed


def _merged(subscriber: SubscriberRecord, new: Frontend) -> Frontend:
    """Merge new subscriptions into the stored ones. A subscription reported twice keeps the later cursor."""
    old = subscriber.subscriptions.get(new.subscription)
    return old if old is not None and _is_later(old.cursor, new.cursor) else new


def _advance_cursors(subscriber: SubscriberRecord, acked: dict[SubscriptionId, str]) -> dict[SubscriptionId, Frontend]:
    advanced = {}
    for subscription, cursor in acked.items():
        old = subscriber.subscriptions.get(subscription)
        if old is not None and _is_later(cursor, old.cursor):
            advanced[subscription] = Frontend(subscription, old.channel, old.parameters, cursor)
    subscriber.subscriptions |= advanced
    return advanced


def _is_later(cursor: str, than: str) -> bool:
    """True if `cursor` is later than `than`. False if `cursor` cannot be parsed."""
    left, right = Cursor.parse(cursor), Cursor.parse(than)
    return left is not None and (right is None or left > right)


def _update_other_broker(turn: Turn, broker: BrokerId, subscriber: SubscriberRecord) -> None:
    """Send the new state to the other broker that holds this subscriber or prepares for it."""
    migration = turn.registry.moving.get(subscriber.id)
    if migration is not None and migration.step is MigrationStep.PREPARING and broker == migration.source:
        migrations.send_prepare(turn, migration)
        return
    other = subscriber.home
    if migration is not None and migration.step is not MigrationStep.RELEASING and broker == migration.source:
        other = migration.target
        migrations.mark_adopted(turn, migration)
    if other is not None and other != broker:
        if not subscriber.uncertain:
            subscriber.uncertain = True
            turn.store_subscriber(subscriber)
        turn.adopt(other, [subscriber], even_empty=True)
