"""The control loop of the topic simulation: clients and brokers report, the load manager plans.

It drives the live policies in virtual time [ePulsar §3.2–§3.6, §4]:

- A client reports its coordinate to the home of its topic every 5 s, and at once when it connects or changes gateway.
  The report at a change of gateway is ours: waiting for the next period would add up to 5 s to every transient.
- Brokers report each topic they host every 5 s, all at the same time. The load manager plans a quarter of a second
  later, when the reports have arrived. The paper leaves the three periods unrelated, which adds up to another 5 s.
- The migrator executes the plan. The load manager does not plan a topic that is migrating.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

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
from tocsin.sim.topics.migration import Migrator, TopicMigration
from tocsin.sim.topics.world import TopicState, TopicWorld

PERIOD_S = 5.0
"""Period of clients, brokers and load manager [ePulsar §4]."""
GRACE_S = 0.25
MERGED_WITHIN_S = 1.0
"""Late messages less than this apart belong to one transient: a topic's producers do not recover at the same time."""


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

    latencies: dict[TopicName, list[tuple[float, float]]]
    """Per topic: (published, latency until the last consumer received the message), seconds."""
    moves: list[MoveMade]
    migrations: list[TopicMigration]
    lost: int
    """Deliveries that were owed and never made."""


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
        brokers: Sequence[TopicBroker],
        coordinate_of: Callable[[str], Coordinate],
        policy: PartitionPolicy,
    ) -> None:
        """`coordinate_of` gives the coordinate that a client gets from its own agent or its gateway's."""
        self._world, self._migrator, self._manager, self._brokers = world, migrator, manager, brokers
        self._coordinate_of, self._policy, self._params = coordinate_of, policy, PartitionParams()
        self._broker_coordinates = {broker.broker: broker.coordinate for broker in brokers}
        self._reported: dict[tuple[TopicName, str], Coordinate] = {}
        self._topics: dict[TopicName, Topic] = {}
        self._departures: dict[TopicName, tuple[Departure, ...]] = {}
        self._generation = 0
        self.moves: list[MoveMade] = []
        world.on_register.append(lambda topic, client: self._receive_coordinate(topic, client, coordinate_of(client)))

    def start(self, clients: Sequence[str]) -> None:
        """Start the periods. Clients report at random phases, because phones and drones are not synchronised."""
        kernel = self._world.kernel
        phases = kernel.stream("reports").uniform(0.0, PERIOD_S, len(clients))
        for client, phase_s in zip(clients, phases, strict=True):
            for state in self._world.topics_of(client):
                self._receive_coordinate(state.name, client, self._coordinate_of(client))
            kernel.every(PERIOD_S, self.report_client, client, first_s=float(phase_s))
        kernel.every(PERIOD_S, self._report_topics, first_s=0.0, priority=LATE)
        kernel.every(PERIOD_S, self._plan, first_s=GRACE_S, priority=LATE)

    def report_client(self, client: str) -> None:
        """Send a client's coordinate to the homes of all its topics."""
        coordinate = self._coordinate_of(client)
        for state in self._world.topics_of(client):
            home = self._world.sessions[client, state.name].connected
            if home is not None:
                self._world.network.send(client, home, self._receive_coordinate, state.name, client, coordinate)

    def _receive_coordinate(self, topic: TopicName, client: str, coordinate: Coordinate) -> None:
        self._reported[topic, client] = coordinate

    def _report_topics(self) -> None:
        for state in self._world.topics.values():
            if state.home is not None:
                topic = self._summary(state, state.home)
                self._world.network.send(state.home, self._manager, self._receive_topic, topic)

    def _summary(self, state: TopicState, home: BrokerId) -> Topic:
        def coordinates(clients: set[str]) -> tuple[Coordinate, ...]:
            reported = self._reported
            return tuple(
                reported.get((state.name, client)) or self._coordinate_of(client) for client in sorted(clients)
            )

        producers, consumers = coordinates(state.producers), coordinates(state.consumers)
        in_per_s, coordinate = state.rate_per_producer * len(producers), self._broker_coordinates[home]
        rates = {"in_rate_per_s": in_per_s, "out_rate_per_s": in_per_s * len(consumers)}
        report = summarise(state.name, home, coordinate, producers, consumers, **rates)
        return Topic(report, state.bound_s, (), Clients(producers, consumers))

    def _receive_topic(self, topic: Topic) -> None:
        self._topics[topic.report.topic] = topic

    def _plan(self) -> None:
        """Plan once. A report from a broker that is no longer the home is outdated and ignored."""
        self._generation += 1
        now_s = self._world.kernel.now_s
        topics = {
            name: replace(topic, departures=self._departures.get(name, ()))
            for name, topic in self._topics.items()
            if name not in self._migrator.busy and self._world.topics[name].home == topic.report.broker
        }
        snapshot = PartitionSnapshot(self._generation, now_s, tuple(topics.values()), tuple(self._brokers))
        for move in self._policy(snapshot, self._params).moves:
            self.moves.append(self._move_made(topics[move.topic], move))
            self._departures[move.topic] = departures_after(topics[move.topic], move, now_s)
            self._migrator.migrate(move.topic, move.target)

    def _move_made(self, topic: Topic, move: TopicMove) -> MoveMade:
        now_s = self._world.kernel.now_s
        recent = [left for left in topic.departures if left.broker == move.target and now_s - left.at_s < 60.0]
        bound_s = float("inf") if topic.bound_s is None else topic.bound_s
        followed = bool(recent) and move.expected_after_s <= bound_s < recent[-1].expected_s
        return MoveMade(now_s, move.topic, move.source, move.target, move.reason, bool(recent), followed)
