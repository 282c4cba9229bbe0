"""TLS on accepted connections, with the handshake counted as a half-open connection.

asyncio's own TLS servers tell a protocol about a connection only after the handshake, and give the handshake a minute:
a client that connects and sends nothing would be in no table. Here a connection is in the table of half-open
connections from its first moment, and its handshake has `login_s`, as a login has. `bounded_protocols` has the HTTP
part; the MQTT server uses this too.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tocsin.runtime.http.half_open import HalfOpenConnections


def server_context(certificate: str | Path, key: str | Path | None) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    return context


class _EarlyBytes(asyncio.Protocol):
    """Keeps what arrives between the end of the handshake and the turn of the loop in which its task continues.

    That is one read of the transport: a client's first request comes in the same packet as its last handshake message.
    """

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._has_ended = False
        self._is_lost = False

    def data_received(self, data: bytes) -> None:
        self._pieces.append(data)

    def eof_received(self) -> None:
        self._has_ended = True

    def connection_lost(self, error: Exception | None) -> None:
        self._is_lost = True

    def hand_over(self, transport: asyncio.Transport, protocol: asyncio.Protocol) -> None:
        """Give the connection, and what it has brought so far, to `protocol`."""
        if self._is_lost:
            return
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        for data in self._pieces:
            # The protocol may have handed the connection on to another one, as HTTP does for a WebSocket.
            current = transport.get_protocol()
            assert isinstance(current, asyncio.Protocol)
            current.data_received(data)
        if self._has_ended:
            transport.close()


class TlsAccept(asyncio.Protocol):
    """One accepted connection, until its handshake is over. Then `make_protocol` gets the encrypted transport."""

    def __init__(
        self, make_protocol: Callable[[], asyncio.Protocol], context: ssl.SSLContext, half_open: HalfOpenConnections
    ) -> None:
        self._make_protocol = make_protocol
        self._context = context
        self._half_open = half_open
        self._transport: asyncio.Transport
        self._shaking: asyncio.Task[None] | None = None
        self._first = b""
        """Bytes of the handshake that arrived before the TLS protocol took over. uvloop starts to read right after
        `connection_made`, whatever that did."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # uvloop's is no subclass
        self._transport.pause_reading()  # the first bytes belong to the TLS protocol
        loop = asyncio.get_running_loop()
        self._half_open.add(self, loop.time())
        self._shaking = loop.create_task(self._shake_hands(loop))

    def data_received(self, data: bytes) -> None:
        self._first += data
        self._transport.pause_reading()

    def connection_lost(self, error: Exception | None) -> None:
        self._half_open.remove(self)

    async def _shake_hands(self, loop: asyncio.AbstractEventLoop) -> None:
        early = _EarlyBytes()
        encrypted: asyncio.Transport | None = None
        try:
            with suppress(OSError, ssl.SSLError, TimeoutError):  # the client left, was late or is no TLS client
                limit_s = self._half_open.limit_s
                starting = loop.start_tls(
                    self._transport, early, self._context, server_side=True, ssl_handshake_timeout=limit_s
                )
                handshake = asyncio.ensure_future(starting)
                try:
                    await asyncio.sleep(0)  # `start_tls` sets the TLS protocol, which begins in the next turn
                    if self._first:
                        loop.call_soon(_feed, self._transport, self._first)
                    encrypted = await handshake
                finally:
                    handshake.cancel()
        finally:
            self._half_open.remove(self)
        if encrypted is None:
            self._transport.abort()
        else:
            early.hand_over(encrypted, self._make_protocol())

    def expire(self) -> None:
        """Close the connection: its handshake takes too long, or it is one of too many half-open connections."""
        if self._shaking is not None:
            self._shaking.cancel()
        self._transport.abort()


def _feed(transport: asyncio.Transport, data: bytes) -> None:
    """Pass bytes to the transport's TLS protocol as the transport does."""
    protocol: Any = transport.get_protocol()  # uvloop's TLS protocol is no `asyncio.BufferedProtocol`
    if transport.is_closing():
        return
    while data:
        buffer = memoryview(protocol.get_buffer(len(data)))
        size_bytes = min(len(buffer), len(data))
        buffer[:size_bytes] = data[:size_bytes]
        protocol.buffer_updated(size_bytes)
        data = data[size_bytes:]


def tls_http_class(
    protocol: type[asyncio.Protocol], context: ssl.SSLContext, half_open: HalfOpenConnections
) -> type[asyncio.Protocol]:
    """The class for uvicorn, which makes one for each connection. Pass no certificate to uvicorn itself."""

    class TlsHttp(TlsAccept):
        def __init__(self, config: Any, server_state: Any, app_state: Any, _loop: Any = None) -> None:
            super().__init__(lambda: protocol(config, server_state, app_state, _loop), context, half_open)  # type: ignore[call-arg]

    return TlsHttp
