"""Signed tokens: administrators make and revoke them, and replace the key; every process reads the public keys."""

from __future__ import annotations

import secrets
from typing import Annotated

import msgspec
from fastapi import APIRouter, Request, Response

from tocsin.coordinator.events import TokensRevoked
from tocsin.runtime.coordinator.routes.authentication import caller_of, forbidden, require_admin, user_id
from tocsin.runtime.coordinator.routes.context import context_of
from tocsin.runtime.http.answers import JSON, answer, read_json, request_body
from tocsin.runtime.http.audit import OBJECT
from tocsin.runtime.http.callers import GUEST, VALID_SCOPES, is_scope
from tocsin.wire.errors import Code, TocsinError

router = APIRouter(tags=["tokens"])

_DAY_S = 86_400.0
_MOST_AT_ONCE = 10_000
Days = Annotated[float, msgspec.Meta(ge=0, le=36_500)]


class SignedTokenRequest(msgspec.Struct):
    subject: str
    """The owner: the name of a user, a broker or a person."""
    scopes: list[str]
    days: float | None = None
    """Days until the token expires; None if it never expires."""
    most_subscriptions: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """The most subscriptions of the user; None for the limit of the broker."""


class RevocationRequest(msgspec.Struct):
    tokens: list[str] = []
    """Ids (`jti`) of tokens. Tokens that were made from them are revoked too."""
    users: list[str] = []
    """All tokens that these users have now. Users may revoke their own."""


class RotationRequest(msgspec.Struct):
    overlap_days: Days | None = None
    """Days for which tokens of the former key stay valid. Default: `user_days`. 0: they are invalid at once."""


@router.get("/v1/keys", response_class=Response)
async def keys(request: Request) -> Response:
    """The public keys as a JWK set, with digests of the revoked tokens and users; needs no token."""
    body, etag = context_of(request).keys.document()
    headers = {"Cache-Control": "no-cache", "ETag": etag}
    if request.headers.get("if-none-match") == etag:
        return Response(None, 304, headers)
    return Response(body, 200, headers, JSON)


@router.post("/v1/tokens", openapi_extra=request_body(SignedTokenRequest), response_class=Response)
async def create_token(request: Request) -> Response:
    context = require_admin(request)
    body = await read_json(request, SignedTokenRequest)
    subject = request.scope[OBJECT] = user_id(body.subject)
    is_free = context.settings.open_registration and subject not in context.core.registry.subscribers
    if is_free and subject.startswith(GUEST):
        raise TocsinError(Code.BAD_REQUEST, f"anyone may register the name {subject}: choose one without {GUEST}")
    wrong = [scope for scope in body.scopes if not is_scope(scope)]
    if wrong or not 1 <= len(body.scopes) <= 50:
        shown = wrong[0][:100] if wrong else "scopes"
        raise TocsinError(Code.BAD_REQUEST, f"{shown!r}: expected some of {VALID_SCOPES}")
    if body.days is not None and not 0 < body.days <= 36_500:
        raise TocsinError(Code.BAD_REQUEST, "days: expected more than 0 and at most 36,500")
    lifetime_s = None if body.days is None else body.days * _DAY_S
    identity = secrets.token_hex(8)
    token, expires_s = context.sign(
        subject, body.scopes, lifetime_s, identity=identity, most_subscriptions=body.most_subscriptions
    )
    scopes = sorted(body.scopes)
    return answer({"id": identity, "subject": subject, "scopes": scopes, "token": token, "expires_s": expires_s}, 201)


@router.post("/v1/revocations", openapi_extra=request_body(RevocationRequest), response_class=Response)
async def revoke(request: Request) -> Response:
    """Revoke tokens and users. Brokers and the data cluster know it within 5 s, and end the sessions and streams."""
    context, caller = context_of(request), caller_of(request)
    body = await read_json(request, RevocationRequest)
    request.scope[OBJECT] = ", ".join([*body.users, *body.tokens])
    if caller is None or not (caller.is_admin or (body.users == [caller.subject] and not body.tokens)):
        raise forbidden(caller, "admin")
    if not 1 <= len(body.tokens) + len(body.users) <= _MOST_AT_ONCE:
        raise TocsinError(Code.BAD_REQUEST, f"expected 1 to {_MOST_AT_ONCE:,} tokens and users")
    if any(not 1 <= len(identity) <= 256 for identity in body.tokens):
        raise TocsinError(Code.BAD_REQUEST, "tokens: expected ids of tokens, with 1 to 256 characters")
    users = tuple(user_id(user) for user in body.users)
    await context.process.request(lambda number: TokensRevoked(number, tuple(body.tokens), users))
    return answer({"revoked": len(body.tokens) + len(body.users)})


@router.get("/v1/revocations", response_class=Response)
async def list_revocations(request: Request) -> Response:
    revocations = require_admin(request).core.registry.revocations
    listed = [{"kind": kind, "name": name, "at_s": at_s} for (kind, name), at_s in sorted(revocations.items())]
    return answer({"revocations": listed})


@router.post("/v1/keys/rotate", openapi_extra=request_body(RotationRequest), response_class=Response)
async def rotate_keys(request: Request) -> Response:
    """Sign with a new key from now on. Tokens of the former key stay valid for the overlap."""
    context = require_admin(request)
    body = await read_json(request, RotationRequest)
    days = context.settings.user_days if body.overlap_days is None else body.overlap_days
    key = context.keys.rotate(days * _DAY_S)
    context.end_revoked_soon()
    return answer({"key": key, "overlap_days": days})
