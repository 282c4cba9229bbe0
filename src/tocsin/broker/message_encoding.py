"""Encode messages and results as WebSocket frames: JSON, MessagePack, or JSON inside CloudEvents.

A server's frames are not masked (RFC 6455 §5.1), so every receiver gets the same bytes: the broker makes them once per
encoding and shares them.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import msgspec

from tocsin.model.cursor import Cursor
from tocsin.model.ids import BrokerId, ChannelName, SubscriptionId
from tocsin.wire import session as wire

TEXT = 0x1
BINARY = 0x2


class Encoding(IntEnum):
    JSON = 0
    MSGPACK = 1
    CLOUDEVENTS = 2
    PLAIN = 3
    """No frames: server-sent events and webhooks encode each result themselves."""


SUBPROTOCOLS = {wire.JSON: Encoding.JSON, wire.MSGPACK: Encoding.MSGPACK, wire.CLOUDEVENTS: Encoding.CLOUDEVENTS}

_json = msgspec.json.Encoder()
_msgpack = msgspec.msgpack.Encoder()


def frame(payload: bytes, opcode: int = TEXT) -> bytes:
    """One unfragmented frame (RFC 6455 §5.2)."""
    size = len(payload)
    first = 0x80 | opcode
    if size < 126:
        return bytes((first, size)) + payload
    if size < 1 << 16:
        return bytes((first, 126)) + size.to_bytes(2, "big") + payload
    return bytes((first, 127)) + size.to_bytes(8, "big") + payload


def result_json(subscription: SubscriptionId, channel: ChannelName, cursor: Cursor, raw: bytes) -> bytes:
    """A `Result` message around a row that is JSON already, without parsing the row."""
    head = b'{"type":"result","subscription":"%b","channel":%b,"cursor":"%d-%d","result":'
    return head % (subscription.encode(), _json.encode(channel), cursor.epoch, cursor.offset) + raw + b"}"


def encoded_result(
    encoding: Encoding, subscription: SubscriptionId, channel: ChannelName, cursor: Cursor, raw: bytes
) -> bytes:
    """The WebSocket frame of one result."""
    if encoding is Encoding.JSON:
        return frame(result_json(subscription, channel, cursor, raw))
    if encoding is Encoding.MSGPACK:
        body = {"type": "result", "subscription": subscription, "channel": channel, "cursor": str(cursor)}
        return frame(_msgpack.encode(body | {"result": msgspec.json.decode(raw)}), BINARY)
    return frame(result_event(subscription, channel, cursor, raw))


def result_event(subscription: SubscriptionId, channel: ChannelName, cursor: Cursor, raw: bytes) -> bytes:
    """A result as a CloudEvent. The attribute `sequence`, compared as text, orders the events of one subscription."""
    attributes = {
        "specversion": "1.0",
        "type": "tocsin.result",
        "id": f"{subscription}/{cursor}",
        "source": f"/channels/{channel}",
        "subject": subscription,
        "sequence": sequence(cursor),
        "datacontenttype": "application/json",
    }
    return _json.encode(attributes)[:-1] + b',"data":' + result_json(subscription, channel, cursor, raw) + b"}"


def sequence(cursor: Cursor) -> str:
    return f"{cursor.epoch:010d}-{cursor.offset:016d}"


class MessageEncoder:
    """Frames of all messages except results. It counts messages because every CloudEvent needs a unique id."""

    def __init__(self, broker: BrokerId, incarnation: str) -> None:
        self._source = f"/brokers/{broker}"
        self._prefix = incarnation
        self._count = 0

    def __call__(self, message: wire.ToSubscriber, encoding: Encoding) -> bytes:
        if encoding is Encoding.PLAIN:
            return b""
        if encoding is Encoding.MSGPACK:
            return frame(_msgpack.encode(message), BINARY)
        data = _json.encode(message)
        if encoding is Encoding.CLOUDEVENTS:
            data = _json.encode(self._event(message, data))
        return frame(data)

    def _event(self, message: wire.ToSubscriber, data: bytes) -> dict[str, Any]:
        self._count += 1
        return {
            "specversion": "1.0",
            "type": f"tocsin.{message.__struct_config__.tag}",
            "id": f"{self._prefix}-{self._count}",
            "source": self._source,
            "datacontenttype": "application/json",
            "data": msgspec.Raw(data),
        }
