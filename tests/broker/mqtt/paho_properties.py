"""Properties of MQTT 5 packets for paho-mqtt and aiomqtt, which have no types for them."""

from __future__ import annotations

from typing import Any

from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties


def connect_properties(**values: Any) -> Any:
    return _properties(PacketTypes.CONNECT, values)


def publish_properties(**values: Any) -> Any:
    return _properties(PacketTypes.PUBLISH, values)


def _properties(kind: int, values: dict[str, Any]) -> Any:
    properties: Any = Properties(kind)  # type: ignore[no-untyped-call]
    for name, value in values.items():
        setattr(properties, name, value)
    return properties
