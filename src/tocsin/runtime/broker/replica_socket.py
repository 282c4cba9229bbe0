"""A home's WebSocket to this broker as its follower, from the handshake to the close."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import msgspec

from tocsin.broker.message_encoding import BINARY, Encoding, frame
from tocsin.broker.topics.events import HomeMessageReceived, StreamId
from tocsin.runtime.broker.client_socket import refusal
from tocsin.runtime.broker.connection_guard import ConnectionGuard
from tocsin.runtime.broker.paced_socket import PacedSocket
from tocsin.runtime.broker.replica_link import FRAME_BYTES
from tocsin.runtime.broker.websocket_protocol import CLOSE, PING, PONG, Violation, close_frame, shake_hands
from tocsin.runtime.http.logs import logger
from tocsin.wire.errors import Code, TocsinError
from tocsin.wire.topic_log import PATH, FromFollower, FromHome

_PATHS = frozenset({PATH})
_decoder = msgspec.msgpack.Decoder(FromHome)
_encode = msgspec.msgpack.Encoder().encode


class ReplicaSocket(PacedSocket):
    """uvicorn makes one for each upgrade at `/v1/replicas`. The token of the handshake is checked before it is read."""

    __slots__ = ("_early", "_stream")
    turn_share: ClassVar[float] = 0.5
    guard: ClassVar[ConnectionGuard]

    def __init__(self, config: Any, server_state: Any, app_state: Any, _loop: Any = None) -> None:
        super().__init__()
        self._stream: StreamId | None = None
        self._early: list[bytes] | None = None
        """Bytes that arrived while the token was checked; None before the handshake and when the stream is open."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        self.guard.half_open.add(self, self._loop.time())

    def connection_lost(self, error: Exception | None) -> None:
        self.guard.half_open.remove(self)
        if self._stream is not None:
            self.guard.topics.streams.pop(self._stream, None)
            self._stream = None

    def eof_received(self) -> None:
        return

    def shutdown(self) -> None:
        """Called by uvicorn when the server stops."""
        self._transport.close()

    def expire(self) -> None:
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._stream is not None:
            self.read(data, FRAME_BYTES)
        elif self._early is not None:
            self._early.append(data)
        else:
            self._early = []
            task = self._loop.create_task(self._open(data))
            self.guard.tasks.add(task)
            task.add_done_callback(self.guard.tasks.discard)

    async def _open(self, request: bytes) -> None:
        try:
            handshake = shake_hands(request, _PATHS)
            if handshake.encoding is not Encoding.MSGPACK:
                raise TocsinError(Code.BAD_REQUEST, "replicas have the subprotocol tocsin.msgpack")
            await self.guard.replica_claims(handshake.token)
        except TocsinError as error:
            self._transport.write(refusal(error))
            self._transport.close()
            return
        if self._transport.is_closing():
            return
        self.guard.half_open.remove(self)
        self._transport.write(handshake.reply)
        self._stream = self.guard.topics.new_stream(self)
        early, self._early = self._early or [], None
        for data in early:
            self.read(data, FRAME_BYTES)

    def on_message(self, opcode: int, payload: bytes) -> None:
        if opcode == CLOSE:
            self._transport.write(close_frame(1000, ""))
            self._transport.close()
        elif opcode == PING:
            self._transport.write(frame(payload, PONG))
        elif opcode == BINARY and self._stream is not None:
            try:
                message = _decoder.decode(payload)
            except msgspec.DecodeError as error:
                logger().error("a home sent no message of this protocol", reason=str(error))
                self._transport.abort()
                return
            self.guard.topics.happened(HomeMessageReceived(self._stream, message))

    def on_violation(self, violation: Violation) -> None:
        self._transport.abort()

    def send(self, message: FromFollower) -> None:
        if not self._transport.is_closing():
            self._transport.write(frame(_encode(message), BINARY))


def replica_socket_class(guard: ConnectionGuard) -> type[ReplicaSocket]:
    """The protocol class for uvicorn, which creates the instances itself."""

    class BoundReplicaSocket(ReplicaSocket):
        __slots__ = ()

    BoundReplicaSocket.guard = guard
    return BoundReplicaSocket
