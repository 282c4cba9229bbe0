"""Who passes the coordinator's door: whoever holds a token it signed; strangers only where they must."""

from __future__ import annotations

from starlette.types import ASGIApp, Scope

from tocsin.runtime.coordinator.routes.api import Api
from tocsin.runtime.http.authentication import AuthenticationMiddleware, token_of
from tocsin.runtime.http.callers import caller_of_claims
from tocsin.runtime.http.settings import is_loopback
from tocsin.wire.errors import Code, TocsinError

PART = "coordinator"
_OPEN = frozenset({"/healthz", "/readyz", "/v1/keys"})


def make_door(app: ASGIApp, api: Api) -> AuthenticationMiddleware:
    metrics_are_open = is_loopback(api.settings.host)

    async def admit(scope: Scope) -> None:
        path: str = scope["path"]
        if path in _OPEN or (path == "/metrics" and metrics_are_open):
            return
        if path != "/metrics" and path != "/v1" and not path.startswith("/v1/"):
            return  # nothing is there; the router says so
        token = token_of(scope)
        if token is None:
            if api.settings.open_registration and path == "/v1/users" and scope.get("method") == "POST":
                return
            raise TocsinError(Code.UNAUTHENTICATED, "send a token: Authorization: Bearer …")
        claims = api.verifier.claims(token, api.process.now_s())
        if claims is None:
            raise TocsinError(Code.UNAUTHENTICATED, "this token is not ours, or it has expired")
        scope["tocsin.caller"] = caller = caller_of_claims(claims)
        if path == "/metrics" and not caller.may_read:
            raise TocsinError(Code.FORBIDDEN, "this needs a token with the scope read")

    def answered(method: str, status: int) -> None:
        api.metrics.requests.labels(method, str(status)).inc()

    return AuthenticationMiddleware(app, admit, answered, PART)
