"""The records of the MQTT core: sessions, connections, and the state that its parts share.

A session outlives its connections [MQTT5 §4.1]. It belongs to one user: two users may choose the same client identifier
and do not meet.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

from tocsin.broker.mqtt import effects, packets
from tocsin.broker.mqtt.events import ConnectionId
from tocsin.broker.mqtt.limits import MqttLimits
from tocsin.broker.mqtt.names import CHANNELS, parsed_channel
from tocsin.broker.mqtt.packets import V5, Packet
from tocsin.broker.mqtt.publication import Publication
from tocsin.broker.mqtt.reasons import Reason, Violation
from tocsin.broker.mqtt.subscriptions import Subscription, SubscriptionTree
from tocsin.broker.mqtt.writing import written
from tocsin.model.permission import RECEIVE, SEND, SUBSCRIBE, permits, permits_topic

NEVER_S = 0xFFFF_FFFF
"""A session expiry that means never [MQTT5 §3.1.2.11.2]."""
_MOST_REMEMBERED = 10_000
_MOST_RECORDED = 1_000
"""Refusals of one token that are recorded in the audit log."""


@dataclass(slots=True, eq=False)
class Outbound:
    """A message for one session."""

    publication: Publication
    qos: int
    retain: bool = False
    identifiers: tuple[int, ...] = ()
    shared: Subscription | None = None
    """The shared subscription through which it came; None for an ordinary one."""
    cursor: tuple[str, str] | None = None
    """(subscription, cursor) of a channel's result."""
    gap: str | None = None
    released: bool = False
    """QoS 2: the client has the message (PUBREC), and PUBREL was sent."""
    sent: bool = False


@dataclass(slots=True)
class Incoming:
    """A message of quality of service 1 or 2 from the client, from its PUBLISH to the last acknowledgement."""

    qos: int
    waits_for: int
    """Answers of homes that are missing: one for the topic, one more for a retained message."""
    reason: Reason = Reason.SUCCESS
    message: str = ""
    settled: bool = False


@dataclass(slots=True, eq=False)
class Session:
    key: str
    user: str
    client_id: str
    scopes: frozenset[str]
    connection: Connection | None = None
    expiry_s: int = 0
    ends_s: float | None = None
    """When the session of a disconnected client ends; None while it is connected."""
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    channels: dict[str, packets.Filter] = field(default_factory=dict)
    channel_ids: dict[str, int] = field(default_factory=dict)
    """Filter of a channel → its subscription identifier."""
    queue: deque[Outbound] = field(default_factory=deque)
    queue_bytes: int = 0
    inflight: dict[int, Outbound] = field(default_factory=dict)
    """Packet identifier → a message of quality of service 1 or 2 without its last acknowledgement, in order."""
    incoming: dict[int, Incoming] = field(default_factory=dict)
    gaps: dict[str, str] = field(default_factory=dict)
    """Topic → missing messages that the next message of the topic reports."""
    will: packets.Will | None = None
    will_due_s: float | None = None
    last_packet_id: int = 0
    dropped: int = 0
    recorded: set[tuple[str, str]] = field(default_factory=set)
    """Refusals (action, object) that are in the audit log: a client may repeat a message all the time."""
    _may_receive: dict[str, bool] = field(default_factory=dict)

    def allow(self, scopes: frozenset[str]) -> None:
        self.scopes = scopes
        self._may_receive.clear()
        self.recorded.clear()

    def may_receive(self, topic: str) -> bool:
        """True if the present token permits this topic, or the channel of this filter."""
        allowed = self._may_receive.get(topic)
        if allowed is None:
            if len(self._may_receive) >= _MOST_REMEMBERED:
                self._may_receive.clear()
            allowed = self._may_receive[topic] = self._permits(topic)
        return allowed

    def _permits(self, topic: str) -> bool:
        if not topic.startswith(CHANNELS):
            return permits_topic(self.scopes, RECEIVE, topic)
        parsed = parsed_channel(topic)
        return not isinstance(parsed, str) and permits(self.scopes, SUBSCRIBE, parsed[0])

    def may_send(self, topic: str) -> bool:
        return permits_topic(self.scopes, SEND, topic)

    @property
    def has_no_local(self) -> bool:
        return any(subscription.no_local for subscription in self.subscriptions.values())


