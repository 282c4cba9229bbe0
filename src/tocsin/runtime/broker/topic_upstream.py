"""The upstream side of an edge: it receives relayed topics from their homes, and fetches older messages.

Sessions of topics follow the homes of the relayed topics, as any client does (`client.topic_session`). Their frames go
to the topics core as they are. A fetch has a connection of its own, which is read no faster than the core asks.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Callable
from functools import partial
from ssl import SSLContext

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException
from websockets.typing import Subprotocol

from tocsin.broker.topics import effects
from tocsin.broker.topics import events as core_events
from tocsin.client import topic_events as events
from tocsin.client.errors import ClientError
from tocsin.client.topic_driver import TopicDriver, TopicSocket, topics_address
from tocsin.client.topic_events import TopicFailure, TopicFrame
from tocsin.client.topic_frames import FrameReceiver
from tocsin.client.topic_session import TopicSession
from tocsin.model.ids import TopicName
from tocsin.runtime.broker.topic_relay import LocalHome
from tocsin.runtime.broker.topics import TopicsProcess
from tocsin.runtime.http.logs import logger
from tocsin.wire import session as session_wire
from tocsin.wire import topic as wire
from tocsin.wire.topic_directory import MOST_NAMES

_RUN_BITS = 52
_MOST_PER_SESSION = MOST_NAMES * 2 // 5
"""Topics of one session: it names them in each request to the directory, and each is an attachment."""
_RETRY_S = 5.0
_OPEN_S = 5.0
_SILENT_S = 30.0
_FRAME_BYTES = 64 << 20
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(wire.ToClient)


class TopicUpstream:
    def __init__(
        self, topics: TopicsProcess, coordinator: str, token: Callable[[], str], tls: SSLContext, user: str
    ) -> None:
        """`token` is this broker's own; `user` the name in it."""
        self._topics = topics
        self._coordinator = coordinator
        self._token = token
        self._tls = tls
        self._user = user
        self.own_address = ""
        """The address under which the coordinator knows this broker."""
        self._drivers: dict[TopicDriver, int] = {}
        """The driver of each session → its topics."""
        self._relayed: dict[TopicName, tuple[TopicDriver, int]] = {}
        """Topic → the session that receives it, and the number of its subscription."""
        self._numbers = 0
        self._room = asyncio.Event()
        """Clear while the matching of this edge is full: it stops reading then. The queues of receivers are bounded."""
        self._room.set()
        self._fetches: dict[int, _Fetch] = {}
        topics.handlers |= {
            effects.StartRelay: self._start,
            effects.StopRelay: self._stop,
            effects.FetchOlder: self._fetch,
            effects.ReadOlder: self._read,
            effects.EndFetch: self._end,
        }

    async def close(self) -> None:
        for fetch in list(self._fetches.values()):
            fetch.task.cancel()
        await asyncio.gather(*(driver.close() for driver in self._drivers))

    # -- the sessions --------------------------------------------------------------------------------------------------

    def _start(self, effect: effects.StartRelay) -> None:
        driver = next((driver for driver, topics in self._drivers.items() if topics < _MOST_PER_SESSION), None)
        driver = driver or self._new_driver()
        self._drivers[driver] += 1
        self._numbers += 1
        self._relayed[effect.topic] = (driver, self._numbers)
        self._later(driver, events.SubscribeRequested(self._numbers, effect.topic))

    def _stop(self, effect: effects.StopRelay) -> None:
        driver, number = self._relayed.pop(effect.topic)
        self._drivers[driver] -= 1
        self._later(driver, events.UnsubscribeRequested(number))

    def _later(self, driver: TopicDriver, event: events.Event) -> None:
        """The session may be handling an event: a frame of it led to this one."""
        asyncio.get_running_loop().call_soon(driver.handle, event)

    def _new_driver(self) -> TopicDriver:
        session = TopicSession(secrets.randbits(_RUN_BITS), random.random, make_receiver=FrameReceiver)
        driver = TopicDriver(session, self._coordinator, self._token(), self._tls, self._on_effect, self._room)
        driver.make_socket = self._make_socket
        driver.on_failure = partial(self._on_failure, driver)
        self._drivers[driver] = 0
        return driver

    def _make_socket(self, driver: TopicDriver, number: int, address: str) -> TopicSocket | LocalHome:
        if address.rstrip("/") == self.own_address.rstrip("/"):
            return LocalHome(driver, number, self._topics, self._user)
        return TopicSocket(driver, number, address)

    def _on_failure(self, driver: TopicDriver, error: ClientError) -> None:
        """The coordinator refused the directory. A later key or token may be accepted."""
        logger().error("the coordinator refuses this edge's relay of topics", reason=str(error))
        asyncio.get_running_loop().call_later(_RETRY_S, driver.watch_again)

    def _on_effect(self, effect: events.Effect) -> None:
        if isinstance(effect, events.Deliver):
            for item in effect.items:
                if isinstance(item, TopicFrame):
                    self.receive(core_events.relay_event(item.topic, item.message))
                elif isinstance(item, TopicFailure):
                    self.receive(core_events.RelayRefused(item.topic, item.message))

    def receive(self, event: core_events.Event) -> None:
        """Pass an event on: at once, or after those that wait for matching. It keeps its place among them."""
        topics, messages, size_bytes = self._topics, 0, 0
        if isinstance(event, core_events.RelayReceived):
            messages, size_bytes = len(event.entries), sum(len(entry[2]) for entry in event.entries)
            if topics.meter is not None:
                topics.meter.relayed(event, topics.core.relaying.lagging(event.topic))
        if topics.matching is None:
            topics.happened(event)
            return
        topics.matching.offer(messages, size_bytes, lambda: topics.happened(event))
        if topics.matching.is_full:
            self._room.clear()
            topics.matching.on_room[self] = self._room.set

    # -- older messages ------------------------------------------------------------------------------------------------

    def _fetch(self, effect: effects.FetchOlder) -> None:
        session = self._relayed[effect.topic][0].session
        home = session.homes.get(effect.topic)
        if home is None or home.best.rstrip("/") == self.own_address.rstrip("/"):
            self._topics.happened(core_events.OlderFailed(effect.fetch))
            return
        attach = wire.AttachReceiver(2, effect.topic, effect.after, at_home=True)
        self._fetches[effect.fetch] = _Fetch(self, effect.fetch, home.best, session.token, attach, self._tls)

    def _read(self, effect: effects.ReadOlder) -> None:
        if (fetch := self._fetches.get(effect.fetch)) is not None:
            fetch.wanted.set()

    def _end(self, effect: effects.EndFetch) -> None:
        if (fetch := self._fetches.pop(effect.fetch, None)) is not None:
            fetch.task.cancel()

    def fetched(self, number: int, message: wire.ReceiverAttached | wire.Messages | wire.Gap) -> None:
        if number in self._fetches:
            self._topics.happened(core_events.OlderReceived(number, message))

    def failed(self, number: int) -> None:
        if self._fetches.pop(number, None) is not None:
            self._topics.happened(core_events.OlderFailed(number))


