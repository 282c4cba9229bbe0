"""What Eclipse Paho's interoperability suite checks of MQTT 5 alone, in our own words."""

from __future__ import annotations

import asyncio

from tests.end_to_end.mqtt_conformance.cases import ONLY_5, case
from tests.end_to_end.mqtt_conformance.client import ServerUnderTest
from tocsin.broker.mqtt import packets
from tocsin.broker.mqtt.packets import Filter


@case("paho", ONLY_5)
async def session_expiry(t: ServerUnderTest) -> None:
    async def visit(expiry_s: int, clean: bool, at_end: int | None = None) -> bool:
        client = await t.connect(clean_start=clean, properties={"session_expiry_s": expiry_s})
        assert client.connack is not None
        present = client.connack.session_present
        await client.disconnect(**({} if at_end is None else {"session_expiry_s": at_end}))
        return present

    assert not await visit(0, True)
    assert not await visit(0, False)
    assert not await visit(3, True)
    await asyncio.sleep(1)
    assert await visit(3, False)
    await asyncio.sleep(5)
    assert not await visit(1, False, at_end=30)
    await asyncio.sleep(3)
    assert await visit(1, False, at_end=0)
    assert not await visit(0, False)


@case("paho", ONLY_5)
async def shared_subscription(t: ServerUnderTest) -> None:
    first, second = await t.connect("a"), await t.connect("b")
    for member in (first, second):
        await member.subscribe(f"$share/g/{t.topic}")
    sender = await t.connect("c")
    for number in range(10):
        await sender.publish(t.topic, b"%d" % number)
    got: list[bytes] = []
    for member in (first, second):
        try:
            while True:
                got.append((await asyncio.wait_for(member.message(), 1.0)).payload)
        except TimeoutError:
            continue
    assert sorted(got) == [b"%d" % number for number in range(10)]


@case("paho", ONLY_5)
async def user_properties(t: ServerUnderTest) -> None:
    client = await t.connect()
    await client.subscribe(t.topic)
    pairs = [("a", "2"), ("c", "3"), ("a", "2")]
    for qos in range(3):
        await client.publish(t.topic, b"", qos, user_properties=pairs)
    assert [message.properties["user_properties"] for message in await client.messages(3)] == [pairs] * 3


@case("paho", ONLY_5)
async def payload_format_and_content_type(t: ServerUnderTest) -> None:
    client = await t.connect()
    await client.subscribe(t.topic)
    for qos in range(3):
        await client.publish(t.topic, b"", qos, payload_format=1, content_type="My name")
    for message in await client.messages(3):
        assert message.properties == {"payload_format": 1, "content_type": "My name"}


@case("paho", ONLY_5)
async def publication_expiry(t: ServerUnderTest) -> None:
    client = await t.keeping("a")
    await client.subscribe(t.topic)
    await client.disconnect()
    sender = await t.connect("b")
    for qos in (1, 2):
        await sender.publish(t.topic, b"short", qos, message_expiry_s=1)
        await sender.publish(t.topic, b"long", qos, message_expiry_s=30)
    await asyncio.sleep(3)
    back = await t.keeping("a")
    got = await back.messages(2)
    assert [message.payload for message in got] == [b"long", b"long"]
    assert all(message.properties["message_expiry_s"] < 30 for message in got)
    await back.expect_silence()


@case("paho", ONLY_5)
async def no_local(t: ServerUnderTest) -> None:
    first, second = await t.connect("a"), await t.connect("b")
    for client in (first, second):
        await client.subscribe(Filter(t.topic, 2, no_local=True))
    await first.publish(t.topic, b"x")
    assert (await second.message()).payload == b"x"
    await first.expect_silence()


@case("paho", ONLY_5)
async def retain_as_published(t: ServerUnderTest) -> None:
    client = await t.connect()
    await client.subscribe(Filter(t.topic, 2, retain_as_published=True))
    await client.publish(t.topic, b"no", 1, False)
    await client.publish(t.topic, b"yes", 1, True)
    assert [message.retain for message in await client.messages(2)] == [False, True]
    await client.publish(t.topic, b"", 1, True)


@case("paho", ONLY_5)
async def retain_handling(t: ServerUnderTest) -> None:
    sender = await t.connect("s")
    await sender.publish(t.topic, b"kept", 1, True)
    await asyncio.sleep(0.7)
    for handling, expected in ((0, (1, 1)), (1, (1, 0)), (2, (0, 0))):
        client = await t.connect(f"r{handling}")
        for number in expected:
            await client.subscribe(Filter(t.topic, 2, retain_handling=handling))
            if number:
                assert (await client.message()).payload == b"kept"
            await client.expect_silence(0.5)
    await sender.publish(t.topic, b"", 1, True)


@case("paho", ONLY_5)
async def assigned_client_id_is_unique(t: ServerUnderTest) -> None:
    names = set()
    for _ in range(3):
        client = await t.raw()
        packet = t.connect_packet()
        packet.client_id = ""
        client.send(packet)
        names.add((await client.expect(packets.ConnAck)).properties["assigned_client_id"])
    assert len(names) == 3


@case("paho", ONLY_5)
async def subscription_identifiers(t: ServerUnderTest) -> None:
    first, second = await t.connect("a"), await t.connect("b")
    await first.subscribe(t.topic, subscription_ids=[456_789])
    await second.subscribe(t.topic, subscription_ids=[2])
    await second.subscribe(f"{t.topic}/#", subscription_ids=[3])
    await second.publish(t.topic, b"x")
    assert (await first.message()).properties["subscription_ids"] == [456_789]
    identifiers = set((await second.message()).properties["subscription_ids"])
    if identifiers != {2, 3}:
        identifiers |= set((await second.message()).properties["subscription_ids"])
    assert identifiers == {2, 3}


