"""login, logout, subscribe, unsubscribe, list, ack and ping as REST calls: the same messages as over a connection."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import APIRouter, Request, Response

from tocsin.model.ids import ChannelName, SubscriptionId
from tocsin.runtime.broker.routes.api import api_of, asked
from tocsin.runtime.http.answers import answer, decode_json, read_body, request_body
from tocsin.wire import session as wire

router = APIRouter(tags=["subscriptions"])


class Resuming(msgspec.Struct):
    resume: dict[SubscriptionId, str] = {}
    """Cursors up to which results have been handled."""


class Wanted(msgspec.Struct):
    channel: ChannelName
    parameters: dict[str, Any] = {}
    after: str | None = None
    """A cursor to start from, rather than the present."""


class Handled(msgspec.Struct):
    cursors: dict[SubscriptionId, str]


async def _body(request: Request) -> bytes:
    return await read_body(request, api_of(request).settings.frame_bytes)


@router.post("/v1/login", openapi_extra=request_body(Resuming), response_class=Response)
async def login(request: Request) -> Response:
    """What the subscriber holds here. Opens no session: for that, connect to `/v1/session` or `/v1/stream`."""
    body = await _body(request)
    given = decode_json(body, Resuming) if body else Resuming()
    return answer(await asked(request, wire.Login(0, None, given.resume)))


@router.post("/v1/logout", response_class=Response)
async def logout(request: Request) -> Response:
    """End the subscriber's open session, if it has one. Subscriptions stay."""
    return answer(await asked(request, wire.Logout(0)))


@router.get("/v1/subscriptions", response_class=Response)
async def list_subscriptions(request: Request) -> Response:
    return answer(await asked(request, wire.List(0)))


@router.post("/v1/subscriptions", openapi_extra=request_body(Wanted), response_class=Response)
async def subscribe(request: Request) -> Response:
    """Hold a channel with these parameter values; results wait for a session, a stream or a webhook."""
    wanted = decode_json(await _body(request), Wanted)
    return answer(await asked(request, wire.Subscribe(0, wanted.channel, wanted.parameters, wanted.after)))


@router.delete("/v1/subscriptions/{identity}", response_class=Response)
async def unsubscribe(request: Request, identity: str) -> Response:
    return answer(await asked(request, wire.Unsubscribe(0, SubscriptionId(identity))))


@router.post("/v1/ack", openapi_extra=request_body(Handled), response_class=Response)
async def ack(request: Request) -> Response:
    """Handled up to these cursors: where a session without a memory of its own begins."""
    return answer(await asked(request, wire.Ack(0, decode_json(await _body(request), Handled).cursors)))


@router.get("/v1/ping", response_class=Response)
async def ping(request: Request) -> Response:
    return answer(await asked(request, wire.Ping(0)))
