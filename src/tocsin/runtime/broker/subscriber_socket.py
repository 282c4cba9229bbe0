"""A subscriber's WebSocket: from the handshake to the close, on a transport that uvicorn hands over.

Its own protocol class rather than an ASGI application: results are frames already, shared by all who get them, so
sending one is one `transport.write` of bytes that exist. An idle session is this object and its transport.
"""

from __future__ import annotations

import asyncio
from enum import IntEnum
from typing import Any, ClassVar

import msgspec

from tocsin.broker.result_batch import Batch
from tocsin.broker.message_encoding import Encoding, MessageEncoder
from tocsin.broker.hosted import Requester, SessionId
from tocsin.broker.events import LoginRequested, RequestReceived, SessionBlocked, SessionDrained
from tocsin.model.ids import SubscriberId
from tocsin.runtime.broker.websocket_protocol import CLOSE, PING, TEXT, FrameReader, Violation, close_frame, pong_frame
from tocsin.runtime.broker.connection_guard import ConnectionGuard, subscriber_of
from tocsin.runtime.broker.handshake import shake_hands
from tocsin.runtime.http.answers import error_answer
from tocsin.runtime.http.credentials import Claims
from tocsin.wire import session as wire
from tocsin.wire.errors import Code, TocsinError

_VIOLATION_S = 0.5
"""How long one that broke the rules gets to read why, before the connection ends under it."""
_CLOSE_S = 5.0
"""How long the other side gets to answer a close."""
_REQUESTS: dict[Encoding, Any] = {
    Encoding.JSON: msgspec.json.Decoder(wire.FromSubscriber),
    Encoding.MSGPACK: msgspec.msgpack.Decoder(wire.FromSubscriber),
}


class _Numbered(msgspec.Struct):
    """What is left of a request that cannot be understood: whom to answer."""

    id: int


class _Event(msgspec.Struct):
    """A request inside a CloudEvent."""

    specversion: str
    data: msgspec.Raw


class State(IntEnum):
    HANDSHAKE = 0
    OPEN = 1
    """Not logged in."""
    LOGGING_IN = 2
    LOGGED_IN = 3
    CLOSING = 4


