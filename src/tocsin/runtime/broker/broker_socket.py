"""A WebSocket from another broker, from the handshake to the close: replicas and probes.

The token of the handshake is checked before anything else is read. The coordinator signs such tokens for brokers alone.
A token opens the connection, and its end does not close it: a home would lose its followers every few minutes. The
connection ends when the token, its broker or its key is revoked.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from typing import Any, ClassVar

from tocsin.broker.message_encoding import BINARY, Encoding, frame
from tocsin.runtime.broker.client_socket import refusal
from tocsin.runtime.broker.connection_guard import ConnectionGuard
from tocsin.runtime.broker.paced_socket import PacedSocket
from tocsin.runtime.broker.websocket_protocol import CLOSE, PING, PONG, Violation, close_frame, shake_hands
from tocsin.runtime.http.credentials import Claims
from tocsin.wire.errors import Code, TocsinError


class BrokerSocket(PacedSocket):
    """uvicorn makes one for each upgrade at the path."""

    __slots__ = ("_early", "_open", "claims")
    guard: ClassVar[ConnectionGuard]
    path: ClassVar[str]

    def __init__(self, config: Any, server_state: Any, app_state: Any, _loop: Any = None) -> None:
        super().__init__()
        self._open = False
        self._early: list[bytes] | None = None
        """Bytes that arrived while the token was checked; None before the handshake and when the connection is open.
        Reading is paused meanwhile, so they are what the transport had read already."""
        self.claims: Claims | None = None

    @abstractmethod
    def on_open(self) -> None:
        """The token is valid."""

    @abstractmethod
    def on_binary(self, payload: bytes) -> None:
        """Handle a message of the other broker."""

    def on_lost(self) -> None:
        """The connection has ended, after `on_open`."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        self.guard.half_open.add(self, self._loop.time())

    def connection_lost(self, error: Exception | None) -> None:
        self.guard.half_open.remove(self)
        self.guard.broker_sockets.discard(self)
        if self._open:
            self._open = False
            self.on_lost()

    def eof_received(self) -> None:
        return

    def shutdown(self) -> None:
        """Called by uvicorn when the server stops."""
        self._transport.close()

    def expire(self) -> None:
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._open:
            self.read(data)
        elif self._early is not None:
            self._early.append(data)
        else:
            self._early = []
            self._pause_reading()
            task = self._loop.create_task(self._shake_hands(data))
            self.guard.tasks.add(task)
            task.add_done_callback(self.guard.tasks.discard)

    async def _shake_hands(self, request: bytes) -> None:
        token: str | None = None
        try:
            handshake = shake_hands(request, (self.path,))
            token = handshake.token
            if handshake.encoding is not Encoding.MSGPACK:
                raise TocsinError(Code.BAD_REQUEST, "brokers connect here with the subprotocol tocsin.msgpack")
            self.claims = await self.guard.replica_claims(handshake.token)
        except TocsinError as error:
            self.guard.record_refused_login(error.code, token, self.path)
            self._transport.write(refusal(error))
            self._transport.close()
            return
        if self._transport.is_closing():
            return
        self.guard.half_open.remove(self)
        self.guard.broker_sockets.add(self)
        self.guard.record_login(self.claims, self.path)
        self._transport.write(handshake.reply)
        self._open = True
        self._resume_reading()
        self.on_open()
        early, self._early = self._early or [], None
        for data in early:
            self.read(data)

    def on_message(self, opcode: int, payload: bytes) -> None:
        if opcode == CLOSE:
            self._transport.write(close_frame(1000, ""))
            self._transport.close()
        elif opcode == PING:
            self._transport.write(frame(payload, PONG))
        elif opcode == BINARY and self._open:
            self.on_binary(payload)

    def on_violation(self, violation: Violation) -> None:
        self._transport.abort()

    def write(self, payload: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(frame(payload, BINARY))
