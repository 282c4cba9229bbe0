"""A client's WebSocket for topics, from the handshake to the close, on a transport that uvicorn hands over.

Like `subscriber_socket` it is a protocol class: a frame that many receivers share is written without a copy.
"""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import msgspec

from tocsin.broker.message_encoding import BINARY, TEXT, Encoding, frame
from tocsin.broker.topics.encoding import encoded
from tocsin.broker.topics.events import (
    ConnectionBlocked,
    ConnectionDrained,
    ConnectionId,
    ConnectionOpened,
    RequestReceived,
)
from tocsin.runtime.broker.connection_guard import ConnectionGuard
from tocsin.runtime.broker.paced_socket import PacedSocket
from tocsin.runtime.broker.subscriber_socket import CLOSE_S, VIOLATION_S, SocketState, refusal
from tocsin.runtime.broker.websocket_protocol import CLOSE, PING, PONG, Violation, close_frame, shake_hands
from tocsin.runtime.http.credentials import Claims
from tocsin.wire import topic as wire
from tocsin.wire.errors import Code, TocsinError
from tocsin.wire.session import CLOSE_CODES

_PATHS = frozenset({wire.PATH})
_DECODERS: dict[Encoding, Any] = {
    Encoding.JSON: msgspec.json.Decoder(wire.FromClient),
    Encoding.MSGPACK: msgspec.msgpack.Decoder(wire.FromClient),
}
_MALFORMED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class TopicSocket(PacedSocket):
    """uvicorn makes one for each upgrade at `/v1/topics` and feeds it the request that it has read."""

    __slots__ = ("_connection", "_decoder", "_encoding", "_state", "_token", "claims")
    turn_share: ClassVar[float] = 0.5
    """More than for sessions: a publisher's messages are the traffic itself, and `topic_rate_per_s` limits them."""
    guard: ClassVar[ConnectionGuard]

    def __init__(self, config: Any, server_state: Any, app_state: Any, _loop: Any = None) -> None:
        super().__init__()
        self._state = SocketState.HANDSHAKE
        self._encoding = Encoding.JSON
        self._decoder = _DECODERS[Encoding.JSON]
        self._connection = ConnectionId(0)
        self._token: str | None = None
        self.claims: Claims | None = None

    # -- called by the transport -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        queue_bytes = self.guard.topics.limits.topic_queue_bytes
        self._transport.set_write_buffer_limits(high=queue_bytes, low=queue_bytes // 4)
        self.guard.half_open.add(self, self._loop.time())

    def connection_lost(self, error: Exception | None) -> None:
        self.guard.half_open.remove(self)
        self._state = SocketState.CLOSING
        if self._connection:
            self.guard.topics.connection_lost(self._connection)

    def eof_received(self) -> None:
        return

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._connection:
            self.guard.topics.happened(ConnectionBlocked(self._connection))

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._connection:
            self.guard.topics.happened(ConnectionDrained(self._connection))

    def shutdown(self) -> None:
        """Called by uvicorn when the server stops."""
        self.close("stopping")

    def data_received(self, data: bytes) -> None:
        if self._state is SocketState.HANDSHAKE:
            self._shake_hands(data)
        else:
            self.read(data, self.guard.topics.limits.topic_frame_bytes)

    def on_violation(self, violation: Violation) -> None:
        self._close_with("too_large" if violation.code == 1009 else "bad_request", violation.message)
        self._loop.call_later(VIOLATION_S, self._transport.close)

    # -- the handshake and the login ---------------------------------------------------------------------------------

    def _shake_hands(self, data: bytes) -> None:
        try:
            handshake = shake_hands(data, _PATHS)
            if handshake.encoding not in _DECODERS:
                raise TocsinError(Code.BAD_REQUEST, "topics have the subprotocols tocsin.json and tocsin.msgpack")
        except TocsinError as error:
            self._transport.write(refusal(error))
            self._state = SocketState.CLOSING
            self._transport.close()
            return
        self._state, self._encoding, self._token = SocketState.OPEN, handshake.encoding, handshake.token
        self._decoder = _DECODERS[handshake.encoding]
        self._transport.write(handshake.reply)

    def _login(self, request: wire.Login) -> None:
        self._state = SocketState.LOGGING_IN
        task = self._loop.create_task(self._check_token(request))
        self.guard.tasks.add(task)
        task.add_done_callback(self.guard.tasks.discard)

    async def _check_token(self, request: wire.Login) -> None:
        token = request.token or self._token
        try:
            claims = await self.guard.topic_claims(token)
        except TocsinError as error:
            if self._state is SocketState.LOGGING_IN:
                self.guard.record_refused_login(error.code, token)
                self._send(wire.Refused(request.id, str(error.code), error.message, error.retry_after_s))
                self._close_with("draining" if error.code.retry else "unauthenticated", error.message)
            return
        if self._state is not SocketState.LOGGING_IN:
            return
        self._state, self._token, self.claims = SocketState.LOGGED_IN, None, claims
        self.guard.half_open.remove(self)
        if self.guard.audit is not None:
            self.guard.audit.record(claims.subject, "login", "topics", "topics", "ok")
        self._connection = self.guard.topics.new_connection(self)
        opened = ConnectionOpened(
            self._connection, claims.subject, request.id, self._encoding, claims.scopes, claims.ends_s
        )
        self.guard.topics.happened(opened)

    # -- requests ----------------------------------------------------------------------------------------------------

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
            request = self._decoder.decode(payload)
        except _MALFORMED as error:
            self._close_with("bad_request", f"not a message of this protocol: {error}")
            return
        if self._state is SocketState.LOGGED_IN:
            self.guard.topics.happened(RequestReceived(self._connection, request))
        elif self._state is SocketState.OPEN and isinstance(request, wire.Login):
            self._login(request)
        else:
            self._close_with("bad_request", "login comes first; wait for its answer")

    def _send(self, message: wire.ToClient) -> None:
        self._transport.write(encoded(message, self._encoding))

    # -- called by the process ---------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        self._transport.write(data)

    def await_drain(self) -> None:
        self._loop.call_soon(self._report_drained)

    def _report_drained(self) -> None:
        if not self._paused and self._connection:
            self.guard.topics.happened(ConnectionDrained(self._connection))

    def expire(self) -> None:
        """Close a connection that did not log in in time, or that is one of too many half-open connections."""
        if self._state is SocketState.HANDSHAKE:
            self._transport.abort()
        else:
            self._close_with("login_timeout", "log in right after connecting")

    def close(self, reason: str) -> None:
        """Send the close frame. The core has sent the last message."""
        if self._state is not SocketState.CLOSING:
            self._state = SocketState.CLOSING
            self._transport.write(close_frame(CLOSE_CODES[reason][0], reason))
            self._loop.call_later(CLOSE_S, self._transport.abort)

    def _close_with(self, reason: str, message: str) -> None:
        """Close for a reason that the core does not know."""
        if self._state is not SocketState.CLOSING:
            self._send(wire.Closing(reason, message, CLOSE_CODES[reason][1]))
            self.close(reason)
            if self._connection:
                self.guard.topics.connection_lost(self._connection)


def topic_socket_class(guard: ConnectionGuard) -> type[TopicSocket]:
    """The protocol class for uvicorn, which creates the instances itself."""

    class BoundTopicSocket(TopicSocket):
        __slots__ = ()

    BoundTopicSocket.guard = guard
    return BoundTopicSocket
