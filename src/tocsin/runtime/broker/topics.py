"""Drives the topics core of a broker: handles one event at a time and carries out its effects before the next.

Messages that clients publish in one turn of the event loop are flushed together at its end, in one frame per topic and
encoding.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable
from typing import Protocol

from tocsin.broker.topics import effects, events
from tocsin.broker.topics.core import TopicHomes
from tocsin.broker.topics.events import ConnectionId, StreamId
from tocsin.broker.topics.limits import TopicLimits
from tocsin.model.ids import BrokerId
from tocsin.runtime.broker.replicas import Replicas
from tocsin.runtime.broker.topic_logs import TopicLogs
from tocsin.runtime.http.credentials import Claims
from tocsin.runtime.http.logs import logger
from tocsin.wire import topic_link
from tocsin.wire.topic_log import FromFollower

_TICK_S = 0.1


class TopicConnection(Protocol):
    def write(self, data: bytes) -> None: ...

    def await_drain(self) -> None: ...

    def close(self, reason: str) -> None: ...

    @property
    def claims(self) -> Claims | None: ...


class HomeStream(Protocol):
    """The connection of a home that this broker follows."""

    def send(self, message: FromFollower) -> None: ...


class TopicsProcess:
    def __init__(self, broker: BrokerId, limits: TopicLimits, now_s: Callable[[], float]) -> None:
        self.limits = limits
        self.core = TopicHomes(broker, limits)
        self.now_s = now_s
        self.connections: dict[ConnectionId, TopicConnection] = {}
        self.report: Callable[[topic_link.FromBroker], None] = lambda message: None
        """Sends a message to the coordinator; set by the link."""
        self.streams: dict[StreamId, HomeStream] = {}
        self.logs: TopicLogs | None = None
        """The logs of persistent topics, and the connections to their followers; set by the server."""
        self.replicas: Replicas | None = None
        self._events: deque[events.Event] = deque()
        self._handling = False
        self._flushing = False
        self._numbers = itertools.count(1)
        self._ticking: asyncio.Task[None] | None = None
        self._log = logger()

    def start(self) -> None:
        self._ticking = asyncio.create_task(self._tick())

    async def stop(self) -> None:
        if self._ticking is not None:
            self._ticking.cancel()
            await asyncio.gather(self._ticking, return_exceptions=True)
            self.happened(events.StopRequested())
        if self.replicas is not None:
            await self.replicas.stop()
        if self.logs is not None:
            await self.logs.stop()

    async def _tick(self) -> None:
        while True:
            self.happened(events.Ticked())
            await asyncio.sleep(_TICK_S)

    def new_connection(self, connection: TopicConnection) -> ConnectionId:
        identity = ConnectionId(next(self._numbers))
        self.connections[identity] = connection
        return identity

    def connection_lost(self, identity: ConnectionId) -> None:
        if self.connections.pop(identity, None) is not None:
            self.happened(events.ConnectionLost(identity))

    def new_stream(self, stream: HomeStream) -> StreamId:
        identity = StreamId(next(self._numbers))
        self.streams[identity] = stream
        return identity

    def end_revoked(self, is_revoked: Callable[[Claims], bool]) -> None:
        for identity, connection in list(self.connections.items()):
            if connection.claims is not None and is_revoked(connection.claims):
                self.happened(events.ConnectionRevoked(identity))

    # -- events and effects --------------------------------------------------------------------------------------------

    def happened(self, event: events.Event) -> None:
        """Handle an event. An event that an effect reports waits until the earlier effects are carried out."""
        self._events.append(event)
        if self._handling:
            return
        self._handling = True
        try:
            while self._events:
                self._handle(self._events.popleft())
        finally:
            self._handling = False

    def _handle(self, event: events.Event) -> None:
        try:
            handled = self.core.handle(event, self.now_s())
        except Exception as error:
            self._log.error("an event of a topic could not be handled", kind=type(event).__name__, exc_info=error)
            return
        for effect in handled:
            self._carry_out(effect)

    def _carry_out(self, effect: effects.Effect) -> None:
        match effect:
            case effects.Send(connections, _, data):
                for identity in connections:
                    if (connection := self.connections.get(identity)) is not None:
                        connection.write(data)
            case effects.RequestFlush():
                if not self._flushing:
                    self._flushing = True
                    asyncio.get_running_loop().call_soon(self._flush)
            case effects.SendToCoordinator(message):
                self.report(message)
            case effects.AwaitDrain(identity):
                if (connection := self.connections.get(identity)) is not None:
                    connection.await_drain()
            case effects.CloseConnection(identity, reason):
                if (connection := self.connections.get(identity)) is not None:
                    connection.close(reason)
            case effects.LogEffect() | effects.KeepLogs() if self.logs is not None:
                self.logs.perform(effect)
            case effects.ConnectReplica() | effects.DisconnectReplica() | effects.SendToReplica():
                if self.replicas is not None:
                    self.replicas.perform(effect)
            case effects.AnswerHome(identity, answer):
                if (stream := self.streams.get(identity)) is not None:
                    stream.send(answer)

    def _flush(self) -> None:
        self._flushing = False
        self.happened(events.FlushDue())
