"""A client's WebSocket, from the handshake to the close, on a transport that uvicorn hands over.

It is a protocol class rather than an ASGI application: frames are encoded once for all receivers, so sending one is a
single `transport.write` of existing bytes. An idle connection costs this object and its transport. `paced_socket`
decides when requests are read; `subscriber_socket` and `topic_socket` know what the requests mean.
"""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from collections.abc import Collection
from enum import IntEnum
from typing import Any, ClassVar, Protocol

import msgspec

from tocsin.broker.message_encoding import BINARY, TEXT, Encoding, frame
from tocsin.runtime.broker.connection_guard import ConnectionGuard
from tocsin.runtime.broker.paced_socket import PacedSocket
from tocsin.runtime.broker.websocket_protocol import (
    CLOSE,
    PATHS,
    PING,
    PONG,
    FrameReader,
    Violation,
    close_frame,
    shake_hands,
)
from tocsin.runtime.http.answers import error_answer
from tocsin.runtime.http.credentials import Claims
from tocsin.wire.errors import Code, TocsinError
from tocsin.wire.session import CLOSE_CODES

LOGIN_BYTES = 64 << 10
"""Largest message before the login: it is kept in memory for a stranger. Most of a login are its cursors."""
VIOLATION_S = 0.5
"""Time for a client that violated the protocol to read the reason before the connection ends."""
CLOSE_S = 5.0
"""Time for the client to answer a close frame."""
MALFORMED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding a client's request may raise."""


class LoginRequest(Protocol):
    """A `login` of either protocol."""

    id: int
    token: str | None


class SocketState(IntEnum):
    HANDSHAKE = 0
    OPEN = 1
    """The connection is open and has not logged in."""
    LOGGING_IN = 2
    LOGGED_IN = 3
    CLOSING = 4


HANDSHAKE, LOGGED_IN, CLOSING = SocketState.HANDSHAKE, SocketState.LOGGED_IN, SocketState.CLOSING
"""For code that runs with every message: Python 3.11 looks a member up in its class twenty times slower."""


