"""The door of a server: nobody passes who was not admitted, nothing that goes wrong inside leaves as a stack trace.

A plain ASGI layer around a whole application, so a route that forgets to ask for a scope is still closed to strangers.
Who is admitted is the server's own business (`admit`). It also writes the access log, which has paths but no query
strings: those may carry a token.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable, Callable
from urllib.parse import parse_qs

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tocsin.runtime.http.answers import answer, error_answer, error_body
from tocsin.runtime.http.logs import logger
from tocsin.wire.errors import Code, TocsinError

Authenticate = Callable[[Scope], Awaitable[None]]
"""Raises `TocsinError` for whoever may not pass; may leave in the scope what routes need to know of the caller."""


class AuthenticationMiddleware:
    def __init__(self, app: ASGIApp, admit: Authenticate, answered: Callable[[str, int], None], part: str) -> None:
        """`answered` is told (method, status) of each request; `part` is what messages call this server."""
        self._app = app
        self._admit = admit
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

        async def counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            try:
                await self._admit(scope)
                await self._app(scope, receive, counted)
            except TocsinError as error:
                await error_answer(error)(scope, receive, counted)
        except ClientDisconnect:
            status = 499
        except Exception as error:
            response = internal_error(error, scope["path"], self._part)
            if not status:
                await response(scope, receive, counted)
            # else: the answer had begun. It ends here unfinished, which is how the client learns of it.
        finally:
            self._answered(scope["method"], status)
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
            await self._admit(scope)
            await self._app(scope, receive, watched)
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


def token_of(scope: Scope) -> str | None:
    """The bearer token of a request or a handshake."""
    for name, value in scope["headers"]:
        if name == b"authorization":
            kind, _, token = value.decode("latin-1").partition(" ")
            return token.strip() if kind.lower() == "bearer" else None
    # Browsers cannot set headers on EventSource and WebSocket.
    given = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("access_token")
    return given[0] if given else None


def internal_error(error: Exception, path: str, part: str) -> Response:
    identity = secrets.token_hex(8)
    logger().error("internal error", id=identity, path=path, exc_info=error)
    message = f"something went wrong inside; the log of the {part} has it as {identity}"
    return answer(error_body(Code.INTERNAL, message), Code.INTERNAL.status)


def make_internal_handler(part: str) -> Callable[[Request, Exception], Response]:
    return lambda request, error: internal_error(error, request.url.path, part)


async def _deny(scope: Scope, send: Send, response: Response) -> None:
    """An HTTP answer instead of the handshake, where the server can give one."""
    if "websocket.http.response" in scope.get("extensions", {}):
        await send(
            {"type": "websocket.http.response.start", "status": response.status_code, "headers": response.raw_headers}
        )
        await send({"type": "websocket.http.response.body", "body": response.body})
    else:
        await send({"type": "websocket.close", "code": 1008})
