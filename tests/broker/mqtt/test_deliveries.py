"""Messages to clients: queues, repeats, receive maximum, aliases, gaps."""

from __future__ import annotations

from typing import Any

import pytest

from tests.broker.mqtt.bench import Client, MqttBench
from tocsin.broker.mqtt import events, packets
from tocsin.broker.mqtt.reasons import Reason
from tocsin.wire.topic_envelope import MessageProperties, unwrapped, wrapped

EXPIRY = {"session_expiry_s": 1_000}


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
