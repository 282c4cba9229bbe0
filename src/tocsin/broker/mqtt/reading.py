"""Read packets of MQTT 3.1.1 and 5.0 from bytes. Everything that the specification forbids becomes a `Violation`.

A client chooses the version with its CONNECT. The reader never raises on a client's bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from tocsin.broker.mqtt import packets, properties
from tocsin.broker.mqtt.octets import Cursor
from tocsin.broker.mqtt.packets import V5, V311, Packet
from tocsin.broker.mqtt.properties import read_properties
from tocsin.broker.mqtt.reasons import PacketError, Reason, Violation

_FLAGS = {properties.PUBREL: 2, properties.SUBSCRIBE: 2, properties.UNSUBSCRIBE: 2}
"""Type of packet → the flags of its fixed header; 0 for the others, and PUBLISH has its own [MQTT5 §2.1.3]."""


class PacketReader:
    """Turns bytes into packets; keeps the bytes that are no whole packet yet."""

    __slots__ = ("_failed", "_limit_bytes", "_rest", "_start", "size_bytes", "version")

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._rest = b""
        self._start = 0
        self._failed = False
        self.size_bytes = 0
        """The size of the last packet."""
        self.version: int | None = None
        """The version of the client; None before its CONNECT."""

    def feed(self, data: bytes = b"") -> Iterator[Packet | Violation]:
        """Add bytes and return an iterator over whole packets. A violation is the last of all.

        The caller may stop early; the next call continues behind the last packet.
        """
        if self._start:
            self._rest, self._start = self._rest[self._start :], 0
        self._rest = self._rest + data if self._rest else data
        return iter(self._next, None)

    def _next(self) -> Packet | Violation | None:
        if self._failed:
            return None
        try:
            packet = self._read()
        except PacketError as error:
            self._failed = True
            return error.violation
        if packet is None and self._start:
            self._rest, self._start = self._rest[self._start :], 0
        return packet

    def _read(self) -> Packet | None:
        data, start = self._rest, self._start
        if len(data) - start < 2:
            return None
        size, at = 0, start + 1
        for shift in (0, 7, 14, 21):
            if at >= len(data):
                return None
            byte = data[at]
            size |= (byte & 0x7F) << shift
            at += 1
            if not byte & 0x80:
                break
        else:
            raise PacketError(Reason.MALFORMED_PACKET, "the remaining length has more than four bytes")
        if at - start + size > self._limit_bytes:
            raise PacketError(Reason.PACKET_TOO_LARGE, f"a packet has at most {self._limit_bytes:,} bytes")
        if len(data) < at + size:
            return None
        self._start = at + size
        self.size_bytes = self._start - start
        return self._parse(data[start], Cursor(data[at : at + size]))

    def _parse(self, header: int, cursor: Cursor) -> Packet:
        kind, flags = header >> 4, header & 0x0F
        if kind == properties.PUBLISH and self.version is not None:
            return read_publish(cursor, flags, self.version)
        if self.version is None and kind != properties.CONNECT:
            raise PacketError(Reason.PROTOCOL_ERROR, "the first packet must be CONNECT", version=0)
        if flags != _FLAGS.get(kind, 0):
            raise PacketError(Reason.MALFORMED_PACKET, "the flags of the fixed header are reserved")
        if self.version is None:
            try:
                connect = read_connect(cursor)
            except PacketError as error:
                error.violation = replace(error.violation, version=_version_of(cursor.data))
                raise
            self.version = connect.version
            return connect
        reader = _READERS.get(kind)
        if reader is None or (kind == properties.AUTH and self.version == V311):
            raise PacketError(Reason.PROTOCOL_ERROR, f"a client does not send packets of type {kind}")
        packet = reader(cursor, self.version)
        if not cursor.is_at_end:
            raise PacketError(Reason.MALFORMED_PACKET, "the packet is longer than its fields")
        return packet


def _version_of(connect: bytes) -> int:
    """The version in which a client reads the answer to its CONNECT, also if the CONNECT is not valid."""
    at = 2 + int.from_bytes(connect[:2], "big")
    return V311 if at < len(connect) and connect[at] < V5 else V5


def read_connect(cursor: Cursor) -> packets.Connect:
    name, version = cursor.text(), cursor.byte()
    if name != "MQTT" and not (name == "MQIsdp" and version == 3):
        raise PacketError(Reason.UNSUPPORTED_VERSION, f"the protocol is MQTT, not {name!r}")
    if version not in (V311, V5):
        raise PacketError(Reason.UNSUPPORTED_VERSION, "this server speaks MQTT 3.1.1 (4) and 5.0 (5)")
    flags = cursor.byte()
    if flags & 0x01:
        raise PacketError(Reason.MALFORMED_PACKET, "the reserved flag of CONNECT is set")
    has_will, will_qos, will_retain = bool(flags & 0x04), flags >> 3 & 0x03, bool(flags & 0x20)
    if will_qos == 3 or (not has_will and (will_qos or will_retain)):
        raise PacketError(Reason.MALFORMED_PACKET, "the flags of the will do not fit")
    if version == V311 and flags & 0x40 and not flags & 0x80:
        raise PacketError(Reason.MALFORMED_PACKET, "a password needs a user name in MQTT 3.1.1")
    keep_alive_s = cursor.number(2)
    options = read_properties(cursor, properties.CONNECT) if version == V5 else {}
    if "authentication_data" in options and "authentication_method" not in options:
        raise PacketError(Reason.PROTOCOL_ERROR, "authentication data needs an authentication method")
    client_id = cursor.text()
    will = _read_will(cursor, version, will_qos, will_retain) if has_will else None
    username = cursor.text() if flags & 0x80 else None
    password = cursor.binary() if flags & 0x40 else None
    if not cursor.is_at_end:
        raise PacketError(Reason.MALFORMED_PACKET, "the packet is longer than its fields")
    return packets.Connect(client_id, version, bool(flags & 0x02), keep_alive_s, username, password, will, options)


def _read_will(cursor: Cursor, version: int, qos: int, retain: bool) -> packets.Will:
    options = read_properties(cursor, properties.WILL) if version == V5 else {}
    topic, payload = cursor.text(), cursor.binary()
    _check_name(topic)
    _check_response_topic(options)
    return packets.Will(topic, payload, qos, retain, options)


def read_publish(cursor: Cursor, flags: int, version: int) -> packets.Publish:
    qos, duplicate = flags >> 1 & 0x03, bool(flags & 0x08)
    if qos == 3:
        raise PacketError(Reason.MALFORMED_PACKET, "there is no quality of service 3")
    if duplicate and qos == 0:
        raise PacketError(Reason.MALFORMED_PACKET, "a message of quality of service 0 is no duplicate")
    topic = cursor.text()
    packet_id = cursor.packet_id() if qos else 0
    options = read_properties(cursor, properties.PUBLISH) if version == V5 else {}
    if "subscription_ids" in options:
        raise PacketError(Reason.PROTOCOL_ERROR, "a client sends no subscription identifiers")
    if options.get("topic_alias") == 0:
        raise PacketError(Reason.TOPIC_ALIAS_INVALID, "the topic alias must not be 0")
    if topic or "topic_alias" not in options:
        _check_name(topic)
    _check_response_topic(options)
    return packets.Publish(topic, cursor.rest(), qos, bool(flags & 0x01), packet_id, duplicate, options)


def _check_name(topic: str) -> None:
    if not topic:
        raise PacketError(Reason.PROTOCOL_ERROR, "the name of the topic is empty, and there is no alias")
    if "+" in topic or "#" in topic:
        raise PacketError(Reason.TOPIC_NAME_INVALID, "a message cannot be published to a wildcard")


def _check_response_topic(options: packets.Properties) -> None:
    response_topic = options.get("response_topic")
    if response_topic is not None and (not response_topic or "+" in response_topic or "#" in response_topic):
        raise PacketError(Reason.PROTOCOL_ERROR, "the response topic is a name without wildcards")


def _read_acknowledgement(
    cursor: Cursor, version: int, kind: int, made: Callable[[int, Reason, packets.Properties], Packet]
) -> Packet:
    packet_id = cursor.packet_id()
    reason, options = Reason.SUCCESS, {}
    if version == V5 and not cursor.is_at_end:
        reason = _reason(cursor.byte())
        if not cursor.is_at_end:
            options = read_properties(cursor, kind)
    return made(packet_id, reason, options)


def _acknowledgement_reader(
    kind: int, made: Callable[[int, Reason, packets.Properties], Packet]
) -> Callable[[Cursor, int], Packet]:
    return lambda cursor, version: _read_acknowledgement(cursor, version, kind, made)


def _reason(number: int) -> Reason:
    try:
        return Reason(number)
    except ValueError:
        raise PacketError(Reason.MALFORMED_PACKET, f"there is no reason code 0x{number:02x}") from None


def _read_subscribe(cursor: Cursor, version: int) -> Packet:
    packet_id = cursor.packet_id()
    options = read_properties(cursor, properties.SUBSCRIBE) if version == V5 else {}
    filters = []
    while not cursor.is_at_end:
        pattern, bits = cursor.text(), cursor.byte()
        if bits & (0xC0 if version == V5 else 0xFC) or bits & 0x03 == 3 or bits >> 4 == 3:
            raise PacketError(Reason.MALFORMED_PACKET, "the options of the subscription are not valid")
        no_local = bool(bits & 0x04)
        if no_local and pattern.startswith("$share/"):
            raise PacketError(Reason.PROTOCOL_ERROR, "a shared subscription cannot have the option no local")
        filters.append(packets.Filter(pattern, bits & 0x03, no_local, bool(bits & 0x08), bits >> 4 & 0x03))
    if not filters:
        raise PacketError(Reason.PROTOCOL_ERROR, "SUBSCRIBE names no topic filter")
    return packets.Subscribe(packet_id, filters, options)


def _read_unsubscribe(cursor: Cursor, version: int) -> Packet:
    packet_id = cursor.packet_id()
    options = read_properties(cursor, properties.UNSUBSCRIBE) if version == V5 else {}
    patterns = []
    while not cursor.is_at_end:
        patterns.append(cursor.text())
    if not patterns:
        raise PacketError(Reason.PROTOCOL_ERROR, "UNSUBSCRIBE names no topic filter")
    return packets.Unsubscribe(packet_id, patterns, options)


def _read_disconnect(cursor: Cursor, version: int) -> Packet:
    reason, options = Reason.SUCCESS, {}
    if version == V5 and not cursor.is_at_end:
        reason = _reason(cursor.byte())
        if not cursor.is_at_end:
            options = read_properties(cursor, properties.DISCONNECT)
    if "server_reference" in options:
        raise PacketError(Reason.PROTOCOL_ERROR, "a client sends no server reference")
    return packets.Disconnect(reason, options)


def _read_auth(cursor: Cursor, version: int) -> Packet:
    reason, options = Reason.SUCCESS, {}
    if not cursor.is_at_end:
        reason = _reason(cursor.byte())
        if not cursor.is_at_end:
            options = read_properties(cursor, properties.AUTH)
    if reason not in (Reason.CONTINUE_AUTHENTICATION, Reason.RE_AUTHENTICATE):
        raise PacketError(Reason.PROTOCOL_ERROR, "AUTH from a client continues or repeats an authentication")
    if "authentication_method" not in options:
        raise PacketError(Reason.PROTOCOL_ERROR, "AUTH needs an authentication method")
    return packets.Auth(reason, options)


_READERS: dict[int, Callable[[Cursor, int], Packet]] = {
    properties.CONNECT: lambda cursor, version: read_connect(cursor),
    properties.PUBACK: _acknowledgement_reader(properties.PUBACK, packets.PubAck),
    properties.PUBREC: _acknowledgement_reader(properties.PUBREC, packets.PubRec),
    properties.PUBREL: _acknowledgement_reader(properties.PUBREL, packets.PubRel),
    properties.PUBCOMP: _acknowledgement_reader(properties.PUBCOMP, packets.PubComp),
    properties.SUBSCRIBE: _read_subscribe,
    properties.UNSUBSCRIBE: _read_unsubscribe,
    properties.PINGREQ: lambda cursor, version: packets.PingReq(),
    properties.DISCONNECT: _read_disconnect,
    properties.AUTH: _read_auth,
}
