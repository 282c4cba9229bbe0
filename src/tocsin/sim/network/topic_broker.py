"""A broker process of simulated topics: the real `broker.topics` core with its link, its connections and its own clock.

It records every accepted message with the real time, so that a test can compare the homes of a topic.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from tocsin.broker import events as broker_events
from tocsin.broker.topics import effects, events
from tocsin.broker.topics.core import TopicHomes
from tocsin.broker.topics.events import ConnectionId
from tocsin.broker.topics.limits import TopicLimits
from tocsin.model.ids import BrokerId, TopicName
from tocsin.sim.network.process import ProcessState
from tocsin.sim.network.topic_disk import SimulatedDisk
from tocsin.sim.network.topic_replicas import ReplicaNetwork
from tocsin.sim.network.transport import Pipe, Transport
from tocsin.wire import link, site_link, topic_link
from tocsin.wire import topic as wire
from tocsin.wire.site_link import Role


class TopicBrokerSide(Protocol):
    """The broker's end of a client's connection."""

    down: Pipe[wire.ToClient | None]

    def break_off(self) -> None: ...


class Upstream(Protocol):
    """The part of a broker that receives topics from other homes: relayed ones, or flows of neighbouring sites."""

    def tick(self) -> None: ...

    def perform(self, effect: effects.Effect) -> None: ...

    def kill(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Accepted:
    """A message that some home accepted."""

    at_s: float
    topic: TopicName
    epoch: int
    sequence: int
    holder: tuple[BrokerId, int]
    publisher: int
    number: int
    data: bytes


class SimulatedTopicBroker:
    """One run of a broker's process. A restarted broker is a new object; a dead one ignores every event."""

    def __init__(
        self,
        identity: BrokerId,
        run: int,
        limits: TopicLimits,
        transport: Transport,
        accepted: list[Accepted],
        clock: tuple[float, float],
        disk: SimulatedDisk,
        replicas: ReplicaNetwork,
        role: Role = Role.PLAIN,
    ) -> None:
        """`clock` is (rate, offset in seconds) of this machine's clock. `accepted` gets every accepted message."""
        self.id = identity
        self.run = run
        self.role = role
        self.core = TopicHomes(identity, limits, role)
        self.upstream: Upstream | None = None
        """Of an edge: receives the topics that it relays."""
        self.imports: Upstream | None = None
        """Of a site with neighbours: receives their flows."""
        self.process: ProcessState[events.Event] = ProcessState(self._handle, events.Ticked)
        self.disk = disk
        self._replicas = replicas
        self.link: Pipe[link.FromBroker] | None = None
        self.connections: dict[ConnectionId, TopicBrokerSide] = {}
        self._transport = transport
        self._accepted = accepted
        self._clock = clock
        disk.start(self.happened)

    @property
    def running(self) -> bool:
        return self.process.running

    def handle(self, event: broker_events.Event) -> None:
        """An event of the link, or a tick."""
        match event:
            case broker_events.LinkOpened() if self.link is not None:
                where, standby = f"ws://{self.id}", self.role is Role.EDGE
                register = link.Register(self.id, f"i{self.run}", where, topics=True, role=self.role, standby=standby)
                self.link.send(register)
            case broker_events.LinkLost():
                self.happened(events.LinkLost())
            case broker_events.CoordinatorMessageReceived(message):
                if isinstance(message, topic_link.FromCoordinator):
                    self.happened(events.CoordinatorMessageReceived(message))
                elif isinstance(
                    message, site_link.ExpectReceivers | site_link.RedirectReceivers | site_link.ReleaseVisitors
                ):
                    self.happened(events.SiteMessageReceived(message))
                elif isinstance(message, site_link.Federate | site_link.ImportFlows):
                    self.happened(events.FederationReceived(message))
            case broker_events.Ticked():
                self.happened(events.Ticked())
                for part in (self.upstream, self.imports):
                    if part is not None:
                        part.tick()

    def happened(self, event: events.Event) -> None:
        self.process.happened(event)

    def _handle(self, event: events.Event) -> None:
        before = {(topic.name, topic.epoch): topic.sequence for topic in self.core.state.topics.values()}
        rate, offset_s = self._clock
        performed = self.core.handle(event, offset_s + rate * self._transport.kernel.now_s)
        self._record_accepted(before, isinstance(event, events.RequestReceived | events.ImportReceived))
        for effect in performed:
            self._perform(effect)

    def _record_accepted(self, before: dict[tuple[TopicName, int], int], is_request: bool) -> None:
        """Record what this event accepted. A volatile topic that opens accepts the messages that waited for it."""
        for name, topic in self.core.state.topics.items():
            if topic.log is not None and not is_request:
                continue
            new = topic.sequence - max(before.get((name, topic.epoch), 0), topic.base)
            for index, (publisher, number, data) in enumerate(list(topic.recent)[-new:] if new else []):
                where = (name, topic.epoch, topic.sequence - new + 1 + index, (self.id, self.run))
                self._accepted.append(Accepted(self._transport.kernel.now_s, *where, publisher, number, data))

    def kill(self) -> None:
        """End the process. Its connections break at once; the caller closes its link."""
        self.process.running = False
        self.disk.kill()
        for part in (self.upstream, self.imports):
            if part is not None:
                part.kill()
        self._replicas.break_off(self)
        for connection in list(self.connections.values()):
            connection.break_off()

    def _perform(self, effect: effects.Effect) -> None:
        match effect:
            case effects.Send(connections, message):
                for identity in connections:
                    if identity in self.connections:
                        self.connections[identity].down.send(message)
            case effects.CloseConnection(identity) if identity in self.connections:
                self.connections[identity].down.send(None)
            case effects.AwaitDrain(identity):
                self._transport.later(0.0, self.happened, events.ConnectionDrained(identity))
            case effects.RequestFlush():
                self._transport.kernel.call_after(0.0, self.happened, events.FlushDue())
            case effects.SendToCoordinator(report) if self.link is not None:
                self.link.send(report)
            case effects.LogEffect():
                self.disk.perform(effect)
            case effects.KeepLogs(logs):
                self.disk.keep(logs)
            case effects.ConnectReplica(broker):
                self._replicas.connect(self, broker)
            case effects.DisconnectReplica(broker):
                self._replicas.disconnect(self, broker)
            case effects.SendToReplica(broker, message):
                self._replicas.send(self, broker, message)
            case effects.AnswerHome(stream, answer):
                self._replicas.answer(self, stream, answer)
            case effects.UseNeighbours() | effects.StartImport() | effects.StopImport():
                if self.imports is not None:
                    self.imports.perform(effect)
            case _ if self.upstream is not None:
                self.upstream.perform(effect)
