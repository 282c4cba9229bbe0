"""The outbox: changes that the coordinator must store, numbered and sent again until it answers `Stored`.

Unsent changes of one subscriber are merged, so a long absence of the coordinator costs memory for the changed state
and not for every change.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from tocsin.broker.hosted import FrontendSubscription
from tocsin.broker.state import BrokerState
from tocsin.model.cursor import Cursor
from tocsin.model.ids import SubscriberId, SubscriptionId
from tocsin.wire import link


@dataclass(slots=True)
class _Change:
    added: dict[SubscriptionId, link.Frontend] = field(default_factory=dict)
    removed: dict[SubscriptionId, None] = field(default_factory=dict)
    acked: dict[SubscriptionId, Cursor] = field(default_factory=dict)
    webhook: link.Webhook | None = None
    webhook_removed: bool = False


class Outbox:
    """Without a coordinator the outbox drops every change."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self._unsent: dict[SubscriberId, _Change] = {}
        self._unconfirmed: deque[link.Changed] = deque()
        self._number = 0
        self.connected = False

    def _change(self, subscriber: SubscriberId) -> _Change:
        if not self._state.has_coordinator:
            return _Change()
        return self._unsent.setdefault(subscriber, _Change())

    def added(self, subscriber: SubscriberId, frontend: FrontendSubscription) -> None:
        backend = frontend.backend
        change = self._change(subscriber)
        change.removed.pop(backend.id, None)
        change.added[backend.id] = link.Frontend(backend.id, backend.channel, frontend.parameters, str(frontend.acked))

    def removed(self, subscriber: SubscriberId, subscription: SubscriptionId) -> None:
        change = self._change(subscriber)
        change.added.pop(subscription, None)
        change.acked.pop(subscription, None)
        change.removed[subscription] = None

    def acked(self, subscriber: SubscriberId, subscription: SubscriptionId, cursor: Cursor) -> None:
        self._change(subscriber).acked[subscription] = cursor

    def webhook(self, subscriber: SubscriberId, webhook: link.Webhook | None) -> None:
        change = self._change(subscriber)
        change.webhook, change.webhook_removed = webhook, webhook is None

    def is_removing(self, subscriber: SubscriberId, subscription: SubscriptionId) -> bool:
        """Whether a removal is unconfirmed, so that the coordinator may still list the subscription."""
        change = self._unsent.get(subscriber)
        return (change is not None and subscription in change.removed) or any(
            sent.subscriber == subscriber and subscription in sent.removed for sent in self._unconfirmed
        )

    def unsent_removals(self, subscriber: SubscriberId) -> int:
        change = self._unsent.get(subscriber)
        return 0 if change is None else len(change.removed)

    def flush(self) -> int:
        """Send unsent changes if the link is up; return the number that `Stored` must reach to confirm them."""
        if self.connected:
            for subscriber, change in self._unsent.items():
                self._number += 1
                message = link.Changed(
                    number=self._number,
                    subscriber=subscriber,
                    added=list(change.added.values()),
                    removed=list(change.removed),
                    acked={identity: str(cursor) for identity, cursor in change.acked.items()},
                    webhook=change.webhook,
                    webhook_removed=change.webhook_removed,
                )
                self._unconfirmed.append(message)
                self._state.send_to_coordinator(message)
            self._unsent.clear()
        return self._number

    def on_registered(self) -> None:
        """Over the new link, send every unconfirmed change again, then the unsent changes."""
        self.connected = True
        for message in self._unconfirmed:
            self._state.send_to_coordinator(message)
        self.flush()

    def on_stored(self, upto: int) -> None:
        while self._unconfirmed and self._unconfirmed[0].number <= upto:
            self._unconfirmed.popleft()
