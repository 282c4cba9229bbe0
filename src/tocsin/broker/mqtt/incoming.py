"""Messages from a client: aliases, limits, rights, and acknowledgements that wait for the topic's home.

A message of quality of service 1 or 2 is acknowledged when the home has accepted it, so the client keeps it until then,
across moves and failures of homes. A repeat of a message that is on its way is not published twice.
"""

from __future__ import annotations

from dataclasses import dataclass

from tocsin.broker.mqtt import packets
from tocsin.broker.mqtt.effects import PublishToTopic
from tocsin.broker.mqtt.names import name_problem, topic_of
from tocsin.broker.mqtt.packets import V5
from tocsin.broker.mqtt.reasons import Reason
from tocsin.broker.mqtt.retained import Retained
from tocsin.broker.mqtt.session import Connection, Incoming, MqttState, Session
from tocsin.model.permission import SEND
from tocsin.wire.errors import Code
from tocsin.wire.topic_envelope import MessageProperties, wrapped

_REASONS = {
    str(Code.FORBIDDEN): Reason.NOT_AUTHORIZED,
    str(Code.UNAUTHENTICATED): Reason.NOT_AUTHORIZED,
    str(Code.UNKNOWN_TOPIC): Reason.TOPIC_NAME_INVALID,
    str(Code.BAD_REQUEST): Reason.TOPIC_NAME_INVALID,
    str(Code.TOO_LARGE): Reason.QUOTA_EXCEEDED,
    str(Code.TOO_MANY): Reason.QUOTA_EXCEEDED,
    str(Code.LIMITED): Reason.QUOTA_EXCEEDED,
}


@dataclass(slots=True)
class _Ticket:
    session: Session
    packet_id: int