@case("paho", ONLY_5)
async def request_and_response(t: ServerUnderTest) -> None:
    asks, answers = await t.connect("a"), await t.connect("b")
    await asks.subscribe(f"{t.topic}/reply")
    await answers.subscribe(f"{t.topic}/ask")
    await asks.publish(f"{t.topic}/ask", b"q", 1, response_topic=f"{t.topic}/reply", correlation_data=b"334")
    request = await answers.message()
    await answers.publish(
        request.properties["response_topic"], b"a", 1, correlation_data=request.properties["correlation_data"]
    )
    reply = await asks.message()
    assert (reply.payload, reply.properties["correlation_data"]) == (b"a", b"334")


@case("paho", ONLY_5)
async def client_topic_alias(t: ServerUnderTest) -> None:
    client = await t.connect()
    assert client.connack is not None
    assert client.connack.properties.get("topic_alias_maximum", 0) > 0
    await client.subscribe(t.topic)
    await client.publish(t.topic, b"1", 1, topic_alias=1)
    await client.publish("", b"2", 1, topic_alias=1)
    assert [message.payload for message in await client.messages(2)] == [b"1", b"2"]
    await client.disconnect()
    back = await t.connect()
    back.send(packets.Publish("", b"3", 1, packet_id=9, properties={"topic_alias": 1}))
    await back.expect_close(0x82, 0x94)


@case("paho", ONLY_5)
async def client_topic_alias_zero(t: ServerUnderTest) -> None:
    client = await t.connect()
    client.send(packets.Publish(t.topic, b"x", 1, packet_id=9, properties={"topic_alias": 0}))
    await client.expect_close()


@case("paho", ONLY_5)
async def server_topic_alias(t: ServerUnderTest) -> None:
    client = await t.connect(properties={"topic_alias_maximum": 1})
    await client.subscribe(t.topic)
    for qos in range(3):
        await client.publish(t.topic, b"x", qos)
    got = await client.messages(3)
    assert [message.properties.get("topic_alias") for message in got] == [1, 1, 1]
    assert [message.topic for message in got] == [t.topic, "", ""]


@case("paho", ONLY_5)
async def no_server_topic_alias_without_permission(t: ServerUnderTest) -> None:
    client = await t.connect()
    await client.subscribe(t.topic)
    for qos in range(3):
        await client.publish(t.topic, b"x", qos)
    assert all("topic_alias" not in message.properties for message in await client.messages(3))


@case("paho", ONLY_5)
async def maximum_packet_size_of_the_client(t: ServerUnderTest) -> None:
    client = await t.connect(properties={"maximum_packet_bytes": 100})
    await client.subscribe(t.topic)
    await client.publish(t.topic, b"." * 20, 0)
    assert (await client.message()).payload == b"." * 20
    await client.publish(t.topic, b"." * 100, 1)
    await client.expect_silence()


@case("paho", ONLY_5)
async def maximum_packet_size_of_the_server(t: ServerUnderTest) -> None:
    client = await t.connect()
    assert client.connack is not None
    limit = client.connack.properties["maximum_packet_bytes"]
    client.send(packets.Publish(t.topic, b"." * limit, 0))
    await client.expect_close(0x95)


@case("paho", ONLY_5)
async def server_keep_alive(t: ServerUnderTest) -> None:
    client = await t.connect(keep_alive_s=120)
    assert client.connack is not None
    assert client.connack.properties["server_keep_alive_s"] == 60


@case("paho", ONLY_5)
async def flow_control_of_the_client(t: ServerUnderTest) -> None:
    client = await t.connect(properties={"receive_maximum": 2})
    await client.subscribe(t.topic)
    client.acknowledges = False
    sender = await t.connect("b")
    for number in range(4):
        await sender.publish(t.topic, b"%d" % number, 1 + number % 2)
    first, second = await client.messages(2)
    await client.expect_silence()
    client.send(packets.PubAck(first.packet_id))
    assert (await client.message()).payload == b"2"
    await client.expect_silence(0.4)
    client.send(packets.PubRec(second.packet_id))
    await client.expect(packets.PubRel)
    client.send(packets.PubComp(second.packet_id))
    assert (await client.message()).payload == b"3"


@case("paho", ONLY_5)
async def flow_control_of_the_server(t: ServerUnderTest) -> None:
    client = await t.connect()
    assert client.connack is not None
    limit = client.connack.properties.get("receive_maximum", 65_535)
    client.acknowledges = False
    for number in range(1, limit + 3):
        client.send(packets.Publish(t.topic, b"x", 2, packet_id=number))
    await client.expect_close(0x93)


@case("paho", ONLY_5)
async def will_delay(t: ServerUnderTest) -> None:
    watcher = await t.connect("b")
    await watcher.subscribe(t.topic)
    will = packets.Will(t.topic, b"late", 1, False, {"will_delay_s": 2})
    doomed = await t.connect(will=will, properties={"session_expiry_s": 60})
    await doomed.close()
    await watcher.expect_silence(1.2)
    assert (await watcher.message()).payload == b"late"
    returning = await t.connect(clean_start=False, will=will, properties={"session_expiry_s": 60})
    await returning.close()
    await t.connect(clean_start=False, properties={"session_expiry_s": 60})
    await watcher.expect_silence(3.0)
