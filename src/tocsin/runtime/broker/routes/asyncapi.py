"""The AsyncAPI 3 document of the WebSocket, generated from the message types so that it is never out of date."""

from __future__ import annotations

from functools import cache
from typing import Any, get_args

import msgspec
from fastapi import APIRouter, Response

import tocsin
from tocsin.runtime.http.answers import answer
from tocsin.wire import session as wire

router = APIRouter(tags=["documents"])


@router.get("/v1/asyncapi.json", response_class=Response)
async def asyncapi() -> Response:
    """The WebSocket's messages, as AsyncAPI 3."""
    return answer(document())


@cache
def document() -> dict[str, Any]:
    received, sent = get_args(wire.FromSubscriber), get_args(wire.ToSubscriber)
    _, schemas = msgspec.json.schema_components([*received, *sent], ref_template="#/components/schemas/{name}")
    names = [kind.__name__ for kind in (*received, *sent)]
    channel = "#/channels/session"
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Tocsin broker",
            "version": tocsin.__version__,
            "description": "Subprotocols: tocsin.json (default), tocsin.msgpack, cloudevents.json (each message as the "
            "data of a CloudEvent). The first request is login.",
        },
        "defaultContentType": "application/json",
        "channels": {
            "session": {
                "address": "/v1/session",
                "messages": {name: {"$ref": f"#/components/messages/{name}"} for name in names},
                "bindings": {"ws": {"method": "GET"}},
            }
        },
        "operations": {
            "request": _operation("receive", channel, received),
            "tell": _operation("send", channel, sent),
        },
        "components": {
            "schemas": schemas,
            "messages": {kind.__name__: _message(kind) for kind in (*received, *sent)},
        },
    }


def _operation(action: str, channel: str, kinds: tuple[type, ...]) -> dict[str, Any]:
    """An AsyncAPI operation as the broker sees it: the broker receives requests and sends all other messages."""
    messages = [{"$ref": f"{channel}/messages/{kind.__name__}"} for kind in kinds]
    return {"action": action, "channel": {"$ref": channel}, "messages": messages}


def _message(kind: type) -> dict[str, Any]:
    return {
        "name": kind.__name__,
        "summary": (kind.__doc__ or kind.__name__).strip().partition("\n")[0],
        "payload": {"$ref": f"#/components/schemas/{kind.__name__}"},
    }