class IncomingMessages:
    def __init__(self, state: MqttState, retained: Retained) -> None:
        self._state = state
        self._retained = retained
        self._tickets: dict[int, _Ticket] = {}

    # -- PUBLISH -------------------------------------------------------------------------------------------------------

    def on_publish(self, session: Session, connection: Connection, packet: packets.Publish) -> None:
        state = self._state
        if not self._resolve_alias(connection, packet):
            return
        if packet.qos:
            known = session.incoming.get(packet.packet_id)
            if known is not None and (known.qos == 2 or not known.settled or packet.duplicate):
                self._on_repeat(session, connection, packet, known)
                return
            if len(session.incoming) >= state.limits.mqtt_receive_maximum and connection.version == V5:
                state.end(
                    connection,
                    Reason.RECEIVE_MAXIMUM_EXCEEDED,
                    f"at most {state.limits.mqtt_receive_maximum} messages wait for their acknowledgement",
                )
                return
        state.received += 1
        refusal = self._refusal(session, packet)
        if refusal is not None:
            self._refuse(session, connection, packet, *refusal)
            return
        self.publish(session, packet.topic, packet, packet.packet_id)

    def _resolve_alias(self, connection: Connection, packet: packets.Publish) -> bool:
        """Replace an alias by its topic [MQTT5 §3.3.2.3.4]; False if the connection ends."""
        alias = packet.properties.get("topic_alias")
        if alias is None:
            return True
        if alias > self._state.limits.mqtt_topic_aliases:
            most = self._state.limits.mqtt_topic_aliases
            self._state.end(connection, Reason.TOPIC_ALIAS_INVALID, f"the topic alias is at most {most}")
            return False
        if packet.topic:
            connection.client_aliases[alias] = packet.topic
        elif alias in connection.client_aliases:
            packet.topic = connection.client_aliases[alias]
        else:
            self._state.end(connection, Reason.PROTOCOL_ERROR, f"the topic alias {alias} was not set before")
            return False
        return True

    def _on_repeat(self, session: Session, connection: Connection, packet: packets.Publish, known: Incoming) -> None:
        if known.settled:
            self._acknowledge(session, packet.packet_id, known)
        elif not packet.duplicate and connection.version == V5:
            refused = packets.PubRec if packet.qos == 2 else packets.PubAck
            self._state.send(connection, refused(packet.packet_id, Reason.PACKET_ID_IN_USE))

    def _refusal(self, session: Session, packet: packets.Publish) -> tuple[Reason, str] | None:
        problem = name_problem(packet.topic)
        if problem is not None:
            return Reason.TOPIC_NAME_INVALID, problem
        topic = topic_of(packet.topic)
        if not session.may_send(topic):
            self._state.record_refusal(session, SEND, topic)
            return Reason.NOT_AUTHORIZED, f"this needs a token with the scope send:{topic}"
        if packet.properties.get("payload_format") == 1 and not _is_utf8(packet.payload):
            return Reason.PAYLOAD_FORMAT_INVALID, "the payload format says UTF-8, and the payload is not"
        if packet.retain:
            full = self._retained.full(topic, packet.payload)
            if full is not None:
                return Reason.QUOTA_EXCEEDED, full
        return None

    def _refuse(
        self, session: Session, connection: Connection, packet: packets.Publish, reason: Reason, message: str
    ) -> None:
        """Refuse in the acknowledgement. MQTT 3.1.1 has no refusal: the message is acknowledged and dropped
        [MQTT3 §3.3.5], and QoS 0 has no acknowledgement."""
        state = self._state
        state.refused += 1
        if packet.qos == 1:
            state.send(connection, packets.PubAck(packet.packet_id, reason, state.reasons(connection, message)))
        elif packet.qos == 2:
            if connection.version != V5:
                session.incoming[packet.packet_id] = Incoming(2, 0, settled=True)
            state.send(connection, packets.PubRec(packet.packet_id, reason, state.reasons(connection, message)))

    def publish(self, session: Session, name: str, message: packets.Publish | packets.Will, packet_id: int = 0) -> None:
        """Publish at the home, and store a retained message."""
        topic = topic_of(name)
        options = message.properties
        properties = MessageProperties(
            qos=message.qos,
            retain=message.retain,
            origin=session.key if session.has_no_local else "",
            payload_format=options.get("payload_format"),
            message_expiry_s=options.get("message_expiry_s"),
            content_type=options.get("content_type"),
            response_topic=options.get("response_topic"),
            correlation_data=options.get("correlation_data"),
            user_properties=tuple(options.get("user_properties", ())),
        )
        data = wrapped(message.payload, properties)
        if data is None:
            connection = session.connection
            if connection is not None and isinstance(message, packets.Publish):
                self._refuse(session, connection, message, Reason.QUOTA_EXCEEDED, "the properties are too large")
            return
        if packet_id:
            session.incoming[packet_id] = Incoming(message.qos, 2 if message.retain else 1)
        if message.retain:
            ticket = self._ticket(session, packet_id)
            self._retained.set(ticket, topic, data, session.user, has_payload=bool(message.payload))
        self._state.effects.append(PublishToTopic(self._ticket(session, packet_id), topic, data, session.user))

    def _ticket(self, session: Session, packet_id: int) -> int:
        if not packet_id:
            return 0
        ticket = next(self._state.tickets)
        self._tickets[ticket] = _Ticket(session, packet_id)
        return ticket

    # -- acknowledgements ----------------------------------------------------------------------------------------------

    def on_settled(self, number: int, code: str | None, message: str) -> None:
        """A home has accepted a message, or refused it for good."""
        if code is not None:
            self._state.refused += 1
        ticket = self._tickets.pop(number, None)
        if ticket is None:
            return
        session, packet_id = ticket.session, ticket.packet_id
        incoming = session.incoming.get(packet_id)
        if incoming is None:
            return
        if code is not None:
            incoming.reason, incoming.message = _REASONS.get(code, Reason.IMPLEMENTATION_ERROR), message
        incoming.waits_for -= 1
        if incoming.waits_for <= 0:
            incoming.settled = True
            self._acknowledge(session, packet_id, incoming)

    def _acknowledge(self, session: Session, packet_id: int, incoming: Incoming) -> None:
        """Answer the PUBLISH. While the client is away the outcome is kept for its repeat."""
        connection = session.connection
        if connection is not None:
            if incoming.qos == 1 or (incoming.reason and connection.version == V5):
                del session.incoming[packet_id]
            made = packets.PubAck if incoming.qos == 1 else packets.PubRec
            options = self._state.reasons(connection, incoming.message)
            self._state.send(connection, made(packet_id, incoming.reason, options))

    def on_pubrel(self, session: Session, connection: Connection, packet: packets.PubRel) -> None:
        known = session.incoming.pop(packet.packet_id, None)
        reason = Reason.SUCCESS if known is not None else Reason.PACKET_ID_NOT_FOUND
        self._state.send(connection, packets.PubComp(packet.packet_id, reason))

    def forget(self, session: Session) -> None:
        """The session has ended: its client waits for no acknowledgement."""
        session.incoming.clear()


def _is_utf8(payload: bytes) -> bool:
    try:
        payload.decode()
    except UnicodeDecodeError:
        return False
    return True
