"""A subscriber's WebSocket, from the handshake to the close, on a transport that uvicorn hands over.

It is a protocol class rather than an ASGI application: results are encoded frames that all receivers share, so sending
one is a single `transport.write` of existing bytes. An idle session costs this object and its transport.
`paced_socket` decides when its requests are read.
"""

from __future__ import annotations

import asyncio
from enum import IntEnum
from typing import Any, ClassVar

import msgspec

from tocsin.broker.events import RequestReceived, SessionBlocked, SessionDrained
from tocsin.broker.hosted import Requester, SessionId
from tocsin.broker.message_encoding import BINARY, TEXT, Encoding, MessageEncoder, frame
from tocsin.broker.result_batch import Batch
from tocsin.model.ids import SubscriberId
from tocsin.model.permission import ALL_RIGHTS
from tocsin.runtime.broker.connection_guard import ConnectionGuard, login_event, subscriber_of
from tocsin.runtime.broker.paced_socket import PacedSocket
from tocsin.runtime.broker.websocket_protocol import CLOSE, PING, PONG, Violation, close_frame, shake_hands
from tocsin.runtime.http.answers import error_answer
from tocsin.runtime.http.credentials import Claims
from tocsin.wire import session as wire
from tocsin.wire.errors import Code, TocsinError

VIOLATION_S = 0.5
"""Time for a client that violated the protocol to read the reason before the connection ends."""
CLOSE_S = 5.0
"""Time for the client to answer a close frame."""
_REQUESTS: dict[Encoding, Any] = {
    Encoding.JSON: msgspec.json.Decoder(wire.FromSubscriber),
    Encoding.MSGPACK: msgspec.msgpack.Decoder(wire.FromSubscriber),
}


class _RequestId(msgspec.Struct):
    """The part of a malformed request that is needed to refuse it."""

    id: int


class _CloudEvent(msgspec.Struct):
    """A request inside a CloudEvent."""

    specversion: str
    data: msgspec.Raw


class SocketState(IntEnum):
    HANDSHAKE = 0
    OPEN = 1
    """The connection is open and has not logged in."""
    LOGGING_IN = 2
    LOGGED_IN = 3
    CLOSING = 4


