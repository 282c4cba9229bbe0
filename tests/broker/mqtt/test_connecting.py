"""CONNECT, tokens, sessions and wills, in virtual time."""

from __future__ import annotations

import pytest

from tests.broker.mqtt.bench import ALL, V5, V311, MqttBench
from tocsin.broker.mqtt import events, packets
from tocsin.broker.mqtt.reasons import Reason


@pytest.mark.parametrize("version", [V311, V5])
def test_connect_with_a_valid_token_opens_a_session(version: int) -> None:
    answer = MqttBench().client(version).connect()
    assert answer.reason == Reason.SUCCESS
    assert not answer.session_present


def test_connack_states_the_limits_of_this_broker() -> None:
    bench = MqttBench(mqtt_receive_maximum=7, mqtt_topic_aliases=5, mqtt_packet_bytes=4_000, mqtt_session_s=60)
    answer = bench.client().connect("", properties={"session_expiry_s": 1_000, "request_response_information": 1})
    assert answer.properties["receive_maximum"] == 7
    assert answer.properties["topic_alias_maximum"] == 5
    assert answer.properties["maximum_packet_bytes"] == 4_000
    assert answer.properties["session_expiry_s"] == 60
    assert answer.properties["assigned_client_id"].startswith("auto-b1-")
    assert answer.properties["response_information"].startswith("reply/auto-b1-")


@pytest.mark.parametrize(("version", "expected"), [(V5, Reason.BAD_USER_NAME_OR_PASSWORD), (V311, 4)])
def test_connect_with_an_unknown_token_is_refused_and_closed(version: int, expected: int) -> None:
    client = MqttBench().client(version)
    assert client.connect(password=b"wrong").reason == expected
    assert client.closed


def test_token_of_the_authentication_method_opens_a_session_and_can_be_renewed() -> None:
    bench = MqttBench()
    bench.users["short"] = ("ann", ALL, bench.now_s + 10)
    client = bench.client()
    options = {"authentication_method": "token", "authentication_data": b"short"}
    assert client.connect(password=None, properties=options).properties["authentication_method"] == "token"
    bench.pass_time(8)
    options["authentication_data"] = b"secret"
    client.send(packets.Auth(Reason.RE_AUTHENTICATE, options))
    assert client.only(packets.Auth).reason == Reason.SUCCESS
    bench.pass_time(60)
    assert not client.closed


def test_renewal_with_the_token_of_another_user_ends_the_connection() -> None:
    bench = MqttBench()
    bench.users["bob's"] = ("bob", ALL, None)
    client = bench.client()
    options = {"authentication_method": "token", "authentication_data": b"secret"}
    client.connect(password=None, properties=options)
    client.send(packets.Auth(Reason.RE_AUTHENTICATE, options | {"authentication_data": b"bob's"}))
    assert client.only(packets.Disconnect).reason == Reason.NOT_AUTHORIZED


def test_unknown_authentication_method_is_refused() -> None:
    answer = MqttBench().client().connect(properties={"authentication_method": "SCRAM-SHA-1"})
    assert answer.reason == Reason.BAD_AUTHENTICATION_METHOD


def test_auth_without_a_method_in_connect_is_a_protocol_error() -> None:
    client = MqttBench().connected()
    client.send(packets.Auth(Reason.RE_AUTHENTICATE, {"authentication_method": "token"}))
    assert client.only(packets.Disconnect).reason == Reason.PROTOCOL_ERROR


def test_connection_ends_when_its_token_expires() -> None:
    bench = MqttBench()
    bench.users["short"] = ("ann", ALL, bench.now_s + 5)
    client = bench.connected(password=b"short")
    bench.pass_time(4)
    assert not client.closed
    bench.pass_time(2)
    assert client.only(packets.Disconnect).reason == Reason.NOT_AUTHORIZED


def test_revoked_token_ends_the_connection() -> None:
    bench = MqttBench()
    client = bench.connected()
    bench.do(events.ConnectionRevoked(client.id))
    assert client.only(packets.Disconnect).reason == Reason.NOT_AUTHORIZED


