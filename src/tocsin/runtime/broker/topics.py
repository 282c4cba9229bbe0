"""The process around the topics core: its connections, and one flush per turn of the event loop.

Messages that clients publish in one turn are flushed together at its end, in one frame per topic and encoding. A home
without other traffic sends a single frame's messages in the same call that reads them: see `publish_alone`.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Callable
from typing import Protocol

from tocsin.broker.topics import effects, events
from tocsin.broker.topics.core import TopicHomes
from tocsin.broker.topics.events import ConnectionId, StreamId
from tocsin.broker.topics.limits import TopicLimits
from tocsin.model.ids import BrokerId
from tocsin.runtime.broker.core_driver import CoreDriver
from tocsin.runtime.broker.egress import Egress
from tocsin.runtime.broker.matching import Matching
from tocsin.runtime.broker.replicas import Replicas
from tocsin.runtime.broker.topic_logs import TopicLogs
from tocsin.runtime.broker.topic_meter import TopicMeter
from tocsin.runtime.broker.topic_recording import TopicRecording
from tocsin.runtime.http.credentials import Claims
from tocsin.wire import site_link, topic_link
from tocsin.wire import topic as wire
from tocsin.wire.site_link import Role
from tocsin.wire.topic_log import FromFollower

_TICK_S = 0.1
_APART_S = 0.0002
"""Frames this far apart do not arrive in one turn of the event loop."""
_TOGETHER_S = 0.01
"""After frames that did, the home collects the frames of a turn for so long."""


class TopicConnection(Protocol):
    def write(self, data: bytes) -> None: ...

    def await_drain(self) -> None: ...

    def close(self, reason: str) -> None: ...

    @property
    def claims(self) -> Claims | None: ...


class HomeStream(Protocol):
    """The connection of a home that this broker follows."""

    def send(self, message: FromFollower) -> None: ...


class TopicsProcess(CoreDriver[events.Event]):
    def __init__(
        self, broker: BrokerId, limits: TopicLimits, now_s: Callable[[], float], role: Role = Role.PLAIN
    ) -> None:
        super().__init__(now_s, _TICK_S, events.Ticked(), events.StopRequested())
        self.limits = limits
        self.core = TopicHomes(broker, limits, role)
        self.handle = self.core.handle
        self.connections: dict[ConnectionId, TopicConnection] = {}
        self.report: Callable[[topic_link.FromBroker | site_link.FromBroker], None] = lambda message: None
        """Sends a message to the coordinator; set by the link."""
        self.streams: dict[StreamId, HomeStream] = {}
        self.logs: TopicLogs | None = None
        """The logs of persistent topics, and the connections to their followers; set by the server."""
        self.replicas: Replicas | None = None
        self.recording: TopicRecording | None = None
        """Sends the messages of recorded topics to the data cluster; set by the server."""
        self.record_refusal: Callable[[str, str, str], None] = lambda user, action, topic: None
        """Writes to the audit log; set by the server."""
        self.egress: Egress | None = None
        """Shapes the output, if it is limited; this and the next two are set by `TopicCapacity`."""
        self.matching: Matching | None = None
        """Shapes the messages before their fan-out, if matching is limited."""
        self.meter: TopicMeter | None = None
        """Counts the load of each topic, if the coordinator is to know it."""
        self._flushing = False
        self._published_s = 0.0
        """When the last frame arrived by itself."""
        self._collect_until_s = 0.0
        self._numbers = itertools.count(1)
        self.handlers |= {
            effects.Send: self.send_now,
            effects.RequestFlush: self._request_flush,
            effects.SendToCoordinator: lambda effect: self.report(effect.message),
            effects.RecordRefusal: lambda effect: self.record_refusal(effect.user, effect.action, effect.topic),
            effects.AwaitDrain: self._await_drain,
            effects.CloseConnection: self._close,
            effects.AnswerHome: self._answer_home,
        }
        on_log: tuple[type, ...] = (*effects.LogEffect.__subclasses__(), effects.KeepLogs)
        on_replica: tuple[type, ...] = (effects.ConnectReplica, effects.DisconnectReplica, effects.SendToReplica)
        self.handlers |= dict.fromkeys(on_log, self._perform_on_log)
        self.handlers |= dict.fromkeys(on_replica, self._perform_on_replica)
        self.handlers |= dict.fromkeys((effects.StoreRecords, effects.AskRecorded), self._record)

    def start(self) -> None:
        self.start_ticking()

    async def stop(self) -> None:
        if self.matching is not None:
            self.matching.set_rate(math.inf)
        if self.egress is not None:
            self.egress.set_rate(math.inf)
        await self.stop_ticking()
        if self.recording is not None:
            await self.recording.stop()
        if self.replicas is not None:
            await self.replicas.stop()
        if self.logs is not None:
            await self.logs.stop()

    # -- for connections -----------------------------------------------------------------------------------------------

    def new_connection(self, connection: TopicConnection) -> ConnectionId:
        identity = ConnectionId(next(self._numbers))
        self.connections[identity] = connection
        return identity

    def connection_lost(self, identity: ConnectionId) -> None:
        if self.egress is not None:
            self.egress.forget(identity)
        if self.connections.pop(identity, None) is not None:
            self.happened(events.ConnectionLost(identity))

    def connection_drained(self, identity: ConnectionId) -> None:
        """The connection itself has room. If the shaper holds frames for it, it reports again when they have left."""
        if self.egress is None or not self.egress.is_blocked(identity):
            self.happened(events.ConnectionDrained(identity))

    def publish_alone(self, connection: ConnectionId, request: wire.Publish) -> None:
        """Accept the messages of a frame that was read by itself.

        Sending them at once saves a turn of the event loop. It is worth it only if nothing else is published in this
        turn: with many publishers, one frame for all their messages saves a write to each receiver.
        """
        now_s = self.now_s()
        if now_s - self._published_s < _APART_S:
            self._collect_until_s = now_s + _TOGETHER_S
        self._published_s = now_s
        if now_s < self._collect_until_s or self._flushing:
            self.happened(events.RequestReceived(connection, request))
        else:
            self.happened(events.PublishedAlone(connection, request))

    def new_stream(self, stream: HomeStream) -> StreamId:
        identity = StreamId(next(self._numbers))
        self.streams[identity] = stream
        return identity

    def end_revoked(self, is_revoked: Callable[[Claims], bool]) -> None:
        for identity, connection in list(self.connections.items()):
            if connection.claims is not None and is_revoked(connection.claims):
                self.happened(events.ConnectionRevoked(identity))

    # -- effects -------------------------------------------------------------------------------------------------------

    def send_now(self, effect: effects.Send) -> None:
        """Send without a shaper. The handler of `Send` while the output is not limited."""
        connections, data = self.connections, effect.data
        for identity in effect.connections:
            connection = connections.get(identity)
            if connection is not None:
                connection.write(data)

    def _await_drain(self, effect: effects.AwaitDrain) -> None:
        if (connection := self.connections.get(effect.connection)) is not None:
            connection.await_drain()

    def _close(self, effect: effects.CloseConnection) -> None:
        if self.egress is not None:
            self.egress.forget(effect.connection)
        if (connection := self.connections.get(effect.connection)) is not None:
            connection.close(effect.reason)

    def _request_flush(self, _effect: effects.RequestFlush) -> None:
        if not self._flushing:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _perform_on_log(self, effect: effects.LogEffect | effects.KeepLogs) -> None:
        if self.logs is not None:
            self.logs.perform(effect)

    def _perform_on_replica(
        self, effect: effects.ConnectReplica | effects.DisconnectReplica | effects.SendToReplica
    ) -> None:
        if self.replicas is not None:
            self.replicas.perform(effect)

    def _record(self, effect: effects.StoreRecords | effects.AskRecorded) -> None:
        if self.recording is not None:
            self.recording.perform(effect)

    def _answer_home(self, effect: effects.AnswerHome) -> None:
        if (stream := self.streams.get(effect.stream)) is not None:
            stream.send(effect.message)

    def _flush(self) -> None:
        self._flushing = False
        self.happened(events.FlushDue())
