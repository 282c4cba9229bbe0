"""The AsyncAPI 3 document of the WebSockets, generated from the message types so that it is never out of date.

A channel of the document is one protocol: `session` for subscribers, `topics` for clients of topics. Both have messages
with the same names, such as `Login`; those of `topics` are components with the prefix `topic.`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, get_args

import msgspec
from fastapi import APIRouter, Response

import tocsin
from tocsin.runtime.http.answers import answer
from tocsin.wire import session, topic

router = APIRouter(tags=["documents"])


@router.get("/v1/asyncapi.json", response_class=Response)
async def asyncapi() -> Response:
    """The messages of the WebSockets, as AsyncAPI 3."""
    return answer(document())


@dataclass(frozen=True, slots=True)
class WebSocketChannel:
    name: str
    address: str
    description: str
    received: tuple[type, ...]
    """Requests of the client."""
    sent: tuple[type, ...]
    """Answers of the broker, and messages that it pushes."""
    prefix: str = ""
    """Of the channel's components."""


CHANNELS = (
    WebSocketChannel(
        "session",
        "/v1/session",
        "Subscribers. Subprotocols: tocsin.json (default), tocsin.msgpack, cloudevents.json (each message as the "
        "data of a CloudEvent). The first request is login.",
        get_args(session.FromSubscriber),
        get_args(session.ToSubscriber),
    ),
    WebSocketChannel(
        "topics",
        topic.PATH,
        "Publishers and subscribers of topics, at the home broker of the topic, which GET /v1/topics of the "
        "coordinator names. Subprotocols: tocsin.json (default; the bytes of a message as base64), tocsin.msgpack "
        "(the bytes as they are). The first request is login.",
        get_args(topic.FromClient),
        get_args(topic.ToClient),
        "topic.",
    ),
)


@cache
def document() -> dict[str, Any]:
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Tocsin broker",
            "version": tocsin.__version__,
            "description": "The WebSockets of a broker: sessions of subscribers, and connections of clients of topics.",
        },
        "defaultContentType": "application/json",
        "channels": {channel.name: _channel(channel) for channel in CHANNELS},
        "operations": {name: operation for channel in CHANNELS for name, operation in _operations(channel).items()},
        "components": {
            "schemas": {name: schema for channel in CHANNELS for name, schema in _schemas(channel).items()},
            "messages": {
                channel.prefix + kind.__name__: _message(channel, kind)
                for channel in CHANNELS
                for kind in (*channel.received, *channel.sent)
            },
        },
    }


def _channel(channel: WebSocketChannel) -> dict[str, Any]:
    names = [kind.__name__ for kind in (*channel.received, *channel.sent)]
    return {
        "address": channel.address,
        "description": channel.description,
        "messages": {name: {"$ref": f"#/components/messages/{channel.prefix}{name}"} for name in names},
        "bindings": {"ws": {"method": "GET"}},
    }


def _operations(channel: WebSocketChannel) -> dict[str, Any]:
    """The operations as the broker sees them: the broker receives requests and sends all other messages."""
    prefix = channel.prefix.replace(".", "_")
    requests = {prefix + "request": _operation("receive", channel, channel.received)}
    return requests | {prefix + "tell": _operation("send", channel, channel.sent)}


def _operation(action: str, channel: WebSocketChannel, kinds: tuple[type, ...]) -> dict[str, Any]:
    reference = f"#/channels/{channel.name}"
    messages = [{"$ref": f"{reference}/messages/{kind.__name__}"} for kind in kinds]
    return {"action": action, "channel": {"$ref": reference}, "messages": messages}


def _schemas(channel: WebSocketChannel) -> dict[str, Any]:
    kinds = [*channel.received, *channel.sent]
    _, schemas = msgspec.json.schema_components(kinds, ref_template=f"#/components/schemas/{channel.prefix}{{name}}")
    return {channel.prefix + name: schema for name, schema in schemas.items()}


def _message(channel: WebSocketChannel, kind: type) -> dict[str, Any]:
    return {
        "name": kind.__name__,
        "summary": (kind.__doc__ or kind.__name__).strip().partition("\n")[0],
        "payload": {"$ref": f"#/components/schemas/{channel.prefix}{kind.__name__}"},
    }
