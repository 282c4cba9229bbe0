"""The codec: round trips, agreement with the package `mqtt5`, and the reason codes of malformed packets."""

from __future__ import annotations

import mqtt5
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.broker.mqtt.server_packets import read_all
from tocsin.broker.mqtt import packets
from tocsin.broker.mqtt.packets import V5, V311, Packet
from tocsin.broker.mqtt.reading import PacketReader
from tocsin.broker.mqtt.reasons import Reason, Violation
from tocsin.broker.mqtt.writing import written

TEXT = st.text(st.characters(exclude_characters="\0+#", exclude_categories=["Cs"]), min_size=1, max_size=20)
PAIRS = st.lists(st.tuples(TEXT, TEXT), max_size=3)
PUBLISH_PROPERTIES = st.fixed_dictionaries(
    {},
    optional={
        "payload_format": st.integers(0, 1),
        "message_expiry_s": st.integers(0, 2**32 - 1),
        "content_type": TEXT,
        "response_topic": TEXT,
        "correlation_data": st.binary(max_size=20),
        "topic_alias": st.integers(1, 65_535),
        "user_properties": PAIRS.filter(bool),
    },
)
PUBLISHES = st.builds(
    lambda topic, payload, qos, retain, number, options: packets.Publish(
        topic, payload, qos, retain, number if qos else 0, False, options
    ),
    TEXT,
    st.binary(max_size=300),
    st.integers(0, 2),
    st.booleans(),
    st.integers(1, 65_535),
    PUBLISH_PROPERTIES,
)
CONNECTS = st.builds(
    packets.Connect,
    TEXT,
    st.just(V5),
    st.booleans(),
    st.integers(0, 65_535),
    st.none() | TEXT,
    st.none() | st.binary(max_size=20),
    st.none() | st.builds(packets.Will, TEXT, st.binary(max_size=20), st.integers(0, 2), st.booleans()),
    st.fixed_dictionaries(
        {},
        optional={
            "session_expiry_s": st.integers(1, 2**32 - 1),
            "receive_maximum": st.integers(1, 65_534),
            "maximum_packet_bytes": st.integers(1, 2**32 - 1),
            "topic_alias_maximum": st.integers(1, 65_535),
            "user_properties": PAIRS.filter(bool),
        },
    ),
)


def read(data: bytes, version: int | None = V5) -> list[Packet | Violation]:
    reader = PacketReader(1 << 20)
    reader.version = version
    return list(reader.feed(data))


def reason_of(data: bytes, version: int | None = V5) -> Reason:
    (item,) = read(data, version)
    assert isinstance(item, Violation), item
    return item.reason


def framed(kind: int, body: bytes, flags: int = 0) -> bytes:
    assert len(body) < 128
    return bytes((kind << 4 | flags, len(body))) + body


@given(PUBLISHES)
def test_publish_survives_writing_and_reading_in_both_versions(packet: packets.Publish) -> None:
    assert read(written(packet, V5)) == [packet]
    assert read_all(written(packet, V5), V5) == ([packet], b"")
    packet.properties = {}
    assert read(written(packet, V311), V311) == [packet]


@given(PUBLISHES)
def test_publish_is_read_alike_by_the_package_mqtt5(packet: packets.Publish) -> None:
    other, size = mqtt5.read(memoryview(written(packet, V5)))
    assert isinstance(other, mqtt5.PublishPacket)
    assert size == len(written(packet, V5))
    options = packet.properties
    assert (other.topic, other.payload, int(other.qos), other.retain) == (
        packet.topic, packet.payload, packet.qos, packet.retain,
    )  # fmt: skip
    assert other.message_expiry_interval == options.get("message_expiry_s")
    assert other.content_type == options.get("content_type")
    assert other.response_topic == options.get("response_topic")
    assert other.correlation_data == options.get("correlation_data")
    assert other.topic_alias == options.get("topic_alias")
    assert other.user_properties == options.get("user_properties", [])


