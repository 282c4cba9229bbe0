"""A home's WebSocket to this broker as its follower. `broker_socket` has the connection itself."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from tocsin.broker.topics.events import HomeMessageReceived, StreamId
from tocsin.runtime.broker.broker_socket import BrokerSocket
from tocsin.runtime.broker.connection_guard import ConnectionGuard
from tocsin.runtime.broker.replica_link import FRAME_BYTES
from tocsin.runtime.http.logs import logger
from tocsin.wire.topic_log import PATH, FromFollower, FromHome

_decoder = msgspec.msgpack.Decoder(FromHome)
_encode = msgspec.msgpack.Encoder().encode


class ReplicaSocket(BrokerSocket):
    __slots__ = ("_stream",)
    turn_share: ClassVar[float] = 0.5
    path = PATH
    frame_bytes = FRAME_BYTES

    def __init__(self, config: Any, server_state: Any, app_state: Any, _loop: Any = None) -> None:
        super().__init__(config, server_state, app_state)
        self._stream = StreamId(0)

    def on_open(self) -> None:
        self._stream = self.guard.topics.new_stream(self)

    def on_lost(self) -> None:
        self.guard.topics.streams.pop(self._stream, None)

    def on_binary(self, payload: bytes) -> None:
        try:
            message = _decoder.decode(payload)
        except msgspec.DecodeError as error:
            logger().error("a home sent no message of this protocol", reason=str(error))
            self._transport.abort()
            return
        self.guard.topics.happened(HomeMessageReceived(self._stream, message))

    def send(self, message: FromFollower) -> None:
        self.write(_encode(message))


def replica_socket_class(guard: ConnectionGuard) -> type[ReplicaSocket]:
    """The protocol class for uvicorn, which creates the instances itself."""

    class BoundReplicaSocket(ReplicaSocket):
        __slots__ = ()

    BoundReplicaSocket.guard = guard
    return BoundReplicaSocket
