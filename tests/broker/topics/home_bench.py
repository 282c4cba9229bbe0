"""A topics core with a hand-turned clock, a scripted coordinator and clients that record what they get."""

from __future__ import annotations

from collections import defaultdict
from itertools import count
from typing import Any

from tocsin.broker.topics import effects, events
from tocsin.broker.topics.core import TopicHomes
from tocsin.broker.topics.events import ConnectionId
from tocsin.broker.topics.limits import TopicLimits
from tocsin.model.ids import BrokerId, TopicName
from tocsin.model.permission import ALL_TOPICS
from tocsin.wire import site_link, topic_link
from tocsin.wire import topic as wire

T = TopicName("swarm/3/leader")
LEASE_S = 5.0


class HomeBench:
    def __init__(self, *topics: TopicName, epoch: int = 1, **limits: Any) -> None:
        self.core = TopicHomes(BrokerId("b1"), TopicLimits(**limits))
        self.now_s = 100.0
        self.got: dict[ConnectionId, list[wire.ToClient]] = defaultdict(list)
        self.reports: list[topic_link.FromBroker | site_link.FromBroker] = []
        self.closed: dict[ConnectionId, str] = {}
        self.drains: list[ConnectionId] = []
        self._connections = count(1)
        self._requests = count(1)
        self.hear(topic_link.OwnTopics([topic_link.OwnedTopic(topic, epoch) for topic in topics]))
        self.renew()

    def do(self, event: events.Event) -> None:
        flush = False
        for effect in self.core.handle(event, self.now_s):
            match effect:
                case effects.Send(connections, message):
                    for connection in connections:
                        self.got[connection].append(message)
                case effects.SendToCoordinator(message):
                    self.reports.append(message)
                case effects.CloseConnection(connection, reason):
                    self.closed[connection] = reason
                case effects.AwaitDrain(connection):
                    self.drains.append(connection)
                case effects.RequestFlush():
                    flush = True
                case _:
                    self.carry_out(effect)
        if flush:
            self.do(events.FlushDue())

    def carry_out(self, effect: effects.Effect) -> None:
        """Effects of persistent topics; there are none here."""

    def hear(self, message: topic_link.FromCoordinator) -> None:
        self.do(events.CoordinatorMessageReceived(message))

    def renew(self) -> None:
        """Let the coordinator answer the renewal that is due."""
        self.do(events.Ticked())
        numbers = [report.number for report in self.reports if isinstance(report, topic_link.RenewLease)]
        self.hear(topic_link.LeaseRenewed(numbers[-1], LEASE_S))
        self.do(events.Ticked())

    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds
        self.do(events.Ticked())

    def connect(self, user: str = "ann", scopes: frozenset[str] = ALL_TOPICS, **more: Any) -> ConnectionId:
        connection = ConnectionId(next(self._connections))
        self.do(events.ConnectionOpened(connection, user, 0, scopes=scopes, **more))
        assert isinstance(self.take(connection)[-1], wire.LoggedIn)
        return connection

    def ask(self, connection: ConnectionId, request: wire.FromClient) -> None:
        self.do(events.RequestReceived(connection, request))

    def sender(self, topic: TopicName = T, *, run: int = 7, number: int = 1, user: str = "ann") -> ConnectionId:
        connection = self.connect(user)
        self.ask(connection, wire.AttachSender(next(self._requests), topic, run, number))
        return connection

    def receiver(self, topic: TopicName = T, after: tuple[int, int] | None = None) -> ConnectionId:
        connection = self.connect()
        self.ask(connection, wire.AttachReceiver(next(self._requests), topic, after))
        return connection

    def publish(self, connection: ConnectionId, number: int, *messages: bytes, topic: TopicName = T) -> None:
        hosted = self.core.state.topics.get(topic)
        self.ask(connection, wire.Publish(0 if hosted is None else hosted.at, number, list(messages)))

    def publish_alone(self, connection: ConnectionId, number: int, *messages: bytes) -> list[effects.Effect]:
        """Publish by a frame that arrived by itself; returns the effects instead of carrying them out."""
        request = wire.Publish(self.core.state.topics[T].at, number, list(messages))
        return self.core.handle(events.PublishedAlone(connection, request), self.now_s)

    def take(self, connection: ConnectionId) -> list[wire.ToClient]:
        """The messages since the last call."""
        return self.got.pop(connection, [])

    def data(self, connection: ConnectionId) -> list[bytes]:
        """The payloads since the last call; nothing else may have come, except the answer to the attach."""
        taken: list[bytes] = []
        for message in self.take(connection):
            assert isinstance(message, wire.Messages | wire.ReceiverAttached), message
            if isinstance(message, wire.Messages):
                taken += [entry[2] for entry in message.messages]
        return taken

    def last(self, connection: ConnectionId) -> wire.ToClient:
        return self.take(connection)[-1]