def test_second_connect_on_a_connection_is_a_protocol_error() -> None:
    client = MqttBench().connected()
    client.send(packets.Connect("c1", V5))
    assert client.only(packets.Disconnect).reason == Reason.PROTOCOL_ERROR


def test_packet_before_connect_closes_the_connection_without_an_answer() -> None:
    client = MqttBench().client()
    client.send(packets.PingReq())
    assert client.closed
    assert client.got == []


def test_connect_with_a_forbidden_property_is_answered_with_the_reason() -> None:
    client = MqttBench().client()
    client.send_bytes(b"\x10\x11\x00\x04MQTT\x05\x02\x00\x3c\x03\x21\x00\x00\x00\x01c")
    assert client.only(packets.ConnAck).reason == Reason.PROTOCOL_ERROR
    assert client.closed


def test_empty_client_id_without_clean_session_is_refused_in_version_3() -> None:
    assert MqttBench().client(V311).connect("", clean_start=False).reason == 2


def test_old_protocol_gets_the_return_code_of_an_unacceptable_version() -> None:
    client = MqttBench().client(V311)
    client.send_bytes(b"\x10\x0f\x00\x06MQIsdp\x03\x02\x00\x3c\x00\x01c")
    assert client.only(packets.ConnAck).reason == 1
    assert client.closed


def test_packets_sent_before_the_connack_are_handled_after_it() -> None:
    bench = MqttBench()
    client = bench.client()
    checks = []
    bench._check = lambda connection, token: checks.append(connection)  # type: ignore[method-assign]
    client.send(packets.Connect("c1", V5, username="ann", password=b"secret"))
    client.send(packets.PingReq())
    assert client.got == []
    bench.do(events.TokenAccepted(client.id, "ann", ALL))
    assert [type(packet) for packet in client.got] == [packets.ConnAck, packets.PingResp]


# -- sessions ----------------------------------------------------------------------------------------------------------


def test_second_connection_takes_the_session_over() -> None:
    bench = MqttBench()
    first = bench.connected(properties={"session_expiry_s": 100})
    second = bench.client()
    assert second.connect(clean_start=False, properties={"session_expiry_s": 100}).session_present
    assert first.only(packets.Disconnect).reason == Reason.SESSION_TAKEN_OVER
    assert first.closed


def test_two_users_with_the_same_client_id_have_separate_sessions() -> None:
    bench = MqttBench()
    bench.users["bob's"] = ("bob", ALL, None)
    first = bench.connected()
    second = bench.connected(password=b"bob's")
    assert not first.closed
    assert not second.closed


@pytest.mark.parametrize(("away_s", "present"), [(4.0, True), (6.0, False)])
def test_session_lasts_as_long_as_its_expiry(away_s: float, present: bool) -> None:
    bench = MqttBench()
    bench.connected(properties={"session_expiry_s": 5}).send(packets.Disconnect())
    bench.pass_time(away_s)
    assert bench.client().connect(clean_start=False).session_present == present


def test_session_without_expiry_ends_with_its_connection() -> None:
    bench = MqttBench()
    bench.connected().lose()
    assert bench.core.state.sessions == {}


def test_disconnect_can_change_the_expiry() -> None:
    bench = MqttBench()
    bench.connected(properties={"session_expiry_s": 1}).send(packets.Disconnect(properties={"session_expiry_s": 50}))
    bench.pass_time(20)
    assert bench.client().connect(clean_start=False).session_present


def test_disconnect_cannot_give_an_expiry_to_a_session_without_one() -> None:
    client = MqttBench().connected()
    client.send(packets.Disconnect(properties={"session_expiry_s": 50}))
    assert client.only(packets.Disconnect).reason == Reason.PROTOCOL_ERROR


