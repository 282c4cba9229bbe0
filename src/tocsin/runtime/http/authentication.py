"""Authentication of every request before it reaches a route, and answers to unexpected errors.

`AuthenticationMiddleware` is an ASGI layer around the whole application: a route that forgets to check a scope is still
closed to callers without a token. Each server supplies its own `authenticate`. The layer also writes the access log,
which has paths but no query strings, because a query string may contain a token.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable, Callable
from urllib.parse import parse_qs

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tocsin.runtime.http.answers import answer, error_answer, error_body
from tocsin.runtime.http.bounded_protocols import report_authenticated
from tocsin.runtime.http.logs import logger
from tocsin.wire.errors import Code, TocsinError

CALLER = "tocsin.caller"
"""Key of the authenticated caller in the ASGI scope."""
CLAIMS = "tocsin.claims"
"""Key of a subscriber's claims in the ASGI scope."""

Authenticate = Callable[[Scope], Awaitable[None]]
"""A server's check of a request.

It raises `TocsinError` to reject the request. It may store data about the caller in the scope, for the routes.
"""


class AuthenticationMiddleware:
    def __init__(
        self, app: ASGIApp, authenticate: Authenticate, answered: Callable[[str, int], None], part: str
    ) -> None:
        """`answered` is called with method and status of each request. `part` names this server in error messages."""
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
                await self._app(scope, receive, send_counted)
            except TocsinError as error:
                await error_answer(error)(scope, receive, send_counted)
        except ClientDisconnect:
            status = 499
        except Exception as error:
            response = internal_error(error, scope["path"], self._part)
            if not status:
                await response(scope, receive, send_counted)
            # Otherwise the answer has begun. It breaks off here, and the client notices that.
        finally:
            self._answered(scope["method"], status)
            duration_s = round(time.monotonic() - started_s, 4)
            self._log.debug("request", method=scope["method"], path=scope["path"], status=status, duration_s=duration_s)

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        accepted = False

        async def send_watched(message: Message) -> None:
            nonlocal accepted
            accepted = accepted or message["type"] == "websocket.accept"
            await send(message)

        try:
            await self._authenticate(scope)
            await self._app(scope, receive, send_watched)
        except TocsinError as error:
            if not accepted:
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
