"""A broker that is the home of topics, with measured clients: it collects the reports that the coordinator would get.

The broker's own core (`broker.topics`) makes the reports. This module opens connections, attaches senders and
receivers, answers probes after each client's round trip, and lets time pass. No messages are published. Used by
`epulsar-monitoring` for the size of monitoring traffic.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from tocsin.broker.topics import effects, events
from tocsin.broker.topics.client_coordinates import REPORT_S
from tocsin.broker.topics.core import TopicHomes
from tocsin.broker.topics.events import ConnectionId
from tocsin.broker.topics.limits import TopicLimits
from tocsin.coords.coordinate import Coordinate, distance_s
from tocsin.model.ids import BrokerId, TopicName
from tocsin.wire import topic as wire
from tocsin.wire import topic_link

_LEASE_S = 1e6
_TICK_S = 0.1


class ReportingHome:
    def __init__(self, own: Coordinate, topics: Sequence[TopicName]) -> None:
        """`own` is the broker's coordinate; an error of 1.5 (a new node) would make it report no coordinates."""
        self._core = TopicHomes(BrokerId("broker-00"), TopicLimits())
        self._core.clients.own = lambda: own
        self._core.clients.draw_nonce = count(1).__next__
        self._own = own
        self._now_s = 100.0
        self._connections, self._requests = count(1), count(1)
        self._nonces: dict[ConnectionId, int] = {}
        self.reports: dict[TopicName, topic_link.TopicLatency] = {}
        """The last report about each topic."""
        self._hear(topic_link.OwnTopics([topic_link.OwnedTopic(topic, 1) for topic in topics]))
        self._handle(events.Ticked())

    def attach(self, topic: TopicName, user: str, coordinate: Coordinate, *, sends: bool) -> None:
        """Connect a client at this coordinate and let the broker measure it."""
        connection, request = ConnectionId(next(self._connections)), next(self._requests)
        self._handle(events.ConnectionOpened(connection, user, 0))
        attach = wire.AttachSender(request, topic, 1, 1) if sends else wire.AttachReceiver(request, topic, None)
        self._ask(connection, attach)
        self._ask(connection, wire.Probe(-1))
        self._now_s += distance_s(self._own, coordinate)
        self._ask(connection, wire.Locate(self._nonces.pop(connection), coordinate))

    def believed(self, topic: TopicName) -> tuple[list[Coordinate], list[Coordinate]]:
        """The coordinates of the topic's senders and receivers that the broker has accepted or computed."""
        state = self._core.state
        hosted = state.topics[topic]
        senders, receivers = (
            [state.connections[name].coordinate for name in names]
            for names in (hosted.senders, (*hosted.live, *hosted.lagging))
        )
        return [c for c in senders if c is not None], [c for c in receivers if c is not None]

    def run_period(self) -> None:
        """Let the broker look at each topic once."""
        for _ in range(int(2 * REPORT_S / _TICK_S)):
            self._now_s += _TICK_S
            self._handle(events.Ticked())

    def _ask(self, connection: ConnectionId, request: wire.FromClient) -> None:
        self._handle(events.RequestReceived(connection, request))

    def _hear(self, message: topic_link.FromCoordinator) -> None:
        self._handle(events.CoordinatorMessageReceived(message))

    def _handle(self, event: events.Event) -> None:
        for effect in self._core.handle(event, self._now_s):
            match effect:
                case effects.SendToCoordinator(topic_link.TopicLatency() as report):
                    self.reports[report.topic] = report
                case effects.SendToCoordinator(topic_link.RenewLease(number)):
                    self._hear(topic_link.LeaseRenewed(number, _LEASE_S))
                case effects.Send(connections, wire.Probed(nonce=nonce)):
                    self._nonces.update(dict.fromkeys(connections, nonce))
                case _:
                    pass
