"""WebSocket connections between the nodes of a tree: what data, peer and control connections have in common.

A connection is either opened by this process (`websockets`) or accepted by its server (starlette). A `Channel` hides
the difference: messages out through an ordered queue, messages in one by one.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

from starlette.websockets import WebSocket, WebSocketDisconnect
from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException

from tocsin.wire.edge_peer import MESSAGE_BYTES

REFUSED = 1008
"""WebSocket close code: the connection is of another generation, or its sender is not a neighbour."""
_OPEN_S = 2.0
_PING_S = 1.0
_SILENT_S = 10.0
"""The leases decide which nodes are dead; this limit only ends connections to machines that vanished."""
_REASON_CHARACTERS = 120

LOST = (OSError, TimeoutError, WebSocketException, WebSocketDisconnect)
"""What a broken connection raises."""


class Channel:
    """One connection. `run` sends and receives until the connection ends."""

    def __init__(
        self, send: Callable[[bytes], Awaitable[None]], receive: Callable[[], Awaitable[bytes]], peer: str
    ) -> None:
        self.peer = peer
        self._send = send
        self._receive = receive
        self._outgoing: asyncio.Queue[tuple[bytes, int] | None] = asyncio.Queue()
        self.refusal = ""
        """Why this side ended the connection; empty if it did not."""
        self.pace: Callable[[int], Awaitable[None]] | None = None
        """Called with the size of each message before it is sent."""
        self.on_sent: Callable[[int, int], None] = lambda size_bytes, cost: None
        """Called with the size and the cost of each message when the socket has taken it."""

    def send(self, message: bytes, cost: int = 0) -> None:
        self._outgoing.put_nowait((message, cost))

    def end(self, reason: str) -> None:
        """Close the connection. The first reason is kept."""
        self.refusal = self.refusal or reason
        self._outgoing.put_nowait(None)

    async def run(self, on_message: Callable[[bytes], None]) -> None:
        """Return when the connection is lost or was ended. Whatever `on_message` raises ends it too."""
        sending, receiving = (
            asyncio.create_task(self._send_queued()),
            asyncio.create_task(self._receive_all(on_message)),
        )
        try:
            done, _ = await asyncio.wait((sending, receiving), return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                with suppress(*LOST):
                    task.result()
        finally:
            for task in (sending, receiving):
                task.cancel()
            await asyncio.gather(sending, receiving, return_exceptions=True)

    async def _send_queued(self) -> None:
        while (queued := await self._outgoing.get()) is not None:
            message, cost = queued
            if self.pace is not None:
                await self.pace(len(message))
            await self._send(message)
            self.on_sent(len(message), cost)

    async def _receive_all(self, on_message: Callable[[bytes], None]) -> None:
        while True:
            on_message(await self._receive())


@asynccontextmanager
async def opened(address: str, path: str, token: str | None, peer: str) -> AsyncIterator[Channel]:
    """Open a connection to another node. Raises one of `LOST` if that fails."""
    url = address.rstrip("/").replace("http", "ws", 1) + path
    options: dict[str, Any] = {}
    if url.startswith("wss:"):
        options["ssl"] = ssl.create_default_context()
    async with connect(
        url,
        additional_headers={} if token is None else {"Authorization": f"Bearer {token}"},
        compression=None,
        ping_interval=_PING_S,
        ping_timeout=_SILENT_S,
        open_timeout=_OPEN_S,
        close_timeout=0.2,
        max_size=MESSAGE_BYTES,
        proxy=None,
        **options,
    ) as socket:

        async def receive() -> bytes:
            return await socket.recv(decode=False)

        yield Channel(socket.send, receive, peer)


class Accepted:
    """A connection that another node has opened, before and after its first message."""

    def __init__(self, socket: WebSocket) -> None:
        self._socket = socket

    async def first(self, limit_s: float = 5.0) -> bytes:
        """The first message. Raises one of `LOST` if it does not arrive."""
        async with asyncio.timeout(limit_s):
            return await self._receive()

    async def _receive(self) -> bytes:
        try:
            message = await self._socket.receive()
        except RuntimeError as error:  # starlette: the connection is closed already
            raise ConnectionError(str(error)) from None
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message.get("code", 1006))
        data = message.get("bytes")
        return data if data is not None else (message.get("text") or "").encode()

    async def _send(self, message: bytes) -> None:
        try:
            await self._socket.send_bytes(message)
        except RuntimeError as error:
            raise ConnectionError(str(error)) from None

    def channel(self, peer: str) -> Channel:
        return Channel(self._send, self._receive, peer)

    async def close(self, reason: str) -> None:
        with suppress(*LOST, RuntimeError):
            await self._socket.close(REFUSED if reason else 1000, reason[:_REASON_CHARACTERS])


class Pace:
    """Limits a connection to a number of bytes per second, with bursts of a tenth of a second."""

    def __init__(self, bytes_per_s: float, clock_s: Callable[[], float]) -> None:
        self._bytes_per_s = bytes_per_s
        self._clock_s = clock_s
        self._free_s = 0.0
        """When the bytes that were sent so far fit the limit."""

    async def wait(self, size_bytes: int) -> None:
        now_s = self._clock_s()
        self._free_s = max(self._free_s, now_s - 0.1)
        self._free_s += size_bytes / self._bytes_per_s
        if self._free_s > now_s:
            await asyncio.sleep(self._free_s - now_s)
