"""Subscriptions: filters, options, shared subscriptions, retained messages, channels."""

from __future__ import annotations

import pytest

from tests.broker.mqtt.bench import V311, MqttBench, Network
from tocsin.broker.mqtt import effects, events, packets
from tocsin.broker.mqtt.packets import Filter
from tocsin.broker.mqtt.reasons import Reason

EXPIRY = {"session_expiry_s": 1_000}


@pytest.mark.parametrize(
    ("pattern", "name", "matches"),
    [
        ("a/b", "a/b", True),
        ("a/+", "a/b", True),
        ("a/+", "a/b/c", False),
        ("a/#", "a", True),
        ("a/#", "a/b/c", True),
        ("+/+", "/b", True),
        ("/+", "/b", True),
        ("+", "/b", False),
        ("#", "a/b", True),
        ("+/b", "a/b", True),
        ("a/+/c", "a//c", True),
        ("a", "A", False),
        ("sp ace/ü", "sp ace/ü", True),
        ("a~41", "a~41", True),
    ],
)
def test_filter_matches_as_in_the_specification(pattern: str, name: str, matches: bool) -> None:
    bench = MqttBench()
    client = bench.connected()
    client.subscribe(pattern)
    client.publish(name, b"x", 1)
    assert [message.topic for message in client.messages] == ([name] if matches else [])


@pytest.mark.parametrize(
    "pattern", ["a+", "a/#/b", "#a", "", "$share//a", "$share/g", "$share/g+/a", "$SYS/#", "a/b#", "a" * 300]
)
def test_filter_that_is_not_valid_is_refused_alone(pattern: str) -> None:
    answer = MqttBench().connected().subscribe("good", pattern)
    assert answer is not None
    assert answer.reasons == [Reason.GRANTED_QOS_2, Reason.TOPIC_FILTER_INVALID]
    assert answer.properties["reason_string"]


def test_refused_filter_is_0x80_in_version_3() -> None:
    answer = MqttBench().connected(version=V311).subscribe("a+")
    assert answer is not None
    assert answer.reasons == [Reason.UNSPECIFIED_ERROR]


def test_suback_waits_until_the_homes_of_the_topics_send() -> None:
    bench = MqttBench()
    client = bench.connected()
    bench.unready.add("a/#")
    assert client.subscribe("a/#") is None
    bench.do(events.PatternReady("a/#"))
    assert client.only(packets.SubAck).reasons == [Reason.GRANTED_QOS_2]


def test_subscription_is_refused_when_the_homes_do_not_answer_in_time() -> None:
    bench = MqttBench(mqtt_subscribe_s=5.0)
    client = bench.connected()
    bench.unready.add("a/#")
    client.subscribe("a/#", "b")
    bench.pass_time(6)
    assert client.only(packets.SubAck).reasons == [Reason.UNSPECIFIED_ERROR, Reason.GRANTED_QOS_2]
    assert "a/#" not in bench.watched


def test_sessions_with_the_same_filter_share_one_watch() -> None:
    bench = MqttBench()
    first, second = bench.connected("c1"), bench.connected("c2")
    first.subscribe("a/#")
    second.subscribe("a/#")
    assert bench.watched.count("a/#") == 1
    first.send(packets.Unsubscribe(1, ["a/#"]))
    assert "a/#" in bench.watched
    second.lose()
    assert "a/#" not in bench.watched


def test_unsubscribed_client_gets_nothing_more() -> None:
    bench = MqttBench()
    client = bench.connected()
    client.subscribe("a")
    client.send(packets.Unsubscribe(9, ["a", "b"]))
    assert client.only(packets.UnsubAck).reasons == [Reason.SUCCESS, Reason.NO_SUBSCRIPTION_EXISTED]
    bench.network.send("a", b"x")
    assert client.payloads == []


def test_overlapping_subscriptions_give_one_message_with_all_identifiers() -> None:
    bench = MqttBench()
    client = bench.connected()
    client.subscribe(Filter("a/#", 1), subscription_ids=[5])
    client.subscribe(Filter("a/+", 2), subscription_ids=[6])
    client.publish("a/b", b"x", 2)
    (message,) = client.messages
    assert message.qos == 2
    assert sorted(message.properties["subscription_ids"]) == [5, 6]


def test_subscription_that_is_repeated_replaces_the_earlier_one() -> None:
    bench = MqttBench()
    client = bench.connected()
    client.subscribe(Filter("a", 2), subscription_ids=[5])
    client.subscribe(Filter("a", 0))
    client.publish("a", b"x", 2)
    assert [(message.qos, message.properties) for message in client.messages] == [(0, {})]


