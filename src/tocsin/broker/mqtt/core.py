"""MQTT at a broker: `handle(event, now_s) -> effects`. No clock and no socket; asyncio or a test drives it.

connecting    CONNECT, tokens, sessions, wills       incoming   messages of clients, acknowledged by homes
subscribing   filters, channels, retained messages   outgoing   queues, QoS 1 and 2, receive maximum
sharing       receivers of a message                 peers      other brokers, by the control topic
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tocsin.broker.mqtt import events, packets
from tocsin.broker.mqtt.connecting import Connecting
from tocsin.broker.mqtt.control import CONTROL_TOPIC
from tocsin.broker.mqtt.effects import Close, Effect
from tocsin.broker.mqtt.incoming import IncomingMessages
from tocsin.broker.mqtt.limits import MqttLimits
from tocsin.broker.mqtt.names import name_of
from tocsin.broker.mqtt.outgoing import Outgoing
from tocsin.broker.mqtt.packets import V5, Packet
from tocsin.broker.mqtt.peers import Peers
from tocsin.broker.mqtt.publication import Publication, publication_of
from tocsin.broker.mqtt.reasons import Reason, Violation
from tocsin.broker.mqtt.retained import Retained
from tocsin.broker.mqtt.session import Connection, MqttState, Outbound, Session
from tocsin.broker.mqtt.sharing import Sharing
from tocsin.broker.mqtt.subscribing import Subscribing
from tocsin.model.topic import CONTROL_PREFIX
from tocsin.wire.topic_envelope import MessageProperties

_MOST_EARLY = 1_000
_GRACE = 1.5
"""A client is lost after this many keep-alive times without a packet [MQTT-3.1.2-22]."""


_EVICTED_AT_ONCE = 50


class MqttBroker:
    def __init__(self, broker: str, limits: MqttLimits, address: str = "") -> None:
        state = self.state = MqttState(limits, broker)
        self._outgoing = Outgoing(state)
        self.retained = Retained(state)
        self.peers = Peers(state, self.retained)
        self.peers.address = address
        self._sharing = Sharing(state, self._outgoing)
        self._incoming = IncomingMessages(state, self.retained)
        self._subscribing = Subscribing(state, self._outgoing, self.retained, self.peers)
        self._connecting = Connecting(state, self._incoming, self._outgoing, self._subscribing, self._sharing)
        self._handlers: dict[type, Callable[[Any], None]] = {
            events.ConnectionOpened: self._on_opened,
            events.ConnectionLost: self._on_lost,
            events.ConnectionBlocked: lambda event: self._set_blocked(event.connection, True),
            events.ConnectionDrained: lambda event: self._set_blocked(event.connection, False),
            events.ConnectionHeld: self._on_held,
            events.PacketReceived: self._on_packet_received,
            events.PacketViolated: self._on_violation,
            events.TokenAccepted: self._on_accepted,
            events.TokenRefused: self._on_refused,
            events.ConnectionRevoked: self._on_revoked,
            events.PublishSettled: lambda event: self._incoming.on_settled(event.ticket, event.code, event.message),
            events.MessageArrived: self._on_message,
            events.GapArrived: self._on_gap,
            events.PatternReady: self._on_pattern_ready,
            events.ChannelAnswered: self._on_channel_answered,
            events.ChannelResultArrived: self._on_result,
            events.ChannelsLost: self._on_channels_lost,
            events.PlacementChanged: self._on_placement,
            events.Ticked: self._tick,
            events.StopRequested: self._stop,
        }
        self._packets: dict[type[Packet], Callable[[Session, Connection, Any], None]] = {
            packets.Publish: self._incoming.on_publish,
            packets.PubRel: self._incoming.on_pubrel,
            packets.PubAck: lambda session, connection, packet: self._outgoing.on_puback(session, packet),
            packets.PubRec: self._outgoing.on_pubrec,
            packets.PubComp: lambda session, connection, packet: self._outgoing.on_pubcomp(session, packet),
            packets.Subscribe: self._subscribing.on_subscribe,
            packets.Unsubscribe: self._subscribing.on_unsubscribe,
            packets.PingReq: lambda session, connection, packet: self.state.send(connection, packets.PingResp()),
            packets.Disconnect: lambda session, connection, packet: self._connecting.on_disconnect(connection, packet),
            packets.Auth: lambda session, connection, packet: self._connecting.on_auth(connection, packet),
        }

    def start(self) -> list[Effect]:
        """Receive the control topic: retained messages of the other brokers."""
        self.peers.start()
        return self._taken()

    def handle(self, event: events.Event, now_s: float) -> list[Effect]:
        self.state.now_s = now_s
        self._handlers[type(event)](event)
        return self._taken()

    def _taken(self) -> list[Effect]:
        effects, self.state.effects = self.state.effects, []
        return effects

    # -- connections ---------------------------------------------------------------------------------------------------

    def _on_opened(self, event: events.ConnectionOpened) -> None:
        now_s = self.state.now_s
        self.state.connections[event.connection] = Connection(event.connection, now_s, heard_s=now_s)

    def _on_lost(self, event: events.ConnectionLost) -> None:
        connection = self.state.connections.pop(event.connection, None)
        if connection is not None:
            connection.closed = True
            self._detach(connection)

    def _detach_closed(self, connection: Connection) -> None:
        """Leave the session if the last packet has ended the connection."""
        if connection.closed:
            self._detach(connection)

    def _detach(self, connection: Connection) -> None:
        session = connection.session
        if session is not None and session.connection is connection:
            self._connecting.disconnected(session)

    def _set_blocked(self, identity: events.ConnectionId, blocked: bool) -> None:
        connection = self.state.connections.get(identity)
        if connection is not None:
            connection.blocked = blocked
            if connection.session is not None:
                self._outgoing.flush(connection.session)

    def _on_held(self, event: events.ConnectionHeld) -> None:
        connection = self.state.connections.get(event.connection)
        if connection is not None:
            connection.heard_s = self.state.now_s

    def _end(self, connection: Connection, reason: Reason, message: str, reference: str | None = None) -> None:
        self.state.end(connection, reason, message, reference)
        self._detach(connection)

    def _on_revoked(self, event: events.ConnectionRevoked) -> None:
        connection = self.state.connections.get(event.connection)
        if connection is not None:
            self._end(connection, Reason.NOT_AUTHORIZED, "the token was revoked")

    def _on_violation(self, event: events.PacketViolated) -> None:
        connection = self.state.connections.get(event.connection)
        if connection is None or connection.closed:
            return
        violation = event.violation
        if connection.connect is None:
            connection.version = violation.version
            if violation.version != V5 and violation.reason != Reason.UNSUPPORTED_VERSION:
                connection.closed = True  # there was no CONNECT, or MQTT 3.1.1 has no answer to it [MQTT3 §3.1.4]
                self.state.effects.append(Close(connection.id))
                return
        if connection.checking and connection.session is None:
            connection.early.append(violation)  # the CONNECT is valid, so its answer comes first
        else:
            self._end(connection, violation.reason, violation.message)

    # -- packets -------------------------------------------------------------------------------------------------------

    def _on_packet_received(self, event: events.PacketReceived) -> None:
        connection = self.state.connections.get(event.connection)
        if connection is not None:
            self._on_packet(connection, event.packet)

    def _on_packet(self, connection: Connection, packet: Packet) -> None:
        if connection.closed:
            return
        connection.heard_s = self.state.now_s
        session = connection.session
        if isinstance(packet, packets.Connect):
            if connection.connect is None:
                self._connecting.on_connect(connection, packet)
            else:
                self._end(connection, Reason.PROTOCOL_ERROR, "a client sends CONNECT once")
        elif session is None:
            connection.early.append(packet)
            if len(connection.early) > _MOST_EARLY:
                self._end(connection, Reason.QUOTA_EXCEEDED, "wait for CONNACK before further packets")
        else:
            self._packets[type(packet)](session, connection, packet)
            self._detach_closed(connection)

    def _on_accepted(self, event: events.TokenAccepted) -> None:
        connection = self.state.connections.get(event.connection)
        if connection is None or connection.closed:
            return
        self._connecting.on_accepted(connection, event)
        early, connection.early = connection.early, []
        for packet in early:
            if isinstance(packet, Violation):
                self._end(connection, packet.reason, packet.message)
            else:
                self._on_packet(connection, packet)

    def _on_refused(self, event: events.TokenRefused) -> None:
        connection = self.state.connections.get(event.connection)
        if connection is not None:
            self._connecting.on_refused(connection, event)
            self._detach(connection)

    # -- messages of topics and channels -------------------------------------------------------------------------------

    def _on_message(self, event: events.MessageArrived) -> None:
        if event.topic.startswith(CONTROL_PREFIX):
            self.peers.on_record(event.data, event.position)
            self._subscribing.check_peers()
        else:
            self._sharing.deliver(publication_of(event.topic, event.data, event.position, self.state.now_s))

    def _on_gap(self, event: events.GapArrived) -> None:
        if event.topic.startswith(CONTROL_PREFIX):
            self.peers.on_gap()
            return
        last = "" if event.last is None else str(event.last)
        self._sharing.report_gap(event.topic, name_of(event.topic), f"{event.epoch}:{event.first}-{last}")

    def _on_pattern_ready(self, event: events.PatternReady) -> None:
        if event.pattern == CONTROL_TOPIC:
            self.peers.on_watched()
        else:
            self._subscribing.on_pattern_ready(event.pattern)

    def _on_channel_answered(self, event: events.ChannelAnswered) -> None:
        self._subscribing.on_channel_answered(event.session, event.pattern, event.reason, event.message)

    def _on_result(self, event: events.ChannelResultArrived) -> None:
        session = self.state.sessions.get(event.session)
        wanted = None if session is None else session.channels.get(event.pattern)
        if session is None or wanted is None:
            return
        if not session.may_receive(event.pattern):
            session.gaps.setdefault(event.pattern, "unknown")  # another token of the user made the subscription
            return
        properties = MessageProperties(qos=wanted.qos, payload_format=1, content_type="application/json")
        publication = Publication(event.pattern, event.pattern, event.payload, properties, None, self.state.now_s)
        identifier = session.channel_ids.get(event.pattern)
        if event.gap:
            session.gaps.setdefault(event.pattern, "unknown")
        self._outgoing.offer(
            session,
            Outbound(
                publication,
                wanted.qos,
                False,
                () if identifier is None else (identifier,),
                cursor=(event.subscription, event.cursor),
            ),
        )

    def _on_channels_lost(self, event: events.ChannelsLost) -> None:
        for connection in list(self.state.connections.values()):
            session = connection.session
            if session is not None and session.channels and session.user == event.user:
                self._end(connection, event.reason, event.message)

    # -- placement and time --------------------------------------------------------------------------------------------

    def _on_placement(self, event: events.PlacementChanged) -> None:
        """Send clients to another broker, and refuse new ones, until the placement changes again."""
        state = self.state
        if event.reference is None:
            state.references.pop(event.user, None)
            if event.user is None:
                self.peers.announce(is_open=True)
            return
        state.references[event.user] = (event.reference, event.moved)
        if event.user is None:
            self.peers.announce(is_open=False)
        self._evict()

    def _evict(self) -> None:
        """End connections that belong elsewhere, some at a time, so that they do not all return at once."""
        references, left = self.state.references, _EVICTED_AT_ONCE
        for connection in list(self.state.connections.values()) if references else ():
            placed = references.get(connection.user) or references.get(None)
            if placed is None or connection.session is None:
                continue
            reference, moved = placed
            reason = Reason.SERVER_MOVED if moved else Reason.USE_ANOTHER_SERVER
            self._end(connection, reason, "connect to another broker", reference or None)
            left -= 1
            if not left:
                return

    def _tick(self, event: events.Ticked) -> None:
        now_s = self.state.now_s
        for connection in list(self.state.connections.values()):
            if connection.session is None or connection.closed:
                continue
            if connection.keep_alive_s and now_s - connection.heard_s > _GRACE * connection.keep_alive_s:
                self._end(connection, Reason.KEEP_ALIVE_TIMEOUT, "no packet within one and a half keep-alive times")
            elif connection.expires_s is not None and now_s >= connection.expires_s:
                self._end(connection, Reason.NOT_AUTHORIZED, "the token has expired; connect with a new one")
        self._evict()
        self._connecting.tick()
        self.peers.tick()
        self._subscribing.tick()

    def _stop(self, event: events.StopRequested) -> None:
        reference = self.peers.reference()
        for connection in list(self.state.connections.values()):
            reason = Reason.SERVER_SHUTTING_DOWN if reference is None else Reason.USE_ANOTHER_SERVER
            self._end(connection, reason, "this broker is stopping", reference)
