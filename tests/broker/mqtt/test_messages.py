"""Messages in both directions: quality of service, flow control, aliases, properties, sizes."""

from __future__ import annotations

import pytest

from tests.broker.mqtt.bench import V5, V311, MqttBench
from tocsin.broker.mqtt import packets
from tocsin.broker.mqtt.reasons import Reason

EXPIRY = {"session_expiry_s": 1_000}


@pytest.mark.parametrize("version", [V311, V5])
@pytest.mark.parametrize("published", [0, 1, 2])
@pytest.mark.parametrize("subscribed", [0, 1, 2])
def test_message_has_the_lower_quality_of_publication_and_subscription(
    version: int, published: int, subscribed: int
) -> None:
    bench = MqttBench()
    receiver, sender = bench.connected("r", version), bench.connected("s", version)
    receiver.subscribe("a/b", qos=subscribed)
    sender.publish("a/b", b"hello", published)
    assert [(message.payload, message.qos) for message in receiver.messages] == [(b"hello", min(published, subscribed))]
    assert not receiver.bench.core.state.sessions["ann\x1fr"].inflight
    assert not receiver.bench.core.state.sessions["ann\x1fs"].incoming


def test_message_of_another_client_of_topics_has_the_quality_of_the_subscription() -> None:
    bench = MqttBench()
    receiver = bench.connected()
    receiver.subscribe("a/b", qos=1)
    bench.network.send("a/b", b"raw")
    assert [(message.payload, message.qos) for message in receiver.messages] == [(b"raw", 1)]


# -- from the client ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("qos", "answer"), [(1, packets.PubAck), (2, packets.PubRec)])
def test_message_is_acknowledged_only_after_its_home_has_accepted_it(qos: int, answer: type) -> None:
    bench = MqttBench()
    sender = bench.connected()
    bench.network.holds_back = True
    number = sender.publish("a", b"x", qos)
    assert not [packet for packet in sender.got if isinstance(packet, answer)]
    bench.network.answer_all()
    assert sender.only(answer).packet_id == number


def test_message_that_the_home_refuses_is_refused_to_the_client() -> None:
    bench = MqttBench()
    bench.network.refusals["a"] = ("too_large", "a message has at most 10 bytes")
    sender = bench.connected()
    sender.publish("a", b"x", 1)
    answer = sender.only(packets.PubAck)
    assert (answer.reason, answer.properties["reason_string"]) == (
        Reason.QUOTA_EXCEEDED,
        "a message has at most 10 bytes",
    )


def test_refused_message_is_acknowledged_in_version_3_which_has_no_refusal() -> None:
    bench = MqttBench()
    bench.users["reader"] = ("bob", frozenset({"receive:#"}), None)
    sender = bench.connected(version=V311, password=b"reader")
    sender.publish("a", b"x", 1)
    sender.publish("a", b"x", 2)
    assert [type(packet) for packet in sender.got[1:]] == [packets.PubAck, packets.PubRec, packets.PubComp]
    assert bench.network.sequences["a"] == 0


def test_message_without_permission_is_refused() -> None:
    bench = MqttBench()
    bench.users["reader"] = ("bob", frozenset({"receive:#", "send:mine/#"}), None)
    sender = bench.connected(password=b"reader")
    sender.publish("a", b"x", 1)
    assert sender.only(packets.PubAck).reason == Reason.NOT_AUTHORIZED
    sender.publish("mine/a", b"x")
    assert dict(bench.network.sequences) | {"~24mqtt/control": 0} == {"mine/a": 1, "~24mqtt/control": 0}


@pytest.mark.parametrize("name", ["$SYS/x", "$mqtt/control", "a" * 300, "/".join("a" * 20)])
def test_message_to_a_name_that_no_topic_can_have_is_refused(name: str) -> None:
    sender = MqttBench().connected()
    sender.publish(name, b"x", 2)
    assert sender.only(packets.PubRec).reason == Reason.TOPIC_NAME_INVALID


def test_repeat_of_a_message_on_its_way_is_published_once() -> None:
    bench = MqttBench()
    sender = bench.connected(properties=EXPIRY)
    bench.network.holds_back = True
    sender.send(packets.Publish("a", b"x", 1, packet_id=9))
    sender.lose()
    back = bench.connected(clean_start=False, properties=EXPIRY)
    back.send(packets.Publish("a", b"x", 1, packet_id=9, duplicate=True))
    bench.network.answer_all()
    assert back.only(packets.PubAck).packet_id == 9
    assert bench.network.sequences["a"] == 1


