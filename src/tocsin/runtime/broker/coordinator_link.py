"""A broker's link to the coordinator: one WebSocket, reopened whenever it breaks.

It carries messages in both directions; the broker core interprets them. While the link is down, messages are dropped:
the core's outbox sends durable changes again.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from tocsin.broker import coordinates, events
from tocsin.broker.effects import SendToCoordinator
from tocsin.broker.topics import events as topic_events
from tocsin.leaders.addresses import leaders_of
from tocsin.runtime.broker.connecting import pause_s, reason_of, silence_limits, tls_context, try_next
from tocsin.runtime.broker.coordinates import CoordinatesProcess
from tocsin.runtime.broker.process import BrokerProcess
from tocsin.runtime.broker.topic_capacity import TopicCapacity
from tocsin.runtime.broker.topics import TopicsProcess
from tocsin.runtime.http.logs import logger
from tocsin.wire import link, site_link, topic_link
from tocsin.wire.coordinates import CoordinatePeers

_decoder = msgspec.json.Decoder(link.FromCoordinator)
_encoder = msgspec.json.Encoder()
_MISSED_BEATS = 3
_QUEUE = 100_000
"""The most queued messages. With more, the coordinator does not read, and the broker closes the link."""


class LinkToCoordinator:
    def __init__(
        self,
        process: BrokerProcess,
        topics: TopicsProcess,
        capacity: TopicCapacity,
        coordinates: CoordinatesProcess | None = None,
    ) -> None:
        self._process = process
        self._topics = topics
        topics.report = lambda message: self.send(SendToCoordinator(message))
        self._capacity = capacity
        capacity.report = lambda message: self.send(SendToCoordinator(message))
        self._coordinates = coordinates
        if coordinates is not None:
            coordinates.report = lambda report: self.send(SendToCoordinator(report))
        settings = process.settings
        assert settings.coordinator is not None
        self._leaders = leaders_of(settings.coordinator)
        self._path = f"/v1/brokers/{settings.id}/link"
        self._tls = tls_context(settings.coordinator, settings.ca)
        self._outgoing: asyncio.Queue[bytes] | None = None
        self._task: asyncio.Task[None] | None = None
        self._timeout_s = 5.0 if self._leaders.has_standbys else 30.0
        self._log = logger()

    def start(self) -> None:
        self._task = asyncio.create_task(self._keep_open())

    async def stop(self) -> None:
        """Close the link after the queued messages have been sent, or after one second."""
        outgoing = self._outgoing
        if outgoing is not None:
            for _ in range(50):
                if outgoing.empty():
                    break
                await asyncio.sleep(0.02)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def send(self, effect: SendToCoordinator) -> None:
        if self._outgoing is not None:
            message = self._process.user_tokens.attach(effect.message)
            self._outgoing.put_nowait(_encoder.encode(message))

    async def _keep_open(self) -> None:
        failures = 0
        while True:
            address = self._leaders.current
            try:
                await self._run(address)
                failures = 0
            except (OSError, TimeoutError, WebSocketException, msgspec.DecodeError) as error:
                failures = 1 if self._outgoing is not None else failures + 1
                if failures == 1:
                    self._log.warning("no link to the coordinator", reason=reason_of(error))
                try_next(self._leaders, address, error)
            finally:
                if self._outgoing is not None:
                    self._outgoing = None
                    self._process.happened(events.LinkLost())
                    self._topics.happened(topic_events.LinkLost())
            await asyncio.sleep(pause_s(self._leaders, failures))

    async def _run(self, address: str) -> None:
        token = self._process.settings.secret("coordinator")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        options: dict[str, Any] = {} if self._tls is None else {"ssl": self._tls}
        limits = silence_limits(self._leaders)
        async with connect(
            address.replace("http", "ws", 1) + self._path,
            additional_headers=headers,
            compression=None,
            max_size=64 << 20,
            open_timeout=limits["open_timeout"],
            close_timeout=limits["close_timeout"],
            **options,
        ) as socket:
            outgoing: asyncio.Queue[bytes] = asyncio.Queue()
            self._outgoing = outgoing
            self._process.happened(events.LinkOpened())
            sending = asyncio.create_task(self._send_queued(socket, outgoing))
            try:
                await self._receive(socket, outgoing)
            finally:
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)

    async def _receive(self, socket: ClientConnection, outgoing: asyncio.Queue[bytes]) -> None:
        while True:
            async with asyncio.timeout(self._timeout_s):
                text = await socket.recv()
            message = _decoder.decode(text)
            if isinstance(message, link.Registered):
                self._timeout_s = max(1.0, _MISSED_BEATS * message.heartbeat_s)
                self._log.info("registered with the coordinator", accepting=message.accepting)
            if isinstance(message, CoordinatePeers):
                if self._coordinates is not None:
                    self._coordinates.happened(coordinates.PeersNamed(message))
            elif isinstance(message, site_link.SetCapacity | site_link.ReportProfile):
                self._capacity.handle(message)
            elif isinstance(message, topic_link.FromCoordinator):
                self._topics.happened(topic_events.CoordinatorMessageReceived(message))
            elif isinstance(message, site_link.LimitPublishers | site_link.ReportPublishers):
                self._topics.happened(topic_events.LimitsReceived(message))
            elif isinstance(
                message, site_link.ExpectReceivers | site_link.RedirectReceivers | site_link.ReleaseVisitors
            ):
                self._topics.happened(topic_events.SiteMessageReceived(message))
            elif isinstance(message, site_link.Federate | site_link.ImportFlows):
                self._topics.happened(topic_events.FederationReceived(message))
            else:
                self._process.happened(events.CoordinatorMessageReceived(message))
            if outgoing.qsize() > _QUEUE:
                raise TimeoutError("the coordinator does not read")

    async def _send_queued(self, socket: ClientConnection, outgoing: asyncio.Queue[bytes]) -> None:
        while True:
            await socket.send((await outgoing.get()).decode())
