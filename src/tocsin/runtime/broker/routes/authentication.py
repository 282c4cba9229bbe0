"""Who passes a broker's door: subscribers, with a token the coordinator signed."""

from __future__ import annotations

from starlette.types import ASGIApp, Scope

from tocsin.runtime.broker.routes.api import BrokerApi
from tocsin.runtime.http.door import Door, token_of
from tocsin.runtime.http.settings import is_loopback
from tocsin.wire.errors import Code, TocsinError

PART = "broker"
_OPEN = frozenset({"/healthz", "/readyz", "/v1/openapi.json", "/v1/asyncapi.json"})


def make_door(app: ASGIApp, api: BrokerApi) -> Door:
    metrics_are_open = is_loopback(api.settings.host)

    async def admit(scope: Scope) -> None:
        path: str = scope["path"]
        if path in _OPEN or (path == "/metrics" and metrics_are_open):
            return
        if path == "/metrics":
            await _admit_reader(api, scope)
        elif path == "/v1" or path.startswith("/v1/"):
            if api.stopping:
                raise TocsinError(Code.NOT_READY, "this broker is stopping", retry_after_s=1)
            scope["tocsin.claims"] = await api.gate.claims(token_of(scope))

    def answered(method: str, status: int) -> None:
        api.metrics.requests.labels(method, str(status)).inc()

    return Door(app, admit, answered, PART)


async def _admit_reader(api: BrokerApi, scope: Scope) -> None:
    token = token_of(scope)
    claims = None if token is None else await api.gate.keys.claims(token, api.process.now_s())
    if claims is None:
        raise TocsinError(Code.UNAUTHENTICATED, "send a token with the scope read")
    if not claims.scopes & {"read", "admin"}:
        raise TocsinError(Code.FORBIDDEN, "this needs a token with the scope read")
