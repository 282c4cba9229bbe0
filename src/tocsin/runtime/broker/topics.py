"""The process around the topics core: its connections, and one flush per turn of the event loop.

Messages that clients publish in one turn are flushed together at its end, in one frame per topic and encoding.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Protocol

from tocsin.broker.topics import effects, events
from tocsin.broker.topics.core import TopicHomes
from tocsin.broker.topics.events import ConnectionId
from tocsin.broker.topics.limits import TopicLimits
from tocsin.model.ids import BrokerId
from tocsin.runtime.broker.core_driver import CoreDriver
from tocsin.runtime.http.credentials import Claims
from tocsin.wire import topic_link

_TICK_S = 0.1


class TopicConnection(Protocol):
    def write(self, data: bytes) -> None: ...

    def await_drain(self) -> None: ...

    def close(self, reason: str) -> None: ...

    @property
    def claims(self) -> Claims | None: ...


class TopicsProcess(CoreDriver[events.Event]):
    def __init__(self, broker: BrokerId, limits: TopicLimits, now_s: Callable[[], float]) -> None:
        super().__init__(now_s, _TICK_S, events.Ticked(), events.StopRequested())
        self.limits = limits
        self.core = TopicHomes(broker, limits)
        self.handle = self.core.handle
        self.connections: dict[ConnectionId, TopicConnection] = {}
        self.report: Callable[[topic_link.FromBroker], None] = lambda message: None
        """Sends a message to the coordinator; set by the link."""
        self._flushing = False
        self._numbers = itertools.count(1)
        self.handlers |= {
            effects.Send: self._send,
            effects.RequestFlush: self._request_flush,
            effects.SendToCoordinator: lambda effect: self.report(effect.message),
            effects.AwaitDrain: self._await_drain,
            effects.CloseConnection: self._close,
        }

    def start(self) -> None:
        self.start_ticking()

    async def stop(self) -> None:
        await self.stop_ticking()

    # -- for connections -----------------------------------------------------------------------------------------------

    def new_connection(self, connection: TopicConnection) -> ConnectionId:
        identity = ConnectionId(next(self._numbers))
        self.connections[identity] = connection
        return identity

    def connection_lost(self, identity: ConnectionId) -> None:
        if self.connections.pop(identity, None) is not None:
            self.happened(events.ConnectionLost(identity))

    def end_revoked(self, is_revoked: Callable[[Claims], bool]) -> None:
        for identity, connection in list(self.connections.items()):
            if connection.claims is not None and is_revoked(connection.claims):
                self.happened(events.ConnectionRevoked(identity))

    # -- effects -------------------------------------------------------------------------------------------------------

    def _send(self, effect: effects.Send) -> None:
        connections, data = self.connections, effect.data
        for identity in effect.connections:
            connection = connections.get(identity)
            if connection is not None:
                connection.write(data)

    def _await_drain(self, effect: effects.AwaitDrain) -> None:
        if (connection := self.connections.get(effect.connection)) is not None:
            connection.await_drain()

    def _close(self, effect: effects.CloseConnection) -> None:
        if (connection := self.connections.get(effect.connection)) is not None:
            connection.close(effect.reason)

    def _request_flush(self, _effect: effects.RequestFlush) -> None:
        if not self._flushing:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        self.happened(events.FlushDue())
