"""A message on its way to MQTT sessions: encoded once per version and shared by all its receivers."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil

from tocsin.broker.mqtt.names import name_of
from tocsin.broker.mqtt.octets import text_bytes
from tocsin.broker.mqtt.packets import V5, Properties
from tocsin.broker.mqtt.writing import publish_bytes, publish_tail
from tocsin.model.topic import Position
from tocsin.wire.topic_envelope import MessageProperties, unwrapped

_OVERHEAD_BYTES = 100
"""Memory of a message that waits, besides its payload."""
POSITION, GAP, CURSOR = "tocsin-position", "tocsin-gap", "tocsin-cursor"
"""User properties: a message's position, missing messages before it, and a result's cursor."""
_COPIED = ("payload_format", "content_type", "response_topic", "correlation_data")


@dataclass(slots=True, eq=False)
class Publication:
    topic: str
    """The network's topic."""
    name: str
    """Its name in MQTT."""
    payload: bytes
    properties: MessageProperties
    position: Position | None
    arrived_s: float
    _encoded: dict[tuple[int, int, bool], bytes] = field(default_factory=dict)
    _name_bytes: bytes = b""

    @property
    def size_bytes(self) -> int:
        return len(self.payload) + len(self.name) + _OVERHEAD_BYTES

    def is_expired(self, now_s: float) -> bool:
        expiry_s = self.properties.message_expiry_s
        return expiry_s is not None and now_s >= self.arrived_s + expiry_s

    def options(self, now_s: float) -> Properties:
        """The properties for a client of MQTT 5; the expiry is what is left of it."""
        properties = self.properties
        options: Properties = {}
        for name in _COPIED:
            value = getattr(properties, name)
            if value is not None:
                options[name] = value
        if properties.message_expiry_s is not None:
            left_s = properties.message_expiry_s - (now_s - self.arrived_s)
            options["message_expiry_s"] = max(0, ceil(left_s))
        if properties.user_properties:
            options["user_properties"] = list(properties.user_properties)
        return options

    @property
    def name_bytes(self) -> bytes:
        if not self._name_bytes:
            self._name_bytes = text_bytes(self.name)
        return self._name_bytes

    def shared_bytes(self, version: int, retain: bool, now_s: float) -> bytes:
        """The whole packet for receivers of quality of service 0 without properties of their own, encoded once."""
        key = (version, 0, retain)
        data = self._encoded.get(key)
        if data is None:
            tail = publish_tail(self.payload, self.options(now_s) if version == V5 else {}, version)
            data = self._encoded[key] = publish_bytes(self.name_bytes, tail, 0, retain=retain)
        return data


def publication_of(topic: str, data: bytes, position: Position | None, now_s: float) -> Publication:
    payload, properties = unwrapped(data)
    return Publication(topic, name_of(topic), payload, properties, position, now_s)
