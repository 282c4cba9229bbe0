"""Observes every broker as a possible home: publishes probes to it directly, and receives what it sends.

A client of topics looks the home up and would never notice a second one. An observer stays at its broker, whatever the
coordinator says, and keeps publishing probes with the time in them, also while the broker is frozen.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException
from websockets.typing import Subprotocol

from tocsin.chaos.topic_ledger import PROBE, Homes
from tocsin.model.ids import TopicName
from tocsin.wire import topic as wire
from tocsin.wire.session import MSGPACK

_PROBE_S = 0.1
_ATTACH_AGAIN_S = 0.3
_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(wire.ToClient)


class Observer:
    def __init__(self, broker: str, address: str, token: Callable[[], str], topics: dict[str, Homes]) -> None:
        self._broker = broker
        self._address = address.rstrip("/") + wire.PATH
        self._token = token
        self._topics = topics
        self._run = secrets.randbits(52)
        self._at: dict[int, str] = {}
        """Number of a topic at this broker → its name."""
        self._next: dict[str, int] = {}
        """Topic → the number of the next probe; missing while not attached."""
        self._requests: dict[int, str] = {}
        self._number = 1
        self.task = asyncio.create_task(self._observe())

    async def _observe(self) -> None:
        while True:
            try:
                async with connect(
                    self._address,
                    subprotocols=[Subprotocol(MSGPACK)],
                    compression=None,
                    ping_interval=None,
                    open_timeout=2,
                    close_timeout=0.2,
                    max_size=None,
                    proxy=None,
                ) as socket:
                    await self._stay(socket)
            except (OSError, TimeoutError, WebSocketException, msgspec.DecodeError):
                await asyncio.sleep(0.2)

    async def _stay(self, socket: ClientConnection) -> None:
        self._at, self._next, self._requests = {}, {}, {}
        await socket.send(_encode(wire.Login(0, self._token())))
        probing = asyncio.create_task(self._probe(socket))
        try:
            while True:
                self._receive(_decoder.decode(await socket.recv(decode=False)), time.monotonic())
        finally:
            probing.cancel()
            await asyncio.gather(probing, return_exceptions=True)

    async def _probe(self, socket: ClientConnection) -> None:
        attached_s = 0.0
        while True:
            await asyncio.sleep(_PROBE_S)
            if time.monotonic() - attached_s > _ATTACH_AGAIN_S:
                attached_s = time.monotonic()
                for topic in self._topics:
                    if topic not in self._next:
                        await self._attach(socket, topic)
            for at, topic in self._at.items():
                if topic in self._next:
                    data = PROBE + f"{self._broker} {time.monotonic():.6f}".encode()
                    await socket.send(_encode(wire.Publish(at, self._next[topic], [data])))
                    self._next[topic] += 1

    async def _attach(self, socket: ClientConnection, topic: str) -> None:
        self._number += 2
        self._requests[self._number] = self._requests[self._number + 1] = topic
        await socket.send(_encode(wire.AttachReceiver(self._number, TopicName(topic))))
        await socket.send(_encode(wire.AttachSender(self._number + 1, TopicName(topic), self._run)))

    def _receive(self, message: wire.ToClient, now_s: float) -> None:
        match message:
            case wire.SenderAttached(request, at, number):
                self._at[at] = self._requests.pop(request)
                self._next[self._at[at]] = number
            case wire.NotAccepted(at, number) if at in self._at:
                self._next[self._at[at]] = number
                if message.code == "not_home":
                    self._next.pop(self._at[at], None)
            case wire.Moved(_, topic) | wire.Ended(_, topic):
                self._next.pop(topic, None)
            case wire.Messages(at, epoch, _, entries) if at in self._at:
                for _, _, data in entries:
                    self._topics[self._at[at]].observe(self._broker, epoch, data, now_s)
