"""Reads the packets that a server sends, for clients in tests. It raises on anything that a server must not send."""

from __future__ import annotations

from tocsin.broker.mqtt import packets, properties
from tocsin.broker.mqtt.octets import Cursor
from tocsin.broker.mqtt.packets import V5, Packet
from tocsin.broker.mqtt.properties import read_properties
from tocsin.broker.mqtt.reasons import Reason

_ACKNOWLEDGEMENTS = {
    properties.PUBACK: packets.PubAck,
    properties.PUBREC: packets.PubRec,
    properties.PUBREL: packets.PubRel,
    properties.PUBCOMP: packets.PubComp,
}


def read_all(data: bytes, version: int) -> tuple[list[Packet], bytes]:
    """The whole packets, and the bytes behind them."""
    found: list[Packet] = []
    while len(data) >= 2:
        size, at = 0, 1
        while True:
            if at >= len(data):
                return found, data
            size |= (data[at] & 0x7F) << 7 * (at - 1)
            at += 1
            if not data[at - 1] & 0x80:
                break
        if len(data) < at + size:
            break
        found.append(_packet(data[0] >> 4, data[0] & 0x0F, Cursor(data[at : at + size]), version))
        data = data[at + size :]
    return found, data


def _packet(kind: int, flags: int, cursor: Cursor, version: int) -> Packet:
    packet = _parse(kind, flags, cursor, version)
    assert cursor.is_at_end, f"bytes behind {packet}"
    return packet


def _parse(kind: int, flags: int, cursor: Cursor, version: int) -> Packet:
    new = version == V5
    match kind:
        case properties.CONNACK:
            present, number = cursor.byte(), cursor.byte()
            assert present <= 1
            if not new:
                return packets.ConnAck(number, bool(present))  # type: ignore[arg-type]
            return packets.ConnAck(Reason(number), bool(present), read_properties(cursor, kind))
        case properties.PUBLISH:
            topic, qos = cursor.text(), flags >> 1 & 3
            packet_id = cursor.packet_id() if qos else 0
            options = read_properties(cursor, kind) if new else {}
            return packets.Publish(topic, cursor.rest(), qos, bool(flags & 1), packet_id, bool(flags & 8), options)
        case properties.SUBACK | properties.UNSUBACK:
            packet_id = cursor.packet_id()
            options = read_properties(cursor, kind) if new else {}
            numbers = cursor.rest()
            reasons = [Reason(number) for number in numbers]
            made = packets.SubAck if kind == properties.SUBACK else packets.UnsubAck
            return made(packet_id, reasons, options)
        case properties.PINGRESP:
            return packets.PingResp()
        case properties.DISCONNECT | properties.AUTH:
            assert new
            reason = Reason(cursor.byte()) if not cursor.is_at_end else Reason.SUCCESS
            options = {} if cursor.is_at_end else read_properties(cursor, kind)
            if kind == properties.AUTH:
                return packets.Auth(reason, options)
            return packets.Disconnect(reason, options)
    assert flags == (2 if kind == properties.PUBREL else 0)
    packet_id = cursor.packet_id()
    reason, options = Reason.SUCCESS, {}
    if new and not cursor.is_at_end:
        reason = Reason(cursor.byte())
        options = {} if cursor.is_at_end else read_properties(cursor, kind)
    return _ACKNOWLEDGEMENTS[kind](packet_id, reason, options)
