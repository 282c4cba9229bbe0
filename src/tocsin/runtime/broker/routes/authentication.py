"""Authentication of a broker's HTTP requests: subscribers need a token that the coordinator has signed."""

from __future__ import annotations

from starlette.types import ASGIApp, Scope

from tocsin.runtime.broker.routes.context import BrokerContext
from tocsin.runtime.http.audit import CLAIMS, record_request
from tocsin.runtime.http.authentication import AuthenticationMiddleware, token_of
from tocsin.runtime.http.settings import is_loopback
from tocsin.wire.errors import Code, TocsinError

PART = "broker"
_QUIET = frozenset({"/v1/ack", "/v1/me/datasets/{name}"})
"""Endpoints whose successful requests are the normal traffic of a session, and not in the audit log."""
_OPEN = frozenset({"/healthz", "/readyz", "/v1/openapi.json", "/v1/asyncapi.json"})


def authenticate(app: ASGIApp, context: BrokerContext) -> ASGIApp:
    """`app` behind a check of the token of every request under /v1, and of /metrics."""
    metrics_are_open = context.settings.open_metrics and is_loopback(context.settings.host)

    async def admit(scope: Scope) -> None:
        path: str = scope["path"]
        if path in _OPEN or (path == "/metrics" and metrics_are_open):
            return
        if path == "/metrics":
            await _check_reader(context, scope)
        elif path == "/v1" or path.startswith("/v1/"):
            if context.stopping:
                raise TocsinError(Code.NOT_READY, "this broker is stopping", retry_after_s=1)
            scope[CLAIMS] = await context.guard.claims(token_of(scope))

    def answered(method: str, status: int) -> None:
        context.metrics.requests.labels(method, str(status)).inc()

    def audit(scope: Scope, status: int) -> None:
        record_request(context.guard.audit, scope, status, _QUIET)

    return AuthenticationMiddleware(app, admit, answered, PART, audit=audit)


async def _check_reader(context: BrokerContext, scope: Scope) -> None:
    token = token_of(scope)
    claims = None if token is None else await context.guard.keys.claims(token, context.process.now_s())
    if claims is None:
        raise TocsinError(Code.UNAUTHENTICATED, "send a token with the scope read")
    if not claims.scopes & {"read", "admin"}:
        raise TocsinError(Code.FORBIDDEN, "this needs a token with the scope read")
