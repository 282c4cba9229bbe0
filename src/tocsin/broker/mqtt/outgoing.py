"""Messages to a session: queue, packet identifiers, acknowledgements and repeats [MQTT5 §4.3, §4.4, §4.9].

A message of quality of service 1 or 2 waits in the queue while the client's receive maximum is used up. What does not
fit into the queue is dropped, and the next message of that topic reports the gap.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from tocsin.broker.mqtt import packets
from tocsin.broker.mqtt.effects import AcknowledgeCursor, Send
from tocsin.broker.mqtt.packets import V5
from tocsin.broker.mqtt.publication import CURSOR, GAP, POSITION, Publication
from tocsin.broker.mqtt.reasons import Reason
from tocsin.broker.mqtt.session import Connection, MqttState, Outbound, Session
from tocsin.broker.mqtt.writing import publish_bytes, publish_tail

_MOST_IDS = 65_535


class Outgoing:
    def __init__(self, state: MqttState) -> None:
        self._state = state

    # -- sending -------------------------------------------------------------------------------------------------------

    def offer(self, session: Session, outbound: Outbound) -> None:
        """Send a message now, or keep it until the session can take it."""
        connection = session.connection
        if connection is None and outbound.qos == 0:
            return  # the specification leaves it to the server; a message of QoS 0 is for connected clients
        if session.gaps:
            outbound.gap = session.gaps.pop(outbound.publication.topic, None)
        if connection is not None and not session.queue and self._may_send(session, connection, outbound):
            self._send(session, connection, outbound)
        else:
            self._enqueue(session, outbound)

    def flush(self, session: Session) -> None:
        """Send what the session can take now."""
        connection = session.connection
        queue = session.queue
        while queue and connection is not None and self._may_send(session, connection, queue[0]):
            outbound = queue.popleft()
            session.queue_bytes -= outbound.publication.size_bytes
            if not outbound.publication.is_expired(self._state.now_s):
                self._send(session, connection, outbound)

    def resume(self, session: Session) -> None:
        """Repeat what a new connection must get again, in the original order [MQTT-4.4.0-1], then the queue."""
        connection = session.connection
        assert connection is not None
        for packet_id, outbound in session.inflight.items():
            if outbound.released:
                self._state.send(connection, packets.PubRel(packet_id))
            else:
                self._write(session, connection, outbound, packet_id, duplicate=outbound.sent)
        self.flush(session)

    def withdraw(self, session: Session, *, sent: bool) -> list[Outbound]:
        """Take back and return what the session's present token does not permit.

        `sent` takes back messages in flight as well; only for a new connection. A message of quality of service 2 that
        was sent is not sent again, and its PUBREL ends the exchange: the client may know its packet identifier.
        """
        forbidden: list[Outbound] = []
        for packet_id, outbound in list(session.inflight.items()) if sent else ():
            if outbound.released or session.may_receive(outbound.publication.topic):
                continue
            if outbound.qos == 2:
                outbound.released = True
                self._drop(session, outbound)
            else:
                del session.inflight[packet_id]
                forbidden.append(outbound)
        queue, session.queue, session.queue_bytes = session.queue, deque(), 0
        for outbound in queue:
            if session.may_receive(outbound.publication.topic):
                session.queue.append(outbound)
                session.queue_bytes += outbound.publication.size_bytes
            else:
                forbidden.append(outbound)
        return forbidden

    def report_missing(self, session: Session, messages: Iterable[Outbound]) -> None:
        """Drop messages that were taken back. The next message of the topic for this session reports the gap."""
        for outbound in messages:
            self._drop(session, outbound)

    def _may_send(self, session: Session, connection: Connection, outbound: Outbound) -> bool:
        if connection.blocked or connection.closed:
            return False
        if outbound.qos == 0:
            return True
        return len(session.inflight) < min(connection.receive_maximum, self._state.limits.mqtt_inflight)

    def _enqueue(self, session: Session, outbound: Outbound) -> None:
        limits, size_bytes = self._state.limits, outbound.publication.size_bytes
        if (
            len(session.queue) >= limits.mqtt_queue_messages
            or session.queue_bytes + size_bytes > limits.mqtt_queue_bytes
        ):
            self._drop(session, outbound)
            return
        session.queue.append(outbound)
        session.queue_bytes += size_bytes

    def _drop(self, session: Session, outbound: Outbound) -> None:
        """Remember the loss: the next message of the topic reports it."""
        session.dropped += 1
        self._state.dropped += 1
        publication, known = outbound.publication, outbound.gap
        session.gaps[publication.topic] = known or session.gaps.get(publication.topic) or _gap_of(publication)

    def _send(self, session: Session, connection: Connection, outbound: Outbound) -> None:
        packet_id = 0
        if outbound.qos:
            packet_id = _free_id(session)
            session.inflight[packet_id] = outbound
        self._write(session, connection, outbound, packet_id)

    def _write(
        self, session: Session, connection: Connection, outbound: Outbound, packet_id: int, *, duplicate: bool = False
    ) -> None:
        publication, version = outbound.publication, connection.version
        name, tail = publication.name_bytes, b""
        if version == V5:
            options = self._options(connection, outbound)
            if connection.alias_maximum:
                name = self._alias(connection, publication, options)
            tail = publish_tail(publication.payload, options, version)
        else:
            tail = publication.payload
        data = publish_bytes(name, tail, outbound.qos, packet_id, retain=outbound.retain, duplicate=duplicate)
        limit_bytes = connection.maximum_packet_bytes
        if limit_bytes is not None and len(data) > limit_bytes:
            session.inflight.pop(packet_id, None)  # as if it had been sent [MQTT-3.1.2-25]
            connection.aliases.pop(publication.name, None)
            self._drop(session, outbound)
            return
        outbound.sent = True
        self._state.delivered += 1
        self._state.effects.append(Send((connection.id,), data))
        if outbound.qos == 0:
            self._acknowledge_cursor(session, outbound)

    def _options(self, connection: Connection, outbound: Outbound) -> packets.Properties:
        publication = outbound.publication
        options = publication.options(self._state.now_s)
        if outbound.identifiers:
            options["subscription_ids"] = list(outbound.identifiers)
        own: packets.UserProperties = []
        if outbound.gap is not None:
            own.append((GAP, outbound.gap))
        if connection.wants_positions and publication.position is not None:
            own.append((POSITION, str(publication.position)))
        if outbound.cursor is not None:
            own.append((CURSOR, outbound.cursor[1]))
        if own:
            options["user_properties"] = [*options.get("user_properties", ()), *own]
        return options

    def _alias(self, connection: Connection, publication: Publication, options: packets.Properties) -> bytes:
        """The encoded name: empty if the client knows the alias that is added to the options."""
        name = publication.name
        alias = connection.aliases.get(name)
        if alias is not None:
            options["topic_alias"] = alias
            return b"\0\0"
        if len(connection.aliases) < connection.alias_maximum:
            connection.aliases[name] = options["topic_alias"] = len(connection.aliases) + 1
        return publication.name_bytes

    # -- acknowledgements ----------------------------------------------------------------------------------------------

    def on_puback(self, session: Session, packet: packets.PubAck) -> None:
        outbound = session.inflight.get(packet.packet_id)
        if outbound is not None and outbound.qos == 1:
            self._finish(session, packet.packet_id)

    def on_pubrec(self, session: Session, connection: Connection, packet: packets.PubRec) -> None:
        outbound = session.inflight.get(packet.packet_id)
        if outbound is None or outbound.qos != 2:
            self._state.send(connection, packets.PubRel(packet.packet_id, Reason.PACKET_ID_NOT_FOUND))
        elif packet.reason >= Reason.UNSPECIFIED_ERROR:
            self._finish(session, packet.packet_id)
        else:
            outbound.released = True
            self._state.send(connection, packets.PubRel(packet.packet_id))

    def on_pubcomp(self, session: Session, packet: packets.PubComp) -> None:
        outbound = session.inflight.get(packet.packet_id)
        if outbound is not None and outbound.qos == 2:
            self._finish(session, packet.packet_id)

    def _finish(self, session: Session, packet_id: int) -> None:
        self._acknowledge_cursor(session, session.inflight.pop(packet_id))
        self.flush(session)

    def _acknowledge_cursor(self, session: Session, outbound: Outbound) -> None:
        if outbound.cursor is not None:
            self._state.effects.append(AcknowledgeCursor(session.user, *outbound.cursor))


def _free_id(session: Session) -> int:
    """The next packet identifier that no message in flight has."""
    number = session.last_packet_id
    while True:
        number = number % _MOST_IDS + 1
        if number not in session.inflight:
            session.last_packet_id = number
            return number


def _gap_of(publication: Publication) -> str:
    """The gap that begins with this message. Its end is the position before the message that reports it."""
    position = publication.position
    return "unknown" if position is None else f"{position.epoch}:{position.sequence}-"
