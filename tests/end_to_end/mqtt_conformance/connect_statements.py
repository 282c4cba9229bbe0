"""Statements of the specification about CONNECT, sessions and wills."""

from __future__ import annotations

import asyncio

from tests.end_to_end.mqtt_conformance.cases import BOTH, case
from tests.end_to_end.mqtt_conformance.client import ServerUnderTest
from tocsin.broker.mqtt import packets
from tocsin.broker.mqtt.packets import V5, Filter


def framed(kind: int, body: bytes, flags: int = 0) -> bytes:
    return bytes((kind << 4 | flags, len(body))) + body


@case("MQTT-3.1.0-1", BOTH)
async def first_packet_other_than_connect(t: ServerUnderTest) -> None:
    client = await t.raw()
    client.send(packets.PingReq())
    await client.expect_close()


@case("MQTT-3.1.2-3", BOTH)
async def connect_with_the_reserved_flag(t: ServerUnderTest) -> None:
    client = await t.raw()
    properties = b"\x00" if t.version == V5 else b""
    client.send_bytes(framed(1, b"\x00\x04MQTT" + bytes((t.version, 3, 0, 60)) + properties + b"\x00\x01c"))
    await client.expect_close()


@case("MQTT-3.1.2-2")
async def connect_with_an_unknown_version(t: ServerUnderTest) -> None:
    client = await t.raw()
    client.send_bytes(framed(1, b"\x00\x04MQTT\x09\x02\x00\x3c\x00\x00\x01c"))
    await client.expect_close()


@case("3.1.2.11.3")
async def receive_maximum_zero(t: ServerUnderTest) -> None:
    client = await t.raw()
    client.send_bytes(framed(1, b"\x00\x04MQTT\x05\x02\x00\x3c\x03\x21\x00\x00\x00\x01c"))
    await client.expect_close()


@case("3.1.2.11.4")
async def maximum_packet_size_zero(t: ServerUnderTest) -> None:
    client = await t.raw()
    client.send_bytes(framed(1, b"\x00\x04MQTT\x05\x02\x00\x3c\x05\x27\x00\x00\x00\x00\x00\x01c"))
    await client.expect_close()


@case("3.1.2.11.10")
async def authentication_data_without_a_method(t: ServerUnderTest) -> None:
    client = await t.raw()
    client.send_bytes(framed(1, b"\x00\x04MQTT\x05\x02\x00\x3c\x04\x16\x00\x01x\x00\x01c"))
    await client.expect_close()


@case("MQTT-4.12.0-1")
async def unknown_authentication_method(t: ServerUnderTest) -> None:
    client = await t.raw()
    client.send(t.connect_packet(properties={"authentication_method": "unknown", "authentication_data": b"x"}))
    await client.expect_close()


@case("MQTT-3.1.2-12", BOTH)
async def will_quality_three(t: ServerUnderTest) -> None:
    client = await t.raw()
    properties = b"\x00" if t.version == V5 else b""
    will = properties + b"\x00\x01w\x00\x01x"
    client.send_bytes(framed(1, b"\x00\x04MQTT" + bytes((t.version, 0x1E, 0, 60)) + properties + b"\x00\x01c" + will))
    await client.expect_close()


@case("MQTT-3.1.4-3", BOTH)
async def session_taken_over(t: ServerUnderTest) -> None:
    first = await t.connect()
    await t.connect()
    await first.expect_close()


@case("should 3.1.4")
async def session_taken_over_has_its_reason(t: ServerUnderTest) -> None:
    first = await t.connect()
    await t.connect()
    await first.expect_close(0x8E)


@case("should 3.1.2.10")
async def keep_alive_has_its_reason(t: ServerUnderTest) -> None:
    await (await t.connect(keep_alive_s=1)).expect_close(0x8D)


@case("should 4.13.1")
async def connect_that_is_refused_has_its_reason(t: ServerUnderTest) -> None:
    client = await t.raw()
    client.send_bytes(framed(1, b"\x00\x04MQTT\x05\x02\x00\x3c\x03\x21\x00\x00\x00\x01c"))
    await client.expect_close(0x82)


@case("should 4.13.1")
async def second_connect_has_its_reason(t: ServerUnderTest) -> None:
    client = await t.connect()
    client.send(t.connect_packet())
    await client.expect_close(0x82)


@case("MQTT-3.1.4-3")
async def will_of_a_connection_that_is_taken_over(t: ServerUnderTest) -> None:
    watcher = await t.connect("b")
    await watcher.subscribe(t.topic)
    await t.connect(will=packets.Will(t.topic, b"over", 1, False))
    await t.connect()
    assert (await watcher.message()).payload == b"over"


@case("MQTT-3.2.2-3", BOTH)
async def clean_start_has_no_session(t: ServerUnderTest) -> None:
    first = await t.keeping()
    await first.subscribe(t.topic)
    await first.disconnect()
    second = await t.connect()
    assert second.connack is not None
    assert not second.connack.session_present
    await (await t.connect("b")).publish(t.topic, b"x")
    await second.expect_silence()


@case("4.5", BOTH)
async def packets_before_the_connack_are_handled(t: ServerUnderTest) -> None:
    client = await t.raw()
    client.send(t.connect_packet())
    client.send(packets.Subscribe(1, [Filter(t.topic, 1)]))
    client.send(packets.PingReq())
    await client.expect(packets.ConnAck)
    kinds = {type(await client.next_packet()) for _ in range(2)}
    assert kinds == {packets.SubAck, packets.PingResp}


@case("MQTT-3.1.2-10", BOTH)
async def disconnect_removes_the_will(t: ServerUnderTest) -> None:
    watcher = await t.connect("b")
    await watcher.subscribe(t.topic)
    client = await t.connect(will=packets.Will(t.topic, b"x", 1, False))
    await client.disconnect()
    await watcher.expect_silence()


@case("3.14.2.1")
async def disconnect_with_will(t: ServerUnderTest) -> None:
    watcher = await t.connect("b")
    await watcher.subscribe(t.topic)
    client = await t.connect(will=packets.Will(t.topic, b"x", 1, False))
    await client.disconnect(0x04)
    assert (await watcher.message()).payload == b"x"


@case("MQTT-3.1.3-9")
async def will_comes_at_the_end_of_the_session(t: ServerUnderTest) -> None:
    watcher = await t.connect("b")
    await watcher.subscribe(t.topic)
    will = packets.Will(t.topic, b"end", 1, False, {"will_delay_s": 60})
    client = await t.connect(will=will, properties={"session_expiry_s": 1})
    await client.close()
    assert (await watcher.message()).payload == b"end"


@case("3.1.3.2")
async def will_keeps_its_properties(t: ServerUnderTest) -> None:
    watcher = await t.connect("b")
    await watcher.subscribe(t.topic)
    options = {"content_type": "t", "response_topic": "r", "correlation_data": b"c", "user_properties": [("a", "b")]}
    client = await t.connect(will=packets.Will(t.topic, b"x", 1, False, dict(options)))
    await client.close()
    assert (await watcher.message()).properties == options


@case("3.1.2.7", BOTH)
async def retained_will(t: ServerUnderTest) -> None:
    client = await t.connect(will=packets.Will(t.topic, b"kept", 1, True))
    await client.close()
    await asyncio.sleep(1.0)
    later = await t.connect("b")
    await later.subscribe(t.topic)
    message = await later.message()
    assert (message.payload, message.retain) == (b"kept", True)
    await later.publish(t.topic, b"", 1, True)