class _Fetch:
    """One more connection to a home, for older messages."""

    def __init__(
        self,
        upstream: TopicUpstream,
        number: int,
        address: str,
        token: str,
        attach: wire.AttachReceiver,
        tls: SSLContext,
    ) -> None:
        self._upstream = upstream
        self._number = number
        self._address = topics_address(address)
        self._token = token
        self._attach = attach
        self._tls = tls
        self.wanted = asyncio.Event()
        """Set if the core wants the next message."""
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        try:
            async with connect(
                self._address,
                subprotocols=[Subprotocol(session_wire.MSGPACK)],
                compression=None,
                ping_interval=None,
                open_timeout=_OPEN_S,
                close_timeout=0.5,
                max_size=_FRAME_BYTES,
                max_queue=4,
                ssl=self._tls if self._address.startswith("wss:") else None,
                proxy=None,
            ) as socket:
                await socket.send(_encoder.encode(wire.Login(1, self._token)))
                await self._receive(socket, wire.LoggedIn)
                await socket.send(_encoder.encode(self._attach))
                while True:
                    message = await self._receive(socket, wire.ReceiverAttached, wire.Messages, wire.Gap)
                    assert isinstance(message, wire.ReceiverAttached | wire.Messages | wire.Gap)
                    self.wanted.clear()
                    self._upstream.fetched(self._number, message)
                    await self.wanted.wait()
        except (OSError, TimeoutError, WebSocketException, msgspec.DecodeError, ConnectionError):
            self._upstream.failed(self._number)

    async def _receive(self, socket: ClientConnection, *kinds: type[wire.ToClientMessage]) -> wire.ToClientMessage:
        """The next message of one of these kinds."""
        while True:
            async with asyncio.timeout(_SILENT_S):
                message: wire.ToClientMessage = _decoder.decode(await socket.recv(decode=False))
            if isinstance(message, kinds):
                return message
            if isinstance(message, wire.Refused | wire.Ended | wire.Moved | wire.Closing):
                raise ConnectionError(message.code if not isinstance(message, wire.Moved) else "moved")
