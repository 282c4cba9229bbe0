"""One broker's WebSocket, the coordinator's end of it: messages in as events, messages out in order.

What is to be said waits in a bounded queue. A broker that does not listen loses its link rather than our memory: it
registers again and is told what it missed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

import msgspec
from starlette.websockets import WebSocket, WebSocketDisconnect

from tocsin.coordinator.events import LinkMessageReceived
from tocsin.model.ids import BrokerId
from tocsin.runtime.http.logs import logger
from tocsin.wire.link import FromBroker, FromCoordinator, Register, Stored

if TYPE_CHECKING:
    from tocsin.runtime.coordinator.process import CoordinatorProcess

_WAITING_BYTES = 64 << 20
_BAD_REQUEST = 1007
_AGAIN = 1012
_decoder = msgspec.json.Decoder(FromBroker)
_encoder = msgspec.json.Encoder()


class Link:
    def __init__(self, socket: WebSocket, broker: BrokerId) -> None:
        self._socket = socket
        self._broker = broker
        self._waiting: deque[bytes | int] = deque()
        """Frames, and in between up to which number everything is stored: none of the two may overtake the other. An
        `Adopt` made before a removal was stored must not arrive after the broker has forgotten that removal."""
        self._waiting_bytes = 0
        self._wake = asyncio.Event()
        self._closing: str | None = None
        self._log = logger()

    def send(self, message: FromCoordinator) -> None:
        if isinstance(message, Stored):
            last = self._waiting[-1] if self._waiting else None
            if isinstance(last, int):  # of several with nothing in between the highest number says it all
                self._waiting[-1] = max(last, message.upto)
            else:
                self._waiting.append(message.upto)
        else:
            frame = _encoder.encode(message)
            self._waiting.append(frame)
            self._waiting_bytes += len(frame)
            if self._waiting_bytes > _WAITING_BYTES:
                self.close("too much is waiting to be said: register again")
        self._wake.set()

    def close(self, reason: str) -> None:
        self._closing = self._closing or reason
        self._wake.set()

    async def run(self, process: CoordinatorProcess) -> None:
        """Until either side ends it."""
        number = process.add_link(self)
        listening = asyncio.create_task(self._listen(process, number))
        speaking = asyncio.create_task(self._speak())
        try:
            await asyncio.wait((listening, speaking), return_when=asyncio.FIRST_COMPLETED)
        finally:
            process.remove_link(self._broker, number)
            for task in (listening, speaking):
                task.cancel()
            await asyncio.gather(listening, speaking, return_exceptions=True)

    async def _listen(self, process: CoordinatorProcess, number: int) -> None:
        registered = False
        try:
            while True:
                message = _decoder.decode(await self._socket.receive_text())
                if isinstance(message, Register):
                    registered = True
                    if message.broker != self._broker:
                        self.close(f"this link is for {self._broker}")
                        await asyncio.Event().wait()
                elif not registered:
                    self.close("register first")
                    await asyncio.Event().wait()
                process.post(LinkMessageReceived(self._broker, number, message))
        except (WebSocketDisconnect, RuntimeError):
            return
        except (msgspec.MsgspecError, KeyError, UnicodeDecodeError, RecursionError) as error:
            self._log.warning("a broker said what nobody understands", broker=self._broker, reason=str(error)[:200])
            self.close(f"not understood: {error}"[:100])
            await asyncio.Event().wait()  # the speaker closes, then this is cancelled

    async def _speak(self) -> None:
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                while self._waiting:
                    await self._socket.send_text(self._next().decode())
                if self._closing is not None:
                    await self._socket.close(_AGAIN, self._closing[:120])
                    return
        except (WebSocketDisconnect, RuntimeError):
            return

    def _next(self) -> bytes:
        said = self._waiting.popleft()
        if isinstance(said, int):
            return _encoder.encode(Stored(said))
        self._waiting_bytes -= len(said)
        return said
