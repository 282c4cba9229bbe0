"""Subscriptions: filters, options, shared subscriptions, retained messages, channels."""

from __future__ import annotations

import pytest

from tests.broker.mqtt.bench import V311, MqttBench
from tocsin.broker.mqtt import events, packets
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
