"""Topics in virtual time: the real coordinator, the real homes and the SDK's session, message by message.

Messages take time, connections and links break, brokers crash and pause, clocks run at different rates, and the
coordinator restarts from what it stored. Tests compare what homes accepted with what applications received.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import count

from tocsin.broker import events as broker_events
from tocsin.broker.topics.events import StopRequested
from tocsin.broker.topics.limits import TopicLimits
from tocsin.client import topic_events as events
from tocsin.coordinator.events import ReceiversRedirected, TopicCreated, TopicDeleted, TopicMoveOrdered, TopicsUsed
from tocsin.coordinator.rules import CoordinatorRules
from tocsin.coordinator.topic_views import topic_entry
from tocsin.model.ids import BrokerId, TopicName
from tocsin.model.topic import TopicDefinition, matches
from tocsin.model.topic_persistence import Persistence
from tocsin.sim.kernel import Kernel
from tocsin.sim.network.coordinator import SimulatedCoordinator
from tocsin.sim.network.data_cluster import SimulatedDataCluster
from tocsin.sim.network.topic_broker import Accepted, SimulatedTopicBroker
from tocsin.sim.network.topic_client import SimulatedTopicClient
from tocsin.sim.network.topic_disk import SimulatedDisk
from tocsin.sim.network.topic_replicas import ReplicaNetwork
from tocsin.sim.network.topic_upstream import SimulatedUpstream
from tocsin.sim.network.transport import LINK_S, Transport
from tocsin.wire.site_link import Role
from tocsin.wire.topic_directory import WatchAnswer


class SimulatedTopicNetwork:
    def __init__(
        self,
        kernel: Kernel,
        brokers: Sequence[str],
        rules: CoordinatorRules,
        limits: TopicLimits = TopicLimits(),
        retain: int = 1_000_000,
        roles: Mapping[str, Role] = {},
        on_start: Callable[[SimulatedTopicBroker], None] = lambda broker: None,
        first_run: int = 1,
    ) -> None:
        """`retain`: messages that a log keeps when it is trimmed. `roles`: of brokers in a site; each edge is a
        standby. `on_start` is called with each process of a broker before it starts. `first_run`: of its clients;
        networks whose clients meet need different ones."""
        self._roles = roles
        self.find_elsewhere: Callable[[str], SimulatedTopicBroker | None] = lambda address: None
        """Finds brokers of other sites, to which receivers may move."""
        self.on_start = on_start
        self.kernel = kernel
        self.transport = Transport(kernel)
        self.accepted: list[Accepted] = []
        """Every message that some home accepted, in real order."""
        self.brokers: dict[BrokerId, SimulatedTopicBroker] = {}
        self.clients: dict[str, SimulatedTopicClient] = {}
        self._limits = limits
        self._clocks = kernel.stream("clocks")
        self._retain = retain
        self.disks: dict[BrokerId, SimulatedDisk] = {}
        self.replicas = ReplicaNetwork(self.transport, lambda name: self.brokers.get(name))
        self._numbers = count(first_run)
        cluster = SimulatedDataCluster(kernel, {}, lambda _name, _rng: [])
        self.coordinator = SimulatedCoordinator(rules, self.transport, cluster, lambda: list(self.brokers.values()))
        self.coordinator.start()
        for name in brokers:
            self.start_broker(BrokerId(name))
        kernel.every(0.25, self.coordinator.tick)
        kernel.every(0.1, self._tick)

    def _tick(self) -> None:
        for broker in self.brokers.values():
            broker.handle(broker_events.Ticked())
        for client in self.clients.values():
            client.handle(events.Ticked())

    # -- processes -----------------------------------------------------------------------------------------------------

    def start_broker(self, broker: BrokerId) -> None:
        """Start a process. Its clock is up to 4 % fast or slow, and starts at any time."""
        former = self.brokers.get(broker)
        run = 1 if former is None else former.run + 1
        clock = (float(self._clocks.uniform(0.96, 1.04)), float(self._clocks.uniform(-1e6, 1e6)))
        if broker not in self.disks:
            self.disks[broker] = SimulatedDisk(self.kernel, self.kernel.stream(f"disk-{broker}"), self._retain)
        around = (self.disks[broker], self.replicas)
        role = self._roles.get(broker, Role.PLAIN)
        started = SimulatedTopicBroker(broker, run, self._limits, self.transport, self.accepted, clock, *around, role)
        if role is Role.EDGE:
            number = next(self._numbers)
            started.upstream = SimulatedUpstream(started, number, self.transport, self.find, self.homes)
        self.on_start(started)
        self.brokers[broker] = started
        self.transport.later(LINK_S, self.coordinator.open_link, started)

    def crash_broker(self, broker: BrokerId) -> None:
        """Kill the process and start another one."""
        killed = self.brokers[broker]
        killed.kill()
        self.coordinator.cut_link(killed)
        self.start_broker(broker)

    def stop_broker(self, broker: BrokerId) -> None:
        """Stop the process as SIGTERM does: it returns its lease first. Another process starts half a second later."""
        stopping = self.brokers[broker]
        stopping.happened(StopRequested())
        self.kernel.call_after(0.5, lambda: self.crash_broker(broker) if self.brokers[broker] is stopping else None)

    def pause_broker(self, broker: BrokerId, seconds: float) -> None:
        """Stop the process as SIGSTOP does: connections stay open, and events wait until it resumes."""
        paused = self.brokers[broker].process
        if not paused.paused:
            paused.paused = True
            self.kernel.call_after(seconds, paused.resume)

    def add_client(self, name: str) -> SimulatedTopicClient:
        run = next(self._numbers)
        client = SimulatedTopicClient(name, run, self.transport, self.find, self._directory)
        self.clients[name] = client
        return client

    def find(self, address: str) -> SimulatedTopicBroker | None:
        return self.brokers.get(BrokerId(address.removeprefix("ws://"))) or self.find_elsewhere(address)

    # -- the coordinator's REST API ------------------------------------------------------------------------------------

    def create(self, topic: TopicName, persistence: Persistence | None = None) -> object:
        definition = TopicDefinition(topic, persistence=persistence)
        return self._request(TopicCreated(next(self._numbers), definition))

    def delete(self, topic: TopicName) -> object:
        return self._request(TopicDeleted(next(self._numbers), topic))

    def move(self, topic: TopicName, target: BrokerId) -> object:
        return self._request(TopicMoveOrdered(next(self._numbers), topic, target))

    def redirect(self, topic: TopicName, source: BrokerId, target: BrokerId) -> object:
        """Send all receivers of a topic from one edge to another."""
        return self._request(ReceiversRedirected(next(self._numbers), topic, source, target))

    def _request(self, request: TopicCreated | TopicDeleted | TopicMoveOrdered | ReceiversRedirected) -> object:
        return None if self.coordinator.core is None else self.coordinator.handle(request)

    def homes(self, send: tuple[TopicName, ...], receive: tuple[str, ...]) -> WatchAnswer | None:
        """The answer to the watch of a broker."""
        return self._directory(send, receive, edge=False)

    def _directory(
        self, send: tuple[TopicName, ...], receive: tuple[str, ...], *, edge: bool = True
    ) -> WatchAnswer | None:
        """The answer to a watch; None while the coordinator is down."""
        if self.coordinator.core is None:
            return None
        self.coordinator.handle(TopicsUsed(next(self._numbers), send))
        core = self.coordinator.core
        entries = [
            topic_entry(
                core.registry, record, receive=any(matches(pattern, record.name) for pattern in receive), edge=edge
            )
            for record in core.registry.topics.topics.values()
            if record.name in send or any(matches(pattern, record.name) for pattern in receive)
        ]
        topics = core.registry.topics
        return WatchAnswer(str(topics.revision), topics.epoch, entries, "token")
