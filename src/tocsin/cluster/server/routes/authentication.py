"""Authentication of requests to the data cluster, and the scopes that its routes require.

Two kinds of bearer tokens are accepted: the data cluster's own, which are opaque, and those that a trusted coordinator
signed.
"""

from __future__ import annotations

from typing import cast

from sqlalchemy.exc import InterfaceError, OperationalError
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from tocsin.cluster.server.routes.context import ClusterContext, context_of
from tocsin.model.ids import BrokerId
from tocsin.runtime.http.answers import BODY_BYTES, LARGE_BODY_BYTES
from tocsin.runtime.http.audit import record_request
from tocsin.runtime.http.authentication import AuthenticationMiddleware, token_of
from tocsin.runtime.http.callers import Caller, caller_of_claims, is_broker_id
from tocsin.runtime.http.logs import logger
from tocsin.runtime.http.open_requests import CALLER
from tocsin.runtime.http.settings import is_loopback
from tocsin.wire import cluster as wire
from tocsin.wire.errors import Code, TocsinError
from tocsin.wire.recording import TOPIC_RECORDS

PART = "data cluster"
_QUIET = frozenset({wire.RESULTS, wire.OWN_RECORDS, wire.USERS, TOPIC_RECORDS})
"""Endpoints whose successful requests are the traffic of brokers, and not in the audit log."""
_OPEN = frozenset({"/healthz", "/readyz"})


def authenticate(app: ASGIApp, context: ClusterContext) -> ASGIApp:
    """`app` behind a check of the token of every request under /v1, and of /metrics."""
    metrics_are_open = context.settings.open_metrics and is_loopback(context.settings.host)

    async def admit(scope: Scope) -> None:
        path: str = scope["path"]
        if path in _OPEN or (path == "/metrics" and metrics_are_open):
            return
        if path != "/metrics" and path != "/v1" and not path.startswith("/v1/"):
            return  # the router answers 404
        scope[CALLER] = caller = await _caller(context, scope)
        if path == "/metrics" and not caller.may_read:
            raise TocsinError(Code.FORBIDDEN, "this needs a token with the scope read")

    def audit(scope: Scope, status: int) -> None:
        record_request(context.audit, scope, status, _QUIET)

    return AuthenticationMiddleware(
        _explaining(app), admit, context.metrics.count_request, PART, context.open_requests, audit
    )


def _explaining(app: ASGIApp) -> ASGIApp:
    """`app`, which answers 503 with the reason if the catalog cannot be read or written, for example on a full disk."""

    async def explaining(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await app(scope, receive, send)
        except (OperationalError, InterfaceError) as error:
            logger().error("the catalog cannot be used", path=scope["path"], exc_info=error)
            reason = f"the catalog cannot be used now ({error.orig}): check the disk or the database server"
            raise TocsinError(Code.NOT_READY, reason, retry_after_s=2) from error

    return explaining


async def _caller(context: ClusterContext, scope: Scope) -> Caller:
    context.require_open()
    assert context.tokens is not None
    token = token_of(scope)
    if token is None:
        raise TocsinError(Code.UNAUTHENTICATED, "send a token: Authorization: Bearer tocsin_…")
    caller = context.tokens.caller(token)
    if caller is None and context.keys is not None:
        claims = await context.keys.claims(token, context.now_s())
        caller = None if claims is None else caller_of_claims(claims)
        if caller is None and not context.keys.can_judge(token):
            raise unknown_key()
    if caller is None and context.tokens.is_stale:
        message = "the catalog cannot be read now, so this token cannot be judged"
        raise TocsinError(Code.NOT_READY, message, retry_after_s=1)
    if caller is None:
        raise TocsinError(Code.UNAUTHENTICATED, "this token is unknown, revoked or expired")
    return caller


def unknown_key() -> TocsinError:
    """The answer to a token that may be valid, while the keys cannot be fetched."""
    message = "the data cluster has not fetched the key of this token yet"
    return TocsinError(Code.NOT_READY, message, retry_after_s=2)


def caller_of(connection: HTTPConnection) -> Caller:
    """The caller whose token was accepted."""
    return cast("Caller", connection.scope[CALLER])


def require_admin(connection: HTTPConnection) -> ClusterContext:
    return _require(connection, caller_of(connection).is_admin, "admin")


def require_author(connection: HTTPConnection) -> ClusterContext:
    return _require(connection, caller_of(connection).may_declare, "author")


def require_read(connection: HTTPConnection) -> ClusterContext:
    return _require(connection, caller_of(connection).may_read, "read")


def require_publish(connection: HTTPConnection, dataset: str) -> ClusterContext:
    return _require(connection, caller_of(connection).may_publish(dataset), f"publish:{dataset[:128]}")


def require_broker(connection: HTTPConnection, broker: str | None) -> tuple[ClusterContext, BrokerId]:
    """Return the context and the broker that the caller acts as: `broker` if allowed, by default its own."""
    caller = caller_of(connection)
    identity = caller.own_broker if broker is None else broker
    if not is_broker_id(identity):
        raise TocsinError(Code.BAD_REQUEST, "a broker id has 1 to 128 letters, digits, dots, dashes and underscores")
    scope = f"broker:{identity}" if broker else "subscribe"
    return _require(connection, caller.may_be(identity), scope), BrokerId(identity)


def require_some_broker(connection: HTTPConnection) -> int:
    """Return the largest body of this caller's requests. Raise unless it is a broker or acts as a broker of its own.

    The body names the broker, so `require_broker` can check it only after this.
    """
    caller = caller_of(connection)
    _require(connection, caller.is_some_broker, "subscribe")
    return LARGE_BODY_BYTES if caller.is_trusted_broker else BODY_BYTES


def require_trusted_broker(connection: HTTPConnection) -> ClusterContext:
    """Accept a broker of the network. A subscriber's token is refused, also for its own user."""
    return _require(connection, caller_of(connection).is_trusted_broker, "broker:<id>")


def require_channel(connection: HTTPConnection, channel: str) -> ClusterContext:
    return _require(connection, caller_of(connection).may_subscribe_to(channel), f"subscribe:{channel[:128]}")


def require_broker_or_read(connection: HTTPConnection) -> ClusterContext:
    """Accept a broker or a reader. The route checks that a broker requests only its own subscriptions."""
    caller = caller_of(connection)
    return _require(connection, caller.is_some_broker or caller.may_read, "subscribe")


def _require(connection: HTTPConnection, allowed: bool, scope: str) -> ClusterContext:
    if not allowed:
        caller = caller_of(connection)
        scopes = " ".join(sorted(caller.scopes))
        raise TocsinError(Code.FORBIDDEN, f"this needs a token with the scope {scope}; {caller.name} has: {scopes}")
    return context_of(connection)
