"""The properties of MQTT 5 packets [MQTT5 §2.2.2.2]: their numbers, types and the packets that may carry them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tocsin.broker.mqtt.octets import Cursor, text_bytes, varint_bytes
from tocsin.broker.mqtt.reasons import PacketError, Reason

CONNECT, CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP, SUBSCRIBE = 1, 2, 3, 4, 5, 6, 7, 8
SUBACK, UNSUBSCRIBE, UNSUBACK, PINGREQ, PINGRESP, DISCONNECT, AUTH, WILL = 9, 10, 11, 12, 13, 14, 15, 16
"""The types of packets; `WILL` stands for the properties of a will inside a CONNECT."""

_ACKNOWLEDGEMENTS = (PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK, UNSUBACK)


@dataclass(frozen=True, slots=True)
class Property:
    number: int
    name: str
    kind: str
    """`byte`, `flag` (a byte that is 0 or 1), `two`, `four`, `varint`, `text`, `binary` or `pair`."""
    packets: frozenset[int]
    positive: bool = False
    """True if zero is a protocol error."""


def _property(number: int, name: str, kind: str, *packets: int, positive: bool = False) -> Property:
    return Property(number, name, kind, frozenset(packets), positive)


PROPERTIES = (
    _property(0x01, "payload_format", "flag", PUBLISH, WILL),
    _property(0x02, "message_expiry_s", "four", PUBLISH, WILL),
    _property(0x03, "content_type", "text", PUBLISH, WILL),
    _property(0x08, "response_topic", "text", PUBLISH, WILL),
    _property(0x09, "correlation_data", "binary", PUBLISH, WILL),
    _property(0x0B, "subscription_ids", "varint", PUBLISH, SUBSCRIBE, positive=True),
    _property(0x11, "session_expiry_s", "four", CONNECT, CONNACK, DISCONNECT),
    _property(0x12, "assigned_client_id", "text", CONNACK),
    _property(0x13, "server_keep_alive_s", "two", CONNACK),
    _property(0x15, "authentication_method", "text", CONNECT, CONNACK, AUTH),
    _property(0x16, "authentication_data", "binary", CONNECT, CONNACK, AUTH),
    _property(0x17, "request_problem_information", "flag", CONNECT),
    _property(0x18, "will_delay_s", "four", WILL),
    _property(0x19, "request_response_information", "flag", CONNECT),
    _property(0x1A, "response_information", "text", CONNACK),
    _property(0x1C, "server_reference", "text", CONNACK, DISCONNECT),
    _property(0x1F, "reason_string", "text", CONNACK, *_ACKNOWLEDGEMENTS, DISCONNECT, AUTH),
    _property(0x21, "receive_maximum", "two", CONNECT, CONNACK, positive=True),
    _property(0x22, "topic_alias_maximum", "two", CONNECT, CONNACK),
    _property(0x23, "topic_alias", "two", PUBLISH),
    _property(0x24, "maximum_qos", "flag", CONNACK),
    _property(0x25, "retain_available", "flag", CONNACK),
    _property(0x26, "user_properties", "pair", *range(CONNECT, PINGREQ), DISCONNECT, AUTH, WILL),
    _property(0x27, "maximum_packet_bytes", "four", CONNECT, CONNACK, positive=True),
    _property(0x28, "wildcards_available", "flag", CONNACK),
    _property(0x29, "subscription_ids_available", "flag", CONNACK),
    _property(0x2A, "shared_available", "flag", CONNACK),
)
_BY_NUMBER = {known.number: known for known in PROPERTIES}
_BY_NAME = {known.name: known for known in PROPERTIES}
_REPEATED = ("user_properties", "subscription_ids")


def read_properties(cursor: Cursor, packet: int) -> dict[str, Any]:
    """Read the properties of a packet of this type; raise for those that the packet must not have."""
    found: dict[str, Any] = {}
    end = cursor.varint() + cursor.at
    if end > cursor.end:
        raise PacketError(Reason.MALFORMED_PACKET, "the properties are longer than the packet")
    while cursor.at < end:
        number = cursor.varint()
        known = _BY_NUMBER.get(number)
        if known is None or packet not in known.packets:
            raise PacketError(Reason.MALFORMED_PACKET, f"this packet has no property 0x{number:02x}")
        value = _read_value(cursor, known)
        if known.name in _REPEATED and not (known.name == "subscription_ids" and packet == SUBSCRIBE):
            found.setdefault(known.name, []).append(value)
        elif known.name in found:
            raise PacketError(Reason.PROTOCOL_ERROR, f"the property {known.name} appears twice")
        else:
            found[known.name] = [value] if known.name == "subscription_ids" else value
    if cursor.at != end:
        raise PacketError(Reason.MALFORMED_PACKET, "a property is longer than the properties")
    return found


def _read_value(cursor: Cursor, known: Property) -> Any:
    match known.kind:
        case "byte" | "flag":
            value: Any = cursor.byte()
            if known.kind == "flag" and value > 1:
                raise PacketError(Reason.PROTOCOL_ERROR, f"the property {known.name} is 0 or 1, not {value}")
        case "two":
            value = cursor.number(2)
        case "four":
            value = cursor.number(4)
        case "varint":
            value = cursor.varint()
        case "text":
            value = cursor.text()
        case "binary":
            value = cursor.binary()
        case _:
            value = (cursor.text(), cursor.text())
    if known.positive and value == 0:
        raise PacketError(Reason.PROTOCOL_ERROR, f"the property {known.name} must not be 0")
    return value


def property_bytes(properties: dict[str, Any]) -> bytes:
    """The properties with their length. Values that are None are left out."""
    if not properties:
        return b"\0"
    parts: list[bytes] = []
    for name, value in properties.items():
        if value is None:
            continue
        known = _BY_NAME[name]
        items = value if name in _REPEATED else (value,)
        parts += [bytes((known.number,)) + _value_bytes(known.kind, item) for item in items]
    content = b"".join(parts)
    return varint_bytes(len(content)) + content


def _value_bytes(kind: str, value: Any) -> bytes:
    match kind:
        case "byte" | "flag":
            return bytes((int(value),))
        case "two":
            return int(value).to_bytes(2, "big")
        case "four":
            return int(value).to_bytes(4, "big")
        case "varint":
            return varint_bytes(value)
        case "text":
            return text_bytes(value)
        case "binary":
            return len(value).to_bytes(2, "big") + bytes(value)
    return text_bytes(value[0]) + text_bytes(value[1])
