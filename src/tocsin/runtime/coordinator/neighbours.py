"""The connections to the coordinators of neighbouring sites [decision 21]: opened again whenever they break.

The site with the smaller name opens the connection, the other one accepts it. Both ends send pings: they measure the
round trip, and a connection without any message for `_SILENT_S` is lost. The core interprets all other messages.
"""

from __future__ import annotations

import asyncio
import random
import ssl
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from itertools import count
from statistics import median
from typing import Any

import msgspec
from starlette.websockets import WebSocket, WebSocketDisconnect
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus, WebSocketException

from tocsin.coordinator.events import (
    NeighbourClosed,
    NeighbourEvent,
    NeighbourMeasured,
    NeighbourMessageReceived,
    NeighbourOpened,
)
from tocsin.model.backoff import retry_delay_s
from tocsin.runtime.http.logs import logger
from tocsin.wire import neighbour_link as wire
from tocsin.wire.site_link import NeighbourAccess

_PING_S = 0.25
_SILENT_S = 1.2
_OPEN_S = 2.0
_END_S = 0.5
"""How long a connection that this side ends may take to send what is queued."""
_LONGEST_S = 2.0
_QUEUE = 100_000
"""The most queued messages. With more, the neighbour does not read, and the connection is closed."""
_ROUND_TRIPS = 2_000
_RECENT = 20
"""Round trips whose median is the delay between the sites: those of the last five seconds."""
_MEASURED = 4
"""Pings between two reports of that: a second."""
_STEADY_S = 2.0
"""A connection that lasted this long was healthy: the next one is opened at once."""
_ENDED, _REFUSED = 1000, 1008
"""WebSocket close codes."""
_REASON_CHARACTERS = 120
_FRAME_BYTES = 16 << 20
_decoder = msgspec.json.Decoder(wire.FromNeighbour)
_encoder = msgspec.json.Encoder()
_LOST = (OSError, TimeoutError, WebSocketException, WebSocketDisconnect, RuntimeError, msgspec.MsgspecError)


class NeighbourConnections:
    def __init__(
        self, site: str, neighbours: Sequence[NeighbourAccess], post: Callable[[NeighbourEvent], None]
    ) -> None:
        """`post` hands an event to the core."""
        self._site = site
        self._neighbours = neighbours
        self._post = post
        self._numbers = count(1)
        self._open: dict[int, NeighbourConnection] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._round_trips: dict[str, deque[float]] = {}

    def start(self) -> None:
        self._tasks = [
            asyncio.create_task(self._keep_open(access)) for access in self._neighbours if self._site < access.site
        ]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.close_all()

    def round_trips_s(self, site: str) -> list[float]:
        """The last round trips on the control connection, in seconds, latest last."""
        return list(self._round_trips.get(site, ()))

    # -- effects of the core -------------------------------------------------------------------------------------------

    def send(self, connection: int, message: wire.FromNeighbour) -> None:
        if (known := self._open.get(connection)) is not None:
            known.send(message)

    def close(self, connection: int, reason: str) -> None:
        if (known := self._open.get(connection)) is not None:
            logger().warning("the connection to a neighbouring site is closed", site=known.site, reason=reason)
            known.end(reason)

    def close_all(self) -> None:
        for connection in list(self._open.values()):
            connection.end("the coordinator is stopping")

    # -- connections ---------------------------------------------------------------------------------------------------

    async def accept(self, site: str, socket: WebSocket) -> None:
        """Serve a connection that a neighbour has opened."""
        reason = await self._run(site, socket.send_text, socket.receive_text, is_opener=False)
        with suppress(*_LOST):
            async with asyncio.timeout(_END_S):
                await socket.close(_REFUSED if reason else _ENDED, reason[:_REASON_CHARACTERS])

    async def _keep_open(self, access: NeighbourAccess) -> None:
        failures, logged = 0, ""
        while True:
            opened_s = time.monotonic()
            failures += 1
            try:
                reason = await self._connect(access)
                if time.monotonic() - opened_s > _STEADY_S:
                    failures, logged = 0, ""
            except _LOST as error:
                reason = _reason(error, self._site)
            if failures >= 2 and reason != logged:  # a neighbour may start later, and refuse the token then
                logged = reason
                logger().warning("no connection to a neighbouring site", site=access.site, reason=reason)
            delay_s = retry_delay_s(failures, shortest_s=0.1, longest_s=_LONGEST_S, jitter=random.uniform(0.5, 1.0))
            await asyncio.sleep(delay_s)

    async def _connect(self, access: NeighbourAccess) -> str:
        """Returns, or raises, when the connection has ended: the reason."""
        address = access.coordinator.rstrip("/").replace("http", "ws", 1) + wire.PATH.format(site=self._site)
        options: dict[str, Any] = {}
        if address.startswith("wss:"):
            context = options["ssl"] = ssl.create_default_context()
            if access.ca is not None:
                context.load_verify_locations(cadata=access.ca)
        async with connect(
            address,
            additional_headers={"Authorization": f"Bearer {access.token}"},
            compression=None,
            ping_interval=None,
            open_timeout=_OPEN_S,
            close_timeout=0.2,
            max_size=_FRAME_BYTES,
            proxy=None,
            **options,
        ) as socket:

            async def receive() -> str:
                return await socket.recv(decode=True)

            try:
                reason = await self._run(access.site, socket.send, receive, is_opener=True)
            finally:
                await _close(socket)
            return reason or socket.close_reason or "the connection was lost"

    async def _run(
        self,
        site: str,
        send: Callable[[str], Awaitable[None]],
        receive: Callable[[], Awaitable[str]],
        *,
        is_opener: bool,
    ) -> str:
        """Serve a connection until it ends. Returns why this side has ended it, or nothing."""
        number = next(self._numbers)
        round_trips = self._round_trips.setdefault(site, deque(maxlen=_ROUND_TRIPS))
        connection = NeighbourConnection(site, send, receive, round_trips)
        self._open[number] = connection
        try:
            if is_opener:
                self._post(NeighbourOpened(site, number))
            await connection.run(
                lambda message: self._post(NeighbourMessageReceived(site, number, message)),
                lambda round_trip_s: self._post(NeighbourMeasured(site, round_trip_s)),
            )
        finally:
            del self._open[number]
            self._post(NeighbourClosed(site, number, connection.is_silent))
        return connection.end_reason


