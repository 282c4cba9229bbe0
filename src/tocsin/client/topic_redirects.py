"""Receivers of a topic session that change their edge: attach there first, then leave the present one. Pure.

The present edge goes on sending until the new one has answered. Both send the same messages with the same positions, so
what arrives twice is removed by position. If the new edge refuses or is lost, the receiver stays where it is.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tocsin.client.topic_connection import ClientConnection
from tocsin.model.ids import TopicName
from tocsin.wire import topic as wire

_ANSWER_S = 15.0
"""How long a receiver waits for the new edge before it stays for good."""


@dataclass(slots=True, eq=False)
class RedirectedReceiver:
    address: str
    """Of the new edge."""
    source: ClientConnection
    until_s: float
    connection: ClientConnection | None = None
    request: int | None = None


@dataclass(slots=True)
class Redirects:
    receivers: dict[TopicName, RedirectedReceiver] = field(default_factory=dict)

    def ordered(self, source: ClientConnection, message: wire.Redirect, now_s: float) -> None:
        """The present edge sends the receiver to another one."""
        known = self.receivers.get(message.topic)
        is_here = source.attached.get((message.topic, "receive")) == message.at
        if is_here and message.address != source.address and (known is None or known.address != message.address):
            self.receivers[message.topic] = RedirectedReceiver(message.address, source, now_s + _ANSWER_S)

    def sent(self, topic: TopicName, connection: ClientConnection, request: int) -> None:
        redirected = self.receivers[topic]
        redirected.connection, redirected.request = connection, request

    def takes(self, topic: TopicName, connection: ClientConnection, request: int) -> RedirectedReceiver | None:
        """The redirect that this request belongs to. It ends with the answer, whatever it is."""
        redirected = self.receivers.get(topic)
        if redirected is None or (redirected.connection, redirected.request) != (connection, request):
            return None
        return self.receivers.pop(topic)

    def lost(self, connection: ClientConnection) -> None:
        """A connection has ended. Without the new edge's the receiver stays where it is."""
        self.receivers = {
            topic: redirected for topic, redirected in self.receivers.items() if redirected.connection is not connection
        }

    def forget_late(self, now_s: float) -> None:
        self.receivers = {
            topic: redirected for topic, redirected in self.receivers.items() if redirected.until_s > now_s
        }