def test_no_local_keeps_a_clients_own_messages_from_it() -> None:
    bench = MqttBench()
    first, second = bench.connected("c1"), bench.connected("c2")
    for client in (first, second):
        client.subscribe(Filter("a", 1, no_local=True))
    first.publish("a", b"x", 1)
    assert (first.payloads, second.payloads) == ([], [b"x"])


@pytest.mark.parametrize("kept", [True, False])
def test_retain_flag_is_kept_for_subscriptions_that_ask_for_it(kept: bool) -> None:
    bench = MqttBench()
    client = bench.connected()
    client.subscribe(Filter("a", 1, retain_as_published=kept))
    client.publish("a", b"x", 1, retain=True)
    client.publish("a", b"y", 1)
    assert [message.retain for message in client.messages] == [kept, False]


def test_exact_filter_needs_permission_and_a_wide_one_is_narrowed() -> None:
    bench = MqttBench()
    bench.users["narrow"] = ("bob", frozenset({"receive:mine/#"}), None)
    client = bench.connected(password=b"narrow")
    answer = client.subscribe("mine/a", "yours/a", "#")
    assert answer is not None
    assert answer.reasons == [Reason.GRANTED_QOS_2, Reason.NOT_AUTHORIZED, Reason.GRANTED_QOS_2]
    bench.network.send("yours/a", b"no")
    bench.network.send("mine/b", b"yes")
    assert client.payloads == [b"yes"]


def test_wildcard_of_the_first_level_does_not_match_the_servers_own_topics() -> None:
    bench = MqttBench()
    client = bench.connected()
    client.subscribe("#", "+/control")
    other = bench.connected("other")
    other.publish("a", b"x", 1, retain=True)
    assert [message.topic for message in client.messages] == ["a"]


def test_topic_that_begins_with_a_dollar_sign_is_hidden_from_wildcards() -> None:
    bench = MqttBench()
    client = bench.connected()
    client.subscribe("#", "+/x")
    bench.network.send("~24other/x", b"x")
    assert client.payloads == []


def test_session_with_too_many_subscriptions_is_refused_more() -> None:
    answer = MqttBench(mqtt_subscriptions=2).connected().subscribe("a", "b", "c")
    assert answer is not None
    assert answer.reasons == [Reason.GRANTED_QOS_2, Reason.GRANTED_QOS_2, Reason.QUOTA_EXCEEDED]


def test_subscriptions_survive_in_a_session() -> None:
    bench = MqttBench()
    client = bench.connected(properties=EXPIRY)
    client.subscribe("a")
    client.lose()
    back = bench.connected(clean_start=False, properties=EXPIRY)
    bench.network.send("a", b"x")
    assert back.payloads == [b"x"]


# -- shared subscriptions ----------------------------------------------------------------------------------------------


def test_shared_subscription_gives_each_message_to_one_member_in_turn() -> None:
    bench = MqttBench()
    members = [bench.connected(f"c{number}") for number in range(3)]
    alone = bench.connected("alone")
    for member in members:
        member.subscribe("$share/g/a")
    alone.subscribe("a")
    for number in range(6):
        bench.network.send("a", b"%d" % number)
    assert [len(member.payloads) for member in members] == [2, 2, 2]
    assert len(alone.payloads) == 6


def test_two_groups_get_each_message_once_each() -> None:
    bench = MqttBench()
    first, second = bench.connected("c1"), bench.connected("c2")
    first.subscribe("$share/g/a")
    second.subscribe("$share/h/a")
    bench.network.send("a", b"x")
    assert (first.payloads, second.payloads) == ([b"x"], [b"x"])


def test_shared_message_goes_to_a_connected_member_first() -> None:
    bench = MqttBench()
    gone = bench.connected("gone", properties=EXPIRY)
    here = bench.connected("here")
    for member in (gone, here):
        member.subscribe("$share/g/a", qos=1)
    gone.lose()
    for number in range(4):
        bench.network.send("a", b"%d" % number)
    assert here.payloads == [b"0", b"1", b"2", b"3"]


def test_messages_of_a_member_whose_session_ends_go_to_the_others() -> None:
    bench = MqttBench()
    stuck, other = bench.connected("stuck"), bench.connected("other")
    stuck.acknowledges = False
    for member in (stuck, other):
        member.subscribe("$share/g/a", qos=1)
    for number in range(4):
        bench.network.send("a", b"%d" % number)
    stuck.lose()
    assert sorted(other.payloads) == [b"0", b"1", b"2", b"3"]


