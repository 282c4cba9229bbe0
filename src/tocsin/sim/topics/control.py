"""The control loop of the topic simulation: clients say where they are, brokers report, the load manager plans.

The same policies as live, driven in virtual time [ePulsar §3.2–§3.6, §4]:

- a client tells its coordinate to the home of its topic every 5 s, and at once when it connects or changes gateway. The
  last is ours: a client knows when its gateway changes, and waiting for the next beat would add up to 5 s to every
  transient;
- brokers report each topic they host every 5 s, all on the same beat, and the load manager plans a quarter of a second
  after it, when the reports have arrived. The paper leaves the three periods unrelated, which adds up to another 5 s;
- the migrator carries the plan out. A topic that is on its way is not planned again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tocsin.coords.coordinate import Coordinate
from tocsin.model.ids import BrokerId
from tocsin.policies.topics.monitor import summarise
from tocsin.policies.topics.types import (
    Broker,
    Clients,
    Departure,
    PartitionParams,
    PartitionPolicy,
    PartitionSnapshot,
    Reason,
    Topic,
    TopicName,
    TopicReport,
    remembered,
)
from tocsin.sim.kernel import LATE
from tocsin.sim.topics.migration import Migrator
from tocsin.sim.topics.world import TopicState, TopicWorld

PERIOD_S = 5.0
"""Clients, brokers and load manager alike [ePulsar §4]."""
GRACE_S = 0.25


@dataclass(frozen=True, slots=True)
class MoveMade:
    at_s: float
    topic: TopicName
    source: BrokerId
    target: BrokerId
    reason: Reason
    returned: bool
    """It was on the target less than a minute ago."""
    followed: bool
    """It returned because its clients had: the latency to expect there had fallen below its bound since it left."""


class TopicControl:
    def __init__(
        self,
        world: TopicWorld,
        migrator: Migrator,
        manager: str,
        brokers: Sequence[Broker],
        coordinate_of: Callable[[str], Coordinate],
        policy: PartitionPolicy,
        params: PartitionParams | None = None,
    ) -> None:
        """`coordinate_of` is what a client's agent, or its gateway's, answers when the client asks."""
        self._world, self._migrator, self._manager, self._brokers = world, migrator, manager, brokers
        self._coordinate_of, self._policy, self._params = coordinate_of, policy, params or PartitionParams()
        self._where = {broker.broker: broker.coordinate for broker in brokers}
        self._told: dict[tuple[TopicName, str], Coordinate] = {}
        self._reports: dict[TopicName, Topic] = {}
        self._departures: dict[TopicName, tuple[Departure, ...]] = {}
        self._generation = 0
        self.moves: list[MoveMade] = []
        self.plans_made = 0
        world.on_register.append(self.tell)

    def start(self, clients: Sequence[str]) -> None:
        """Begin the beats. Clients' own beats have random phases, as nobody aligns phones and drones."""
        kernel = self._world.kernel
        phases = kernel.stream("reports").uniform(0.0, PERIOD_S, len(clients))
        for client, phase_s in zip(clients, phases, strict=True):
            self.tell_all(client, instantly=True)
            kernel.every(PERIOD_S, self.tell_all, client, first_s=float(phase_s))
        kernel.every(PERIOD_S, self._report, first_s=0.0, priority=LATE)
        kernel.every(PERIOD_S, self._plan, first_s=GRACE_S, priority=LATE)

    def tell_all(self, client: str, *, instantly: bool = False) -> None:
        """The client tells its coordinate to the homes of all its topics."""
        coordinate = self._coordinate_of(client)
        for state in self._world.topics.values():
            if client in state.producers or client in state.consumers:
                session = self._world.sessions[client, state.name]
                if instantly:
                    self._told[state.name, client] = coordinate
                elif session.connected is not None:
                    self._world.network.send(client, session.connected, self._hear, state.name, client, coordinate)

    def tell(self, topic: TopicName, client: str) -> None:
        """What a client says of itself when it registers."""
        self._told[topic, client] = self._coordinate_of(client)

    def _hear(self, topic: TopicName, client: str, coordinate: Coordinate) -> None:
        self._told[topic, client] = coordinate

    def _report(self) -> None:
        for state in self._world.topics.values():
            if state.home is not None:
                self._world.network.send(state.home, self._manager, self._receive, self._summary(state, state.home))

    def _summary(self, state: TopicState, home: BrokerId) -> Topic:
        producers = [self._told.get((state.name, one)) or self._coordinate_of(one) for one in sorted(state.producers)]
        consumers = [self._told.get((state.name, one)) or self._coordinate_of(one) for one in sorted(state.consumers)]
        rate_per_s = state.rate_per_producer * len(producers)
        report: TopicReport = summarise(
            state.name,
            home,
            self._where[home],
            producers,
            consumers,
            in_rate_per_s=rate_per_s,
            out_rate_per_s=rate_per_s * len(consumers),
        )
        return Topic(report, state.bound_s, (), Clients(tuple(producers), tuple(consumers)))

    def _receive(self, topic: Topic) -> None:
        self._reports[topic.report.topic] = topic

    def _plan(self) -> None:
        """The load manager's round. A report from a broker that is no longer the home is out of date and not used."""
        self._generation += 1
        self.plans_made += 1
        now_s = self._world.kernel.now_s
        usable = tuple(
            Topic(topic.report, topic.bound_s, self._departures.get(name, ()), topic.clients)
            for name, topic in self._reports.items()
            if name not in self._migrator.busy and self._world.topics[name].home == topic.report.broker
        )
        snapshot = PartitionSnapshot(self._generation, now_s, usable, tuple(self._brokers))
        by_name = {topic.report.topic: topic for topic in usable}
        for move in self._policy(snapshot, self._params).moves:
            topic = by_name[move.topic]
            self.moves.append(self._made(topic, move.target, move.reason, move.expected_after_s))
            self._departures[move.topic] = remembered(topic, move, now_s)
            self._migrator.migrate(move.topic, move.target)

    def _made(self, topic: Topic, target: BrokerId, reason: Reason, expected_s: float) -> MoveMade:
        now_s = self._world.kernel.now_s
        lately = [left for left in topic.departures if left.broker == target and now_s - left.at_s < 60.0]
        bound_s = float("inf") if topic.bound_s is None else topic.bound_s
        followed = bool(lately) and expected_s <= bound_s < lately[-1].expected_s
        return MoveMade(now_s, topic.report.topic, topic.report.broker, target, reason, bool(lately), followed)
