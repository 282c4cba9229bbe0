"""The coordinator's end of one broker's WebSocket link: decodes messages in, sends messages out in order.

Outgoing messages wait in a bounded queue. If a broker does not read, the coordinator closes the link instead of using
more memory. The broker then registers again, and the coordinator sends it the current state.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

import msgspec
from starlette.websockets import WebSocket, WebSocketDisconnect

from tocsin.model.ids import BrokerId
from tocsin.runtime.http.logs import logger
from tocsin.wire.link import FromBroker, FromCoordinator, Register, Stored

_QUEUE_BYTES = 64 << 20
_SERVICE_RESTART = 1012
"""WebSocket close code that asks the broker to connect again."""
_decoder = msgspec.json.Decoder(FromBroker)
_encoder = msgspec.json.Encoder()


class BrokerLink:
    def __init__(self, socket: WebSocket, broker: BrokerId) -> None:
        self.broker = broker
        self._socket = socket
        self._queue: deque[bytes | int] = deque()
        """Encoded messages, and numbers up to which all changes are stored (`Stored.upto`), in the order of `send`.
        An `Adopt` made before a removal was stored must not arrive after the broker has forgotten that removal."""
        self._queue_bytes = 0
        self._wake = asyncio.Event()
        self._close_reason: str | None = None
        self._log = logger()

    def send(self, message: FromCoordinator) -> None:
        """Queue a message. Consecutive `Stored` messages are merged: the highest number covers the others."""
        if isinstance(message, Stored):
            last = self._queue[-1] if self._queue else None
            if isinstance(last, int):
                self._queue[-1] = max(last, message.upto)
            else:
                self._queue.append(message.upto)
        else:
            frame = _encoder.encode(message)
            self._queue.append(frame)
            self._queue_bytes += len(frame)
            if self._queue_bytes > _QUEUE_BYTES:
                self.close("too many messages are queued: register again")
        self._wake.set()

    def close(self, reason: str) -> None:
        """Close the link once the queue is sent. The first reason is kept."""
        self._close_reason = self._close_reason or reason
        self._wake.set()

    async def run(self, receive: Callable[[FromBroker], None]) -> None:
        """Call `receive` with each message of the broker until either side closes the link."""
        receiving = asyncio.create_task(self._receive(receive))
        sending = asyncio.create_task(self._send())
        try:
            await asyncio.wait((receiving, sending), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (receiving, sending):
                task.cancel()
            await asyncio.gather(receiving, sending, return_exceptions=True)

    async def _receive(self, receive: Callable[[FromBroker], None]) -> None:
        registered = False
        try:
            while True:
                message = _decoder.decode(await self._socket.receive_text())
                if isinstance(message, Register):
                    registered = True
                    if message.broker != self.broker:
                        await self._refuse(f"this link is for {self.broker}")
                elif not registered:
                    await self._refuse("register first")
                receive(message)
        except (WebSocketDisconnect, RuntimeError):
            return
        except (msgspec.MsgspecError, KeyError, UnicodeDecodeError, RecursionError) as error:
            self._log.warning("cannot decode a broker's message", broker=self.broker, reason=str(error)[:200])
            await self._refuse(f"not understood: {error}"[:100])

    async def _refuse(self, reason: str) -> None:
        """Close the link and accept no further message: `_send` closes the socket, then `run` cancels this task."""
        self.close(reason)
        await asyncio.Event().wait()

    async def _send(self) -> None:
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                while self._queue:
                    await self._socket.send_text(self._next().decode())
                if self._close_reason is not None:
                    await self._socket.close(_SERVICE_RESTART, self._close_reason[:120])
                    return
        except (WebSocketDisconnect, RuntimeError):
            return

    def _next(self) -> bytes:
        queued = self._queue.popleft()
        if isinstance(queued, int):
            return _encoder.encode(Stored(queued))
        self._queue_bytes -= len(queued)
        return queued
