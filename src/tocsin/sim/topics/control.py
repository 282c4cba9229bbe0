"""The control loop of the topic simulation: clients and brokers report, the load manager plans, executors migrate.

It drives the live policies in virtual time [ePulsar §3.2–§3.6, §4]. `LOOPS` has two:

- `paper`: a client reports its coordinate to the home of its topic every 5 s, so a home does not know a client that has
  just connected. Each broker reports its topics every 5 s, the load manager plans every 5 s, and migrations of the
  latest plan start every 5 s, each at its own phase. No headroom, no rest.
- `tocsin`: a client reports also when it connects and when its gateway changes. Brokers report all at the same time;
  the load manager plans a quarter of a second later, when the reports have arrived, and migrations start at once.

The load manager does not plan a topic that is migrating.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tocsin.coords.coordinate import Coordinate
from tocsin.model.ids import BrokerId
from tocsin.policies.topics.monitor import summarise
from tocsin.policies.topics.types import (
    Clients,
    Departure,
    PartitionParams,
    PartitionPolicy,
    PartitionSnapshot,
    Topic,
    TopicBroker,
    TopicMove,
    TopicMoveReason,
    TopicName,
    departures_after,
)
from tocsin.sim.kernel import LATE
from tocsin.sim.topics.deliveries import Deliveries
from tocsin.sim.topics.migration import Migrator, TopicMigration
from tocsin.sim.topics.world import TopicState, TopicWorld

PERIOD_S = 5.0
"""Period of clients, brokers and load manager [ePulsar §4]."""
GRACE_S = 0.25
IN_TRANSIT_S = 10.0
"""Time after the last message in which scenarios let migrations end and messages arrive."""
MERGED_WITHIN_S = 1.0
"""Late messages less than this apart belong to one transient: a topic's producers do not recover at the same time."""


@dataclass(frozen=True, slots=True)
class ControlLoop:
    name: str
    params: PartitionParams
    reports_changes: bool
    """Whether a client reports its coordinate when it connects and when its gateway changes."""
    synchronised: bool
    """Whether brokers report together, the plan follows, and migrations start at once; otherwise three unrelated
    periods."""


LOOPS: Final = {
    "paper": ControlLoop("paper", PartitionParams(headroom=0.0, gain_s=0.0, rest_s=0.0), False, False),
    "tocsin": ControlLoop("tocsin", PartitionParams(), True, True),
}


@dataclass(frozen=True, slots=True)
class MoveMade:
    at_s: float
    topic: TopicName
    source: BrokerId
    target: BrokerId
    reason: TopicMoveReason
    returned: bool
    """True if the topic left the target less than a minute ago."""
    followed: bool
    """True if the topic returned with its clients: W(t, target) has fallen below the bound since it left."""


@dataclass(frozen=True, slots=True)
class Episode:
    """The outcome of one simulated scenario."""

    moves: list[MoveMade]
    migrations: list[TopicMigration]
    deliveries: Deliveries
    """The observer after the run: lost, repeated and reordered deliveries."""


@dataclass(frozen=True, slots=True)
class Transient:
    """A time span in which a topic was above its bound."""

    began_s: float
    ended_s: float
    """Time at which the last late message was published."""
    peak_s: float
    """The highest latency."""

    @property
    def duration_s(self) -> float:
        return self.ended_s - self.began_s


def transients(latencies: Sequence[tuple[float, float]], bound_s: float) -> list[Transient]:
    """The transients in the (published, latency) pairs of one topic, in any order, in seconds."""
    spans: list[Transient] = []
    for published_s, latency_s in sorted(latencies):
        if latency_s <= bound_s:
            continue
        if spans and published_s - spans[-1].ended_s <= MERGED_WITHIN_S:
            last = spans[-1]
            spans[-1] = Transient(last.began_s, published_s, max(last.peak_s, latency_s))
        else:
            spans.append(Transient(published_s, published_s, latency_s))
    return spans


