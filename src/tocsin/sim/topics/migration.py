"""How a topic changes its home, message by message: ePulsar's workflow and Pulsar's, over the same network.

The coordinated workflow is figure 2 of [ePulsar §3.6]: the old broker sends the new address to the clients and the new
broker a request to acquire the topic, and a pool of executors runs migrations concurrently. Pulsar's workflow migrates
one topic at a time: clients look the topic up at the load manager, and the new broker acquires it at the first request.
The state of the topic travels from the old home to the new one: with step 4, or in Pulsar through the store. Brokers
and store work on one request at a time, so migrations at the same broker slow each other down. `control`, or a test,
decides which topics move.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

from tocsin.model.ids import BrokerId
from tocsin.policies.topics.types import TopicName
from tocsin.sim.kernel import Kernel, Process, Signal
from tocsin.sim.topics.world import HandOver, TopicWorld

CONNECT_ROUND_TRIPS = 2
"""Ours: one round trip to open a connection and one to register the client; equal for both workflows."""
STORE_WRITE_S = 0.002
"""Ours: time in which the coordination store (ZooKeeper) makes an ownership change durable, one after another."""
RELEASE_S = ACQUIRE_S = 0.002
"""Ours: work of a broker to release or to load a topic. An undisturbed move of a live topic takes 11 ms at least."""
REGISTER_S = 0.0005
"""Ours: work of a broker to register a client that reconnects."""


class Pool:
    """A pool of `size` permits in virtual time, granted in order of request. Here they are the migration executors
    [ePulsar §3.6]. `yield pool.acquire()` waits for a permit."""

    def __init__(self, kernel: Kernel, size: int) -> None:
        if size < 1:
            raise ValueError(f"a pool has at least one worker, not {size}")
        self._kernel = kernel
        self._size = size
        self.busy = 0
        self._waiting: deque[Signal[Any]] = deque()

    def acquire(self) -> Signal[Any]:
        """A signal that fires with the time at which the permit was granted."""
        granted: Signal[Any] = self._kernel.signal()
        if self.busy < self._size:
            self.busy += 1
            granted.fire(self._kernel.now_s)
        else:
            self._waiting.append(granted)
        return granted

    def release(self) -> None:
        if self.busy < 1:
            raise RuntimeError("released a permit that no process held")
        if self._waiting:
            self._waiting.popleft().fire(self._kernel.now_s)
        else:
            self.busy -= 1


@dataclass(slots=True)
class TopicMigration:
    """The times of one migration, in virtual seconds."""

    topic: TopicName
    source: BrokerId
    target: BrokerId
    asked_s: float
    """When the load manager received the request."""
    started_s: float = float("nan")
    """When (1) Release Topic is sent."""
    released_s: float = float("nan")
    """When (5) Topic Release Complete is received."""
    downtimes_s: list[float] = field(default_factory=list)
    """Seconds for each client from the loss of the old connection to the new one."""
    acquiring: bool = False
    """True if the new home has begun to acquire the topic."""


class Migrator:
    def __init__(self, world: TopicWorld, manager: str, *, executors: int = 16, coordinated: bool = True) -> None:
        """`manager` is the node of the load manager and of the coordination store [ePulsar §4]."""
        self._world, self._network, self._kernel = world, world.network, world.kernel
        self._manager, self._coordinated = manager, coordinated
        self._pool = Pool(self._kernel, executors if coordinated else 1)  # baseline: sequentially [ePulsar §3.6]
        self._stations: dict[str, Pool] = {}
        self._ready: dict[TopicName, Signal[BrokerId]] = {}
        self._stored: dict[TopicName, Signal[HandOver]] = {}
        """Pulsar: fires when the old home's state has reached the store."""
        self.migrations: list[TopicMigration] = []
        self.busy: set[TopicName] = set()
        """Topics that migrate or wait for an executor."""

    def migrate(self, topic: TopicName, target: BrokerId) -> Signal[TopicMigration]:
        source = self._world.topics[topic].home
        if source is None or topic in self.busy:
            raise RuntimeError(f"{topic} is already migrating")
        migration = TopicMigration(topic, source, target, self._kernel.now_s)
        self.migrations.append(migration)
        self.busy.add(topic)
        return self._kernel.spawn(self._workflow(migration))

    def _workflow(self, migration: TopicMigration) -> Process:
        """The steps of figure 2. The baseline has no address in step 3 and no step 4."""
        topic, source = migration.topic, migration.source
        yield self._pool.acquire()
        migration.started_s = self._kernel.now_s
        yield self._network.sent(self._manager, source)  # (1) Release Topic
        yield from self._work(source, RELEASE_S)
        yield from self._write_ownership(source)  # (2) ownership released in the store
        self._ready[topic], self._stored[topic] = self._kernel.signal(), self._kernel.signal()
        clients = self._world.topics[topic].clients
        hand_over = self._world.release(topic)
        reconnections = [self._kernel.spawn(self._reconnect(migration, client)) for client in clients]  # (3)
        if self._coordinated:
            migration.acquiring = True
            self._kernel.spawn(self._request_acquisition(migration, hand_over))  # (4)
        yield self._network.sent(source, self._manager)  # (5) Topic Release Complete
        self._stored[topic].fire(hand_over)
        migration.released_s = self._kernel.now_s
        self._pool.release()
        yield self._kernel.all_of(reconnections)
        if not migration.acquiring:
            yield from self._acquire_lazily(migration)  # a topic without clients: no client requested it
        yield self._ready[topic]
        self.busy.discard(topic)
        return migration

    def _work(self, node: str, work_s: float) -> Process:
        """The node works on a request, after those that arrived before."""
        station = self._stations.setdefault(node, Pool(self._kernel, 1))
        yield station.acquire()
        yield work_s
        station.release()

    def _write_ownership(
        self, broker: str, stored: Signal[HandOver] | None = None
    ) -> Generator[float | Signal[Any] | None, Any, HandOver | None]:
        """A broker writes a change of ownership to the store; the reply brings the state that is stored there."""
        yield self._network.sent(broker, self._manager)
        hand_over: HandOver | None = None
        if stored is not None:
            hand_over = yield stored
        yield from self._work(self._manager, STORE_WRITE_S)
        yield self._network.sent(self._manager, broker)
        return hand_over

    def _request_acquisition(self, migration: TopicMigration, hand_over: HandOver) -> Process:
        yield self._network.sent(migration.source, migration.target)  # (4) Acquire Topic, with the topic's state
        yield from self._write_ownership(migration.target)  # (6) ownership acquired in the store
        yield from self._acquire(migration, hand_over)

    def _acquire_lazily(self, migration: TopicMigration) -> Process:
        """Pulsar: the new broker acquires the topic when a client asks for it, and gets its state from the store."""
        hand_over = yield from self._write_ownership(migration.target, self._stored[migration.topic])
        assert hand_over is not None
        yield from self._acquire(migration, hand_over)

    def _acquire(self, migration: TopicMigration, hand_over: HandOver) -> Process:
        yield from self._work(migration.target, ACQUIRE_S)
        self._world.acquire(migration.topic, migration.target, hand_over)
        self._ready[migration.topic].fire(migration.target)

    def _reconnect(self, migration: TopicMigration, client: str) -> Process:
        topic, target = migration.topic, migration.target
        yield self._network.sent(migration.source, client)  # (3) connection closed, with the new address if coordinated
        lost_s = self._kernel.now_s
        self._world.close(topic, client)
        if not self._coordinated:
            yield from self._look_up(migration, client)
        yield from self._connect(client, target)  # (7)
        if topic in self._ready:
            yield self._ready[topic]  # the new broker registers the client when it has acquired the topic
        yield from self._work(target, REGISTER_S)
        if client in self._world.topics[topic].clients:  # otherwise it has unsubscribed meanwhile
            self._world.register(topic, client, target)
            yield self._network.sent(target, client)
            migration.downtimes_s.append(self._kernel.now_s - lost_s)

    def _look_up(self, migration: TopicMigration, client: str) -> Process:
        """Pulsar: the load manager names a broker, and that broker acquires the topic at the first request."""
        yield self._network.sent(client, self._manager)
        yield self._network.sent(self._manager, client)
        yield self._network.sent(client, migration.target)
        if not migration.acquiring:
            migration.acquiring = True
            self._kernel.spawn(self._acquire_lazily(migration))
        yield self._ready[migration.topic]
        yield self._network.sent(migration.target, client)

    def _connect(self, client: str, broker: BrokerId) -> Process:
        """The client connects; its request to register arrives at the broker."""
        for _ in range(CONNECT_ROUND_TRIPS - 1):
            yield self._network.sent(client, broker)
            yield self._network.sent(broker, client)
        yield self._network.sent(client, broker)

    def subscribe(self, topic: TopicName, client: str, is_wanted: Callable[[], bool]) -> Process:
        """A new consumer connects to the topic's home and registers; it starts again if the topic moves meanwhile.

        `is_wanted` is called before registering: the client may have left the group since.
        """
        state = self._world.topics[topic]
        while True:
            broker = state.home
            if broker is None:
                broker = yield self._ready[topic]
            yield from self._connect(client, broker)
            yield from self._work(broker, REGISTER_S)
            if state.home == broker:
                break
        if is_wanted():
            state.consumers.add(client)
            self._world.register(topic, client, broker)
            yield self._network.sent(broker, client)
