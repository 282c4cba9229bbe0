"""What the coordinator must not forget: numbered, repeated until it says `Stored`, harmless when repeated.

Changes of one subscriber that have not been sent yet are merged, so a long absence of the coordinator costs as much as
the state that changed, not as much as the changes.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from tocsin.broker.effects import TellCoordinator
from tocsin.broker.world import World
from tocsin.model.cursor import Cursor
from tocsin.model.ids import SubscriberId, SubscriptionId
from tocsin.wire.link import Changed, Webhook
from tocsin.wire.link import Frontend as FrontendState


@dataclass(slots=True)
class _Change:
    added: dict[SubscriptionId, FrontendState] = field(default_factory=dict)
    removed: dict[SubscriptionId, None] = field(default_factory=dict)
    acked: dict[SubscriptionId, Cursor] = field(default_factory=dict)
    webhook: Webhook | None = None
    webhook_removed: bool = False


class Outbox:
    def __init__(self, world: World, *, enabled: bool) -> None:
        """Without a coordinator nothing is written down anywhere."""
        self._world = world
        self._enabled = enabled
        self._open: dict[SubscriberId, _Change] = {}
        self._pending: deque[Changed] = deque()
        self._number = 0
        self.connected = False

    def _change(self, subscriber: SubscriberId) -> _Change:
        if not self._enabled:
            return _Change()
        return self._open.setdefault(subscriber, _Change())

    def added(self, subscriber: SubscriberId, state: FrontendState) -> None:
        change = self._change(subscriber)
        change.removed.pop(state.subscription, None)
        change.added[state.subscription] = state

    def removed(self, subscriber: SubscriberId, subscription: SubscriptionId) -> None:
        change = self._change(subscriber)
        change.added.pop(subscription, None)
        change.acked.pop(subscription, None)
        change.removed[subscription] = None

    def acked(self, subscriber: SubscriberId, subscription: SubscriptionId, cursor: Cursor) -> None:
        self._change(subscriber).acked[subscription] = cursor

    def webhook(self, subscriber: SubscriberId, webhook: Webhook | None) -> None:
        change = self._change(subscriber)
        change.webhook, change.webhook_removed = webhook, webhook is None

    def removing(self, subscriber: SubscriberId, subscription: SubscriptionId) -> bool:
        """Whether the coordinator may still believe in a subscription that has ended here."""
        change = self._open.get(subscriber)
        return (change is not None and subscription in change.removed) or any(
            sent.subscriber == subscriber and subscription in sent.removed for sent in self._pending
        )

    def removals(self, subscriber: SubscriberId) -> int:
        """How many of its removals have not been said yet."""
        change = self._open.get(subscriber)
        return 0 if change is None else len(change.removed)

    def flush(self) -> int:
        """Send what is open, while there is a link; the number that `Stored` will have to reach."""
        if self.connected:
            for subscriber, change in self._open.items():
                self._number += 1
                message = Changed(
                    self._number, subscriber, list(change.added.values()), list(change.removed),
                    {identity: str(cursor) for identity, cursor in change.acked.items()},
                    change.webhook, change.webhook_removed,
                )  # fmt: skip
                self._pending.append(message)
                self._world.out.append(TellCoordinator(message))
            self._open.clear()
        return self._number

    def registered(self) -> None:
        """A new link: whatever was not confirmed on the old one is said again."""
        self.connected = True
        for message in self._pending:
            self._world.out.append(TellCoordinator(message))
        self.flush()

    def stored(self, upto: int) -> None:
        while self._pending and self._pending[0].number <= upto:
            self._pending.popleft()
