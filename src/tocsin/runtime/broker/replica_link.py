"""A home's connections to its followers: one WebSocket per broker, for all topics, opened again whenever it breaks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from ssl import SSLContext

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from tocsin.broker.topics import events
from tocsin.model.ids import BrokerId
from tocsin.runtime.broker.connecting import reason_of
from tocsin.runtime.http.logs import logger
from tocsin.wire.errors import TocsinError
from tocsin.wire.session import MSGPACK
from tocsin.wire.topic_log import PATH, FromFollower, FromHome

FRAME_BYTES = 64 << 20
_CONNECT_AGAIN_S = 0.5
_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(FromFollower)
_PING_S = 2.0
"""A follower that does not answer a ping in this time is treated as lost: its broker may be frozen."""

Report = Callable[[events.Event], None]


class ReplicaLink:
    def __init__(
        self,
        broker: BrokerId,
        address: str,
        token: Callable[[], Awaitable[str]],
        tls: SSLContext | None,
        report: Report,
    ) -> None:
        """`token` fetches a token for the brokers. `report` gets the events of this connection."""
        self._broker = broker
        self._address = broker_address(address, PATH)
        self._token = token
        self._tls = tls
        self._report = report
        self._outgoing: asyncio.Queue[FromHome] | None = None
        self._closed = False
        self._log = logger()
        self._task = asyncio.create_task(self._keep_open())

    def send(self, message: FromHome) -> None:
        if self._outgoing is not None:
            self._outgoing.put_nowait(message)

    def close(self) -> asyncio.Task[None]:
        self._closed = True
        self._task.cancel()
        return self._task

    async def _keep_open(self) -> None:
        while True:
            reason = "the connection broke"
            try:
                await self._run()
            except (OSError, TimeoutError, WebSocketException, msgspec.DecodeError, TocsinError) as error:
                reason = reason_of(error)
            finally:
                self._outgoing = None
            if not self._closed:
                self._report(events.ReplicaLost(self._broker, reason))
            await asyncio.sleep(_CONNECT_AGAIN_S)

    async def _run(self) -> None:
        headers = {"Authorization": f"Bearer {await self._token()}"}
        async with connect(
            self._address,
            additional_headers=headers,
            subprotocols=[MSGPACK],  # type: ignore[list-item]
            compression=None,
            max_size=FRAME_BYTES,
            open_timeout=5,
            close_timeout=0.5,
            ping_interval=_PING_S,
            ping_timeout=_PING_S,
            ssl=self._tls if self._address.startswith("wss:") else None,
            proxy=None,
        ) as socket:
            outgoing: asyncio.Queue[FromHome] = asyncio.Queue()
            self._outgoing = outgoing
            sending = asyncio.create_task(self._send_queued(socket, outgoing))
            try:
                self._report(events.ReplicaConnected(self._broker))
                while True:
                    answer = _decoder.decode(await socket.recv(decode=False))
                    self._report(events.ReplicaAnswered(self._broker, answer))
            finally:
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)

    async def _send_queued(self, socket: ClientConnection, outgoing: asyncio.Queue[FromHome]) -> None:
        while True:
            await socket.send(_encode(await outgoing.get()))


def broker_address(address: str, path: str) -> str:
    """The WebSocket URL of a path at another broker, from the address that the broker registered."""
    address = address.rstrip("/")
    address = "ws" + address.removeprefix("http") if address.startswith("http") else address
    return address.removesuffix("/v1/session") + path
