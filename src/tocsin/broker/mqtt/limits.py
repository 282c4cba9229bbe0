"""Limits of a broker's MQTT clients. Each is a setting of the broker's process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated


@dataclass(frozen=True, slots=True)
class MqttLimits:
    mqtt_packet_bytes: Annotated[int, "Largest MQTT packet from a client, in bytes."] = 64 << 10
    mqtt_receive_maximum: Annotated[
        int, "MQTT messages of quality of service 1 and 2 that one client may send before the first is acknowledged."
    ] = 1_000
    mqtt_inflight: Annotated[int, "MQTT messages that may wait for one client's acknowledgement."] = 100
    mqtt_topic_aliases: Annotated[int, "Topic aliases that one MQTT client may use."] = 100
    mqtt_queue_messages: Annotated[
        int, "Messages that wait for one MQTT session; more are dropped and reported as a gap."
    ] = 10_000
    mqtt_queue_bytes: Annotated[int, "Bytes that wait for one MQTT session; more are dropped and reported."] = 4 << 20
    mqtt_session_s: Annotated[int, "Longest time in seconds that a session of a disconnected MQTT client is kept."] = (
        86_400
    )
    mqtt_keep_alive_s: Annotated[int, "Longest keep-alive in seconds; a client that asks for more gets this one."] = (
        3_600
    )
    mqtt_sessions: Annotated[int, "Most MQTT sessions at this broker, connected or not."] = 100_000
    mqtt_user_sessions: Annotated[int, "Most MQTT sessions of one user at this broker."] = 10_000
    mqtt_subscriptions: Annotated[
        int, "Most subscriptions of one MQTT session, and most SUBSCRIBE packets without an answer."
    ] = 1_000
    mqtt_retained_messages: Annotated[int, "Most retained messages in the network."] = 100_000
    mqtt_retained_bytes: Annotated[int, "Bytes of retained messages in the network; each MQTT broker has a copy."] = (
        64 << 20
    )
    mqtt_waiting_bytes: Annotated[
        int,
        "Bytes of MQTT clients' messages that may wait for homes, an eighth for one user; then messages are not read.",
    ] = 32 << 20
    mqtt_subscribe_s: Annotated[
        float, "How long a subscription may wait for the homes of its topics before the broker refuses it."
    ] = 15.0
