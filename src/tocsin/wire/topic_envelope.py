"""Properties of a topic's message, in front of its data: an MQTT client sends them, and every client may read them.

A home carries bytes and does not look inside. A message without properties has none of this. The mark begins with a
byte that never occurs in UTF-8 text; bytes that follow the mark by chance and are no header stay data.
"""

from __future__ import annotations

from functools import lru_cache

import msgspec

MARK = b"\xf5TM\x01"
_SIZE_BYTES = 2
_HEADER_AT = len(MARK) + _SIZE_BYTES
MOST_HEADER_BYTES = (1 << 16) - 1


class MessageProperties(msgspec.Struct, frozen=True, array_like=True):
    """Names follow MQTT 5 [MQTT5 §3.3.2.3]."""

    qos: int = 2
    """Quality of service with which the message was published. A message without properties counts as 2, so that each
    subscription decides."""
    retain: bool = False
    origin: str = ""
    """The MQTT session that published it, if that session has a subscription with the option no local."""
    payload_format: int | None = None
    message_expiry_s: int | None = None
    content_type: str | None = None
    response_topic: str | None = None
    correlation_data: bytes | None = None
    user_properties: tuple[tuple[str, str], ...] = ()


PLAIN = MessageProperties()
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(MessageProperties)


def wrapped(data: bytes, properties: MessageProperties) -> bytes | None:
    """The message as a home carries it; None if the properties are too large."""
    if properties == PLAIN and not data.startswith(MARK):
        return data
    header = _header(properties)
    return None if header is None else header + data


def unwrapped(data: bytes) -> tuple[bytes, MessageProperties]:
    """The data and the properties of a message."""
    if not data.startswith(MARK):
        return data, PLAIN
    end = _HEADER_AT + int.from_bytes(data[len(MARK) : _HEADER_AT], "big")
    properties = _read(data[_HEADER_AT:end]) if end <= len(data) else None
    return (data, PLAIN) if properties is None else (data[end:], properties)


@lru_cache(maxsize=4_096)
def _header(properties: MessageProperties) -> bytes | None:
    header = _encoder.encode(properties)
    if len(header) > MOST_HEADER_BYTES:
        return None
    return MARK + len(header).to_bytes(_SIZE_BYTES, "big") + header


@lru_cache(maxsize=4_096)
def _read(header: bytes) -> MessageProperties | None:
    try:
        return _decoder.decode(header)
    except (msgspec.DecodeError, RecursionError):
        return None
