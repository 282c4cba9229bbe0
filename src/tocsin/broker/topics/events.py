"""The events of the topics core, reported by its driver. The core has no clock of its own."""

from __future__ import annotations

from typing import NewType

import msgspec

from tocsin.broker.message_encoding import Encoding
from tocsin.model.permission import ALL_TOPICS
from tocsin.wire import topic as wire
from tocsin.wire import topic_link

ConnectionId = NewType("ConnectionId", int)


class Event(msgspec.Struct, frozen=True):
    pass


class ConnectionOpened(Event, frozen=True):
    """A client with a valid token has logged in on a topic connection."""

    connection: ConnectionId
    user: str
    request: int
    encoding: Encoding = Encoding.MSGPACK
    scopes: frozenset[str] = ALL_TOPICS
    expires_s: float | None = None


class ConnectionLost(Event, frozen=True):
    connection: ConnectionId


class ConnectionBlocked(Event, frozen=True):
    """More than `topic_queue_bytes` wait in the connection."""

    connection: ConnectionId


class ConnectionDrained(Event, frozen=True):
    """The connection has room again; also the answer to `AwaitDrain`."""

    connection: ConnectionId


class ConnectionRevoked(Event, frozen=True):
    """The token that opened the connection is revoked."""

    connection: ConnectionId


class RequestReceived(Event, frozen=True):
    """A client sent any request except a login."""

    connection: ConnectionId
    request: wire.FromClient


class FlushDue(Event, frozen=True):
    """The turn of the event loop that accepted messages is over: send them."""


class LinkLost(Event, frozen=True):
    pass


class CoordinatorMessageReceived(Event, frozen=True):
    message: topic_link.FromCoordinator


class Ticked(Event, frozen=True):
    """Time has passed; the driver reports it several times a second."""


class StopRequested(Event, frozen=True):
    """The process is stopping: close every connection."""
