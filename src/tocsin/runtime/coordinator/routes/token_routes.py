"""Tokens: signed for whoever an administrator names; and the public keys by which everybody checks them."""

from __future__ import annotations

import msgspec
from fastapi import APIRouter, Request, Response

from tocsin.runtime.coordinator.routes.api import api_of, require_admin, user_id
from tocsin.runtime.http.answers import answer, read_json, request_body
from tocsin.runtime.http.callers import is_scope
from tocsin.wire.errors import Code, TocsinError

router = APIRouter(tags=["tokens"])

_DAY_S = 86_400.0


class NewToken(msgspec.Struct):
    subject: str
    """Whose it is: a user's name, a broker's, a person's."""
    scopes: list[str]
    days: float | None = None
    """Until it expires; never if not given. A signed token cannot be revoked: prefer short lives."""


@router.get("/v1/keys", response_class=Response)
async def keys(request: Request) -> Response:
    """A JWK set; open to everybody."""
    return answer(api_of(request).signer.jwks(), headers={"Cache-Control": "max-age=60"})


@router.post("/v1/tokens", openapi_extra=request_body(NewToken), response_class=Response)
async def create_token(request: Request) -> Response:
    api = require_admin(request)
    wanted = await read_json(request, NewToken)
    subject = user_id(wanted.subject)
    wrong = [scope for scope in wanted.scopes if not is_scope(scope)]
    if wrong or not 1 <= len(wanted.scopes) <= 50:
        known = "admin, read, register, subscribe, publish:<dataset or *>, broker:<id or *>"
        raise TocsinError(Code.BAD_REQUEST, f"{wrong[0][:100] if wrong else 'scopes'!r}: expected some of {known}")
    if wanted.days is not None and not 0 < wanted.days <= 36_500:
        raise TocsinError(Code.BAD_REQUEST, "days: expected more than 0 and at most 36,500")
    lifetime_s = None if wanted.days is None else wanted.days * _DAY_S
    token, expires_s = api.sign(subject, wanted.scopes, lifetime_s)
    return answer({"subject": subject, "scopes": sorted(wanted.scopes), "token": token, "expires_s": expires_s}, 201)
