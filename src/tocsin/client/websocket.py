"""One WebSocket to a broker: it decodes frames into messages and encodes messages. It knows nothing of sessions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from ssl import SSLContext
from typing import Any

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
from websockets.typing import Subprotocol

from tocsin.wire import session as wire

_FRAME_BYTES = 64 << 20
"""The largest frame that is accepted."""
_REASONS = {code: reason for reason, (code, _) in wire.CLOSE_CODES.items()}


class Codec:
    """Encodes messages as JSON or MessagePack, depending on the name of the subprotocol."""

    def __init__(self, subprotocol: str) -> None:
        self.subprotocol = subprotocol
        self.binary = subprotocol == wire.MSGPACK
        self._encoder: Any = msgspec.msgpack.Encoder() if self.binary else msgspec.json.Encoder()
        decoder = msgspec.msgpack.Decoder if self.binary else msgspec.json.Decoder
        self._decoder: Any = decoder(wire.ToSubscriber)

    def encode(self, message: wire.FromSubscriber) -> bytes | str:
        encoded: bytes = self._encoder.encode(message)
        return encoded if self.binary else encoded.decode()

    def decode(self, frame: bytes | str) -> wire.ToSubscriber:
        message: wire.ToSubscriber = self._decoder.decode(frame)
        return message

    def value(self, raw: msgspec.Raw, kind: Any) -> Any:
        """Decode a result into the type `kind`."""
        module = msgspec.msgpack if self.binary else msgspec.json
        return module.decode(raw, type=kind)


class BrokerSocket:
    """Runs as one task. It calls `opened`, `received` and `lost` on the loop, and none of them after `close`.

    After each message it awaits `wait_for_room` before it reads the next one.
    """

    def __init__(
        self,
        address: str,
        codec: Codec,
        *,
        opened: Callable[[], None],
        received: Callable[[wire.ToSubscriber], None],
        lost: Callable[[str], None],
        wait_for_room: Callable[[], Coroutine[Any, Any, None]],
        tls: SSLContext,
    ) -> None:
        self._address = address
        self._codec = codec
        self._opened, self._received, self._lost, self._wait_for_room = opened, received, lost, wait_for_room
        self._tls = tls
        self._outbox: asyncio.Queue[wire.FromSubscriber | None] = asyncio.Queue()
        self._closed = False
        self._socket: ClientConnection | None = None
        self.task = asyncio.create_task(self._run())

    def send(self, message: wire.FromSubscriber) -> None:
        self._outbox.put_nowait(message)

    def close(self) -> None:
        """Send the queued messages, then close. An attempt to connect is cancelled: the broker may never answer it."""
        if self._closed:
            return
        self._closed = True
        self._outbox.put_nowait(None)
        if self._socket is None:
            self.task.cancel()

    def abort(self) -> None:
        """Break the connection without a closing handshake."""
        if self._socket is not None:
            self._socket.transport.abort()

    async def _run(self) -> None:
        reason = "reset"
        address = session_address(self._address)
        try:
            # No pings, because progress messages reveal a stall; no compression, because results are small.
            async with connect(
                address,
                subprotocols=[Subprotocol(self._codec.subprotocol)],
                compression=None,
                ping_interval=None,
                open_timeout=None,
                close_timeout=1.0,
                max_size=_FRAME_BYTES,
                max_queue=64,
                ssl=self._tls if address.startswith("wss:") else None,
                proxy=None,
            ) as socket:
                reason = await self._talk(socket)
        except InvalidStatus as error:
            reason = f"answered {error.response.status_code}"
        except (OSError, WebSocketException) as error:
            reason = str(error) or type(error).__name__
        finally:
            if not self._closed:
                self._closed = True
                self._lost(reason)

    async def _talk(self, socket: ClientConnection) -> str:
        if self._closed:
            return "closed"
        self._socket = socket
        self._opened()
        reading = asyncio.create_task(self._read(socket))
        writing = asyncio.create_task(self._write(socket))
        try:
            await asyncio.wait((reading, writing), return_when=asyncio.FIRST_COMPLETED)
            return reading.result() if reading.done() else "closed"
        finally:
            for task in (reading, writing):
                task.cancel()
            await asyncio.gather(reading, writing, return_exceptions=True)

    async def _read(self, socket: ClientConnection) -> str:
        while True:
            try:
                frame = await socket.recv()
            except ConnectionClosed as closed:
                return _REASONS.get(closed.rcvd.code, "reset") if closed.rcvd is not None else "reset"
            try:
                message = self._codec.decode(frame)
            except msgspec.DecodeError as error:
                return f"not a message of this protocol: {error}"
            if self._closed:
                continue  # the closing handshake is still in progress
            self._received(message)
            await self._wait_for_room()

    async def _write(self, socket: ClientConnection) -> None:
        while (message := await self._outbox.get()) is not None:
            try:
                await socket.send(self._codec.encode(message))
            except ConnectionClosed:
                await asyncio.Event().wait()  # the reader returns the reason


def session_address(address: str) -> str:
    """The WebSocket URL of a broker's session endpoint, from the address that a broker or a user gave."""
    address = address.rstrip("/")
    if address.startswith("http"):
        address = "ws" + address.removeprefix("http")
    return address if address.endswith("/v1/session") else address + "/v1/session"