@given(CONNECTS)
def test_connect_is_read_alike_by_the_package_mqtt5(packet: packets.Connect) -> None:
    data = written(packet, V5)
    assert read(data, None) == [packet]
    other, _ = mqtt5.read(memoryview(data))
    assert isinstance(other, mqtt5.ConnectPacket)
    assert (other.client_id, other.username, other.password) == (packet.client_id, packet.username, packet.password)
    assert (other.clean_start, other.keep_alive) == (packet.clean_start, packet.keep_alive_s)
    assert other.session_expiry_interval == packet.properties.get("session_expiry_s", 0)
    assert other.receive_max == packet.properties.get("receive_maximum", 65_535)
    assert (other.will is None) == (packet.will is None)


@pytest.mark.parametrize(
    "packet",
    [
        packets.ConnAck(Reason.SUCCESS, True, {"receive_maximum": 9, "server_reference": "b:1", "reason_string": "x"}),
        packets.PubAck(7, Reason.NOT_AUTHORIZED, {"reason_string": "no"}),
        packets.PubRec(7),
        packets.PubRel(7, Reason.PACKET_ID_NOT_FOUND),
        packets.PubComp(65_535),
        packets.SubAck(3, [Reason.GRANTED_QOS_2, Reason.TOPIC_FILTER_INVALID]),
        packets.UnsubAck(3, [Reason.NO_SUBSCRIPTION_EXISTED]),
        packets.PingResp(),
        packets.Disconnect(Reason.USE_ANOTHER_SERVER, {"server_reference": "b2:1883"}),
    ],
)
def test_packet_of_the_server_is_accepted_by_the_package_mqtt5(packet: Packet) -> None:
    data = written(packet, V5)
    other, size = mqtt5.read(memoryview(data))
    assert size == len(data)
    assert type(other).__name__.lower() == type(packet).__name__.lower() + "packet"
    assert read_all(data, V5) == ([packet], b"")


@given(st.lists(PUBLISHES, max_size=4), st.integers(1, 7))
def test_packets_are_read_whole_from_pieces_of_any_size(several: list[packets.Publish], size: int) -> None:
    data = b"".join(written(packet, V5) for packet in several)
    reader = PacketReader(1 << 20)
    reader.version = V5
    found = [item for at in range(0, len(data), size) for item in reader.feed(data[at : at + size])]
    assert found == several


@given(st.binary(max_size=200), st.sampled_from([None, V311, V5]))
def test_reader_never_raises_on_any_bytes(data: bytes, version: int | None) -> None:
    for item in read(data, version):
        assert isinstance(item, Packet | Violation)


