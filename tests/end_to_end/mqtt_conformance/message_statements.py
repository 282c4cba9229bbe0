"""Statements of the specification about acknowledgements, repeats and order."""

from __future__ import annotations

from typing import Any

from tests.end_to_end.mqtt_conformance.cases import BOTH, case
from tests.end_to_end.mqtt_conformance.client import ServerUnderTest
from tocsin.broker.mqtt import packets
from tocsin.broker.mqtt.packets import V5


@case("MQTT-4.3.3-10", BOTH)
async def repeated_publish_of_quality_two_is_delivered_once(t: ServerUnderTest) -> None:
    watcher = await t.connect("b")
    await watcher.subscribe(t.topic)
    client = await t.connect()
    client.acknowledges = False
    for duplicate in (False, True):
        client.send(packets.Publish(t.topic, b"x", 2, packet_id=7, duplicate=duplicate))
        await client.expect(packets.PubRec, 7)
    client.send(packets.PubRel(7))
    await client.expect(packets.PubComp, 7)
    assert (await watcher.message()).payload == b"x"
    await watcher.expect_silence()


@case("MQTT-4.3.3-11", BOTH)
async def packet_identifier_is_free_after_pubcomp(t: ServerUnderTest) -> None:
    client = await t.connect()
    await client.subscribe(t.topic)
    for number in range(2):
        client.send(packets.Publish(t.topic, b"%d" % number, 2, packet_id=700))
        await client.expect(packets.PubComp, 700)
    assert [message.payload for message in await client.messages(2)] == [b"0", b"1"]


@case("should 3.6.2.1")
async def pubrel_for_an_unknown_identifier(t: ServerUnderTest) -> None:
    client = await t.connect()
    client.send(packets.PubRel(77))
    assert (await client.expect(packets.PubComp, 77)).reason == 0x92


@case("should 3.5.2.1")
async def pubrec_for_an_unknown_identifier(t: ServerUnderTest) -> None:
    client = await t.connect()
    client.send(packets.PubRec(77))
    assert (await client.expect(packets.PubRel, 77)).reason == 0x92


@case("MQTT-4.4.0-1", BOTH)
async def pubrel_is_repeated_after_a_reconnect(t: ServerUnderTest) -> None:
    client = await t.keeping()
    await client.subscribe(t.topic)
    client.acknowledges = False
    await (await t.connect("b")).publish(t.topic, b"x", 2)
    message = await client.message()
    client.send(packets.PubRec(message.packet_id))
    await client.expect(packets.PubRel, message.packet_id)
    await client.close()
    back = await t.raw()
    back.acknowledges = False
    fields: dict[str, Any] = {"properties": {"session_expiry_s": 300}} if t.version == V5 else {}
    back.send(t.connect_packet(clean_start=False, **fields))
    await back.expect(packets.ConnAck)
    assert isinstance(await back.next_packet(), packets.PubRel)


@case("MQTT-4.6.0-6", BOTH)
async def messages_keep_their_order(t: ServerUnderTest) -> None:
    client = await t.connect()
    await client.subscribe(t.topic)
    sender = await t.connect("b")
    for number in range(200):
        sender.send(packets.Publish(t.topic, b"%d" % number, 1, packet_id=number + 1))
    assert [int(message.payload) for message in await client.messages(200)] == list(range(200))


@case("MQTT-3.3.1-5", BOTH)
async def delivered_quality_is_the_lower_one(t: ServerUnderTest) -> None:
    client = await t.connect()
    for wanted in range(3):
        await client.subscribe(f"{t.topic}/{wanted}", qos=wanted)
        for qos in range(3):
            await client.publish(f"{t.topic}/{wanted}", b"x", qos)
        assert [message.qos for message in await client.messages(3)] == [min(wanted, qos) for qos in range(3)]
