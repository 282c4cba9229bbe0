"""Drives a `TopicSession` on an asyncio loop: sockets, timers and the watch of the coordinator's directory."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from ssl import SSLContext
from typing import Protocol

import httpx
import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, WebSocketException
from websockets.typing import Subprotocol

from tocsin.client import topic_events as events
from tocsin.client.coordinator import response_error
from tocsin.client.errors import ClientError, Denied, RequestRefused, Unreachable, error_for
from tocsin.client.topic_session import TopicSession
from tocsin.leaders.clients import leading_client
from tocsin.model.ids import TopicName
from tocsin.wire import session as session_wire
from tocsin.wire import topic as wire
from tocsin.wire.errors import Code
from tocsin.wire.topic_directory import WATCH, WatchAnswer, WatchRequest

_TICK_S = 0.1
_WAIT_S = 25.0
_RETRY_S = 0.5
_FRAME_BYTES = 64 << 20
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(wire.ToClient)
_json = msgspec.json.Encoder()
_answer_decoder = msgspec.json.Decoder(WatchAnswer)


class TopicSocket:
    """One WebSocket to a home. Runs as one task; reports `opened`, `received` and `lost`."""

    def __init__(self, driver: TopicDriver, number: int, address: str) -> None:
        self._driver = driver
        self._number = number
        self._address = topics_address(address)
        self._outbox: asyncio.Queue[wire.FromClient | None] = asyncio.Queue()
        self._closed = False
        self.socket: ClientConnection | None = None
        self.task = asyncio.create_task(self._run())

    def send(self, message: wire.FromClient) -> None:
        self._outbox.put_nowait(message)

    def close(self) -> None:
        """Close without waiting for the broker: a stalled one would never answer."""
        self._closed = True
        self.task.cancel()

    async def _run(self) -> None:
        reason = "reset"
        try:
            async with connect(
                self._address,
                subprotocols=[Subprotocol(session_wire.MSGPACK)],
                compression=None,
                ping_interval=None,
                close_timeout=0.5,
                max_size=_FRAME_BYTES,
                max_queue=64,
                ssl=self._driver.tls if self._address.startswith("wss:") else None,
                proxy=None,
                local_addr=None if self._driver.source is None else (self._driver.source, 0),
            ) as socket:
                self.socket = socket
                writing = asyncio.create_task(self._write(socket))
                try:
                    reason = await self._read(socket)
                finally:
                    writing.cancel()
                    await asyncio.gather(writing, return_exceptions=True)
        except (OSError, TimeoutError, WebSocketException) as error:
            reason = str(error) or type(error).__name__
        finally:
            if not self._closed:
                self._closed = True
                self._driver.lost(self._number, reason)

    async def _read(self, socket: ClientConnection) -> str:
        self._driver.handle(events.ConnectionOpened(self._number))
        while True:
            try:
                frame = await socket.recv(decode=False)
                message = _decoder.decode(frame)
            except ConnectionClosed:
                return "closed"
            except msgspec.DecodeError as error:
                return f"not a message of this protocol: {error}"
            self._driver.handle(events.MessageReceived(self._number, message))
            await self._driver.wait_for_room()

    async def _write(self, socket: ClientConnection) -> None:
        while (message := await self._outbox.get()) is not None:
            try:
                await socket.send(_encoder.encode(message))
            except ConnectionClosed:
                return  # the reader reports the loss


class HomeSocket(Protocol):
    """A connection to a home. It reports `ConnectionOpened`, `MessageReceived` and, by `lost`, its end."""

    socket: ClientConnection | None
    task: asyncio.Task[None]

    def send(self, message: wire.FromClient) -> None: ...

    def close(self) -> None: ...


class TopicDriver:
    def __init__(
        self,
        session: TopicSession,
        coordinator: str,
        token: str | None,
        tls: SSLContext,
        on_effect: Callable[[events.Effect], None],
        room: asyncio.Event,
        source: str | None = None,
    ) -> None:
        """`on_effect` gets `Deliver`, `MarkReady` and `Settle`. Sockets are not read while `room` is clear.

        `source` is the local address of all connections."""
        self.source = source
        self.session = session
        self.tls = tls
        self._on_effect = on_effect
        self._room = room
        self._sockets: dict[int, HomeSocket] = {}
        self.make_socket: Callable[[TopicDriver, int, str], HomeSocket] = TopicSocket
        """Opens a connection to the home at an address. A relay replaces it for the broker that it is a part of."""
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        timeout = httpx.Timeout(_WAIT_S + 15.0, connect=5.0)
        self.creators: dict[TopicName, str] = {}
        """Topic → the user that publishes to it first. A relay sets it: topics that it creates count for that user."""
        transport = None if source is None else httpx.AsyncHTTPTransport(verify=tls, local_address=source)
        self._http = leading_client(coordinator, headers=headers, verify=tls, timeout=timeout, transport=transport)
        self._watch: asyncio.Task[None] | None = None
        self._revision: str | None = None
        self._watched: events.Watch | None = None
        self._flushing = False
        self._ticking = asyncio.create_task(self._tick())
        self.failure: ClientError | None = None
        """Why the client cannot work at all: its token is not valid."""
        self.on_failure: Callable[[ClientError], None] = lambda error: None

    async def close(self) -> None:
        tasks = [self._ticking, *(socket.task for socket in self._sockets.values())]
        if self._watch is not None:
            tasks.append(self._watch)
        for socket in self._sockets.values():
            socket.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._http.aclose()

    def break_connections(self) -> None:
        """Break the connections as a failing network does, for tests."""
        for socket in self._sockets.values():
            if socket.socket is not None:
                socket.socket.transport.abort()

    async def wait_for_room(self) -> None:
        await self._room.wait()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            self.handle(events.Ticked(self._room.is_set()))

    # -- events and effects --------------------------------------------------------------------------------------------

    def handle(self, event: events.Event) -> None:
        for effect in self.session.handle(event, time.monotonic()):
            self._carry_out(effect)

    def lost(self, number: int, reason: str) -> None:
        self._sockets.pop(number, None)
        self.handle(events.ConnectionLost(number, reason))

    def _carry_out(self, effect: events.Effect) -> None:
        match effect:
            case events.Send(number, message):
                if (socket := self._sockets.get(number)) is not None:
                    socket.send(message)
            case events.Connect(number, address):
                self._sockets[number] = self.make_socket(self, number, address)
            case events.Disconnect(number):
                if (socket := self._sockets.pop(number, None)) is not None:
                    socket.close()
            case events.Watch():
                self._restart_watch(effect)
            case events.RequestFlush():
                if not self._flushing:
                    self._flushing = True
                    asyncio.get_running_loop().call_soon(self._flush)
            case _:
                self._on_effect(effect)

    def _flush(self) -> None:
        self._flushing = False
        self.handle(events.FlushDue())

    # -- the directory -------------------------------------------------------------------------------------------------

    def _restart_watch(self, watch: events.Watch) -> None:
        if self._watch is not None:
            self._watch.cancel()
        self._revision = None
        self._watched = watch
        self._watch = asyncio.create_task(self._watch_forever(watch)) if watch.send or watch.receive else None

    def watch_again(self) -> None:
        """Ask the directory again after a refusal."""
        self.failure = None
        if self._watched is not None:
            self._restart_watch(self._watched)

    async def _watch_forever(self, watch: events.Watch) -> None:
        while True:
            try:
                answer = await self._ask(watch)
            except (Denied, RequestRefused) as error:
                self.failure = error
                self.on_failure(error)
                return
            except ClientError as error:
                await asyncio.sleep(error.retry_after_s or _RETRY_S)
                continue
            self._revision = answer.revision
            self.handle(events.DirectoryReceived(answer, watch.receive))

    async def visit_landmarks(self) -> int:
        """Connect to a few brokers far from each other, to measure them. Returns how many there are."""
        answer = await self._ask(events.Watch((), ()), wait_s=0.0)
        self.handle(events.LandmarksReceived(answer.token, answer.landmarks))
        return len(answer.landmarks)

    async def _ask(self, watch: events.Watch, wait_s: float = _WAIT_S) -> WatchAnswer:
        coordinate = None if self.session.agent is None else self.session.agent.coordinate
        creators = self._creators(watch) if self.creators else {}
        request = WatchRequest(list(watch.send), list(watch.receive), self._revision, wait_s, coordinate, creators)
        headers = {"Content-Type": "application/json"}
        try:
            response = await self._http.post(WATCH, content=_json.encode(request), headers=headers)
        except httpx.TransportError as error:
            raise Unreachable(Code.NOT_READY, f"no coordinator answers ({error or type(error).__name__})") from error
        if not response.is_success:
            raise response_error(response)
        try:
            return _answer_decoder.decode(response.content)
        except msgspec.DecodeError as error:
            raise error_for(Code.NOT_READY, f"the coordinator's answer is not understood: {error}") from error

    def _creators(self, watch: events.Watch) -> dict[str, list[int]]:
        """As in `WatchRequest`, for topics whose home is not known: they may not exist."""
        creators: dict[str, list[int]] = {}
        for index, topic in enumerate(watch.send):
            if topic not in self.session.homes and topic in self.creators:
                creators.setdefault(self.creators[topic], []).append(index)
        return creators


def topics_address(address: str) -> str:
    """The WebSocket URL of a broker's topics endpoint, from the address that the broker registered."""
    address = address.rstrip("/")
    address = "ws" + address.removeprefix("http") if address.startswith("http") else address
    return address.removesuffix("/v1/session") + wire.PATH
