"""A broker's connection to one peer that it probes: a WebSocket, opened again whenever it breaks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from ssl import SSLContext
from typing import Any

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from tocsin.broker.coordinates import Event, PeerConnected, PeerLost, ProbeAnswered
from tocsin.model.ids import BrokerId
from tocsin.runtime.broker.connecting import jittered_s, reason_of
from tocsin.runtime.broker.replica_link import broker_address
from tocsin.runtime.http.logs import logger
from tocsin.wire.coordinates import FRAME_BYTES, PATH, Probe, ProbeAnswer
from tocsin.wire.errors import TocsinError
from tocsin.wire.session import MSGPACK

_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(ProbeAnswer)


class ProbeLink:
    def __init__(
        self,
        broker: BrokerId,
        address: str,
        token: Callable[[], Awaitable[str]],
        tls: SSLContext | None,
        source: str | None,
        report: Callable[[Event], None],
    ) -> None:
        """`token` fetches a token for brokers. `source` is the local address of the connection; None for any."""
        self._broker = broker
        self._address = broker_address(address, PATH)
        self._token = token
        self._options: dict[str, Any] = {} if source is None else {"local_addr": (source, 0)}
        if self._address.startswith("wss:"):
            self._options["ssl"] = tls
        self._report = report
        self._socket: ClientConnection | None = None
        self._sending: set[asyncio.Task[None]] = set()
        self._task = asyncio.create_task(self._keep_open())

    def send(self, probe: Probe) -> None:
        """Send a probe; without a connection it is dropped."""
        if self._socket is not None:
            task = asyncio.create_task(self._send(self._socket, _encode(probe)))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    async def _send(self, socket: ClientConnection, data: bytes) -> None:
        try:
            await socket.send(data)
        except WebSocketException:
            return  # the receiving side reports the lost connection

    def close(self) -> asyncio.Task[None]:
        self._task.cancel()
        return self._task

    async def _keep_open(self) -> None:
        failures = 0
        while True:
            try:
                await self._run()
                failures = 0
            except (OSError, TimeoutError, WebSocketException, msgspec.DecodeError, TocsinError) as error:
                failures = 1 if self._socket is not None else failures + 1
                if failures == 1:
                    logger().info("no connection to probe a broker", peer=self._broker, reason=reason_of(error))
            finally:
                self._socket = None
            self._report(PeerLost(self._broker))
            await asyncio.sleep(jittered_s(failures))

    async def _run(self) -> None:
        async with connect(
            self._address,
            additional_headers={"Authorization": f"Bearer {await self._token()}"},
            subprotocols=[MSGPACK],  # type: ignore[list-item]
            compression=None,
            max_size=FRAME_BYTES,
            open_timeout=10,
            close_timeout=0.5,
            proxy=None,
            **self._options,
        ) as socket:
            self._socket = socket
            self._report(PeerConnected(self._broker))
            while True:
                answer = _decoder.decode(await socket.recv(decode=False))
                self._report(ProbeAnswered(self._broker, answer))