@given(PUBLISHES, st.integers(0, 500), st.integers(0, 255))
def test_reader_never_raises_on_a_changed_packet(packet: packets.Publish, at: int, byte: int) -> None:
    data = bytearray(written(packet, V5))
    data[at % len(data)] = byte
    for item in read(bytes(data)):
        assert isinstance(item, Packet | Violation)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (framed(3, b"\x00\x01\xff\x00"), Reason.MALFORMED_PACKET),
        (framed(3, b"\x00\x01\x00\x00"), Reason.MALFORMED_PACKET),
        (framed(3, b"\x00\x03\xed\xa0\x80\x00"), Reason.MALFORMED_PACKET),
        (framed(3, b"\x00\x01+\x00"), Reason.TOPIC_NAME_INVALID),
        (framed(3, b"\x00\x00\x00"), Reason.PROTOCOL_ERROR),
        (framed(3, b"\x00\x01a\x00", 6), Reason.MALFORMED_PACKET),
        (framed(3, b"\x00\x01a\x00", 8), Reason.MALFORMED_PACKET),
        (framed(3, b"\x00\x01a\x00\x00\x00", 2), Reason.MALFORMED_PACKET),
        (framed(3, b"\x00\x00\x06\x23\x00\x01\x23\x00\x02"), Reason.PROTOCOL_ERROR),
        (framed(3, b"\x00\x00\x03\x23\x00\x00"), Reason.TOPIC_ALIAS_INVALID),
        (framed(3, b"\x00\x01a\x02\x0b\x01"), Reason.PROTOCOL_ERROR),
        (framed(3, b"\x00\x01a\x02\x01\x02"), Reason.PROTOCOL_ERROR),
        (framed(3, b"\x00\x01a\x04\x08\x00\x01#"), Reason.PROTOCOL_ERROR),
        (framed(3, b"\x00\x01a\x03\x21\x00\x01"), Reason.MALFORMED_PACKET),
        (framed(8, b"\x00\x01\x00", 2), Reason.PROTOCOL_ERROR),
        (framed(8, b"\x00\x01\x00\x00\x01a\x00", 0), Reason.MALFORMED_PACKET),
        (framed(8, b"\x00\x00\x00\x00\x01a\x00", 2), Reason.MALFORMED_PACKET),
        (framed(8, b"\x00\x01\x00\x00\x01a\xc0", 2), Reason.MALFORMED_PACKET),
        (framed(8, b"\x00\x01\x00\x00\x01a\x03", 2), Reason.MALFORMED_PACKET),
        (framed(8, b"\x00\x01\x00\x00\x01a\x30", 2), Reason.MALFORMED_PACKET),
        (framed(8, b"\x00\x01\x02\x0b\x00\x00\x01a\x00", 2), Reason.PROTOCOL_ERROR),
        (framed(8, b"\x00\x01\x00\x00\x0a$share/g/a\x04", 2), Reason.PROTOCOL_ERROR),
        (framed(10, b"\x00\x01\x00", 2), Reason.PROTOCOL_ERROR),
        (framed(4, b"\x00\x01\x55"), Reason.MALFORMED_PACKET),
        (framed(6, b"\x00\x01"), Reason.MALFORMED_PACKET),
        (framed(12, b"\x00"), Reason.MALFORMED_PACKET),
        (framed(14, b"\x00\x04\x1c\x00\x01a"), Reason.PROTOCOL_ERROR),
        (framed(15, b"\x19\x00"), Reason.PROTOCOL_ERROR),
        (framed(15, b""), Reason.PROTOCOL_ERROR),
        (framed(2, b"\x00\x00\x00"), Reason.PROTOCOL_ERROR),
        (framed(0, b""), Reason.PROTOCOL_ERROR),
        (b"\x30\xff\xff\xff\xff\x01", Reason.MALFORMED_PACKET),
        (b"\x30\xff\xff\xff\x7f", Reason.PACKET_TOO_LARGE),
    ],
)
def test_forbidden_packet_has_the_reason_of_the_specification(data: bytes, reason: Reason) -> None:
    assert reason_of(data) == reason


def connect(
    flags: int = 2, version: int = 5, name: bytes = b"MQTT", options: bytes = b"\0", rest: bytes = b""
) -> bytes:
    body = len(name).to_bytes(2, "big") + name + bytes((version, flags, 0, 60)) + options + b"\x00\x01c" + rest
    return framed(1, body)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (connect(flags=3), Reason.MALFORMED_PACKET),
        (connect(flags=0x22), Reason.MALFORMED_PACKET),
        (connect(flags=0x1E), Reason.MALFORMED_PACKET),
        (connect(name=b"hj"), Reason.UNSUPPORTED_VERSION),
        (connect(version=6), Reason.UNSUPPORTED_VERSION),
        (connect(version=3, name=b"MQIsdp"), Reason.UNSUPPORTED_VERSION),
        (connect(options=b"\x03\x21\x00\x00"), Reason.PROTOCOL_ERROR),
        (connect(options=b"\x05\x27\x00\x00\x00\x00"), Reason.PROTOCOL_ERROR),
        (connect(options=b"\x02\x17\x02"), Reason.PROTOCOL_ERROR),
        (connect(options=b"\x03\x16\x00\x00"), Reason.PROTOCOL_ERROR),
        (connect(flags=0x42, version=4, options=b"", rest=b"\x00\x01p"), Reason.MALFORMED_PACKET),
        (connect(rest=b"x"), Reason.MALFORMED_PACKET),
        (framed(12, b""), Reason.PROTOCOL_ERROR),
        (framed(3, b"\x00\x01a\x00"), Reason.PROTOCOL_ERROR),
    ],
)
def test_forbidden_first_packet_has_the_reason_of_the_specification(data: bytes, reason: Reason) -> None:
    assert reason_of(data, None) == reason


def test_connect_of_version_3_1_1_has_no_properties() -> None:
    (packet,) = read(connect(version=4, options=b""), None)
    assert packet == packets.Connect("c", V311, True, 60)


def test_string_with_a_byte_order_mark_keeps_it() -> None:
    (packet,) = read(framed(3, b"\x00\x04\xef\xbb\xbfa\x00"))
    assert isinstance(packet, packets.Publish)
    assert packet.topic == "\ufeffa"
