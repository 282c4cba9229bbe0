"""Administrators create, list and revoke tokens. Only the answer to the creation holds the token itself."""

from __future__ import annotations

import asyncio

import msgspec
from fastapi import APIRouter, Request, Response

from tocsin.cluster.server.routes.authentication import require_admin
from tocsin.cluster.server.routes.context import ClusterContext
from tocsin.cluster.server.tokens import TokenStore
from tocsin.runtime.http.answers import answer, read_json, request_body
from tocsin.runtime.http.callers import VALID_SCOPES, Caller, is_scope
from tocsin.wire.errors import Code, TocsinError

router = APIRouter(tags=["tokens"])

_DAY_S = 86_400.0


class ClusterTokenRequest(msgspec.Struct):
    name: str
    scopes: list[str]
    days: float | None = None
    """Days until the token expires; None if it never expires."""


@router.post("/v1/tokens", openapi_extra=request_body(ClusterTokenRequest), response_class=Response)
async def create_token(request: Request) -> Response:
    context = require_admin(request)
    body = await read_json(request, ClusterTokenRequest)
    if not body.name.strip() or len(body.name) > 200:
        raise TocsinError(Code.BAD_REQUEST, "a token's name has 1 to 200 characters and names its owner")
    wrong = [scope for scope in body.scopes if not is_scope(scope)]
    if wrong or not body.scopes:
        shown = wrong[0][:100] if wrong else "no scope"
        raise TocsinError(Code.BAD_REQUEST, f"{shown!r}: expected some of {VALID_SCOPES}")
    if body.days is not None and not 0 < body.days <= 36_500:
        raise TocsinError(Code.BAD_REQUEST, "days: expected more than 0 and at most 36,500")
    expires_s = None if body.days is None else context.cluster.now_s() + body.days * _DAY_S
    caller, token = await asyncio.to_thread(_tokens(context).create, body.name, body.scopes, expires_s)
    return answer(_described(caller) | {"token": token}, 201)


@router.get("/v1/tokens", response_class=Response)
def list_tokens(request: Request) -> Response:
    """List the names and scopes of all tokens, not the tokens themselves."""
    context = require_admin(request)
    return answer({"tokens": [_described(caller) for caller in _tokens(context).all()]})


@router.delete("/v1/tokens/{identity}", response_class=Response)
async def revoke_token(request: Request, identity: str) -> Response:
    """Revoke a token at once, and end the streams that it opened."""
    context = require_admin(request)
    if not await asyncio.to_thread(_tokens(context).revoke, identity):
        raise TocsinError(Code.NOT_FOUND, f"there is no token {identity[:64]!r}")
    context.open_requests.end(lambda caller: caller.id == identity and caller.claims is None)
    return answer({"revoked": True})


def _tokens(context: ClusterContext) -> TokenStore:
    assert context.tokens is not None  # authentication used them
    return context.tokens


def _described(caller: Caller) -> dict[str, object]:
    return {
        "id": caller.id,
        "name": caller.name,
        "scopes": sorted(caller.scopes),
        "expires_s": caller.expires_s,
    }
