"""uvicorn's protocols with bounds on what a client can make them keep: headers, requests in advance, unread pongs.

Every server passes these classes to uvicorn. The parser keeps an incomplete header and copies it for every packet, so a
header without an end would cost memory and time; pipelined requests cost an object each before any of them is
authenticated.
"""

from __future__ import annotations

import asyncio
from typing import Any, Self

from starlette.types import Scope
from uvicorn._types import ASGISendEvent
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from tocsin.runtime.http.half_open import HalfOpenConnections
from tocsin.runtime.http.tls_accept import server_context, tls_http_class

HEAD_BYTES = 64 << 10
"""Most bytes of a request's address and headers. `Last-Event-ID` of a stream is the longest header of the project."""
PIPELINED = 16
"""Most requests that a connection may send before the answer to the first."""
DROPPED_BYTES = 256 << 10
"""Longest body that the server reads to its end although it has refused it."""
_CONNECTION = "tocsin.connection"
"""Key of the connection in the ASGI scope."""
_HEADER_BYTES = 32
"""What a header costs besides its text."""
_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class _HeadTooLarge(Exception):
    pass


class _Body:
    """The unread part of a body, in the pieces that arrived. uvicorn's own buffer copies each piece twice."""

    __slots__ = ("_pieces", "_size_bytes")

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._size_bytes = 0

    def __iadd__(self, piece: bytes) -> Self:
        self._pieces.append(piece)
        self._size_bytes += len(piece)
        return self

    def __len__(self) -> int:
        return self._size_bytes

    def __bytes__(self) -> bytes:
        return self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)


class BoundedHttp(HttpToolsProtocol):
    """One connection. `make_http_class` binds it to the server's table of half-open connections."""

    half_open: HalfOpenConnections
    _head_bytes = 0
    _stalled_bytes = 0
    """Bytes since the parser last completed something: a head, a piece of a body, a request."""
    _advanced = False
    _too_large = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.half_open.add(self, self.loop.time())

    def connection_lost(self, exc: Exception | None) -> None:
        self.half_open.remove(self)
        super().connection_lost(exc)

    def handle_websocket_upgrade(self) -> None:
        self.half_open.remove(self)
        super().handle_websocket_upgrade()

    def authenticated(self) -> None:
        self.half_open.remove(self)

    def expire(self) -> None:
        self.transport.abort()

    # -- bounds ----------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._too_large:
            return  # the connection is being closed
        self._advanced = False
        super().data_received(data)
        self._stalled_bytes = 0 if self._advanced else self._stalled_bytes + len(data)
        if self._stalled_bytes > HEAD_BYTES and not self._too_large and not self.transport.is_closing():
            self._refuse_head()

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= PIPELINED:
            self._too_large = True
            raise _HeadTooLarge
        super().on_message_begin()
        self._head_bytes = 0
        self.scope[_CONNECTION] = self  # type: ignore[literal-required]
        self.half_open.add(self, self.loop.time())

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + _HEADER_BYTES)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._advanced = True
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._advanced = True
        if self.cycle is not None and not self.cycle.body:
            self.cycle.body = _Body()  # type: ignore[assignment]
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._advanced = True
        super().on_message_complete()

    def _count(self, size_bytes: int) -> None:
        """Count a part of the head, or of the trailer behind the body; the parser turns the error into a refusal."""
        self._head_bytes += size_bytes
        if self._head_bytes > HEAD_BYTES:
            self._too_large = True
            raise _HeadTooLarge

    def send_400_response(self, msg: str) -> None:
        if self._too_large:
            self._refuse_head()
        else:
            super().send_400_response(msg)

    def _refuse_head(self) -> None:
        self._too_large = True
        if self.cycle is None or self.cycle.response_complete:
            self.transport.write(_TOO_LARGE)
        self.transport.close()


def make_http_class(
    half_open: HalfOpenConnections, certificate: str | None = None, key: str | None = None
) -> type[asyncio.Protocol]:
    """The HTTP protocol class for uvicorn, which creates the instances itself. With a certificate, it speaks TLS."""
    plain: type[BoundedHttp] = type("BoundHttp", (BoundedHttp,), {"half_open": half_open})
    if certificate is None:
        return plain
    return tls_http_class(plain, server_context(certificate, key), half_open)


def report_authenticated(scope: Scope) -> None:
    """Take the request's connection out of the table of half-open connections: its token was accepted."""
    connection: Any = scope.get(_CONNECTION)
    if connection is not None:
        connection.authenticated()


def leaves_body_unread(scope: Scope) -> bool:
    """True if much of the request's body has not arrived: an answer should close the connection.

    Otherwise the server would read the rest only to drop it. A small rest costs less than a new connection.
    """
    cycle: Any = getattr(scope.get(_CONNECTION), "cycle", None)
    if cycle is None or cycle.scope is not scope or not cycle.more_body:
        return False
    lengths = [value for name, value in scope["headers"] if name == b"content-length"]
    return not lengths or int(lengths[0]) > DROPPED_BYTES


class BoundedWebSocket(WebSocketsSansIOProtocol):
    """A WebSocket that drops pongs while the client does not read (RFC 6455 §5.5.3 requires only the last one)."""

    def handle_ping(self) -> None:
        if self.writable.is_set():
            super().handle_ping()
        else:
            self.conn.data_to_send()  # drops the pong

    async def send(self, message: ASGISendEvent) -> None:
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and not message.get("more_body", False):
            # uvicorn takes a handshake that was answered with an error for one without an answer, and logs it.
            self.handshake_complete = True
