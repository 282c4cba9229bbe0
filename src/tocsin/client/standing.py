"""Where a subscriber stands in one subscription: what it has received, what the application is done with.

Pure. Brokers deliver at least once and in order, so whatever lies before the received cursor is a repeat; this holds
for any number of connections that deliver the same subscription, as long as each of them begins at or before it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Self

from tocsin.model.cursor import Cursor
from tocsin.model.ids import ChannelName, SubscriptionId


class Arrival(Enum):
    NEW = "new"
    REPEATED = "repeated"
    AFTER_GAP = "after a gap"
    """New, and of a later life of the channel than anything before it: what lay between is unknown."""


@dataclass(slots=True)
class Standing:
    subscription: SubscriptionId
    channel: ChannelName
    parameters: dict[str, Any] | None
    """None for a subscription that another session of this subscriber made, until the broker lists it."""
    received: Cursor
    """Everything before it is here or was here: a result that ends before it is a repeat."""
    handled: Cursor
    """Everything before it is done with: what is acknowledged, and what sessions resume from."""
    told: Cursor | None = None
    """The last acknowledgement sent over the session there is now."""
    news: bool = False
    """Whether the application handled something since."""
    waiting: deque[Cursor] = field(default_factory=deque)
    """Cursors received and not yet handled, in order."""

    @classmethod
    def at(
        cls, subscription: SubscriptionId, channel: ChannelName, parameters: dict[str, Any] | None, cursor: Cursor
    ) -> Self:
        return cls(subscription, channel, parameters, cursor, cursor)

    def arrived(self, cursor: Cursor) -> Arrival:
        """A result that ends at `cursor`."""
        if cursor <= self.received:
            return Arrival.REPEATED
        changed_life = cursor.epoch != self.received.epoch
        self._receive(cursor)
        return Arrival.AFTER_GAP if changed_life else Arrival.NEW

    def skipped(self, cursor: Cursor) -> bool:
        """Results before `cursor` will not come. False if they all came before."""
        if cursor <= self.received:
            return False
        self._receive(cursor)
        return True

    def restart(self, cursor: Cursor) -> None:
        """What this subscriber remembers is not there any more: results go on at an earlier place."""
        self.received = self.handled = cursor
        self.waiting.clear()

    def progressed(self, cursor: Cursor) -> None:
        """Nothing more before `cursor`. A later life of the channel is not progress of this one."""
        if cursor.epoch != self.received.epoch or cursor <= self.received:
            return
        self.received = cursor
        if not self.waiting:
            self.handled = cursor

    def handle(self, cursor: Cursor) -> None:
        """The application is done with everything up to `cursor`."""
        self.news = True
        while self.waiting and self.waiting[0] <= cursor:
            self.handled = max(self.handled, self.waiting.popleft())
        if not self.waiting:
            self.handled = max(self.handled, self.received)

    def _receive(self, cursor: Cursor) -> None:
        self.received = cursor
        self.waiting.append(cursor)