def test_repeat_of_a_message_accepted_in_absence_is_published_once() -> None:
    bench = MqttBench()
    sender = bench.connected(properties=EXPIRY)
    bench.network.holds_back = True
    sender.send(packets.Publish("a", b"x", 1, packet_id=9))
    sender.lose()
    bench.network.answer_all()
    back = bench.connected(clean_start=False, properties=EXPIRY)
    back.send(packets.Publish("a", b"x", 1, packet_id=9, duplicate=True))
    assert back.only(packets.PubAck).packet_id == 9
    assert bench.network.sequences["a"] == 1


def test_message_of_quality_2_is_published_once_however_often_it_is_repeated() -> None:
    bench = MqttBench()
    sender = bench.connected(properties=EXPIRY)
    sender.acknowledges = False
    sender.send(packets.Publish("a", b"x", 2, packet_id=5))
    sender.lose()
    back = bench.connected(clean_start=False, properties=EXPIRY)
    back.acknowledges = False
    back.send(packets.Publish("a", b"x", 2, packet_id=5, duplicate=True))
    assert back.only(packets.PubRec).packet_id == 5
    back.send(packets.PubRel(5))
    back.send(packets.PubRel(5))
    assert [packet.reason for packet in back.got if isinstance(packet, packets.PubComp)] == [
        Reason.SUCCESS,
        Reason.PACKET_ID_NOT_FOUND,
    ]
    assert bench.network.sequences["a"] == 1


def test_packet_identifier_in_use_is_refused() -> None:
    bench = MqttBench()
    sender = bench.connected()
    bench.network.holds_back = True
    sender.send(packets.Publish("a", b"x", 1, packet_id=5))
    sender.send(packets.Publish("a", b"y", 1, packet_id=5))
    assert sender.only(packets.PubAck).reason == Reason.PACKET_ID_IN_USE


def test_client_that_exceeds_the_receive_maximum_is_disconnected() -> None:
    bench = MqttBench(mqtt_receive_maximum=2)
    sender = bench.connected()
    bench.network.holds_back = True
    for _ in range(3):
        sender.publish("a", b"x", 1)
    assert sender.only(packets.Disconnect).reason == Reason.RECEIVE_MAXIMUM_EXCEEDED


def test_topic_alias_stands_for_its_topic() -> None:
    bench = MqttBench()
    client = bench.connected()
    client.subscribe("#")
    client.publish("a/b", b"1", topic_alias=3)
    client.publish("", b"2", topic_alias=3)
    client.publish("c", b"3", topic_alias=3)
    client.publish("", b"4", topic_alias=3)
    assert [(message.topic, message.payload) for message in client.messages] == [
        ("a/b", b"1"), ("a/b", b"2"), ("c", b"3"), ("c", b"4"),
    ]  # fmt: skip


@pytest.mark.parametrize(("alias", "reason"), [(101, Reason.TOPIC_ALIAS_INVALID), (4, Reason.PROTOCOL_ERROR)])
def test_alias_that_is_too_high_or_unknown_ends_the_connection(alias: int, reason: Reason) -> None:
    client = MqttBench().connected()
    client.publish("", b"x", topic_alias=alias)
    assert client.only(packets.Disconnect).reason == reason


def test_payload_that_is_not_utf8_although_the_client_says_so_is_refused() -> None:
    client = MqttBench().connected()
    client.publish("a", b"\xff", 1, payload_format=1)
    assert client.only(packets.PubAck).reason == Reason.PAYLOAD_FORMAT_INVALID


def test_client_that_wants_no_reasons_gets_none() -> None:
    client = MqttBench().connected(properties={"request_problem_information": 0})
    client.publish("$x", b"", 1)
    assert client.only(packets.PubAck).properties == {}


def test_violation_ends_the_connection_with_its_reason() -> None:
    client = MqttBench(mqtt_packet_bytes=100).connected()
    client.send_bytes(b"\x30\xff\x7f")
    assert client.only(packets.Disconnect).reason == Reason.PACKET_TOO_LARGE
    assert client.closed
