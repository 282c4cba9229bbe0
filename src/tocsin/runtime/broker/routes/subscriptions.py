"""login, logout, subscribe, unsubscribe, list, ack and ping as REST calls: the same messages as over a connection."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import APIRouter, Request, Response

from tocsin.model.ids import ChannelName, SubscriptionId
from tocsin.runtime.broker.routes.context import call, context_of
from tocsin.runtime.http.answers import answer, decode_json, read_body, request_body
from tocsin.runtime.http.audit import OBJECT
from tocsin.wire import session as wire

router = APIRouter(tags=["subscriptions"])


class LoginBody(msgspec.Struct):
    resume: dict[SubscriptionId, str] = {}
    """Cursors up to which the subscriber has processed results."""


class SubscribeBody(msgspec.Struct):
    channel: ChannelName
    parameters: dict[str, Any] = {}
    after: str | None = None
    """A cursor to start from; without a cursor the subscription starts with the next result."""


class AckBody(msgspec.Struct):
    cursors: dict[SubscriptionId, str]


async def _body(request: Request) -> bytes:
    return await read_body(request, context_of(request).settings.frame_bytes)


@router.post("/v1/login", openapi_extra=request_body(LoginBody), response_class=Response)
async def login(request: Request) -> Response:
    """List the subscriptions that the caller holds here.

    To open a session, connect to `/v1/session` or `/v1/stream`.
    """
    body = await _body(request)
    resume = decode_json(body, LoginBody).resume if body else {}
    return answer(await call(request, wire.Login(0, None, resume)))


@router.post("/v1/logout", response_class=Response)
async def logout(request: Request) -> Response:
    """End the subscriber's open session, if it has one. Subscriptions stay."""
    return answer(await call(request, wire.Logout(0)))


@router.get("/v1/subscriptions", response_class=Response)
async def list_subscriptions(request: Request) -> Response:
    return answer(await call(request, wire.List(0)))


@router.post("/v1/subscriptions", openapi_extra=request_body(SubscribeBody), response_class=Response)
async def subscribe(request: Request) -> Response:
    """Hold a channel with these parameter values; results wait for a session, a stream or a webhook."""
    body = decode_json(await _body(request), SubscribeBody)
    request.scope[OBJECT] = body.channel
    return answer(await call(request, wire.Subscribe(0, body.channel, body.parameters, body.after)))


@router.delete("/v1/subscriptions/{identity}", response_class=Response)
async def unsubscribe(request: Request, identity: str) -> Response:
    return answer(await call(request, wire.Unsubscribe(0, SubscriptionId(identity))))


@router.post("/v1/ack", openapi_extra=request_body(AckBody), response_class=Response)
async def ack(request: Request) -> Response:
    """Acknowledge results up to these cursors: a session that sends no cursors resumes from here."""
    return answer(await call(request, wire.Ack(0, decode_json(await _body(request), AckBody).cursors)))


@router.get("/v1/ping", response_class=Response)
async def ping(request: Request) -> Response:
    return answer(await call(request, wire.Ping(0)))
