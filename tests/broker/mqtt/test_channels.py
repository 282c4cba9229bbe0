"""Channels of MQTT clients."""

from __future__ import annotations

import pytest

from tests.broker.mqtt.bench import MqttBench
from tocsin.broker.mqtt import effects, events, packets
from tocsin.broker.mqtt.packets import Filter
from tocsin.broker.mqtt.reasons import Reason

EXPIRY = {"session_expiry_s": 1_000}


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


def test_client_whose_channels_ended_is_disconnected_and_resumes_them() -> None:
    bench = MqttBench()
    expiry = {"session_expiry_s": 1_000}
    client, other = bench.connected(properties=expiry), bench.connected("other")
    client.subscribe(Filter(NEAR, 1))
    bench.do(events.ChannelAnswered("ann\x1fc1", NEAR, Reason.GRANTED_QOS_1))
    bench.do(events.ChannelsLost("ann", Reason.SESSION_TAKEN_OVER, "another session of this user"))
    assert client.only(packets.Disconnect).reason == Reason.SESSION_TAKEN_OVER
    assert not other.closed, "a client without channels stays"
    bench.effects.clear()
    bench.connected(clean_start=False, properties=expiry)
    assert [effect.pattern for effect in bench.effects if isinstance(effect, effects.SubscribeChannel)] == [NEAR]
