"""How a topic changes its home, message by message: ePulsar's workflow and Pulsar's, over the same network.

Coordinated, it is figure 2 of [ePulsar §3.6]: the old broker tells the clients where to go and the new broker to get
ready, and a pool of executors runs migrations side by side. Without coordination it is Pulsar's: one topic at a time,
clients look the topic up at the load manager, and the new broker acquires it when the first of them asks.
Who decides what moves is `topic_control`, or a test.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tocsin.model.ids import BrokerId
from tocsin.policies.topics.types import TopicName
from tocsin.sim.kernel import Process, Signal
from tocsin.sim.topics.pool import Pool
from tocsin.sim.topics.world import TopicWorld

CONNECT_ROUND_TRIPS = 2
"""Ours: one to open a connection, one to register as producer or consumer; equal for both workflows."""
STORE_WRITE_S = 0.002
"""Ours: the coordination store (ZooKeeper) makes an ownership change durable."""


@dataclass(slots=True)
class Migration:
    """The life of one migration, in virtual seconds."""

    topic: TopicName
    source: BrokerId
    target: BrokerId
    asked_s: float
    """When the load manager was given it."""
    started_s: float = float("nan")
    """(1) Release Topic is sent."""
    released_s: float = float("nan")
    """(5) Topic Release Complete is received."""
    downtimes_s: list[float] = field(default_factory=list)
    """Per client: from losing the old connection to having the new one."""
    acquiring: bool = False
    """The new home has begun to acquire it."""


class Migrator:
    def __init__(self, world: TopicWorld, manager: str, *, executors: int = 16, coordinated: bool = True) -> None:
        """`manager` is the node of the load manager; the coordination store is co-resident with it [ePulsar §4]."""
        self._world, self._network, self._kernel = world, world.network, world.kernel
        self._manager, self._coordinated = manager, coordinated
        self._pool = Pool(self._kernel, executors if coordinated else 1)  # baseline: sequentially [ePulsar §3.6]
        self._ready: dict[TopicName, Signal[BrokerId]] = {}
        self.migrations: list[Migration] = []
        self.busy: set[TopicName] = set()
        """Topics on their way, or waiting for an executor."""

    def migrate(self, topic: TopicName, target: BrokerId) -> Signal[Migration]:
        source = self._world.topics[topic].home
        if source is None or topic in self.busy:
            raise RuntimeError(f"{topic} is already on its way")
        migration = Migration(topic, source, target, self._kernel.now_s)
        self.migrations.append(migration)
        self.busy.add(topic)
        return self._kernel.spawn(self._workflow(migration))

    def _workflow(self, migration: Migration) -> Process:
        """Figure 2, and the same steps without 3's address and without 4 for the baseline."""
        topic, source = migration.topic, migration.source
        yield self._pool.acquire()
        migration.started_s = self._kernel.now_s
        yield self._network.sent(self._manager, source)  # (1) Release Topic
        yield from self._written(source)  # (2) ownership released in the store
        self._ready[topic] = self._kernel.signal()
        self._world.release(topic)
        leaving = [
            self._kernel.spawn(self._handed_over(migration, client)) for client in self._world.topics[topic].clients
        ]  # (3)
        if self._coordinated:
            migration.acquiring = True
            self._kernel.spawn(self._told_to_acquire(migration))  # (4)
        yield self._network.sent(source, self._manager)  # (5) Topic Release Complete
        migration.released_s = self._kernel.now_s
        self._pool.release()
        yield self._kernel.all_of(leaving)  # until every client has its new connection
        if not migration.acquiring:
            yield from self._acquired(migration)  # a topic without clients: nobody asked for it
        yield self._ready[topic]
        self.busy.discard(topic)
        return migration

    def _written(self, broker: str) -> Process:
        """A change of ownership by a broker: there, made durable, and back."""
        yield self._network.sent(broker, self._manager)
        yield STORE_WRITE_S
        yield self._network.sent(self._manager, broker)

    def _told_to_acquire(self, migration: Migration) -> Process:
        yield self._network.sent(migration.source, migration.target)  # (4) Acquire Topic
        yield from self._acquired(migration)

    def _acquired(self, migration: Migration) -> Process:
        yield from self._written(migration.target)  # (6) ownership acquired in the store
        self._world.acquire(migration.topic, migration.target)
        self._ready[migration.topic].fire(migration.target)

    def _handed_over(self, migration: Migration, client: str) -> Process:
        topic, target = migration.topic, migration.target
        yield self._network.sent(migration.source, client)  # (3) connection closed, with the new address if coordinated
        lost_s = self._kernel.now_s
        self._world.close(topic, client)
        if not self._coordinated:
            yield from self._looked_up(migration, client)
        yield from self.connected(topic, client, target)  # (7)
        migration.downtimes_s.append(self._kernel.now_s - lost_s)

    def _looked_up(self, migration: Migration, client: str) -> Process:
        """Pulsar: the load manager names a broker, which acquires the topic when it is first asked for it."""
        yield self._network.sent(client, self._manager)
        yield self._network.sent(self._manager, client)
        yield self._network.sent(client, migration.target)
        if not migration.acquiring:
            migration.acquiring = True
            self._kernel.spawn(self._acquired(migration))
        yield self._ready[migration.topic]
        yield self._network.sent(migration.target, client)

    def connected(self, topic: TopicName, client: str, broker: BrokerId) -> Process:
        """A client connects to a broker and registers; a broker that is not ready yet lets it wait."""
        for _ in range(CONNECT_ROUND_TRIPS - 1):
            yield self._network.sent(client, broker)
            yield self._network.sent(broker, client)
        yield self._network.sent(client, broker)
        if topic in self._ready:
            yield self._ready[topic]
        self._world.register(topic, client, broker)
        yield self._network.sent(broker, client)
        self._world.resume(topic, client, broker)

    def subscribed(self, topic: TopicName, client: str, wanted: Callable[[], bool]) -> Process:
        """A new consumer finds the topic's home and registers; it starts again if the topic moves meanwhile.

        `wanted` is asked at the end: a client may have changed its mind on the way.
        """
        while True:
            broker = self._world.topics[topic].home
            if broker is None:
                broker = yield self._ready[topic]
            for _ in range(CONNECT_ROUND_TRIPS - 1):
                yield self._network.sent(client, broker)
                yield self._network.sent(broker, client)
            yield self._network.sent(client, broker)
            if self._world.topics[topic].home == broker:
                break
        if wanted():
            self._world.topics[topic].consumers.add(client)
            self._world.register(topic, client, broker)
            yield self._network.sent(broker, client)
            self._world.resume(topic, client, broker)