class TopicControl:
    def __init__(
        self,
        world: TopicWorld,
        migrator: Migrator,
        manager: str,
        brokers: Sequence[BrokerId],
        coordinate_of: Callable[[str], Coordinate],
        *,
        policy: PartitionPolicy,
        loop: ControlLoop,
    ) -> None:
        """`coordinate_of` gives the coordinate that a broker or client has now from its agent or its gateway's."""
        self._world, self._migrator, self._manager, self._brokers = world, migrator, manager, brokers
        self._coordinate_of, self._policy, self._loop = coordinate_of, policy, loop
        self._reported: dict[tuple[BrokerId, TopicName], dict[str, Coordinate]] = {}
        """Per home and topic: the coordinates that clients have reported to that home."""
        self._topics: dict[TopicName, Topic] = {}
        self._broker_coordinates = {broker: coordinate_of(broker) for broker in brokers}
        self._departures: dict[TopicName, tuple[Departure, ...]] = {}
        self._planned: dict[TopicName, tuple[Topic, TopicMove]] = {}
        self._generation = 0
        self.moves: list[MoveMade] = []

    def start(self, clients: Sequence[str], moves_start_s: float | None = None) -> None:
        """Start the periods. Clients report at random phases, because phones and drones are not synchronised.

        `moves_start_s` is a time at which moves started in a live run: they start here at the same phase, and plans are
        made as long before as in the coordinator. By default moves have the phase of the loop: see the module.
        """
        kernel = self._world.kernel
        phases = kernel.stream("reports").uniform(0.0, PERIOD_S, len(clients) + len(self._brokers) + 2).tolist()
        for client in clients:
            kernel.every(PERIOD_S, self.report_client, client, first_s=phases.pop())
        if self._loop.reports_changes:
            for client in clients:
                for state in self._world.topics_of(client):
                    if state.home is not None:
                        self._register(state.name, client, state.home)
            self._world.on_register.append(self._register)
        if self._loop.synchronised:
            plan_s = GRACE_S if moves_start_s is None else moves_start_s % PERIOD_S
            report_s = (plan_s - GRACE_S) % PERIOD_S
            for broker in self._brokers:
                kernel.every(PERIOD_S, self._report_topics, broker, first_s=report_s, priority=LATE)
            kernel.every(PERIOD_S, self._plan, first_s=plan_s, priority=LATE)
        else:
            for broker in self._brokers:
                kernel.every(PERIOD_S, self._report_topics, broker, first_s=phases.pop(), priority=LATE)
            plan_s, migrate_s = phases.pop(), phases.pop()
            if moves_start_s is not None:  # the coordinator starts the moves half a period after the plan
                plan_s, migrate_s = (moves_start_s - PERIOD_S / 2) % PERIOD_S, moves_start_s % PERIOD_S
            kernel.every(PERIOD_S, self._plan, first_s=plan_s, priority=LATE)
            kernel.every(PERIOD_S, self._migrate, first_s=migrate_s, priority=LATE)

    def gateway_changed(self, client: str) -> None:
        if self._loop.reports_changes:
            self.report_client(client)

    def report_client(self, client: str) -> None:
        """Send a client's coordinate to the homes of all its topics."""
        coordinate = self._coordinate_of(client)
        for state in self._world.topics_of(client):
            home = self._world.sessions[client, state.name].connected
            if home is not None:
                self._world.network.send(client, home, self._receive_coordinate, home, state.name, client, coordinate)

    def _register(self, topic: TopicName, client: str, broker: BrokerId) -> None:
        """The request to register carries the coordinate."""
        self._receive_coordinate(broker, topic, client, self._coordinate_of(client))

    def _receive_coordinate(self, broker: BrokerId, topic: TopicName, client: str, coordinate: Coordinate) -> None:
        self._reported.setdefault((broker, topic), {})[client] = coordinate

    def _report_topics(self, broker: BrokerId) -> None:
        """The broker reports its coordinate and the topics that it hosts; it forgets the clients of other topics."""
        topics = []
        for state in self._world.topics.values():
            if state.home == broker:
                topics.append(self._summary(state, broker))
            else:
                self._reported.pop((broker, state.name), None)
        coordinate = self._coordinate_of(broker)
        self._world.network.send(broker, self._manager, self._receive_report, broker, coordinate, topics)

    def _summary(self, state: TopicState, home: BrokerId) -> Topic:
        """A client whose coordinate the home does not know yet counts for the rates only."""
        reported = self._reported.get((home, state.name), {})

        def coordinates(clients: set[str]) -> tuple[Coordinate, ...]:
            return tuple(reported[client] for client in sorted(clients) if client in reported)

        producers, consumers = coordinates(state.producers), coordinates(state.consumers)
        in_per_s = state.rate_per_producer * len(state.producers)
        rates = {"in_rate_per_s": in_per_s, "out_rate_per_s": in_per_s * len(state.consumers)}
        report = summarise(state.name, home, self._coordinate_of(home), producers, consumers, **rates)
        return Topic(report, state.bound_s, (), Clients(producers, consumers))

    def _receive_report(self, broker: BrokerId, coordinate: Coordinate, topics: Sequence[Topic]) -> None:
        self._broker_coordinates[broker] = coordinate
        self._topics.update({topic.report.topic: topic for topic in topics})

    def _plan(self) -> None:
        """Plan once. A report from a broker that is no longer the home is outdated and ignored."""
        self._generation += 1
        now_s = self._world.kernel.now_s
        topics = {
            name: replace(topic, departures=self._departures.get(name, ()))
            for name, topic in self._topics.items()
            if name not in self._migrator.busy and self._world.topics[name].home == topic.report.broker
        }
        brokers = tuple(TopicBroker(broker, self._broker_coordinates[broker]) for broker in self._brokers)
        snapshot = PartitionSnapshot(self._generation, now_s, tuple(topics.values()), brokers)
        moves = self._policy(snapshot, self._loop.params).moves
        self._planned = {move.topic: (topics[move.topic], move) for move in moves}
        if self._loop.synchronised:
            self._migrate()

    def _migrate(self) -> None:
        """Start the migrations of the latest plan."""
        now_s = self._world.kernel.now_s
        planned, self._planned = self._planned, {}
        for topic, move in planned.values():
            if move.topic in self._migrator.busy or self._world.topics[move.topic].home != move.source:
                continue
            self.moves.append(self._move_made(topic, move))
            self._departures[move.topic] = departures_after(topic, move, now_s)
            self._migrator.migrate(move.topic, move.target)

    def _move_made(self, topic: Topic, move: TopicMove) -> MoveMade:
        now_s = self._world.kernel.now_s
        recent = [left for left in topic.departures if left.broker == move.target and now_s - left.at_s < 60.0]
        bound_s = float("inf") if topic.bound_s is None else topic.bound_s
        followed = bool(recent) and move.expected_after_s <= bound_s < recent[-1].expected_s
        return MoveMade(now_s, move.topic, move.source, move.target, move.reason, bool(recent), followed)