def test_clean_start_ends_the_earlier_session() -> None:
    bench = MqttBench()
    first = bench.connected(properties={"session_expiry_s": 100})
    first.subscribe("a")
    first.lose()
    assert not bench.client().connect(clean_start=True).session_present
    assert "a" not in bench.watched


def test_session_of_version_3_without_clean_session_is_kept() -> None:
    bench = MqttBench()
    bench.connected(version=V311, clean_start=False).lose()
    bench.pass_time(100)
    assert bench.client(V311).connect(clean_start=False).session_present


def test_user_with_too_many_sessions_is_refused() -> None:
    bench = MqttBench(mqtt_user_sessions=2)
    bench.connected("c1")
    bench.connected("c2")
    answer = bench.client().connect("c3")
    assert answer.reason == Reason.QUOTA_EXCEEDED
    assert answer.properties["reason_string"] == "a user has at most 2 sessions"


def test_full_broker_refuses_new_sessions_and_accepts_known_ones() -> None:
    bench = MqttBench(mqtt_sessions=1)
    bench.connected("c1", properties={"session_expiry_s": 10})
    assert bench.client().connect("c2").reason == Reason.SERVER_BUSY
    assert bench.client().connect("c1", clean_start=False).reason == Reason.SUCCESS


# -- keep-alive --------------------------------------------------------------------------------------------------------


def test_silent_client_is_disconnected_after_one_and_a_half_keep_alive_times() -> None:
    bench = MqttBench()
    client = bench.connected(keep_alive_s=10)
    bench.pass_time(14.5)
    assert not client.closed
    bench.pass_time(1)
    assert client.only(packets.Disconnect).reason == Reason.KEEP_ALIVE_TIMEOUT


def test_client_that_asks_for_a_long_keep_alive_gets_the_longest() -> None:
    bench = MqttBench(mqtt_keep_alive_s=60)
    client = bench.client()
    assert client.connect(keep_alive_s=120).properties["server_keep_alive_s"] == 60
    bench.pass_time(91)
    assert client.only(packets.Disconnect).reason == Reason.KEEP_ALIVE_TIMEOUT


def test_client_that_pings_stays_connected() -> None:
    bench = MqttBench()
    client = bench.connected(keep_alive_s=10)
    for _ in range(5):
        bench.pass_time(9)
        client.send(packets.PingReq())
    assert not client.closed


# -- placement ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("moved", "reason"), [(False, Reason.USE_ANOTHER_SERVER), (True, Reason.SERVER_MOVED)])
def test_client_placed_elsewhere_gets_the_reference_of_the_other_broker(moved: bool, reason: Reason) -> None:
    bench = MqttBench()
    client = bench.connected()
    bench.do(events.PlacementChanged("b2:1883", moved))
    parting = client.only(packets.Disconnect)
    assert (parting.reason, parting.properties["server_reference"]) == (reason, "b2:1883")
    answer = bench.client().connect()
    assert (answer.reason, answer.properties["server_reference"]) == (reason, "b2:1883")
    bench.do(events.PlacementChanged(None))
    assert bench.client().connect().reason == Reason.SUCCESS


def test_placement_of_one_user_leaves_the_others() -> None:
    bench = MqttBench()
    bench.users["bob's"] = ("bob", ALL, None)
    ann, bob = bench.connected("a"), bench.connected("b", password=b"bob's")
    bench.do(events.PlacementChanged("b2:1883", True, "bob"))
    assert bob.closed
    assert not ann.closed


def test_stopping_broker_names_the_brokers_that_remain() -> None:
    bench = MqttBench()
    other = MqttBench(bench.network, "b2")
    client = bench.connected()
    bench.do(events.StopRequested())
    parting = client.only(packets.Disconnect)
    assert (parting.reason, parting.properties["server_reference"]) == (Reason.USE_ANOTHER_SERVER, "b2:1883")
    lonely = other.connected()
    other.core.peers.addresses.clear()
    other.do(events.StopRequested())
    assert lonely.only(packets.Disconnect).reason == Reason.SERVER_SHUTTING_DOWN
