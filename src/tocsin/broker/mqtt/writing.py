"""Write packets of MQTT 3.1.1 and 5.0 as bytes.

The payload and the properties of a message are encoded once for all its receivers: only the fixed header and the packet
identifier differ.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tocsin.broker.mqtt import packets, properties
from tocsin.broker.mqtt.octets import text_bytes, varint_bytes
from tocsin.broker.mqtt.packets import V5, Packet
from tocsin.broker.mqtt.properties import property_bytes
from tocsin.broker.mqtt.reasons import return_code

PING_RESPONSE = b"\xd0\x00"


def written(packet: Packet, version: int) -> bytes:
    return _WRITERS[type(packet)](packet, version)


def publish_bytes(
    topic: bytes, tail: bytes, qos: int, packet_id: int = 0, *, retain: bool = False, duplicate: bool = False
) -> bytes:
    """A PUBLISH from the encoded name of its topic, and its encoded properties and payload."""
    header = properties.PUBLISH << 4 | duplicate << 3 | qos << 1 | retain
    middle = packet_id.to_bytes(2, "big") if qos else b""
    return bytes((header,)) + varint_bytes(len(topic) + len(middle) + len(tail)) + topic + middle + tail


def publish_tail(payload: bytes, options: packets.Properties, version: int) -> bytes:
    return property_bytes(options) + payload if version == V5 else payload


def _framed(kind: int, body: bytes, flags: int = 0) -> bytes:
    return bytes((kind << 4 | flags,)) + varint_bytes(len(body)) + body


def _connack(packet: packets.ConnAck, version: int) -> bytes:
    present = bytes((packet.session_present,))
    if version == V5:
        return _framed(properties.CONNACK, present + bytes((packet.reason,)) + property_bytes(packet.properties))
    return _framed(properties.CONNACK, present + bytes((return_code(packet.reason),)))


def _publish(packet: packets.Publish, version: int) -> bytes:
    return publish_bytes(
        text_bytes(packet.topic),
        publish_tail(packet.payload, packet.properties, version),
        packet.qos,
        packet.packet_id,
        retain=packet.retain,
        duplicate=packet.duplicate,
    )


def _acknowledgement(kind: int, flags: int = 0) -> Callable[[Any, int], bytes]:
    def write(packet: packets.Acknowledgement, version: int) -> bytes:
        body = packet.packet_id.to_bytes(2, "big")
        if version == V5 and (packet.reason or packet.properties):
            body += bytes((packet.reason,))
            if packet.properties:
                body += property_bytes(packet.properties)
        return _framed(kind, body, flags)

    return write


def _suback(packet: packets.SubAck, version: int) -> bytes:
    if version == V5:
        body = property_bytes(packet.properties) + bytes(packet.reasons)
    else:
        body = bytes(reason if reason <= 2 else 0x80 for reason in packet.reasons)
    return _framed(properties.SUBACK, packet.packet_id.to_bytes(2, "big") + body)


def _unsuback(packet: packets.UnsubAck, version: int) -> bytes:
    body = property_bytes(packet.properties) + bytes(packet.reasons) if version == V5 else b""
    return _framed(properties.UNSUBACK, packet.packet_id.to_bytes(2, "big") + body)


def _disconnect(packet: packets.Disconnect, version: int) -> bytes:
    """MQTT 3.1.1 has no DISCONNECT from a server: the connection just ends."""
    if version != V5:
        return b""
    return _framed(properties.DISCONNECT, bytes((packet.reason,)) + property_bytes(packet.properties))


def _auth(packet: packets.Auth, version: int) -> bytes:
    return _framed(properties.AUTH, bytes((packet.reason,)) + property_bytes(packet.properties))


def _connect(packet: packets.Connect, version: int) -> bytes:
    """For clients in tests."""
    will = packet.will
    flags = packet.clean_start << 1 | (packet.password is not None) << 6 | (packet.username is not None) << 7
    body = b""
    if will is not None:
        flags |= 0x04 | will.qos << 3 | will.retain << 5
        body += property_bytes(will.properties) if version == V5 else b""
        body += text_bytes(will.topic) + len(will.payload).to_bytes(2, "big") + will.payload
    if packet.username is not None:
        body += text_bytes(packet.username)
    if packet.password is not None:
        body += len(packet.password).to_bytes(2, "big") + packet.password
    head = text_bytes("MQTT") + bytes((version, flags)) + packet.keep_alive_s.to_bytes(2, "big")
    options = property_bytes(packet.properties) if version == V5 else b""
    return _framed(properties.CONNECT, head + options + text_bytes(packet.client_id) + body)


def _subscribe(packet: packets.Subscribe, version: int) -> bytes:
    body = packet.packet_id.to_bytes(2, "big") + (property_bytes(packet.properties) if version == V5 else b"")
    for wanted in packet.filters:
        bits = wanted.qos
        if version == V5:
            bits |= wanted.no_local << 2 | wanted.retain_as_published << 3 | wanted.retain_handling << 4
        body += text_bytes(wanted.pattern) + bytes((bits,))
    return _framed(properties.SUBSCRIBE, body, 2)


def _unsubscribe(packet: packets.Unsubscribe, version: int) -> bytes:
    body = packet.packet_id.to_bytes(2, "big") + (property_bytes(packet.properties) if version == V5 else b"")
    return _framed(properties.UNSUBSCRIBE, body + b"".join(map(text_bytes, packet.patterns)), 2)


_WRITERS: dict[type[Packet], Callable[[Any, int], bytes]] = {
    packets.Connect: _connect,
    packets.ConnAck: _connack,
    packets.Publish: _publish,
    packets.PubAck: _acknowledgement(properties.PUBACK),
    packets.PubRec: _acknowledgement(properties.PUBREC),
    packets.PubRel: _acknowledgement(properties.PUBREL, 2),
    packets.PubComp: _acknowledgement(properties.PUBCOMP),
    packets.Subscribe: _subscribe,
    packets.SubAck: _suback,
    packets.Unsubscribe: _unsubscribe,
    packets.UnsubAck: _unsuback,
    packets.PingReq: lambda packet, version: b"\xc0\x00",
    packets.PingResp: lambda packet, version: PING_RESPONSE,
    packets.Disconnect: _disconnect,
    packets.Auth: _auth,
}
