"""What a process answers while another one leads: 503 with the leader's address, so that the client goes on to it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from tocsin.runtime.http.answers import answer, error_answer
from tocsin.runtime.http.bounded_protocols import BoundedWebSocket
from tocsin.runtime.http.listening import Server
from tocsin.wire.errors import NotLeading

Refusal = Callable[[], NotLeading | None]
"""Returns why this process must not answer now; None if it leads."""


def leading_only(app: ASGIApp, refusal: Refusal) -> ASGIApp:
    """Let `app` answer only while this process leads. `/healthz` and `/metrics` are always answered."""

    async def answering(scope: Scope, receive: Receive, send: Send) -> None:
        error = refusal() if scope["type"] in ("http", "websocket") else None
        if error is None or scope["path"] in ("/healthz", "/metrics"):
            await app(scope, receive, send)
        elif scope["type"] == "websocket":
            await _refuse_socket(error_answer(error), scope, receive, send)
        else:
            await _answer(error, scope)(scope, receive, send)

    return answering


def _answer(error: NotLeading, scope: Scope) -> Response:
    if scope["path"] == "/readyz":
        return answer({"ready": False, "reasons": [error.message]}, 503)
    return error_answer(error, scope)


async def _refuse_socket(response: Response, scope: Scope, receive: Receive, send: Send) -> None:
    await receive()
    if "websocket.http.response" in scope.get("extensions", {}):
        start = {"type": "websocket.http.response.start", "status": response.status_code}
        await send(start | {"headers": response.raw_headers})
        await send({"type": "websocket.http.response.body", "body": response.body})
    else:
        await send({"type": "websocket.close", "code": 1013})


async def _alive(scope: Scope, receive: Receive, send: Send) -> None:
    """The application of a process that has none yet."""
    found = scope["path"] == "/healthz"
    await answer({"alive": True} if found else {}, 200 if found else 404)(scope, receive, send)


@asynccontextmanager
async def answering_as_standby(listening: socket.socket, refusal: Refusal, **options: Any) -> AsyncIterator[None]:
    """Refuse all requests on this socket inside the block. Connections that arrive after it wait for their server.

    `options` are uvicorn's, for TLS and limits.
    """
    own = listening.dup()
    server = Server(
        uvicorn.Config(
            leading_only(_alive, refusal),
            log_config=None,
            access_log=False,
            lifespan="off",
            server_header=False,
            proxy_headers=False,
            ws=BoundedWebSocket,
            timeout_graceful_shutdown=1,
            **options,
        )
    )
    serving = asyncio.create_task(server.serve(sockets=[own]))
    try:
        yield
    finally:
        server.should_exit = True
        await asyncio.gather(serving, return_exceptions=True)
        own.close()