class ClientSocket(PacedSocket):
    """uvicorn makes one for each upgrade and feeds it the request that it has read."""

    __slots__ = ("_encoding", "_identity", "_state", "_token", "claims")
    guard: ClassVar[ConnectionGuard]
    paths: ClassVar[Collection[str]] = PATHS
    encodings: ClassVar[Collection[Encoding]] = (Encoding.JSON, Encoding.MSGPACK, Encoding.CLOUDEVENTS)
    missing_token: ClassVar[str]
    """The answer to a login without a token."""

    def __init__(self, config: Any, server_state: Any, app_state: Any, _loop: Any = None) -> None:
        super().__init__()
        self._state = SocketState.HANDSHAKE
        self._encoding = Encoding.JSON
        self._identity = 0
        """The number that the process has given to this connection; 0 before the login."""
        self._token: str | None = None
        self.claims: Claims | None = None

    # -- what a protocol adds --------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def queue_bytes(self) -> int:
        """Bytes that may wait in the connection."""

    @abstractmethod
    def on_request(self, payload: bytes) -> None:
        """Handle a text or binary message."""

    @abstractmethod
    def check(self, claims: Claims | None, token: str) -> Claims:
        """Return the claims if they permit this connection; raise otherwise."""

    @abstractmethod
    def open(self, request: Any, claims: Claims) -> None:
        """The token is valid: begin the session that the login requested."""

    @abstractmethod
    def refuse(self, request: int, code: Code, message: str, retry_after_s: float | None = None) -> None:
        """Send a refusal of a request."""

    @abstractmethod
    def send_closing(self, reason: str, message: str, reconnect: bool) -> None:
        """Send the last message before the close frame."""

    @abstractmethod
    def report_blocked(self) -> None:
        """Report to the core that the queue is full."""

    @abstractmethod
    def report_drained(self) -> None:
        """Report to the core that the queue has room again."""

    @abstractmethod
    def report_lost(self, reason: str) -> None:
        """Report to the core that the connection has ended."""

    # -- called by the transport -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        self._transport.set_write_buffer_limits(high=self.queue_bytes, low=self.queue_bytes // 4)
        self.guard.half_open.add(self, self._loop.time())

    def connection_lost(self, error: Exception | None) -> None:
        self.guard.half_open.remove(self)
        self._state = SocketState.CLOSING
        if self._budget is not None:
            self.guard.budgets.release(self._budget, time.perf_counter())
        if self._identity:
            self.report_lost("connection lost")

    def eof_received(self) -> None:
        return

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._identity:
            self.report_blocked()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._identity:
            self.report_drained()

    def shutdown(self) -> None:
        """Called by uvicorn when the server stops."""
        self.close("stopping")

    def data_received(self, data: bytes) -> None:
        if self._state is HANDSHAKE:
            self._shake_hands(data)
        else:
            self.read(data)

    def on_violation(self, violation: Violation) -> None:
        self._close_with("too_large" if violation.code == 1009 else "bad_request", violation.message, violation.code)
        self._loop.call_later(VIOLATION_S, self._transport.close)

    # -- the handshake and the frames ------------------------------------------------------------------------------

    def _shake_hands(self, data: bytes) -> None:
        try:
            handshake = shake_hands(data, self.paths, self.encodings)
        except TocsinError as error:
            self._transport.write(refusal(error))
            self._state = SocketState.CLOSING
            self._transport.close()
            return
        self._state, self._encoding, self._token = SocketState.OPEN, handshake.encoding, handshake.token
        self._reader = FrameReader(min(LOGIN_BYTES, self.frame_bytes))
        self._transport.write(handshake.reply)

    def on_message(self, opcode: int, payload: bytes) -> None:
        if opcode == CLOSE:
            if self._state is not SocketState.CLOSING:
                self._state = SocketState.CLOSING
                self._transport.write(close_frame(1000, ""))
            self._transport.close()
        elif self._state is CLOSING:
            return
        elif opcode in (TEXT, BINARY):
            self.on_request(payload)
        elif opcode == PING:
            self._transport.write(frame(payload, PONG))

    # -- login -----------------------------------------------------------------------------------------------------

    def _login(self, request: LoginRequest) -> None:
        token = request.token or self._token
        if not token:
            self._refuse_login(request, TocsinError(Code.UNAUTHENTICATED, self.missing_token), token)
            return
        claims = self.guard.known_claims(token)
        if claims is not None:
            self._open_checked(request, claims, token)
            return
        self._state = SocketState.LOGGING_IN
        task = self._loop.create_task(self._login_with_newer_keys(request, token))
        self.guard.tasks.add(task)
        task.add_done_callback(self.guard.tasks.discard)

    async def _login_with_newer_keys(self, request: LoginRequest, token: str) -> None:
        """Fetch newer keys, then log in: the token may be signed with a key that this broker has not fetched yet."""
        try:
            claims = await self.guard.fetched_claims(token)
        except TocsinError as error:
            if self._state is SocketState.LOGGING_IN:
                self._refuse_login(request, error, token)
            return
        if self._state is SocketState.LOGGING_IN:
            self._open_checked(request, claims, token)

    def _open_checked(self, request: LoginRequest, claims: Claims | None, token: str) -> None:
        try:
            self.claims = self.check(claims, token)
        except TocsinError as error:
            self._refuse_login(request, error, token)
            return
        self._token = None
        if self._reader is not None:
            self._reader.limit_bytes = self.frame_bytes
        self._budget = self.guard.budgets.of(self.claims.subject, self.turn_share)
        self.open(request, self.claims)

    def _refuse_login(self, request: LoginRequest, error: TocsinError, token: str | None) -> None:
        self.guard.record_refused_login(error.code, token)
        self.refuse(request.id, error.code, error.message, error.retry_after_s)
        self._close_with("draining" if error.code.retry else "unauthenticated", error.message)

    # -- called by the process -------------------------------------------------------------------------------------

    def await_drain(self) -> None:
        self._loop.call_soon(self._report_if_drained)

    def _report_if_drained(self) -> None:
        """Report that the queue has drained. If the queue is full again by now, `resume_writing` reports it later."""
        if not self._paused and self._identity:
            self.report_drained()

    def expire(self) -> None:
        """Close a connection that did not log in in time, or that is one of too many half-open connections."""
        if self._state is SocketState.HANDSHAKE:
            self._transport.abort()
        else:
            self._close_with("login_timeout", "log in right after connecting")

    def close(self, reason: str) -> None:
        """Send the close frame. The core has sent the last message."""
        if self._state is not SocketState.CLOSING:
            self._send_close(CLOSE_CODES[reason][0], reason)

    def _close_with(self, reason: str, message: str, code: int | None = None) -> None:
        """Close for a reason that the core does not know; `code` replaces the reason's close code."""
        if self._state is SocketState.CLOSING:
            return
        usual_code, reconnect = CLOSE_CODES[reason]
        self.send_closing(reason, message, reconnect)
        self._send_close(usual_code if code is None else code, reason)
        if self._identity:
            self.report_lost(reason)

    def _send_close(self, code: int, reason: str) -> None:
        self._state = SocketState.CLOSING
        self._transport.write(close_frame(code, reason))
        self._loop.call_later(CLOSE_S, self._transport.abort)


def refusal(error: TocsinError) -> bytes:
    """The HTTP response to a handshake that is not acceptable."""
    answer = error_answer(error)
    body = bytes(answer.body)
    head = f"HTTP/1.1 {answer.status_code} Refused\r\nContent-Type: application/json\r\nConnection: close\r\n"
    return head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body
