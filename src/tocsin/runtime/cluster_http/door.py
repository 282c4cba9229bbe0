"""The door of the API: nobody passes without a valid token, nothing that goes wrong inside leaves as a stack trace.

A plain ASGI layer around the whole application, so a route that forgets to ask for a scope is still closed to
strangers. It also writes the access log, which has paths but no query strings: those may carry a token.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from urllib.parse import parse_qs

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tocsin.runtime.cluster_http.answers import answer, error_answer, error_body
from tocsin.runtime.cluster_http.api import Api
from tocsin.runtime.logs import logger
from tocsin.runtime.settings import is_loopback
from tocsin.runtime.tokens import Caller
from tocsin.wire.errors import Code, TocsinError

_OPEN = frozenset({"/healthz", "/readyz"})


class Door:
    def __init__(self, app: ASGIApp, api: Api) -> None:
        self._app = app
        self._api = api
        self._metrics_are_open = is_loopback(api.settings.host)
        self._log = logger()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._http(scope, receive, send)
        elif scope["type"] == "websocket":
            await self._websocket(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        started_s = time.monotonic()
        status = 0

        async def counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            try:
                self._admit(scope)
                await self._app(scope, receive, counted)
            except TocsinError as error:
                await error_answer(error)(scope, receive, counted)
        except ClientDisconnect:
            status = 499
        except Exception as error:
            response = internal_error(error, scope["path"])
            if not status:
                await response(scope, receive, counted)
            # else: the answer had begun. It ends here unfinished, which is how the client learns of it.
        finally:
            self._api.metrics.requests.labels(scope["method"], str(status)).inc()
            self._log.debug(
                "request", method=scope["method"], path=scope["path"], status=status,
                duration_s=round(time.monotonic() - started_s, 4),
            )  # fmt: skip

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        accepted = False

        async def watched(message: Message) -> None:
            nonlocal accepted
            accepted = accepted or message["type"] == "websocket.accept"
            await send(message)

        try:
            self._admit(scope)
            await self._app(scope, receive, watched)
        except TocsinError as error:
            if not accepted:
                await _deny(scope, send, error_answer(error))
            else:
                await send({"type": "websocket.close", "code": 1011, "reason": error.message[:120]})
        except ClientDisconnect:
            return
        except Exception as error:
            response = internal_error(error, scope["path"])
            if not accepted:
                await _deny(scope, send, response)
            else:
                await send({"type": "websocket.close", "code": 1011, "reason": "internal error"})

    def _admit(self, scope: Scope) -> None:
        path: str = scope["path"]
        if path in _OPEN or (path == "/metrics" and self._metrics_are_open):
            return
        if path != "/metrics" and path != "/v1" and not path.startswith("/v1/"):
            return  # nothing is there; the router says so
        scope["tocsin.caller"] = caller = self._caller(scope)
        if path == "/metrics" and not caller.may_read:
            raise TocsinError(Code.FORBIDDEN, "this needs a token with the scope read")

    def _caller(self, scope: Scope) -> Caller:
        if self._api.tokens is None or self._api.process.stopping.is_set():
            _ = self._api.cluster  # raises with what it is doing instead
            raise TocsinError(Code.NOT_READY, "the data cluster is still starting", retry_after_s=2)
        token = _token(scope)
        if token is None:
            raise TocsinError(Code.UNAUTHENTICATED, "send a token: Authorization: Bearer tocsin_…")
        caller = self._api.tokens.caller(token)
        if caller is None:
            raise TocsinError(Code.UNAUTHENTICATED, "this token is unknown, revoked or expired")
        return caller


def _token(scope: Scope) -> str | None:
    for name, value in scope["headers"]:
        if name == b"authorization":
            kind, _, token = value.decode("latin-1").partition(" ")
            return token.strip() if kind.lower() == "bearer" else None
    # Browsers cannot set headers on EventSource and WebSocket.
    given = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("access_token")
    return given[0] if given else None


def internal_error(error: Exception, path: str) -> Response:
    identity = secrets.token_hex(8)
    logger().error("internal error", id=identity, path=path, exc_info=error)
    message = f"something went wrong inside; the log of the data cluster has it as {identity}"
    return answer(error_body(Code.INTERNAL, message), Code.INTERNAL.status)


def make_internal_handler() -> Callable[[Request, Exception], Response]:
    return lambda request, error: internal_error(error, request.url.path)


async def _deny(scope: Scope, send: Send, response: Response) -> None:
    """An HTTP answer instead of the handshake, where the server can give one."""
    if "websocket.http.response" in scope.get("extensions", {}):
        await send(
            {"type": "websocket.http.response.start", "status": response.status_code, "headers": response.raw_headers}
        )
        await send({"type": "websocket.http.response.body", "body": response.body})
    else:
        await send({"type": "websocket.close", "code": 1008})