class SubscriberSocket(PacedSocket):
    """uvicorn makes one for each upgrade and feeds it the request that it has read."""

    __slots__ = ("_encoding", "_session", "_state", "_subscriber", "_token", "claims")
    guard: ClassVar[ConnectionGuard]
    encode: ClassVar[MessageEncoder]

    def __init__(self, config: Any, server_state: Any, app_state: Any, _loop: Any = None) -> None:
        super().__init__()
        self._state = SocketState.HANDSHAKE
        self._encoding = Encoding.JSON
        self._session = SessionId(0)
        self._subscriber = SubscriberId("")
        self._token: str | None = None
        self.claims: Claims | None = None

    # -- called by the transport -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self._transport = transport  # type: ignore[assignment]
        queue_bytes = self.guard.process.settings.limits.queue_bytes
        self._transport.set_write_buffer_limits(high=queue_bytes, low=queue_bytes // 4)
        self.guard.half_open.add(self, self._loop.time())

    def connection_lost(self, error: Exception | None) -> None:
        self.guard.half_open.remove(self)
        self._state = SocketState.CLOSING
        if self._session:
            self.guard.process.session_lost(self._session, "connection lost")

    def eof_received(self) -> None:
        return

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._session:
            self.guard.process.happened(SessionBlocked(self._session))

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._session:
            self.guard.process.happened(SessionDrained(self._session))

    def shutdown(self) -> None:
        """Called by uvicorn when the server stops."""
        self.close("stopping")

    def data_received(self, data: bytes) -> None:
        if self._state is SocketState.HANDSHAKE:
            self._shake_hands(data)
        else:
            self.read(data, self.guard.process.settings.frame_bytes)

    def on_violation(self, violation: Violation) -> None:
        self._close_with("too_large" if violation.code == 1009 else "bad_request", violation.message, violation.code)
        self._loop.call_later(VIOLATION_S, self._transport.close)

    # -- the handshake ---------------------------------------------------------------------------------------------

    def _shake_hands(self, data: bytes) -> None:
        try:
            handshake = shake_hands(data)
        except TocsinError as error:
            self._transport.write(refusal(error))
            self._state = SocketState.CLOSING
            self._transport.close()
            return
        self._state, self._encoding, self._token = SocketState.OPEN, handshake.encoding, handshake.token
        self._transport.write(handshake.reply)

    # -- requests --------------------------------------------------------------------------------------------------

    def on_message(self, opcode: int, payload: bytes) -> None:
        if opcode == CLOSE:
            if self._state is not SocketState.CLOSING:
                self._state = SocketState.CLOSING
                self._transport.write(close_frame(1000, ""))
            self._transport.close()
        elif self._state is SocketState.CLOSING:
            return
        elif opcode == PING:
            self._transport.write(frame(payload, PONG))
        elif opcode in (TEXT, BINARY):
            self._on_request(payload)

    def _on_request(self, payload: bytes) -> None:
        try:
            request = _decode(payload, self._encoding)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self._refuse_malformed(payload, str(error))
            return
        if self._state is SocketState.LOGGED_IN:
            if isinstance(request, wire.Login):
                self._refuse(request.id, Code.BAD_REQUEST, "this session has begun already")
            else:
                requester = Requester(session=self._session)
                rights = ALL_RIGHTS if self.claims is None else self.claims.rights
                self.guard.process.happened(RequestReceived(requester, self._subscriber, request, rights))
        elif self._state is SocketState.LOGGING_IN:
            self._refuse(request.id, Code.NOT_READY, "wait for the answer to login", 1.0)
        elif isinstance(request, wire.Login):
            self._login(request)
        else:
            self._refuse(request.id, Code.UNAUTHENTICATED, "login comes first")

    def _refuse_malformed(self, payload: bytes, reason: str) -> None:
        """Refuse the request if it has a readable id; otherwise close the connection."""
        codec = msgspec.msgpack if self._encoding is Encoding.MSGPACK else msgspec.json
        try:
            number = codec.decode(payload, type=_RequestId).id
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self._close_with("bad_request", f"not a message of this protocol: {reason}")
        else:
            self._refuse(number, Code.BAD_REQUEST, f"the request does not fit: {reason}")

    def _refuse(self, request: int, code: Code, message: str, retry_after_s: float | None = None) -> None:
        refused = wire.Refused(request, str(code), message, retry_after_s)
        self._transport.write(self.encode(refused, self._encoding))

    # -- login -----------------------------------------------------------------------------------------------------

    def _login(self, request: wire.Login) -> None:
        token = request.token or self._token
        if not token:
            self._refuse_login(request.id, TocsinError(Code.UNAUTHENTICATED, "send a token with the scope subscribe"))
            return
        claims = self.guard.known_claims(token)
        if claims is not None:
            self._open_session(request, claims, token)
            return
        self._state = SocketState.LOGGING_IN
        task = self._loop.create_task(self._login_with_newer_keys(request, token))
        self.guard.tasks.add(task)
        task.add_done_callback(self.guard.tasks.discard)

    async def _login_with_newer_keys(self, request: wire.Login, token: str) -> None:
        """Fetch newer keys, then log in: the token may be signed with a key that this broker has not fetched yet."""
        try:
            claims = await self.guard.claims(token)
        except TocsinError as error:
            if self._state is SocketState.LOGGING_IN:
                self._refuse_login(request.id, error)
            return
        if self._state is SocketState.LOGGING_IN:
            self._open_session(request, claims, token)

    def _refuse_login(self, request: int, error: TocsinError) -> None:
        self.guard.record_refused_login(error.code, self._token)
        self._refuse(request, error.code, error.message, error.retry_after_s)
        self._close_with("draining" if error.code.retry else "unauthenticated", error.message)

    def _open_session(self, request: wire.Login, claims: Claims, token: str) -> None:
        try:
            self.guard.checked(claims, token)
        except TocsinError as error:
            self._refuse_login(request.id, error)
            return
        self._token = None
        self.claims = claims
        self._state = SocketState.LOGGING_IN
        self._subscriber = subscriber_of(claims)
        self._session = self.guard.process.new_session(self)
        self.guard.process.happened(login_event(self._session, claims, request.id, request.resume, self._encoding))

    # -- called by the process -------------------------------------------------------------------------------------

    def send_results(self, batch: Batch, data: bytes) -> None:
        self._transport.write(data)

    def send_message(self, message: wire.ToSubscriber, data: bytes) -> None:
        if self._state is SocketState.LOGGING_IN:
            if isinstance(message, wire.LoggedIn):
                self._state = SocketState.LOGGED_IN
                self.guard.half_open.remove(self)
            elif isinstance(message, wire.Refused):
                self._state = SocketState.OPEN
                self.guard.process.connections.pop(self._session, None)
                self._session = SessionId(0)
        self._transport.write(data)

    def await_drain(self) -> None:
        self._loop.call_soon(self._report_drained)

    def _report_drained(self) -> None:
        """Report that the queue has drained. If the queue is full again by now, `resume_writing` reports it later."""
        if not self._paused and self._session:
            self.guard.process.happened(SessionDrained(self._session))

    def expire(self) -> None:
        """Close a connection that did not log in in time, or that is one of too many half-open connections."""
        if self._state is SocketState.HANDSHAKE:
            self._transport.abort()
        else:
            self._close_with("login_timeout", "log in right after connecting")

    def close(self, reason: str) -> None:
        """Send the close frame. The core has sent the last message."""
        if self._state is not SocketState.CLOSING:
            self._send_close(wire.CLOSE_CODES[reason][0], reason)

    def _close_with(self, reason: str, message: str, code: int | None = None) -> None:
        """Close for a reason that the core does not know; `code` replaces the reason's close code."""
        if self._state is SocketState.CLOSING:
            return
        usual_code, reconnect = wire.CLOSE_CODES[reason]
        self._transport.write(self.encode(wire.Closing(reason, message, reconnect), self._encoding))
        self._send_close(usual_code if code is None else code, reason)
        if self._session:
            self.guard.process.session_lost(self._session, reason)

    def _send_close(self, code: int, reason: str) -> None:
        self._state = SocketState.CLOSING
        self._transport.write(close_frame(code, reason))
        self._loop.call_later(CLOSE_S, self._transport.abort)


def _decode(payload: bytes, encoding: Encoding) -> wire.FromSubscriber:
    if encoding is Encoding.CLOUDEVENTS:
        encoding = Encoding.JSON
        if b'"specversion"' in payload:
            payload = bytes(msgspec.json.decode(payload, type=_CloudEvent).data)
    request: wire.FromSubscriber = _REQUESTS[encoding].decode(payload)
    return request


def refusal(error: TocsinError) -> bytes:
    """The HTTP response to a handshake that is not acceptable."""
    answer = error_answer(error)
    body = bytes(answer.body)
    head = f"HTTP/1.1 {answer.status_code} Refused\r\nContent-Type: application/json\r\nConnection: close\r\n"
    return head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body


def socket_class(guard: ConnectionGuard) -> type[SubscriberSocket]:
    """The protocol class for uvicorn, which creates the instances itself."""
    process = guard.process

    class BoundSocket(SubscriberSocket):
        __slots__ = ()

    BoundSocket.guard = guard
    BoundSocket.encode = MessageEncoder(process.id, f"{process.incarnation}-s")
    return BoundSocket