@dataclass(slots=True, eq=False)
class Connection:
    id: ConnectionId
    opened_s: float
    version: int = V5
    session: Session | None = None
    """None before the CONNACK."""
    connect: packets.Connect | None = None
    checking: bool = False
    """True while a token is checked."""
    early: list[Packet | Violation] = field(default_factory=list)
    """Packets that the client sent before its CONNACK."""
    user: str = ""
    expires_s: float | None = None
    """When the token ends."""
    heard_s: float = 0.0
    keep_alive_s: int = 0
    blocked: bool = False
    closed: bool = False
    receive_maximum: int = 65_535
    """How many unacknowledged messages the client accepts."""
    maximum_packet_bytes: int | None = None
    alias_maximum: int = 0
    """How many topic aliases the client accepts."""
    aliases: dict[str, int] = field(default_factory=dict)
    """Name → alias, from this broker to the client."""
    client_aliases: dict[int, str] = field(default_factory=dict)
    """Alias → name, from the client."""
    subscribing: int = 0
    """SUBSCRIBE packets without an answer."""
    wants_reasons: bool = True
    wants_positions: bool = False
    method: str | None = None
    """The authentication method of its CONNECT."""


@dataclass(slots=True, eq=False)
class MqttState:
    limits: MqttLimits
    broker: str
    now_s: float = 0.0
    sessions: dict[str, Session] = field(default_factory=dict)
    connections: dict[ConnectionId, Connection] = field(default_factory=dict)
    detached: dict[Session, None] = field(default_factory=dict)
    """Sessions without a connection: they expire, and their wills become due."""
    by_user: dict[str, int] = field(default_factory=dict)
    """User → number of its sessions."""
    tree: SubscriptionTree[Session] = field(default_factory=SubscriptionTree)
    effects: list[effects.Effect] = field(default_factory=list)
    tickets: Iterator[int] = field(default_factory=lambda: count(1))
    references: dict[str | None, tuple[str, bool]] = field(default_factory=dict)
    """User (None for all) → (another broker's address, whether clients should remember it)."""
    received: int = 0
    delivered: int = 0
    dropped: int = 0
    refused: int = 0

    def send(self, connection: Connection, packet: Packet) -> None:
        if connection.closed:
            return
        data = written(packet, connection.version)
        limit_bytes = connection.maximum_packet_bytes
        if limit_bytes is not None and len(data) > limit_bytes and getattr(packet, "properties", None):
            packet.properties = {}  # type: ignore[attr-defined]
            data = written(packet, connection.version)  # the reason string does not fit [MQTT-3.2.2-19]
        if data:
            self.effects.append(effects.Send((connection.id,), data))

    def record_refusal(self, session: Session, action: str, object_: str) -> None:
        """The session's token lacks a right. The same refusal is recorded once for each token."""
        refusal = (action, object_)
        if refusal not in session.recorded and len(session.recorded) < _MOST_RECORDED:
            session.recorded.add(refusal)
            self.effects.append(effects.RecordRefusal(session.user, action, object_))

    def reasons(self, connection: Connection, message: str) -> packets.Properties:
        """The reason string, if the client did not switch it off [MQTT5 §3.1.2.11.7]."""
        return {"reason_string": message} if message and connection.wants_reasons else {}

    def end(self, connection: Connection, reason: Reason, message: str = "", reference: str | None = None) -> None:
        """Send DISCONNECT (or CONNACK, if there was none) with this reason, and close."""
        if connection.closed:
            return
        options: packets.Properties = {"reason_string": message} if message else {}
        if reference is not None:
            options["server_reference"] = reference
        if connection.session is None:
            self.send(connection, packets.ConnAck(reason, properties=options))
        else:
            self.send(connection, packets.Disconnect(reason, options))
        connection.closed = True
        self.effects.append(effects.Close(connection.id))
