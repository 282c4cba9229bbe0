"""The records of a relayed topic at an edge, and of the older messages that it fetches from the home."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from tocsin.broker.topics.events import ConnectionId
from tocsin.broker.topics.hosted import HostedTopic
from tocsin.wire import topic as wire
from tocsin.wire.site_link import Client


@dataclass(slots=True, eq=False)
class Fetch:
    """Older messages than those in memory, for some receivers."""

    number: int
    position: int
    """The last sequence number that was read."""
    receivers: dict[ConnectionId, None] = field(default_factory=dict)
    awaited: set[ConnectionId] = field(default_factory=set)
    """Receivers whose connection has not taken the last piece yet."""
    answered: bool = False
    reading: bool = True
    """The home's answer, or its next piece, has not arrived yet."""


@dataclass(slots=True, eq=False)
class RelayedTopic(HostedTopic):
    answered: bool = False
    """The home has answered the attach: epoch and sequence are known."""
    since_s: float = 0.0
    """When the edge began to relay, or lost its last receiver."""
    homed_s: float | None = None
    """Since when this edge is the home itself."""
    entry_epoch: int = 0
    """The epoch of the last message."""
    earlier: deque[tuple[int, int]] = field(default_factory=deque)
    """(last sequence number, epoch) of the earlier epochs of messages in memory."""
    attaching: list[tuple[ConnectionId, wire.AttachReceiver, float]] = field(default_factory=list)
    """Attaches that wait for the home's answer, or until the edge has got as far as the receiver; with their time."""
    expected: dict[Client, float] = field(default_factory=dict)
    """Receivers that the coordinator sends here → when they are not expected any more."""
    fetches: dict[int, Fetch] = field(default_factory=dict)

    @property
    def oldest(self) -> int:
        """The sequence number in front of the oldest message in memory."""
        return self.sequence - len(self.recent)

    def epoch_at(self, sequence: int) -> tuple[int, int]:
        for last, epoch in self.earlier:
            if sequence <= last:
                return epoch, last
        return self.entry_epoch, self.sequence

    def note_epoch(self, epoch: int) -> None:
        """The next message is of this epoch."""
        if epoch == self.entry_epoch:
            return
        while self.earlier and self.earlier[0][0] <= self.oldest:
            self.earlier.popleft()
        if self.recent:
            self.earlier.append((self.sequence, self.entry_epoch))
        self.entry_epoch = epoch
