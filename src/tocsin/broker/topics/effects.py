"""The effects of the topics core. The driver carries them out in order."""

from __future__ import annotations

import msgspec

from tocsin.broker.topics.events import ConnectionId
from tocsin.wire import topic as wire
from tocsin.wire import topic_link


class Effect(msgspec.Struct, frozen=True):
    pass


class Send(Effect, frozen=True):
    """Send the same frame to each of these connections. `data` is `message` in the connections' encoding."""

    connections: tuple[ConnectionId, ...]
    message: wire.ToClient
    data: bytes


class AwaitDrain(Effect, frozen=True):
    """Report `ConnectionDrained` as soon as the connection has room; at once if it has room now."""

    connection: ConnectionId


class CloseConnection(Effect, frozen=True):
    connection: ConnectionId
    reason: str
    """A key of `wire.session.CLOSE_CODES`."""


class SendToCoordinator(Effect, frozen=True):
    message: topic_link.FromBroker


class RequestFlush(Effect, frozen=True):
    """Report `FlushDue` at the end of this turn of the event loop."""
