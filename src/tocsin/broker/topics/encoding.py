"""Encode messages to clients of topics as WebSocket frames, once per encoding."""

from __future__ import annotations

import msgspec

from tocsin.broker.message_encoding import BINARY, TEXT, Encoding, frame
from tocsin.wire import topic as wire

_json = msgspec.json.Encoder()
_msgpack = msgspec.msgpack.Encoder()
_MSGPACK = Encoding.MSGPACK


def encoded(message: wire.ToClient, encoding: Encoding) -> bytes:
    if encoding is _MSGPACK:
        return frame(_msgpack.encode(message), BINARY)
    return frame(_json.encode(message), TEXT)
