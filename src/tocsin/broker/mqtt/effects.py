"""The effects of the MQTT core. The driver carries them out in order."""

from __future__ import annotations

import msgspec

from tocsin.broker.mqtt.events import ConnectionId


class Effect(msgspec.Struct, frozen=True):
    pass


class Send(Effect, frozen=True):
    """Send the same bytes to each of these connections."""

    connections: tuple[ConnectionId, ...]
    data: bytes


class Close(Effect, frozen=True):
    """Close the connection after the bytes that were sent before."""

    connection: ConnectionId


class CheckToken(Effect, frozen=True):
    """Check a client's token and report `TokenAccepted` or `TokenRefused`."""

    connection: ConnectionId
    token: str | None


class RecordRefusal(Effect, frozen=True):
    """Record in the audit log that a user's token lacked a right."""

    user: str
    action: str
    object: str


class PublishToTopic(Effect, frozen=True):
    """Publish at the topic's home and report `PublishSettled` with the ticket; 0 needs no report."""

    ticket: int
    topic: str
    data: bytes
    user: str = ""
    """The user of the client; empty for a message of this broker."""


class WatchPattern(Effect, frozen=True):
    """Receive the topics that match, and report `PatternReady`."""

    pattern: str


class UnwatchPattern(Effect, frozen=True):
    pattern: str


class SubscribeChannel(Effect, frozen=True):
    """Subscribe to a channel for this session and report `ChannelAnswered`."""

    session: str
    user: str
    scopes: frozenset[str]
    pattern: str
    channel: str
    parameters: dict[str, str]
    connection: ConnectionId
    """The token of this connection proves the user."""


class UnsubscribeChannel(Effect, frozen=True):
    session: str
    user: str
    pattern: str


class AcknowledgeCursor(Effect, frozen=True):
    """The client has processed the results of the subscription up to this cursor."""

    user: str
    subscription: str
    cursor: str