class SubscriberSocket(asyncio.Protocol):
    """uvicorn makes one for each upgrade and feeds it the request it had read."""

    __slots__ = (
        "_deaf", "_encoding", "_loop", "_paused", "_reader", "_session", "_state", "_subscriber", "_token",
        "_transport",
    )  # fmt: skip
    gate: ClassVar[ConnectionGuard]
    encode: ClassVar[MessageEncoder]

    def __init__(self, config: Any, server_state: Any, app_state: Any, _loop: Any = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._state = State.HANDSHAKE
        self._encoding = Encoding.JSON
        self._session = SessionId(0)
        self._subscriber = SubscriberId("")
        self._token: str | None = None
        self._reader: FrameReader | None = None
        self._paused = False
        self._deaf = False
        self._transport: asyncio.Transport

    # -- the transport's side --------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self._transport = transport  # type: ignore[assignment]
        queue_bytes = self.gate.process.settings.queue_bytes
        self._transport.set_write_buffer_limits(high=queue_bytes, low=queue_bytes // 4)
        self.gate.waiting.add(self, self._loop.time())

    def connection_lost(self, error: Exception | None) -> None:
        self.gate.waiting.remove(self)
        self._state = State.CLOSING
        if self._session:
            self.gate.process.session_lost(self._session, "connection lost")

    def eof_received(self) -> None:
        return

    def pause_writing(self) -> None:
        self._paused = True
        if self._session:
            self.gate.process.happened(SessionBlocked(self._session))

    def resume_writing(self) -> None:
        self._paused = False
        if self._session:
            self.gate.process.happened(SessionDrained(self._session))

    def shutdown(self) -> None:
        """uvicorn stops."""
        self.close("stopping")

    def data_received(self, data: bytes) -> None:
        if self._state is State.HANDSHAKE:
            self._shake_hands(data)
            return
        reader = self._reader
        if reader is None:
            reader = self._reader = FrameReader(self.gate.process.settings.frame_bytes)
        if self._deaf:
            return
        for message in reader.feed(data):
            if isinstance(message, Violation):
                self._deaf = True  # where the next frame begins is anybody's guess
                self._close_with(message.code, "too_large" if message.code == 1009 else "bad_request", message.message)
                self._loop.call_later(_VIOLATION_S, self._transport.close)
                return
            self._framed(*message)

    # -- the handshake ---------------------------------------------------------------------------------------------

    def _shake_hands(self, data: bytes) -> None:
        try:
            agreed = shake_hands(data)
        except TocsinError as error:
            self._deny(error)
            return
        self._state, self._encoding, self._token = State.OPEN, agreed.encoding, agreed.token
        self._transport.write(agreed.reply)

    def _deny(self, error: TocsinError) -> None:
        answer = error_answer(error)
        body = bytes(answer.body)
        head = f"HTTP/1.1 {answer.status_code} Refused\r\nContent-Type: application/json\r\nConnection: close\r\n"
        self._transport.write(head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        self._state = State.CLOSING
        self._transport.close()

    # -- messages --------------------------------------------------------------------------------------------------

    def _framed(self, opcode: int, payload: bytes) -> None:
        if opcode == CLOSE:
            if self._state is not State.CLOSING:
                self._state = State.CLOSING
                self._transport.write(close_frame(1000, ""))
            self._transport.close()
        elif self._state is State.CLOSING:
            return
        elif opcode == PING:
            self._transport.write(pong_frame(payload))
        elif opcode in (TEXT, TEXT + 1):
            self._understand(payload)

    def _understand(self, payload: bytes) -> None:
        try:
            request = self._decoded(payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self._misunderstood(payload, str(error))
            return
        if self._state is State.LOGGED_IN:
            if isinstance(request, wire.Login):
                self._refuse(request.id, Code.BAD_REQUEST, "this session has begun already")
            else:
                asker = Requester(session=self._session)
                self.gate.process.happened(RequestReceived(asker, self._subscriber, request))
        elif self._state is State.LOGGING_IN:
            self._refuse(request.id, Code.NOT_READY, "wait for the answer to login", 1.0)
        elif isinstance(request, wire.Login):
            self._login(request)
        else:
            self._refuse(request.id, Code.UNAUTHENTICATED, "login comes first")

    def _decoded(self, payload: bytes) -> wire.FromSubscriber:
        encoding = self._encoding
        if encoding is Encoding.CLOUDEVENTS:
            encoding = Encoding.JSON
            if b'"specversion"' in payload:
                payload = bytes(msgspec.json.decode(payload, type=_Event).data)
        request: wire.FromSubscriber = _REQUESTS[encoding].decode(payload)
        return request

    def _misunderstood(self, payload: bytes, reason: str) -> None:
        """Refused if it says whom to answer; else the conversation has no common ground, and ends."""
        codec = msgspec.msgpack if self._encoding is Encoding.MSGPACK else msgspec.json
        try:
            number = codec.decode(payload, type=_Numbered).id
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self._close_with(*_closing("bad_request"), f"not a message of this protocol: {reason}")
        else:
            self._refuse(number, Code.BAD_REQUEST, f"the request does not fit: {reason}")

    def _refuse(self, request: int, code: Code, message: str, retry_after_s: float | None = None) -> None:
        refused = wire.Refused(request, str(code), message, retry_after_s)
        self._transport.write(self.encode(refused, self._encoding))

    # -- login -----------------------------------------------------------------------------------------------------

    def _login(self, request: wire.Login) -> None:
        token = request.token or self._token
        if not token:
            self._not_let_in(request.id, TocsinError(Code.UNAUTHENTICATED, "send a token with the scope subscribe"))
            return
        claims = self.gate.known_claims(token)
        if claims is not None:
            self._let_in(request, claims)
            return
        self._state = State.LOGGING_IN
        task = self._loop.create_task(self._look_closer(request, token))
        self.gate.tasks.add(task)
        task.add_done_callback(self.gate.tasks.discard)

    async def _look_closer(self, request: wire.Login, token: str) -> None:
        """Its key may be newer than ours."""
        try:
            claims = await self.gate.claims(token)
        except TocsinError as error:
            if self._state is State.LOGGING_IN:
                self._not_let_in(request.id, error)
            return
        if self._state is State.LOGGING_IN:
            self._let_in(request, claims)

    def _not_let_in(self, request: int, error: TocsinError) -> None:
        self._refuse(request, error.code, error.message, error.retry_after_s)
        self._close_with(*_closing("draining" if error.code.retry else "unauthenticated"), error.message)

    def _let_in(self, request: wire.Login, claims: Claims) -> None:
        try:
            self.gate.checked(claims)
        except TocsinError as error:
            self._not_let_in(request.id, error)
            return
        self._token = None
        self._state = State.LOGGING_IN
        self._subscriber = subscriber_of(claims)
        self._session = self.gate.process.new_session(self)
        # A hand-over token opens the door for a minute; the session it opens lasts until it is closed or moved.
        expires_s = None if claims.migration is not None else claims.expires_s
        self.gate.process.happened(
            LoginRequested(
                Requester(session=self._session), self._subscriber, request.id, request.resume, self._encoding, expires_s,
                claims.migration,
            )
        )  # fmt: skip

    # -- the process's side ----------------------------------------------------------------------------------------

    def deliver(self, batch: Batch, data: bytes) -> None:
        self._transport.write(data)

    def message(self, message: wire.ToSubscriber, data: bytes) -> None:
        if self._state is State.LOGGING_IN:
            if isinstance(message, wire.LoggedIn):
                self._state = State.LOGGED_IN
                self.gate.waiting.remove(self)
            elif isinstance(message, wire.Refused):
                self._state = State.OPEN
                self.gate.process.outlets.pop(self._session, None)
                self._session = SessionId(0)
        self._transport.write(data)

    def ask_drained(self) -> None:
        self._loop.call_soon(self._report_drained)

    def _report_drained(self) -> None:
        """If it is full by now, `resume_writing` will say when it no longer is."""
        if not self._paused and self._session:
            self.gate.process.happened(SessionDrained(self._session))

    def expire(self) -> None:
        """It has not logged in, for too long or while too many others had not either."""
        if self._state is State.HANDSHAKE:
            self._transport.abort()
        else:
            self._close_with(*_closing("login_timeout"), "log in right after connecting")

    def close(self, reason: str) -> None:
        """The last message has been sent; the frame that closes the connection follows."""
        if self._state is State.CLOSING:
            return
        code, _ = wire.CLOSE_CODES[reason]
        self._state = State.CLOSING
        self._transport.write(close_frame(code, reason))
        self._loop.call_later(_CLOSE_S, self._transport.abort)

    def _close_with(self, code: int, reason: str, message: str) -> None:
        """For reasons that are this connection's own."""
        if self._state is State.CLOSING:
            return
        _, reconnect = wire.CLOSE_CODES[reason]
        self._transport.write(self.encode(wire.Closing(reason, message, reconnect), self._encoding))
        self._state = State.CLOSING
        self._transport.write(close_frame(code, reason))
        self._loop.call_later(_CLOSE_S, self._transport.abort)
        if self._session:
            self.gate.process.session_lost(self._session, reason)


def _closing(reason: str) -> tuple[int, str]:
    return wire.CLOSE_CODES[reason][0], reason


def socket_class(gate: ConnectionGuard) -> type[SubscriberSocket]:
    """uvicorn wants a class; this one knows its gate."""
    process = gate.process

    class BoundSocket(SubscriberSocket):
        __slots__ = ()

    BoundSocket.gate = gate
    BoundSocket.encode = MessageEncoder(process.id, f"{process.incarnation}-s")
    return BoundSocket