# -- retained messages -------------------------------------------------------------------------------------------------


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


def test_bytes_on_the_control_topic_that_are_no_record_are_ignored() -> None:
    bench = MqttBench()
    bench.network.send("~24mqtt/control", b"\xc1 nothing")
    assert len(bench.core.retained) == 0


# -- channels ----------------------------------------------------------------------------------------------------------

NEAR = "$channels/NearMe?me=u1&radius_m=500"


def test_filter_of_a_channel_subscribes_to_the_channel_with_its_parameters() -> None:
    bench = MqttBench()
    client = bench.connected()
    assert client.subscribe(Filter(NEAR, 2)) is None
    asked = next(effect for effect in bench.effects if isinstance(effect, effects.SubscribeChannel))
    assert (asked.user, asked.channel, asked.parameters) == ("ann", "NearMe", {"me": "u1", "radius_m": "500"})
    bench.do(events.ChannelAnswered("ann\x1fc1", NEAR, Reason.GRANTED_QOS_1))
    assert client.only(packets.SubAck).reasons == [Reason.GRANTED_QOS_1]


def test_channel_that_is_refused_is_refused_to_the_client() -> None:
    bench = MqttBench()
    client = bench.connected()
    client.subscribe(Filter(NEAR, 1), "a")
    bench.do(events.ChannelAnswered("ann\x1fc1", NEAR, Reason.TOPIC_FILTER_INVALID, "there is no such channel"))
    answer = client.only(packets.SubAck)
    assert answer.reasons == [Reason.TOPIC_FILTER_INVALID, Reason.GRANTED_QOS_2]
    assert answer.properties["reason_string"] == "there is no such channel"


@pytest.mark.parametrize("text", ["$channels/", "$channels/+", "$channels/a/b", "$channels/A?x", "$channels/A?x=1&x=2"])
def test_malformed_channel_is_refused(text: str) -> None:
    answer = MqttBench().connected().subscribe(text)
    assert answer is not None
    assert answer.reasons == [Reason.TOPIC_FILTER_INVALID]


def test_result_carries_its_cursor_and_the_acknowledgement_acknowledges_it() -> None:
    bench = MqttBench()
    client = bench.connected()
    client.acknowledges = False
    client.subscribe(Filter(NEAR, 1), subscription_ids=[8])
    bench.do(events.ChannelAnswered("ann\x1fc1", NEAR, Reason.GRANTED_QOS_1))
    bench.do(events.ChannelResultArrived("ann\x1fc1", NEAR, "sub-1", "3-17", b'{"a": 1}'))
    (message,) = client.messages
    assert (message.topic, message.payload) == (NEAR, b'{"a": 1}')
    assert message.properties["user_properties"] == [("tocsin-cursor", "3-17")]
    assert message.properties["content_type"] == "application/json"
    assert message.properties["subscription_ids"] == [8]
    assert not [effect for effect in bench.effects if isinstance(effect, effects.AcknowledgeCursor)]
    client.send(packets.PubAck(message.packet_id))
    assert bench.effects[-1] == effects.AcknowledgeCursor("ann", "sub-1", "3-17")


def test_result_of_quality_0_is_acknowledged_when_it_is_sent() -> None:
    bench = MqttBench()
    client = bench.connected()
    client.subscribe(Filter(NEAR, 0))
    bench.do(events.ChannelAnswered("ann\x1fc1", NEAR, Reason.SUCCESS))
    bench.do(events.ChannelResultArrived("ann\x1fc1", NEAR, "sub-1", "3-17", b"{}", gap=True))
    assert ("tocsin-gap", "unknown") in client.messages[0].properties["user_properties"]
    assert bench.effects[-1] == effects.AcknowledgeCursor("ann", "sub-1", "3-17")


def test_unsubscribe_and_the_end_of_the_session_release_the_channel() -> None:
    for leave in ("unsubscribe", "lose"):
        bench = MqttBench()
        client = bench.connected()
        client.subscribe(Filter(NEAR, 1))
        bench.do(events.ChannelAnswered("ann\x1fc1", NEAR, Reason.GRANTED_QOS_1))
        if leave == "lose":
            client.lose()
        else:
            client.send(packets.Unsubscribe(1, [NEAR]))
        assert effects.UnsubscribeChannel("ann\x1fc1", "ann", NEAR) in bench.effects
