"""Authentication of requests to the coordinator, and the scopes that its routes require.

Requests need a token that the coordinator signed, except for health, public keys and, if set, open registration.
"""

from __future__ import annotations

import re
from typing import cast

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Scope

from tocsin.model.ids import BrokerId, SubscriberId
from tocsin.runtime.coordinator.routes.context import CoordinatorContext, context_of
from tocsin.runtime.http.audit import record_request
from tocsin.runtime.http.authentication import AuthenticationMiddleware, token_of
from tocsin.runtime.http.callers import Caller, caller_of_claims, is_broker_id
from tocsin.runtime.http.open_requests import CALLER
from tocsin.runtime.http.settings import is_loopback
from tocsin.wire.errors import Code, TocsinError
from tocsin.wire.topic_directory import WATCH

PART = "coordinator"
_USER = re.compile(r"[A-Za-z0-9._-]{1,100}")
_OPEN = frozenset({"/healthz", "/readyz", "/v1/keys"})
_QUIET = frozenset({WATCH})
"""Not in the audit log when they succeed: a client of topics repeats its watch all the time."""


def authenticate(app: ASGIApp, context: CoordinatorContext) -> ASGIApp:
    """`app` behind a check of the token of every request under /v1, and of /metrics."""
    metrics_are_open = context.settings.open_metrics and is_loopback(context.settings.host)

    async def admit(scope: Scope) -> None:
        path: str = scope["path"]
        if path in _OPEN or (path == "/metrics" and metrics_are_open):
            return
        if path != "/metrics" and path != "/v1" and not path.startswith("/v1/"):
            return  # a page of the dashboard, or the router answers 404
        token = token_of(scope)
        if token is None:
            if context.settings.open_registration and path == "/v1/users" and scope.get("method") == "POST":
                return
            raise forbidden(None, "read")
        claims = await context.claims(token)
        if claims is None:
            message = "the token is not signed by this coordinator, or it is expired, revoked or meant for another part"
            raise TocsinError(Code.UNAUTHENTICATED, message)
        scope[CALLER] = caller = caller_of_claims(claims)
        if path == "/metrics" and not caller.may_read:
            raise TocsinError(Code.FORBIDDEN, "this needs a token with the scope read")

    def answered(method: str, status: int) -> None:
        context.metrics.requests.labels(method, str(status)).inc()

    def audit(scope: Scope, status: int) -> None:
        record_request(context.audit, scope, status, _QUIET)

    return AuthenticationMiddleware(app, admit, answered, PART, context.open_requests, audit)


def caller_of(connection: HTTPConnection) -> Caller | None:
    """The caller whose token was accepted; None for a request without a token, where that is allowed."""
    return cast("Caller | None", connection.scope.get(CALLER))


def require_admin(connection: HTTPConnection) -> CoordinatorContext:
    caller = caller_of(connection)
    return _require(connection, caller is not None and caller.is_admin, "admin")


def require_read(connection: HTTPConnection) -> CoordinatorContext:
    caller = caller_of(connection)
    return _require(connection, caller is not None and caller.may_read, "read")


def require_user(connection: HTTPConnection, user: str) -> tuple[CoordinatorContext, SubscriberId]:
    """Raise unless the caller is this user or an administrator."""
    caller = caller_of(connection)
    allowed = caller is not None and caller.may_act_for(user)
    return _require(connection, allowed, f"subscribe, made out to {user[:100]!r},"), SubscriberId(user)


def user_id(text: str) -> SubscriberId:
    if _USER.fullmatch(text) is None:
        raise TocsinError(Code.BAD_REQUEST, "a user's name has 1 to 100 letters, digits, dots, dashes and underscores")
    return SubscriberId(text)


def require_broker(connection: HTTPConnection, broker: str) -> tuple[CoordinatorContext, BrokerId]:
    """Raise unless the caller is this broker or may act as any broker."""
    if not is_broker_id(broker):
        raise TocsinError(Code.BAD_REQUEST, "a broker id has 1 to 128 letters, digits, dots, dashes and underscores")
    caller, scope = caller_of(connection), f"broker:{broker}"
    allowed = caller is not None and (caller.may_be_any or scope in caller.scopes)
    return _require(connection, allowed, scope), BrokerId(broker)


def require_site(connection: HTTPConnection, site: str) -> CoordinatorContext:
    """Raise unless the caller is the coordinator of this neighbouring site."""
    caller, scope = caller_of(connection), f"site:{site}"
    return _require(connection, caller is not None and scope in caller.scopes, scope)


def _require(connection: HTTPConnection, allowed: bool, scope: str) -> CoordinatorContext:
    if not allowed:
        raise forbidden(caller_of(connection), scope)
    return context_of(connection)


def forbidden(caller: Caller | None, scope: str) -> TocsinError:
    """The error for a caller without a token, or without `scope`."""
    if caller is None:
        return TocsinError(Code.UNAUTHENTICATED, "send a token: Authorization: Bearer …")
    scopes = " ".join(sorted(caller.scopes))
    return TocsinError(Code.FORBIDDEN, f"this needs a token with the scope {scope}; {caller.name} has: {scopes}")
