"""Messages in both directions: quality of service, flow control, aliases, properties, sizes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.broker.mqtt.bench import V5, V311, Client, MqttBench
from tocsin.broker.mqtt import events, packets
from tocsin.broker.mqtt.reasons import Reason
from tocsin.wire.topic_envelope import MessageProperties, unwrapped, wrapped

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


# -- to the client -----------------------------------------------------------------------------------------------------


def test_properties_of_a_message_reach_the_receiver_unchanged_and_in_order() -> None:
    bench = MqttBench()
    client = bench.connected()
    client.subscribe("a")
    options: dict[str, Any] = {
        "payload_format": 1,
        "content_type": "text/plain",
        "response_topic": "reply/1",
        "correlation_data": b"\x00\x01",
        "user_properties": [("b", "2"), ("a", "1"), ("b", "2")],
    }
    client.publish("a", b"x", 1, **options)
    assert client.messages[0].properties == options


def test_properties_are_not_part_of_the_data_for_other_clients_of_topics() -> None:
    bench = MqttBench()
    client = bench.connected()
    client.publish("a", b"data", 1, content_type="text/plain")
    sent = next(effect for effect in bench.effects if getattr(effect, "topic", "") == "a")
    assert unwrapped(sent.data) == (b"data", MessageProperties(qos=1, content_type="text/plain"))  # type: ignore[attr-defined]


def test_message_of_quality_2_without_properties_travels_as_it_is() -> None:
    assert wrapped(b"data", MessageProperties()) == b"data"


def away(bench: MqttBench, qos: int = 1) -> None:
    """A session that subscribes to `a` and whose client is away."""
    client = bench.connected(properties=EXPIRY)
    client.subscribe("a", qos=qos)
    client.lose()


def test_messages_wait_for_a_client_that_is_away_in_order() -> None:
    bench = MqttBench()
    away(bench)
    for number in range(5):
        bench.network.send("a", b"%d" % number)
    back = bench.connected(clean_start=False, properties=EXPIRY)
    assert back.payloads == [b"0", b"1", b"2", b"3", b"4"]
    assert not any(message.duplicate for message in back.messages)


def test_message_of_quality_0_does_not_wait_for_an_absent_client() -> None:
    bench = MqttBench()
    away(bench, qos=0)
    bench.network.send("a", b"x")
    assert bench.connected(clean_start=False, properties=EXPIRY).payloads == []


def test_expired_message_is_not_delivered_and_the_expiry_counts_down() -> None:
    bench = MqttBench()
    away(bench)
    sender = bench.connected("s")
    sender.publish("a", b"short", 1, message_expiry_s=2)
    sender.publish("a", b"long", 1, message_expiry_s=10)
    bench.pass_time(4)
    back = bench.connected(clean_start=False, properties=EXPIRY)
    assert [(message.payload, message.properties["message_expiry_s"]) for message in back.messages] == [(b"long", 6)]


def test_unacknowledged_messages_are_repeated_to_the_next_connection() -> None:
    bench = MqttBench()
    client = bench.connected(properties=EXPIRY)
    client.acknowledges = False
    client.subscribe("a", qos=2)
    bench.network.send("a", b"1")
    bench.network.send("a", b"2")
    first = [message.packet_id for message in client.messages]
    client.send(packets.PubRec(first[0]))
    client.lose()
    back = bench.client()
    back.acknowledges = False
    back.connect(clean_start=False, properties=EXPIRY)
    repeated = back.got[1:]
    assert repeated[0] == packets.PubRel(first[0])
    assert isinstance(repeated[1], packets.Publish)
    assert (repeated[1].packet_id, repeated[1].payload, repeated[1].duplicate) == (first[1], b"2", True)


def test_receive_maximum_of_the_client_limits_messages_without_acknowledgement() -> None:
    bench = MqttBench()
    client = bench.connected(properties={"receive_maximum": 2})
    client.acknowledges = False
    client.subscribe("a", qos=1)
    for number in range(4):
        bench.network.send("a", b"%d" % number)
    assert client.payloads == [b"0", b"1"]
    client.send(packets.PubAck(client.messages[0].packet_id))
    assert client.payloads == [b"0", b"1", b"2"]


def test_pubrec_with_an_error_ends_the_exchange() -> None:
    bench = MqttBench()
    client = bench.connected()
    client.acknowledges = False
    client.subscribe("a", qos=2)
    bench.network.send("a", b"x")
    client.send(packets.PubRec(client.messages[0].packet_id, Reason.UNSPECIFIED_ERROR))
    assert not bench.core.state.sessions["ann\x1fc1"].inflight


def test_pubrec_for_an_unknown_packet_identifier_is_answered() -> None:
    client = MqttBench().connected()
    client.send(packets.PubRec(77))
    assert client.only(packets.PubRel).reason == Reason.PACKET_ID_NOT_FOUND


def test_broker_uses_topic_aliases_that_the_client_accepts() -> None:
    bench = MqttBench()
    client = bench.connected(properties={"topic_alias_maximum": 1})
    client.subscribe("#")
    for topic in ("a", "a", "b", "a"):
        bench.network.send(topic, b"")
    seen = [(message.topic, message.properties.get("topic_alias")) for message in client.messages]
    assert seen == [("a", 1), ("", 1), ("b", None), ("", 1)]


def test_message_beyond_the_clients_packet_size_becomes_a_gap() -> None:
    bench = MqttBench()
    client = bench.connected(properties={"maximum_packet_bytes": 60})
    client.subscribe("a", qos=1)
    bench.network.send("a", b"x" * 100)
    assert client.payloads == []
    assert not bench.core.state.sessions["ann\x1fc1"].inflight
    bench.network.send("a", b"y")
    assert client.messages[0].properties["user_properties"] == [("tocsin-gap", "1:1-")]


def test_reason_string_that_does_not_fit_the_packet_size_is_left_out() -> None:
    client = MqttBench().connected(properties={"maximum_packet_bytes": 40})
    client.publish("$x", b"", 1)
    assert client.only(packets.PubAck) == packets.PubAck(1, Reason.TOPIC_NAME_INVALID)


@pytest.mark.parametrize("limits", [{"mqtt_queue_messages": 3}, {"mqtt_queue_bytes": 330}])
def test_full_queue_drops_messages_and_the_next_one_reports_the_gap(limits: dict[str, Any]) -> None:
    bench = MqttBench(**limits)
    away(bench)
    for number in range(1, 7):
        bench.network.send("a", b"%d" % number)
    back = bench.connected(clean_start=False, properties=EXPIRY)
    assert back.payloads == [b"1", b"2", b"3"]
    bench.network.send("a", b"7")
    assert back.messages[-1].properties["user_properties"] == [("tocsin-gap", "1:4-")]
    assert bench.core.state.dropped == 3


def test_gap_of_the_network_is_reported_with_the_next_message_once() -> None:
    bench = MqttBench()
    client = bench.connected()
    client.subscribe("a")
    bench.do(events.GapArrived("a", 4, 10, 19))
    bench.network.send("a", b"x")
    bench.network.send("a", b"y")
    reported = [message.properties.get("user_properties") for message in client.messages]
    assert reported == [[("tocsin-gap", "4:10-19")], None]


def test_gap_without_a_known_end_is_reported_open() -> None:
    bench = MqttBench()
    client = bench.connected()
    client.subscribe("a")
    bench.do(events.GapArrived("a", 4, 10, None))
    bench.network.send("a", b"x")
    assert client.messages[0].properties["user_properties"] == [("tocsin-gap", "4:10-")]


def test_client_that_asks_for_positions_gets_them() -> None:
    bench = MqttBench()
    client = bench.connected(properties={"user_properties": [("tocsin-position", "on")]})
    client.subscribe("a")
    bench.network.send("a", b"x")
    bench.network.send("a", b"y")
    positions = [message.properties["user_properties"] for message in client.messages]
    assert positions == [[("tocsin-position", "1-1")], [("tocsin-position", "1-2")]]


def test_blocked_connection_gets_its_messages_later_in_order() -> None:
    bench = MqttBench()
    slow, fast = bench.connected("slow"), bench.connected("fast")
    for client in (slow, fast):
        client.subscribe("a", qos=0)
    bench.do(events.ConnectionBlocked(slow.id))
    for number in range(3):
        bench.network.send("a", b"%d" % number)
    assert slow.payloads == []
    assert fast.payloads == [b"0", b"1", b"2"]
    bench.do(events.ConnectionDrained(slow.id))
    assert slow.payloads == [b"0", b"1", b"2"]


def test_message_is_encoded_once_for_receivers_of_quality_0() -> None:
    bench = MqttBench()
    clients: list[Client] = [bench.connected(f"c{number}") for number in range(3)]
    for client in clients:
        client.subscribe("a", qos=0)
    before = len(bench.effects)
    bench.network.send("a", b"x")
    assert len(bench.effects) == before + 1
    assert [client.payloads for client in clients] == [[b"x"]] * 3
