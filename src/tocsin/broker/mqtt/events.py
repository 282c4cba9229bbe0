"""The events of the MQTT core, reported by its driver. The core has no clock of its own."""

from __future__ import annotations

from typing import NewType

import msgspec

from tocsin.broker.mqtt.packets import Packet
from tocsin.broker.mqtt.reasons import Reason, Violation
from tocsin.model.topic import Position

ConnectionId = NewType("ConnectionId", int)


class Event(msgspec.Struct, frozen=True):
    pass


class ConnectionOpened(Event, frozen=True):
    connection: ConnectionId


class ConnectionLost(Event, frozen=True):
    connection: ConnectionId


class ConnectionBlocked(Event, frozen=True):
    """Too many bytes wait in the connection."""

    connection: ConnectionId


class ConnectionDrained(Event, frozen=True):
    connection: ConnectionId


class ConnectionHeld(Event, frozen=True):
    """Packets of the connection wait for homes and it may not be read: its silence does not count."""

    connection: ConnectionId


class PacketReceived(Event, frozen=True):
    connection: ConnectionId
    packet: Packet


class PacketViolated(Event, frozen=True):
    """Bytes that are no packet of the protocol."""

    connection: ConnectionId
    violation: Violation


class TokenAccepted(Event, frozen=True):
    """The answer to `CheckToken`."""

    connection: ConnectionId
    user: str
    scopes: frozenset[str]
    expires_s: float | None = None


class TokenRefused(Event, frozen=True):
    connection: ConnectionId
    reason: Reason
    message: str


class ConnectionRevoked(Event, frozen=True):
    """The token of the connection is revoked."""

    connection: ConnectionId


class PublishSettled(Event, frozen=True):
    """The home has accepted the message of this ticket, or refused it for good with `code`."""

    ticket: int
    code: str | None = None
    message: str = ""


class MessageArrived(Event, frozen=True):
    """A message of a topic that some session receives."""

    topic: str
    data: bytes
    position: Position


class GapArrived(Event, frozen=True):
    """Messages of a topic are missing; `last` is None if it is not known how many."""

    topic: str
    epoch: int
    first: int
    last: int | None


class PatternReady(Event, frozen=True):
    """Every topic that matches the pattern now sends its messages here."""

    pattern: str


class ChannelAnswered(Event, frozen=True):
    """The answer to `SubscribeChannel`."""

    session: str
    pattern: str
    reason: Reason
    message: str = ""


class ChannelResultArrived(Event, frozen=True):
    session: str
    pattern: str
    subscription: str
    cursor: str
    payload: bytes
    gap: bool = False
    """True if results before this one are missing."""


class ChannelsLost(Event, frozen=True):
    """The user's session for channels has ended: clients with channels must connect again."""

    user: str
    reason: Reason
    message: str


class PlacementChanged(Event, frozen=True):
    """Clients belong on another broker from now on (`reference` is its address), or here again (None)."""

    reference: str | None
    moved: bool = False
    """True if the client should remember the other broker: 0x9D instead of 0x9C."""
    user: str | None = None
    """None for all clients."""


class Ticked(Event, frozen=True):
    """Time has passed; the driver reports it several times a second."""


class StopRequested(Event, frozen=True):
    """The process is stopping: close every connection."""
