"""A subscriber's progress in one subscription: the results received, and those that the application handled. Pure.

Brokers deliver at least once and in order, so every result before the received cursor is a repeat. This holds for any
number of connections that deliver the same subscription, as long as each one starts at or before that cursor.
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
    """A new result of a later epoch than all results before it: results in between may be missing."""


@dataclass(slots=True)
class SubscriptionProgress:
    subscription: SubscriptionId
    channel: ChannelName
    parameters: dict[str, Any] | None
    """The parameter values. None for a subscription that another session made, until the broker lists it."""
    received: Cursor
    """Every result before this cursor has been received. A result that ends before it is a repeat."""
    handled: Cursor
    """The application has handled every result before this cursor. Sessions acknowledge it and resume from it."""
    acknowledged: Cursor | None = None
    """The last acknowledgement sent over the current session."""
    handled_since_ack: bool = False
    """Whether the application handled a result after that acknowledgement."""
    unhandled: deque[Cursor] = field(default_factory=deque)
    """Cursors received and not yet handled, in order."""

    @classmethod
    def at(
        cls, subscription: SubscriptionId, channel: ChannelName, parameters: dict[str, Any] | None, cursor: Cursor
    ) -> Self:
        return cls(subscription, channel, parameters, cursor, cursor)

    def receive(self, cursor: Cursor) -> Arrival:
        """Record a result that ends at `cursor`."""
        if cursor <= self.received:
            return Arrival.REPEATED
        epoch_changed = cursor.epoch != self.received.epoch
        self._append(cursor)
        return Arrival.AFTER_GAP if epoch_changed else Arrival.NEW

    def skip_to(self, cursor: Cursor) -> bool:
        """Record that results before `cursor` will not arrive. False if all of them were received before."""
        if cursor <= self.received:
            return False
        self._append(cursor)
        return True

    def restart_at(self, cursor: Cursor) -> None:
        """Go back to an earlier cursor, because the data cluster lost results and numbers new ones from there."""
        self.received = self.handled = cursor
        self.unhandled.clear()

    def advance_to(self, cursor: Cursor) -> None:
        """Record that there is no further result before `cursor`. A cursor of another epoch is not progress."""
        if cursor.epoch != self.received.epoch or cursor <= self.received:
            return
        self.received = cursor
        if not self.unhandled:
            self.handled = cursor

    def mark_handled(self, cursor: Cursor) -> None:
        """Record that the application has handled everything up to `cursor`."""
        self.handled_since_ack = True
        while self.unhandled and self.unhandled[0] <= cursor:
            self.handled = max(self.handled, self.unhandled.popleft())
        if not self.unhandled:
            self.handled = max(self.handled, self.received)

    def _append(self, cursor: Cursor) -> None:
        self.received = cursor
        self.unhandled.append(cursor)
