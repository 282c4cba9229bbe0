"""Who passes the data cluster's door: opaque tokens of its own, and tokens the coordinator signed if it trusts some."""

from __future__ import annotations

from starlette.types import ASGIApp, Scope

from tocsin.cluster.server.routes.api import Api
from tocsin.runtime.http.authentication import AuthenticationMiddleware, token_of
from tocsin.runtime.http.callers import Caller, caller_of_claims
from tocsin.runtime.http.settings import is_loopback
from tocsin.wire.errors import Code, TocsinError

PART = "data cluster"
_OPEN = frozenset({"/healthz", "/readyz"})


def make_door(app: ASGIApp, api: Api) -> AuthenticationMiddleware:
    metrics_are_open = is_loopback(api.settings.host)

    async def admit(scope: Scope) -> None:
        path: str = scope["path"]
        if path in _OPEN or (path == "/metrics" and metrics_are_open):
            return
        if path != "/metrics" and path != "/v1" and not path.startswith("/v1/"):
            return  # nothing is there; the router says so
        scope["tocsin.caller"] = caller = await _caller(api, scope)
        if path == "/metrics" and not caller.may_read:
            raise TocsinError(Code.FORBIDDEN, "this needs a token with the scope read")

    def answered(method: str, status: int) -> None:
        api.metrics.requests.labels(method, str(status)).inc()

    return AuthenticationMiddleware(app, admit, answered, PART)


async def _caller(api: Api, scope: Scope) -> Caller:
    if api.tokens is None or api.process.stopping.is_set():
        _ = api.cluster  # raises with what it is doing instead
        raise TocsinError(Code.NOT_READY, "the data cluster is still starting", retry_after_s=2)
    token = token_of(scope)
    if token is None:
        raise TocsinError(Code.UNAUTHENTICATED, "send a token: Authorization: Bearer tocsin_…")
    caller = api.tokens.caller(token)
    if caller is None and api.keys is not None:
        claims = await api.keys.claims(token, api.cluster.now_s())
        caller = None if claims is None else caller_of_claims(claims)
    if caller is None:
        raise TocsinError(Code.UNAUTHENTICATED, "this token is unknown, revoked or expired")
    return caller