async def _close(socket: ClientConnection) -> None:
    """Close the connection; break it if the neighbour does not read."""
    with suppress(*_LOST):
        async with asyncio.timeout(_END_S):
            await socket.close()
    socket.transport.abort()


def _reason(error: Exception, site: str) -> str:
    """Why a connection failed, and what an administrator can do."""
    status = error.response.status_code if isinstance(error, InvalidStatus) else None
    if status in (401, 403):
        return f"it refuses the token (HTTP {status}): put one with the scope site:{site} into token_file, and restart"
    if status == 404:
        return "it has no neighbours: set site and neighbours there"
    return str(error) or type(error).__name__


class NeighbourConnection:
    def __init__(
        self,
        site: str,
        send: Callable[[str], Awaitable[None]],
        receive: Callable[[], Awaitable[str]],
        round_trips: deque[float],
    ) -> None:
        self.site = site
        self._send_text = send
        self._receive_text = receive
        self._round_trips = round_trips
        self._outgoing: asyncio.Queue[wire.FromNeighbour | None] = asyncio.Queue()
        self._pings = count(1)
        self._pinged_s: dict[int, float] = {}
        self._heard_s = time.monotonic()
        self.end_reason = ""
        """Why this side has ended the connection; empty while it has not."""
        self._ending = asyncio.Event()
        self.is_silent = False
        """The neighbour sent nothing for `_SILENT_S`."""

    def send(self, message: wire.FromNeighbour) -> None:
        if self._ending.is_set():
            return
        self._outgoing.put_nowait(message)
        if self._outgoing.qsize() > _QUEUE:
            self.end("the neighbour does not read")

    def end(self, reason: str) -> None:
        """Close the connection after the queued messages, or after `_END_S` without them. The first reason is kept."""
        if not self._ending.is_set():
            self._ending.set()
            self.end_reason = reason
            self._outgoing.put_nowait(None)

    async def run(
        self, post: Callable[[wire.FromNeighbour], None], measured: Callable[[float], None] = lambda round_trip_s: None
    ) -> None:
        """Call `post` with each message until the connection is lost or closed, and `measured` with round trips."""
        parts = (self._receive(post, measured), self._send(), self._ping(), self._end())
        tasks = [asyncio.create_task(part) for part in parts]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                with suppress(*_LOST):
                    task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _receive(self, post: Callable[[wire.FromNeighbour], None], measured: Callable[[float], None]) -> None:
        while True:
            message = _decoder.decode(await self._receive_text())
            self._heard_s = time.monotonic()
            if isinstance(message, wire.Ping):
                self.send(wire.Pong(message.number))
            elif isinstance(message, wire.Pong):
                if (sent_s := self._pinged_s.pop(message.number, None)) is not None:
                    self._round_trips.append(time.monotonic() - sent_s)
                    if message.number % _MEASURED == 1:
                        measured(median(list(self._round_trips)[-_RECENT:]))
            else:
                post(message)

    async def _send(self) -> None:
        while (message := await self._outgoing.get()) is not None:
            await self._send_text(_encoder.encode(message).decode())

    async def _end(self) -> None:
        """A neighbour that does not read must not keep the connection open."""
        await self._ending.wait()
        await asyncio.sleep(_END_S)

    async def _ping(self) -> None:
        """Ping until the neighbour is silent."""
        while (left_s := self._heard_s + _SILENT_S - time.monotonic()) > 0:
            number = next(self._pings)
            self._pinged_s[number] = time.monotonic()
            self._pinged_s.pop(number - 100, None)
            self.send(wire.Ping(number))
            await asyncio.sleep(min(_PING_S, left_s))
        self.is_silent = True
