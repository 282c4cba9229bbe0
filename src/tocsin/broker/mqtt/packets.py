"""The packets of MQTT 3.1.1 and 5.0 as values. A packet of 3.1.1 has the default properties.

`properties` holds what the specification calls properties, by their names in `properties.py`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tocsin.broker.mqtt.reasons import Reason

V311, V5 = 4, 5
Properties = dict[str, Any]
UserProperties = list[tuple[str, str]]


class Packet(msgspec.Struct):
    pass


class Will(msgspec.Struct):
    topic: str
    payload: bytes
    qos: int
    retain: bool
    properties: Properties = {}


class Connect(Packet):
    client_id: str
    version: int = V5
    clean_start: bool = True
    keep_alive_s: int = 0
    username: str | None = None
    password: bytes | None = None
    will: Will | None = None
    properties: Properties = {}


class ConnAck(Packet):
    reason: Reason = Reason.SUCCESS
    session_present: bool = False
    properties: Properties = {}


class Publish(Packet):
    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    packet_id: int = 0
    duplicate: bool = False
    properties: Properties = {}


class Acknowledgement(Packet):
    packet_id: int
    reason: Reason = Reason.SUCCESS
    properties: Properties = {}


class PubAck(Acknowledgement):
    pass


class PubRec(Acknowledgement):
    pass


class PubRel(Acknowledgement):
    pass


class PubComp(Acknowledgement):
    pass


class Filter(msgspec.Struct):
    pattern: str
    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0


class Subscribe(Packet):
    packet_id: int
    filters: list[Filter]
    properties: Properties = {}


class SubAck(Packet):
    packet_id: int
    reasons: list[Reason]
    properties: Properties = {}


class Unsubscribe(Packet):
    packet_id: int
    patterns: list[str]
    properties: Properties = {}


class UnsubAck(Packet):
    packet_id: int
    reasons: list[Reason]
    properties: Properties = {}


class PingReq(Packet):
    pass


class PingResp(Packet):
    pass


class Disconnect(Packet):
    reason: Reason = Reason.SUCCESS
    properties: Properties = {}


class Auth(Packet):
    reason: Reason = Reason.SUCCESS
    properties: Properties = {}
