"""Tokens over REST: made, listed and revoked by administrators. The token itself is in one answer, once."""

from __future__ import annotations

import asyncio

import msgspec
from fastapi import APIRouter, Request, Response

from tocsin.cluster.server.routes.api import Api, require_admin
from tocsin.cluster.server.tokens import TokenStore
from tocsin.runtime.http.answers import answer, read_json, request_body
from tocsin.runtime.http.callers import Caller, is_scope
from tocsin.wire.errors import Code, TocsinError

router = APIRouter(tags=["tokens"])

_DAY_S = 86_400.0


class NewToken(msgspec.Struct):
    name: str
    scopes: list[str]
    days: float | None = None
    """Until it expires; never if not given."""


@router.post("/v1/tokens", openapi_extra=request_body(NewToken), response_class=Response)
async def create_token(request: Request) -> Response:
    api = require_admin(request)
    wanted = await read_json(request, NewToken)
    if not wanted.name.strip() or len(wanted.name) > 200:
        raise TocsinError(Code.BAD_REQUEST, "a token's name has 1 to 200 characters and says whose it is")
    wrong = [scope for scope in wanted.scopes if not is_scope(scope)]
    if wrong or not wanted.scopes:
        known = "admin, read, subscribe, register, publish:<dataset or *>, broker:<id or *>"
        raise TocsinError(Code.BAD_REQUEST, f"{wrong[0] if wrong else 'no scope'!r}: expected some of {known}")
    if wanted.days is not None and not 0 < wanted.days <= 36_500:
        raise TocsinError(Code.BAD_REQUEST, "days: expected more than 0 and at most 36,500")
    expires_s = None if wanted.days is None else api.cluster.now_s() + wanted.days * _DAY_S
    caller, token = await asyncio.to_thread(_tokens(api).create, wanted.name, wanted.scopes, expires_s)
    return answer(_described(caller) | {"token": token}, 201)


@router.get("/v1/tokens", response_class=Response)
def list_tokens(request: Request) -> Response:
    """Names and scopes; a token itself cannot be seen again."""
    api = require_admin(request)
    return answer({"tokens": [_described(caller) for caller in _tokens(api).all()]})


@router.delete("/v1/tokens/{identity}", response_class=Response)
def revoke_token(request: Request, identity: str) -> Response:
    api = require_admin(request)
    if not _tokens(api).revoke(identity):
        raise TocsinError(Code.NOT_FOUND, f"there is no token {identity[:64]!r}")
    return answer({"revoked": True})


def _tokens(api: Api) -> TokenStore:
    assert api.tokens is not None  # the door asked them who is calling
    return api.tokens


def _described(caller: Caller) -> dict[str, object]:
    return {
        "id": caller.id,
        "name": caller.name,
        "scopes": sorted(caller.scopes),
        "expires_s": caller.expires_s,
    }
