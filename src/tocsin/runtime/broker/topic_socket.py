"""A client's WebSocket for topics: the requests of `wire.topic`, and frames that all receivers share.

`client_socket` has the connection itself: handshake, login, frames, close.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ClassVar

import msgspec

from tocsin.broker.message_encoding import Encoding
from tocsin.broker.topics.encoding import encoded
from tocsin.broker.topics.events import (
    ConnectionBlocked,
    ConnectionDrained,
    ConnectionId,
    ConnectionOpened,
    RequestReceived,
)
from tocsin.runtime.broker.client_socket import LOGGED_IN, MALFORMED, ClientSocket, SocketState
from tocsin.runtime.broker.connection_guard import ConnectionGuard
from tocsin.runtime.http.credentials import Claims
from tocsin.wire import topic as wire
from tocsin.wire.errors import Code

_DECODE: dict[Encoding, Callable[[bytes], wire.FromClient]] = {
    Encoding.JSON: msgspec.json.Decoder(wire.FromClient).decode,
    Encoding.MSGPACK: msgspec.msgpack.Decoder(wire.FromClient).decode,
}


class TopicSocket(ClientSocket):
    __slots__ = ("_decode", "_topics", "write")
    turn_share: ClassVar[float] = 0.5
    """More than for sessions: a publisher's messages are the traffic itself, and `topic_rate_per_s` limits them."""
    paths = frozenset({wire.PATH})
    encodings = tuple(_DECODE)
    missing_token = "send a token with a scope send:<topic> or receive:<topic>"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.write: Callable[[bytes], None] = self._transport.write
        """Writes a frame. The transport's own method: the fan-out calls it for every receiver."""

    @property
    def queue_bytes(self) -> int:
        return self.guard.topics.limits.topic_queue_bytes

    @property
    def frame_bytes(self) -> int:
        return self.guard.topics.limits.topic_frame_bytes

    @property
    def _connection(self) -> ConnectionId:
        return ConnectionId(self._identity)

    # -- login -------------------------------------------------------------------------------------------------------

    def check(self, claims: Claims | None, token: str) -> Claims:
        return self.guard.topic_checked(claims)

    def open(self, request: wire.Login, claims: Claims) -> None:
        self._state = LOGGED_IN
        self.guard.half_open.remove(self)
        if self.guard.audit is not None:
            self.guard.audit.record(claims.subject, "login", "topics", "topics", "ok")
        self._topics, self._decode = self.guard.topics, _DECODE[self._encoding]
        self._identity = self._topics.new_connection(self)
        opened = ConnectionOpened(
            self._connection, claims.subject, request.id, self._encoding, claims.scopes, claims.ends_s, request.run
        )
        self.guard.topics.happened(opened)

    # -- requests ----------------------------------------------------------------------------------------------------

    def on_only_message(self, opcode: int, payload: bytes) -> None:
        if self._state is not LOGGED_IN:
            self.on_message(opcode, payload)
            return
        try:
            request = self._decode(payload)
        except MALFORMED as error:
            self._refuse_malformed(error)
            return
        if type(request) is wire.Publish:
            self._topics.publish_alone(self._connection, request)
        else:
            self._topics.happened(RequestReceived(self._connection, request))

    def _refuse_malformed(self, error: Exception) -> None:
        self._close_with("bad_request", f"not a message of this protocol: {error}")

    def on_request(self, payload: bytes) -> None:
        try:
            request = _DECODE[self._encoding](payload)
        except MALFORMED as error:
            self._refuse_malformed(error)
            return
        if self._state is LOGGED_IN:
            self.guard.topics.happened(RequestReceived(self._connection, request))
        elif self._state is SocketState.OPEN and isinstance(request, wire.Login):
            self._login(request)
        else:
            self._close_with("bad_request", "login comes first; wait for its answer")

    def refuse(self, request: int, code: Code, message: str, retry_after_s: float | None = None) -> None:
        self.write(encoded(wire.Refused(request, str(code), message, retry_after_s), self._encoding))

    def send_closing(self, reason: str, message: str, reconnect: bool) -> None:
        self.write(encoded(wire.Closing(reason, message, reconnect), self._encoding))

    # -- reports to the core -----------------------------------------------------------------------------------------

    def report_blocked(self) -> None:
        self.guard.topics.happened(ConnectionBlocked(self._connection))

    def report_drained(self) -> None:
        self.guard.topics.happened(ConnectionDrained(self._connection))

    def report_lost(self, reason: str) -> None:
        self.guard.topics.connection_lost(self._connection)


def topic_socket_class(guard: ConnectionGuard) -> type[TopicSocket]:
    """The protocol class for uvicorn, which creates the instances itself."""

    class BoundTopicSocket(TopicSocket):
        __slots__ = ()

    BoundTopicSocket.guard = guard
    return BoundTopicSocket
