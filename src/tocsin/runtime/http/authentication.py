"""Authentication of every request before it reaches a route, and answers to unexpected errors.

`AuthenticationMiddleware` is an ASGI layer around the whole application: a route that forgets to check a scope is still
closed to callers without a token. Each server supplies its own `authenticate`. The layer also writes the access log,
which has paths but no query strings, because a query string may contain a token.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable
from urllib.parse import parse_qs

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tocsin.runtime.http.answers import answer, error_answer, error_body
from tocsin.runtime.http.audit import CLAIMS
from tocsin.runtime.http.bounded_protocols import report_authenticated
from tocsin.runtime.http.logs import logger, logs_debug
from tocsin.runtime.http.open_requests import CALLER, OpenRequests
from tocsin.wire.errors import Code, TocsinError

Authenticate = Callable[[Scope], Awaitable[None]]
"""A server's check of a request.

It raises `TocsinError` to reject the request. It may store data about the caller in the scope, for the routes.
"""


_TOKEN_ENDED = TocsinError(Code.UNAUTHENTICATED, "the token was revoked or has expired")
_SWITCHED = 101
_TOKEN_ENDED_CODE = 4401
"""WebSocket close code, the same as at brokers."""


class AuthenticationMiddleware:
    def __init__(
        self,
        app: ASGIApp,
        authenticate: Authenticate,
        answered: Callable[[str, int], None],
        part: str,
        open_requests: OpenRequests | None = None,
        audit: Callable[[Scope, int], None] = lambda scope, status: None,
    ) -> None:
        """`answered` is called with method and status of each request. `part` names this server in error messages.

        `open_requests` ends requests whose caller's token is revoked or has expired. `audit` is called with each
        request and its status; with 101 when a WebSocket is accepted.
        """
        self._audit = audit
        self._open = OpenRequests() if open_requests is None else open_requests
        self._app = app
        self._authenticate = authenticate
        self._answered = answered
        self._part = part
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

        async def send_counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            try:
                await self._authenticate(scope)
                if is_authenticated(scope):
                    report_authenticated(scope)
                with self._open.of(scope.get(CALLER)):
                    await self._app(scope, receive, send_counted)
            except TocsinError as error:
                await error_answer(error, scope)(scope, receive, send_counted)
        except asyncio.CancelledError:
            if not self._open.was_ended():
                raise
            if not status:
                await error_answer(_TOKEN_ENDED)(scope, receive, send_counted)
            # Otherwise the stream breaks off here. The next request gets the reason.
        except ClientDisconnect:
            status = 499
        except Exception as error:
            response = internal_error(error, scope["path"], self._part)
            if not status:
                await response(scope, receive, send_counted)
            # Otherwise the answer has begun. It breaks off here, and the client notices that.
        finally:
            self._answered(scope["method"], status)
            self._audit(scope, status)
            if logs_debug():
                took_s = round(time.monotonic() - started_s, 4)
                self._log.debug("request", method=scope["method"], path=scope["path"], status=status, duration_s=took_s)

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        accepted = False

        async def send_watched(message: Message) -> None:
            nonlocal accepted
            if message["type"] == "websocket.accept":
                accepted = True
                self._audit(scope, _SWITCHED)
            await send(message)

        try:
            await self._authenticate(scope)
            with self._open.of(scope.get(CALLER)):
                await self._app(scope, receive, send_watched)
        except asyncio.CancelledError:
            if not self._open.was_ended():
                raise
            await send({"type": "websocket.close", "code": _TOKEN_ENDED_CODE, "reason": _TOKEN_ENDED.message})
        except TocsinError as error:
            if not accepted:
                self._audit(scope, error.code.status)
                await _deny(scope, send, error_answer(error))
            else:
                await send({"type": "websocket.close", "code": 1011, "reason": error.message[:120]})
        except ClientDisconnect:
            return
        except Exception as error:
            response = internal_error(error, scope["path"], self._part)
            if not accepted:
                await _deny(scope, send, response)
            else:
                await send({"type": "websocket.close", "code": 1011, "reason": "internal error"})


def is_authenticated(scope: Scope) -> bool:
    """True if the server accepted a token; false for the paths that need none."""
    return CALLER in scope or CLAIMS in scope


def token_of(scope: Scope) -> str | None:
    """The bearer token of a request or a WebSocket handshake; None if it has none."""
    for name, value in scope["headers"]:
        if name == b"authorization":
            kind, _, token = value.decode("latin-1").partition(" ")
            return token.strip() if kind.lower() == "bearer" else None
    if not _is_stream(scope):
        return None
    query_tokens = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("access_token")
    return query_tokens[0] if query_tokens else None


def _is_stream(scope: Scope) -> bool:
    """True for WebSockets and event streams: browsers cannot set their headers, so the query string has the token.

    Elsewhere a token in the address is refused, because addresses get into histories and the logs of proxies.
    """
    if scope["type"] == "websocket":
        return True
    accepted = (value for name, value in scope["headers"] if name == b"accept")
    return scope["method"] == "GET" and any(b"text/event-stream" in value.lower() for value in accepted)


def internal_error(error: Exception, path: str, part: str) -> Response:
    """Log the error with its stack trace, and answer with a message that names only the log entry."""
    identity = secrets.token_hex(8)
    logger().error("internal error", id=identity, path=path, exc_info=error)
    message = f"internal error; the log of the {part} has the details under {identity}"
    return answer(error_body(Code.INTERNAL, message), Code.INTERNAL.status)


async def _deny(scope: Scope, send: Send, response: Response) -> None:
    """Answer a WebSocket handshake with an HTTP response. Close with code 1008 if the server cannot do that."""
    if "websocket.http.response" in scope.get("extensions", {}):
        await send(
            {"type": "websocket.http.response.start", "status": response.status_code, "headers": response.raw_headers}
        )
        await send({"type": "websocket.http.response.body", "body": response.body})
    else:
        await send({"type": "websocket.close", "code": 1008})
