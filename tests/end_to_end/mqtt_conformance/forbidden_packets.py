"""Packets that the specification forbids: the server closes the connection, and should name the reason before."""

from __future__ import annotations

from tests.end_to_end.mqtt_conformance.cases import CASES, Case, Check
from tests.end_to_end.mqtt_conformance.client import ServerUnderTest
from tocsin.broker.mqtt.packets import V5, V311


def framed(kind: int, body: bytes, flags: int = 0) -> bytes:
    return bytes((kind << 4 | flags, len(body))) + body


def sends(data: bytes, *reasons: int) -> Check:
    """The server closes the connection after this packet; with reasons, it names one of them before."""

    async def check(t: ServerUnderTest) -> None:
        client = await t.connect()
        client.send_bytes(data)
        await client.expect_close(*reasons)

    return check


FORBIDDEN: list[tuple[str, str, bytes, bytes | None, tuple[int, ...]]] = [
    ("topic-that-is-not-utf8", "MQTT-1.5.4-1", framed(3, b"\x00\x01\xff\x00"), None, (0x81,)),
    (
        "topic-with-a-null-character",
        "MQTT-1.5.4-2",
        framed(3, b"\x00\x03a\x00b\x00"),
        None,
        (0x81, 0x90),
    ),
    (
        "packet-identifier-zero",
        "MQTT-2.2.1-3",
        framed(3, b"\x00\x01a\x00\x00\x00", 2),
        None,
        (0x81, 0x82),
    ),
    (
        "quality-of-service-three",
        "MQTT-3.3.1-4",
        framed(3, b"\x00\x01a\x00\x01\x00", 6),
        framed(3, b"\x00\x01a\x00\x01", 6),
        (0x81,),
    ),
    (
        "duplicate-flag-with-quality-zero",
        "MQTT-3.3.1-2",
        framed(3, b"\x00\x01a\x00", 8),
        None,
        (0x81, 0x82),
    ),
    (
        "publish-to-a-wildcard",
        "MQTT-3.3.2-2",
        framed(3, b"\x00\x03a/+\x00"),
        framed(3, b"\x00\x03a/+"),
        (0x90, 0x81, 0x82),
    ),
    ("empty-topic-without-an-alias", "MQTT-3.3.2-8", framed(3, b"\x00\x00\x00"), None, (0x82,)),
    ("topic-alias-beyond-the-maximum", "MQTT-3.3.2-9", framed(3, b"\x00\x01a\x03\x23\xff\xff"), None, (0x94,)),
    (
        "subscription-identifier-in-a-publish",
        "MQTT-3.3.4-6",
        framed(3, b"\x00\x01a\x02\x0b\x01"),
        None,
        (0x82, 0x81),
    ),
    (
        "response-topic-with-a-wildcard",
        "MQTT-3.3.2-14",
        framed(3, b"\x00\x01a\x04\x08\x00\x01#"),
        None,
        (0x82, 0x81, 0x90),
    ),
    (
        "property-twice",
        "2.2.2.2",
        framed(3, b"\x00\x01a\x0a\x02\x00\x00\x00\x05\x02\x00\x00\x00\x05"),
        None,
        (0x82, 0x81),
    ),
    (
        "property-of-another-packet",
        "2.2.2.2",
        framed(3, b"\x00\x01a\x05\x11\x00\x00\x00\x01"),
        None,
        (0x81, 0x82),
    ),
    (
        "subscribe-with-wrong-flags",
        "MQTT-3.8.1-1",
        framed(8, b"\x00\x01" + b"\x00" + b"\x00\x01a\x00", 0),
        framed(8, b"\x00\x01" + b"\x00\x01a\x00", 0),
        (0x81,),
    ),
    (
        "subscribe-without-filters",
        "MQTT-3.8.3-2",
        framed(8, b"\x00\x01" + b"\x00", 2),
        framed(8, b"\x00\x01", 2),
        (0x82, 0x81),
    ),
    (
        "subscribe-with-reserved-bits",
        "MQTT-3.8.3-5",
        framed(8, b"\x00\x01" + b"\x00" + b"\x00\x01a\xc0", 2),
        framed(8, b"\x00\x01" + b"\x00\x01a\xc0", 2),
        (0x81, 0x82),
    ),
    (
        "subscribe-with-retain-handling-three",
        "3.8.3.1",
        framed(8, b"\x00\x01\x00\x00\x01a\x30", 2),
        None,
        (0x82, 0x81),
    ),
    (
        "no-local-on-a-shared-subscription",
        "MQTT-3.8.3-4",
        framed(8, b"\x00\x01\x00\x00\x0a$share/g/a\x04", 2),
        None,
        (0x82,),
    ),
    ("subscription-identifier-zero", "3.8.2.1.2", framed(8, b"\x00\x01\x02\x0b\x00\x00\x01a\x00", 2), None, (0x82,)),
    (
        "unsubscribe-without-filters",
        "MQTT-3.10.3-2",
        framed(10, b"\x00\x01" + b"\x00", 2),
        framed(10, b"\x00\x01", 2),
        (0x82, 0x81),
    ),
    ("pubrel-with-wrong-flags", "MQTT-3.6.1-1", framed(6, b"\x00\x01", 0), framed(6, b"\x00\x01", 0), (0x81,)),
    ("remaining-length-of-five-bytes", "2.1.4", b"\x30\xff\xff\xff\xff\x01", b"\x30\xff\xff\xff\xff\x01", (0x81,)),
    (
        "reserved-packet-type",
        "2.1.2",
        b"\x00\x00",
        b"\x00\x00",
        (0x81, 0x82),
    ),
    ("disconnect-with-wrong-flags", "MQTT-3.14.1-1", b"\xe1\x00", None, (0x81,)),
    (
        "session-expiry-given-in-disconnect-only",
        "MQTT-3.14.2-2",
        framed(14, b"\x00\x05\x11\x00\x00\x00\x05"),
        None,
        (0x82,),
    ),
    ("auth-without-a-method-in-connect", "4.12.1", framed(15, b"\x19\x06\x15\x00\x03abc"), None, (0x82,)),
]
"""(name, statement, packet in MQTT 5, packet in MQTT 3.1.1, reasons of the specification)"""

for _name, _source, _packet_5, _packet_311, _reasons in FORBIDDEN:
    CASES.append(Case(_name, _source, V5, sends(_packet_5)))
    CASES.append(Case(f"{_name}-has-its-reason", f"should {_source}", V5, sends(_packet_5, *_reasons)))
    if _packet_311 is not None:
        CASES.append(Case(_name, _source, V311, sends(_packet_311)))
