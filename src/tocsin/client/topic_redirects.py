"""Receivers of a topic session that change their edge: attach there first, then leave the present one. Pure.

The present edge goes on sending until the new one has answered. Both send the same messages with the same positions, so
what arrives twice is removed by position. If the new edge is lost or cannot answer yet, the receiver stays where it is
and tries again: a busy edge may wait for the home longer than it lets receivers wait. It stays for good if the new edge
refuses it, or at the end of `_ANSWER_S`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tocsin.client.topic_connection import ClientConnection, Need
from tocsin.model.ids import TopicName
from tocsin.wire import topic as wire

_ANSWER_S = 30.0
"""How long a receiver tries to reach the new edge, which expects it for as long."""
_MOST_LOSSES = 2
"""Lost connections before a receiver gives a visit up. A home of an earlier release closes the connection at a request
for a position, and publishers of this client may use that connection too."""


_VISIT = "#"


def visit_address(address: str, topic: TopicName) -> str:
    """The name of a connection to another site: its token permits one topic, so each topic has its own connection."""
    return f"{address}{_VISIT}{topic}"


def plain_address(address: str) -> str:
    return address.partition(_VISIT)[0]


@dataclass(slots=True, eq=False)
class RedirectedReceiver:
    address: str
    """Of the new edge."""
    source: ClientConnection
    until_s: float
    not_before_s: float = 0.0
    """When to ask the new edge again, after a refusal that says so."""
    connection: ClientConnection | None = None
    request: int | None = None
    visit: wire.VisitorAccess | None = None
    """If the new edge belongs to another site: how to attach there."""
    present: wire.PositionFound | None = None
    """A position at the own site, and the numbers of the flows there."""
    found: wire.PositionFound | None = None
    """Where to attach at the other site."""
    losses: int = 0
    """Connections that were lost while a request had no answer."""


@dataclass(slots=True)
class Redirects:
    receivers: dict[TopicName, RedirectedReceiver] = field(default_factory=dict)

    def ordered(self, source: ClientConnection, message: wire.Redirect, now_s: float) -> None:
        """The present edge sends the receiver to another one. The order may overtake the answer to an attach, which
        waits for its turn at an edge with little output. A host cannot send its visitor to a third site: the numbers of
        flows come from a position at the own site."""
        known = self.receivers.get(message.topic)
        need: Need = (message.topic, "receive")
        is_target = known is not None and known.connection is source
        is_here = source.attached.get(need) == message.at or (need in source.requests.values() and not is_target)
        if message.visitor is not None and source.token is not None:
            return
        address = message.address
        if message.visitor is not None or source.token is not None:
            address = visit_address(address, message.topic)
        if is_here and address != source.address and (known is None or known.address != address):
            redirected = RedirectedReceiver(address, source, now_s + _ANSWER_S, visit=message.visitor)
            self.receivers[message.topic] = redirected

    def sent(self, topic: TopicName, connection: ClientConnection, request: int) -> None:
        redirected = self.receivers[topic]
        redirected.connection, redirected.request = connection, request

    def takes(self, topic: TopicName, connection: ClientConnection, request: int) -> RedirectedReceiver | None:
        """The redirect that this request belongs to. It ends with the answer, whatever it is."""
        redirected = self.receivers.get(topic)
        if redirected is None or (redirected.connection, redirected.request) != (connection, request):
            return None
        return self.receivers.pop(topic)

    def found(self, connection: ClientConnection, message: wire.PositionFound) -> bool:
        """A home answers a receiver that goes to another site. False if the answer is for no redirect."""
        for topic, redirected in self.receivers.items():
            if (redirected.connection, redirected.request) == (connection, message.id):
                if redirected.present is None:
                    redirected.present = message
                else:
                    redirected.found = message
                self.retried(topic, redirected, 0.0)
                return True
        return False

    def retried(self, topic: TopicName, redirected: RedirectedReceiver, not_before_s: float) -> None:
        """The new edge cannot serve the receiver yet."""
        redirected.connection, redirected.request, redirected.not_before_s = None, None, not_before_s
        self.receivers[topic] = redirected

    def lost(self, connection: ClientConnection) -> None:
        """A connection has ended. Without the new edge's the receiver stays where it is until there is another one."""
        for topic, redirected in list(self.receivers.items()):
            if redirected.connection is connection:
                redirected.losses += 1
                self.retried(topic, redirected, 0.0)
                if redirected.visit is not None and redirected.losses >= _MOST_LOSSES:
                    del self.receivers[topic]

    def forget_late(self, now_s: float) -> None:
        self.receivers = {
            topic: redirected for topic, redirected in self.receivers.items() if redirected.until_s > now_s
        }
