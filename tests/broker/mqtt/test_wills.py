"""Wills, in virtual time."""

from __future__ import annotations

from tests.broker.mqtt.bench import MqttBench
from tocsin.broker.mqtt import packets
from tocsin.broker.mqtt.reasons import Reason


def will(payload: bytes = b"gone", **properties: int) -> packets.Will:
    return packets.Will("wills/c1", payload, 1, False, properties)


def test_will_is_published_when_the_connection_is_lost() -> None:
    bench = MqttBench()
    other = bench.connected("other")
    other.subscribe("wills/#")
    bench.connected(will=will()).lose()
    assert other.payloads == [b"gone"]


def test_normal_disconnect_removes_the_will() -> None:
    bench = MqttBench()
    other = bench.connected("other")
    other.subscribe("wills/#")
    bench.connected(will=will()).send(packets.Disconnect())
    assert other.payloads == []


def test_disconnect_with_will_publishes_it() -> None:
    bench = MqttBench()
    other = bench.connected("other")
    other.subscribe("wills/#")
    bench.connected(will=will()).send(packets.Disconnect(Reason.DISCONNECT_WITH_WILL))
    assert other.payloads == [b"gone"]


def test_will_waits_for_its_delay_and_a_return_cancels_it() -> None:
    bench = MqttBench()
    other = bench.connected("other")
    other.subscribe("wills/#")
    options = {"session_expiry_s": 100}
    bench.connected(will=will(will_delay_s=5), properties=options).lose()
    bench.pass_time(4)
    back = bench.connected(clean_start=False, will=will(b"second", will_delay_s=5), properties=options)
    bench.pass_time(10)
    assert other.payloads == []
    back.lose()
    bench.pass_time(6)
    assert other.payloads == [b"second"]


def test_will_is_published_at_the_latest_when_the_session_ends() -> None:
    bench = MqttBench()
    other = bench.connected("other")
    other.subscribe("wills/#")
    bench.connected(will=will(will_delay_s=500), properties={"session_expiry_s": 3}).lose()
    bench.pass_time(2)
    assert other.payloads == []
    bench.pass_time(2)
    assert other.payloads == [b"gone"]


def test_will_of_a_client_that_missed_its_keep_alive_is_published() -> None:
    bench = MqttBench()
    other = bench.connected("other")
    other.subscribe("wills/#")
    bench.connected(will=will(), keep_alive_s=2)
    bench.pass_time(4)
    assert other.payloads == [b"gone"]


def test_will_to_a_topic_without_permission_is_refused_at_connect() -> None:
    bench = MqttBench()
    bench.users["reader"] = ("bob", frozenset({"receive:#"}), None)
    assert bench.client().connect(password=b"reader", will=will()).reason == Reason.NOT_AUTHORIZED


def test_retained_will_is_kept_for_later_subscribers() -> None:
    bench = MqttBench()
    bench.connected(will=packets.Will("wills/c1", b"gone", 1, True)).lose()
    later = bench.connected("later")
    later.subscribe("wills/c1")
    assert [(message.payload, message.retain) for message in later.messages] == [(b"gone", True)]
