"""Retained messages at one broker and at several."""

from __future__ import annotations

import pytest

from tests.broker.mqtt.bench import MqttBench, Network
from tocsin.broker.mqtt import events, packets
from tocsin.broker.mqtt.packets import Filter
from tocsin.broker.mqtt.reasons import Reason

EXPIRY = {"session_expiry_s": 1_000}


def test_later_subscriber_gets_the_last_retained_message() -> None:
    bench = MqttBench()
    sender = bench.connected("s")
    sender.publish("a", b"old", 1, retain=True)
    sender.publish("a", b"new", 1, retain=True, content_type="t", user_properties=[("k", "v")])
    sender.publish("a", b"unretained", 1)
    later = bench.connected("l")
    later.subscribe("+")
    (message,) = later.messages
    assert (message.payload, message.retain, message.qos) == (b"new", True, 1)
    assert message.properties == {"content_type": "t", "user_properties": [("k", "v")]}


def test_retained_message_is_visible_here_before_its_home_has_answered() -> None:
    bench = MqttBench()
    client = bench.connected()
    bench.network.holds_back = True
    client.publish("a", b"x", 0, retain=True)
    client.subscribe("a")
    assert client.payloads == [b"x"]
    assert client.messages[0].retain


def test_empty_retained_message_removes_the_retained_one() -> None:
    bench = MqttBench()
    sender = bench.connected("s")
    sender.publish("a", b"x", 1, retain=True)
    sender.publish("a", b"", 1, retain=True)
    later = bench.connected("l")
    later.subscribe("a")
    assert later.payloads == []
    assert len(bench.core.retained) == 0


@pytest.mark.parametrize(("handling", "first", "second"), [(0, 1, 1), (1, 1, 0), (2, 0, 0)])
def test_retain_handling_decides_when_retained_messages_are_sent(handling: int, first: int, second: int) -> None:
    bench = MqttBench()
    client = bench.connected()
    client.publish("a", b"x", 1, retain=True)
    client.subscribe(Filter("a", 1, retain_handling=handling))
    assert len(client.messages) == first
    client.subscribe(Filter("a", 1, retain_handling=handling))
    assert len(client.messages) == first + second


def test_shared_subscription_gets_no_retained_messages() -> None:
    bench = MqttBench()
    client = bench.connected()
    client.publish("a", b"x", 1, retain=True)
    client.subscribe("$share/g/a")
    assert client.payloads == []


def test_expired_retained_message_is_not_sent() -> None:
    bench = MqttBench()
    client = bench.connected()
    client.publish("a", b"x", 1, retain=True, message_expiry_s=5)
    bench.pass_time(6)
    client.subscribe("a")
    assert client.payloads == []


def test_retained_messages_are_limited() -> None:
    bench = MqttBench(mqtt_retained_messages=1)
    client = bench.connected()
    client.publish("a", b"x", 1, retain=True)
    client.publish("b", b"x", 1, retain=True)
    client.publish("a", b"y", 1, retain=True)
    reasons = [packet.reason for packet in client.got if isinstance(packet, packets.PubAck)]
    assert reasons == [Reason.SUCCESS, Reason.QUOTA_EXCEEDED, Reason.SUCCESS]


def test_every_broker_has_the_retained_messages() -> None:
    network = Network()
    first, second = MqttBench(network, "b1"), MqttBench(network, "b2")
    first.connected().publish("a", b"x", 1, retain=True)
    client = second.connected()
    client.subscribe("a")
    assert client.payloads == [b"x"]


def test_broker_that_starts_later_asks_the_others_for_the_retained_messages() -> None:
    network = Network()
    first = MqttBench(network, "b1")
    sender = first.connected()
    sender.publish("a", b"x", 1, retain=True)
    sender.publish("b", b"x", 1, retain=True)
    sender.publish("b", b"", 1, retain=True)
    late = MqttBench(network, "b2")
    first.pass_time(1)
    client = late.connected()
    client.subscribe("#")
    assert client.payloads == [b"x"]


def test_subscriptions_wait_until_the_retained_messages_are_known() -> None:
    bench = MqttBench()
    bench.core.peers.is_ready = False
    client = bench.connected()
    assert client.subscribe("a") is None
    bench.do(events.GapArrived("~24mqtt/control", 1, 1, 2))
    bench.pass_time(1.5)
    assert client.only(packets.SubAck).reasons == [Reason.GRANTED_QOS_2]


def test_retained_message_is_acknowledged_after_both_of_its_homes() -> None:
    bench = MqttBench()
    sender = bench.connected()
    bench.network.holds_back = True
    sender.publish("a", b"x", 1, retain=True)
    first, second = bench.network.waiting
    bench.network.holds_back, bench.network.waiting = False, []
    bench.network.publish(*first)
    assert not [packet for packet in sender.got if isinstance(packet, packets.PubAck)]
    bench.network.publish(*second)
    assert sender.only(packets.PubAck).reason == Reason.SUCCESS


def test_older_state_of_another_broker_does_not_replace_a_newer_message() -> None:
    bench = MqttBench()
    sender = bench.connected()
    sender.publish("a", b"old", 1, retain=True)
    stale = [entry for part in bench.core.retained.parts() for entry in part]
    sender.publish("a", b"new", 1, retain=True)
    bench.core.retained.merge(stale)
    sender.subscribe("a")
    assert sender.payloads == [b"new"]


def test_subscription_is_refused_when_the_retained_messages_stay_unknown() -> None:
    bench = MqttBench(mqtt_subscribe_s=5.0)
    bench.core.peers.is_ready = False
    client = bench.connected()
    client.subscribe("a")
    bench.pass_time(6)
    assert client.only(packets.SubAck).reasons == [Reason.UNSPECIFIED_ERROR]
    assert "a" not in bench.watched


def test_bytes_on_the_control_topic_that_are_no_record_are_ignored() -> None:
    bench = MqttBench()
    bench.network.send("~24mqtt/control", b"\xc1 nothing")
    assert len(bench.core.retained) == 0
