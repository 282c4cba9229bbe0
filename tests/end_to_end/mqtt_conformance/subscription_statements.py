"""Statements of the specification about filters, subscriptions and retained messages."""

from __future__ import annotations

import asyncio
import contextlib

from tests.end_to_end.mqtt_conformance.cases import BOTH, case
from tests.end_to_end.mqtt_conformance.client import Closed, ServerUnderTest
from tocsin.broker.mqtt import packets
from tocsin.broker.mqtt.packets import Filter


@case("MQTT-4.7.1-1", BOTH)
async def filters_that_are_not_valid(t: ServerUnderTest) -> None:
    for pattern in ("a+", "a/#/b", "a#"):
        client = await t.connect(pattern.encode().hex())
        with contextlib.suppress(Closed):
            assert (await client.subscribe(pattern)).reasons[0] >= 0x80, pattern


@case("should 3.9.3")
async def filter_that_is_not_valid_has_its_reason(t: ServerUnderTest) -> None:
    client = await t.connect()
    try:
        assert (await client.subscribe("a/#/b")).reasons == [0x8F]
    except Closed:
        raise AssertionError("closed without a reason for the filter") from None


@case("4.7.1.2", BOTH)
async def multi_level_wildcard_includes_the_parent(t: ServerUnderTest) -> None:
    client = await t.connect()
    await client.subscribe(f"{t.topic}/#")
    for name in (t.topic, f"{t.topic}/a", f"{t.topic}/a/b"):
        await client.publish(name, b"x")
    assert len(await client.messages(3)) == 3


@case("4.7.1.3", BOTH)
async def single_level_wildcard_matches_an_empty_level(t: ServerUnderTest) -> None:
    client = await t.connect()
    await client.subscribe(f"{t.topic}/+/b")
    await client.publish(f"{t.topic}//b", b"x")
    assert (await client.message()).topic == f"{t.topic}//b"


@case("4.7.3", BOTH)
async def names_are_case_sensitive(t: ServerUnderTest) -> None:
    client = await t.connect()
    await client.subscribe(f"{t.topic}/a")
    await client.publish(f"{t.topic}/A", b"x")
    await client.expect_silence()


@case("MQTT-3.8.4-3", BOTH)
async def repeated_subscription_replaces_the_earlier_one(t: ServerUnderTest) -> None:
    client = await t.connect()
    await client.subscribe(t.topic, qos=2)
    await client.subscribe(t.topic, qos=0)
    await client.publish(t.topic, b"x", 2)
    assert (await client.message()).qos == 0
    await client.expect_silence()


@case("MQTT-3.8.4-5", BOTH)
async def several_filters_in_one_subscribe(t: ServerUnderTest) -> None:
    client = await t.connect()
    answer = await client.subscribe(*(Filter(f"{t.topic}/{qos}", qos) for qos in range(3)))
    assert list(answer.reasons) == [0, 1, 2]


@case("3.11.3")
async def unsubscribe_without_a_subscription(t: ServerUnderTest) -> None:
    client = await t.connect()
    await client.subscribe(f"{t.topic}/a")
    assert list((await client.unsubscribe(f"{t.topic}/a", f"{t.topic}/b")).reasons) == [0x00, 0x11]


@case("MQTT-3.3.1-6", BOTH)
async def empty_retained_message_removes_the_retained_one(t: ServerUnderTest) -> None:
    client = await t.connect()
    await client.publish(t.topic, b"x", 1, True)
    await client.publish(t.topic, b"", 1, True)
    await asyncio.sleep(0.5)
    later = await t.connect("b")
    await later.subscribe(t.topic)
    await later.expect_silence()


@case("MQTT-3.3.1-12", BOTH)
async def retain_flag_is_cleared_for_present_subscribers(t: ServerUnderTest) -> None:
    client = await t.connect()
    await client.subscribe(t.topic)
    await client.publish(t.topic, b"x", 1, True)
    assert not (await client.message()).retain
    await client.publish(t.topic, b"", 1, True)


@case("3.3.2.3.3")
async def expired_retained_message_is_not_sent(t: ServerUnderTest) -> None:
    client = await t.connect()
    await client.publish(t.topic, b"x", 1, True, message_expiry_s=1)
    await asyncio.sleep(2.5)
    later = await t.connect("b")
    await later.subscribe(t.topic)
    await later.expect_silence()


@case("should 4.8.2")
async def shared_subscription_gets_no_retained_message(t: ServerUnderTest) -> None:
    client = await t.connect()
    await client.publish(t.topic, b"x", 1, True)
    await asyncio.sleep(0.7)
    later = await t.connect("b")
    await later.subscribe(f"$share/g/{t.topic}")
    await later.expect_silence()
    await client.publish(t.topic, b"", 1, True)


@case("MQTT-4.8.2-2")
async def malformed_shared_subscription(t: ServerUnderTest) -> None:
    client = await t.connect()
    with contextlib.suppress(Closed):
        assert (await client.subscribe("$share/g")).reasons[0] >= 0x80


@case("should 4.8.2")
async def shared_message_of_a_lost_client_goes_to_another(t: ServerUnderTest) -> None:
    first, second = await t.connect("a"), await t.connect("b")
    first.acknowledges = second.acknowledges = False
    for member in (first, second):
        await member.subscribe(f"$share/g/{t.topic}", qos=1)
    sender = await t.connect("c")
    for number in range(4):
        await sender.publish(t.topic, b"%d" % number)
    await asyncio.sleep(0.5)
    await first.close()
    assert {message.payload for message in await second.messages(4)} == {b"0", b"1", b"2", b"3"}


@case("3.1.2.11.7")
async def no_reason_string_without_permission(t: ServerUnderTest) -> None:
    client = await t.connect(properties={"request_problem_information": 0})
    client.send(packets.Subscribe(9, [Filter("a/#/b", 1)]))
    with contextlib.suppress(Closed):
        assert "reason_string" not in (await client.expect(packets.SubAck, 9)).properties


@case("MQTT-3.12.4-1", BOTH)
async def ping(t: ServerUnderTest) -> None:
    client = await t.connect()
    client.send(packets.PingReq())
    await client.expect(packets.PingResp)


@case("MQTT-3.3.2-20")
async def content_type_reaches_the_receiver_of_a_retained_message(t: ServerUnderTest) -> None:
    client = await t.connect()
    await client.publish(t.topic, b"x", 1, True, content_type="text/x", user_properties=[("k", "v")])
    await asyncio.sleep(0.7)
    later = await t.connect("b")
    await later.subscribe(t.topic, subscription_ids=[5])
    message = await later.message()
    assert message.properties == {
        "content_type": "text/x", "user_properties": [("k", "v")], "subscription_ids": [5],
    }  # fmt: skip
    await client.publish(t.topic, b"", 1, True)
