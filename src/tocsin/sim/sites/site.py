"""One site under a balancing policy: rates, load states, offloadings and the delays they cause [ePEER §4.5].

Messages are not simulated one by one: a topic is a rate, a broker a sum of rates with a queue where the sum exceeds its
capacity. Clients are simulated one by one: each is notified, connects, drains its queue and confirms, through the state
machine that a live head will drive. Load detection, plans and BUSY come from the policies; this module simulates the
site that they observe each second.
"""

from __future__ import annotations

import math
from collections.abc import Container
from dataclasses import dataclass, field

import numpy as np

from tocsin.model.ids import BrokerId, SubscriberId
from tocsin.policies.sites import migration
from tocsin.policies.sites.load import LoadStates, state_of, subscriber_bundle
from tocsin.policies.sites.migration import (
    TIMEOUT_S,
    EnterBusy,
    LeaveBusy,
    NotifyClient,
    OffloadMigrations,
    OffloadOrdered,
)
from tocsin.policies.sites.offload import Balancer
from tocsin.policies.sites.types import (
    BrokerReport,
    Bundle,
    Load,
    LoadState,
    Offload,
    OffloadParams,
    OffloadSnapshot,
    utilisation,
)
from tocsin.policies.topics.types import TopicName
from tocsin.sim.kernel import LATE, Kernel
from tocsin.sim.sites.workload import HEAD, SITE, Counts, EdgeProfiles, SiteWorld

DISTRIBUTED_S = 100.0
"""End of the distribution phase: until then the clients of one topic register each second [ePEER §4.5.1.2]."""


@dataclass(frozen=True)
class SiteTiming:
    """Times of the experiment [ePEER §4.5.1.2] and of a migration."""

    first_burst_s: float = 301.0
    second_burst_s: float = 401.0
    calm_s: float = 900.0
    end_s: float = 1_000.0
    burst_factor: float = 1.5
    hop_s: float = 0.010
    """Undisclosed: one-way delay between an agent and a client."""
    connect_s: float = 0.150
    """Undisclosed: time to set up an AMQP connection, session and subscription, some seven round trips of 20 ms."""


@dataclass
class OffloadRecord:
    at_s: float
    clients: int
    delay_ratio: float = 0.0
    """O_d: Σ over its clients of unexpected delay ÷ delay requirement [ePEER table 4-9]."""


@dataclass
class SiteLog:
    used: list[tuple[float, ...]] = field(default_factory=list)
    """Matching utilisation per edge, each second."""
    offloads: list[OffloadRecord] = field(default_factory=list)
    overloaded_s: int = 0
    """Seconds above TH_high, summed over edges."""
    waiting_s: int = 0
    """Seconds in which an overloaded edge waited for a BUSY helper, summed over edges."""
    limited_s: int = 0
    """Seconds in which no broker could help an overloaded edge, summed over edges."""
    control_messages: int = 0
    """Notifications and confirmations of migrations."""
    longest_busy_s: float = 0.0


class SiteSimulation:
    def __init__(
        self,
        kernel: Kernel,
        world: SiteWorld,
        bursts: tuple[Counts, Counts],
        policy: Balancer,
        params: OffloadParams | None = None,
        timing: SiteTiming | None = None,
        *,
        assign_each: bool = False,
        poisson: bool = False,
    ) -> None:
        """`assign_each`: each subscriber gets its own edge, not the one of its topic. `poisson`: the rates of each
        second are drawn around their means."""
        self.kernel, self.world, self.policy = kernel, world, policy
        self.params = params or OffloadParams()
        self.timing = timing or SiteTiming()
        self.log = SiteLog()
        self.migrations = OffloadMigrations()
        self._assign_each, self._poisson = assign_each, poisson
        self._bursts = bursts
        self._mean_rate = world.topic_rate_per_s
        self._factor = np.ones(len(world.topics))
        self._rate = np.zeros(len(world.topics))
        self._edge_of: list[dict[SubscriberId, int]] = [{} for _ in world.topics]
        """Per topic, the edge of each subscriber."""
        self._served = np.zeros((len(world.topics), len(world.edges)))
        """Subscribers by topic and edge. A subscriber that is moving counts at both edges."""
        self._number = {edge: n for n, edge in enumerate(world.edges)}
        self._topic_number = {topic: n for n, topic in enumerate(world.topics)}
        self._states = LoadStates(self.params.thresholds)
        self._queued = np.zeros(len(world.edges))
        """Per edge: messages received and not yet matched."""
        self._excess = np.zeros(len(world.edges))
        self._busy_since: dict[BrokerId, float] = {}
        self._generation = 0
        self._overloaded_now = self._waiting_now = self._limited_now = 0
        self._idle_ticks = 0
        """Ticks without a change. After two, the window holds equal measurements and all decisions repeat."""

    def run(self) -> SiteLog:
        timing = self.timing
        for number in range(len(self.world.topics)):
            self.kernel.call_at(number + 1.0, self._register, number)
        for at_s, chosen in zip((timing.first_burst_s, timing.second_burst_s), self._bursts, strict=True):
            self.kernel.call_at(at_s, self._set_factor, chosen, timing.burst_factor)
        self.kernel.call_at(timing.calm_s, self._set_factor, np.arange(len(self.world.topics)), 1.0)
        self.kernel.every(1.0, self._tick, priority=LATE)
        self.kernel.run(until_s=timing.end_s)
        return self.log

    # Clients and bursts.

    def _register(self, topic: int) -> None:
        """Register all clients of one topic [ePEER §4.5.1.2]."""
        rng = self.kernel.stream("assignment")
        self._rate[topic] = self._mean_rate[topic] * self._factor[topic]
        edge: BrokerId | None = None
        for subscriber in self.world.subscribers[topic]:
            if edge is None or self._assign_each:
                edge = self.policy.edge_for(self.world.topics[topic], self._reports(), self.params, rng)
            assert edge is not None
            self._edge_of[topic][subscriber] = self._number[edge]
            self._served[topic, self._number[edge]] += 1
        self._idle_ticks = 0

    def _set_factor(self, topics: Counts, factor: float) -> None:
        self._factor[topics] = factor
        self._rate = self._mean_rate * self._factor
        self._idle_ticks = 0

    # Load detection, each second.

    def _tick(self) -> None:
        if self._poisson:
            self._rate = self.kernel.stream("rates").poisson(self._mean_rate * self._factor).astype(float)
            self._rate[[not edges for edges in self._edge_of]] = 0.0
            self._idle_ticks = 0
        if self._idle_ticks >= 2 and not self.migrations.busy:
            self._queued = np.maximum(self._queued + self._excess, 0.0)
            self.log.used.append(self.log.used[-1])
            self.log.overloaded_s += self._overloaded_now
            self.log.waiting_s += self._waiting_now
            self.log.limited_s += self._limited_now
            return
        self._idle_ticks += 1
        measured = self._measure()
        for edge, load in zip(self.world.edges, measured, strict=True):
            self._states.measure(edge, load)
        self._update_queues(measured)
        self._decide()

    def _measure(self) -> list[Load]:
        """λ, μ and σ per edge [ePEER table 4-2]: input once per topic, output once per subscriber, and matching once
        per topic or once per subscriber (`SiteSettings.matched_each`)."""
        present = self._served > 0
        bytes_ = self._rate * self.world.size_bytes
        matched = self._served if self.world.matched_each else present
        columns = (bytes_ @ present, bytes_ @ self._served, self._rate @ matched)
        return [Load(*row) for row in np.stack(columns, axis=1).tolist()]

    def _update_queues(self, measured: list[Load]) -> None:
        matched = np.array([load.matched_per_s for load in measured])
        self._excess = matched - self.world.matching_per_s
        self._queued = np.maximum(self._queued + self._excess, 0.0)
        self.log.used.append(tuple((matched / self.world.matching_per_s).tolist()))

    def _capacity(self, edge: int) -> Load:
        bandwidth = float(self.world.edge_bytes_per_s[edge])
        return Load(bandwidth, bandwidth, float(self.world.matching_per_s[edge]))

    def _reports(self) -> list[BrokerReport]:
        reports = []
        for edge, name in enumerate(self.world.edges):
            load, capacity = self._states.average(name), self._capacity(edge)
            state = self._states.state(name, capacity)
            reports.append(BrokerReport(name, SITE, False, state, load, capacity, _Topics(self, edge)))
        return reports

    def _head(self) -> BrokerReport:
        bytes_, bandwidth = self._rate * self.world.size_bytes, self.world.head_bytes_per_s
        capacity = Load(bandwidth, bandwidth, math.inf)
        load = Load(float(bytes_.sum()), float(bytes_ @ (self._served > 0).sum(axis=1)), 0.0)
        state = state_of(utilisation(load, capacity), self.params.thresholds)
        return BrokerReport(HEAD, SITE, True, state, load, capacity)

    # Offloading.

    def _decide(self) -> None:
        edges = self._reports()
        self._generation += 1
        profiles = EdgeProfiles(self.world, self._profile)
        snapshot = OffloadSnapshot(self._generation, self.kernel.now_s, (self._head(), *edges), profiles)
        plan = self.policy.plan(snapshot, self.params, self.kernel.stream("ties"))
        self._overloaded_now = sum(edge.state is LoadState.OVERLOAD for edge in edges)
        self._waiting_now = sum(broker != HEAD for broker in plan.waiting)
        self._limited_now = sum(broker != HEAD for broker in plan.limited)
        self.log.overloaded_s += self._overloaded_now
        self.log.waiting_s += self._waiting_now
        self.log.limited_s += self._limited_now
        for offload in plan.offloads:
            self._start(offload)

    def _start(self, offload: Offload) -> None:
        now_s = self.kernel.now_s
        clients = sum(len(move.clients) for move in offload.moves)
        record = OffloadRecord(now_s, clients)
        self.log.offloads.append(record)
        self.log.control_messages += 2 * clients
        effects = self.migrations.handle(OffloadOrdered(offload), now_s)
        self._busy_since.update(dict.fromkeys(offload.brokers, now_s))
        for effect in effects:
            if isinstance(effect, EnterBusy):
                self._states.enter_busy(effect.brokers)
            elif isinstance(effect, NotifyClient):
                self._notify(effect, record)
        self.kernel.call_after(TIMEOUT_S, self._on_deadline)

    def _notify(self, effect: NotifyClient, record: OffloadRecord) -> None:
        """Let a client connect to its target, and leave its source when its queue there has been matched and sent."""
        client, timing = SubscriberId(effect.client), self.timing
        source = self._number[effect.source]
        connected_s = timing.hop_s + timing.connect_s
        drained_s = max(connected_s, float(self._queued[source] / self.world.matching_per_s[source]))
        self.kernel.call_after(connected_s, self._connected, client, effect.topic, effect.target)
        late_s = drained_s + timing.hop_s
        self.kernel.call_after(late_s, self._drained, client, effect.topic, effect.source, record, late_s)

    def _connected(self, client: SubscriberId, topic: TopicName, target: BrokerId) -> None:
        number = self._topic_number[topic]
        self._served[number, self._number[target]] += 1
        self._edge_of[number][client] = self._number[target]
        self._idle_ticks = 0
        self._execute(self.migrations.handle(migration.ClientConnected(client, topic, target), self.kernel.now_s))

    def _drained(
        self, client: SubscriberId, topic: TopicName, source: BrokerId, record: OffloadRecord, late_s: float
    ) -> None:
        number = self._topic_number[topic]
        self._served[number, self._number[source]] -= 1
        self._idle_ticks = 0
        record.delay_ratio += late_s / float(self.world.delay_s[number])
        self._execute(self.migrations.handle(migration.ClientDrained(client, topic, source), self.kernel.now_s))

    def _on_deadline(self) -> None:
        self._execute(self.migrations.handle(migration.OffloadDeadlinePassed(), self.kernel.now_s))

    def _execute(self, effects: list[migration.Effect]) -> None:
        for effect in effects:
            if isinstance(effect, LeaveBusy):
                measured = self._measure()
                for broker in effect.brokers:
                    self._states.leave_busy(broker, measured[self._number[broker]])
                    busy_s = self.kernel.now_s - self._busy_since.pop(broker)
                    self.log.longest_busy_s = max(self.log.longest_busy_s, busy_s)

    def _profile(self, edge: int) -> tuple[Bundle, ...]:
        """The load distribution profile of an edge [ePEER §4.4.3.1]. All publishers belong to this site."""
        world, bundles = self.world, []
        for number in np.flatnonzero(self._served[:, edge]).tolist():
            clients = [client for client, its_edge in self._edge_of[number].items() if its_edge == edge]
            if clients:
                topic, delay_s = world.topics[number], float(world.delay_s[number])
                rate, size = float(self._rate[number]), float(world.size_bytes[number])
                each = world.matched_each
                bundles.append(subscriber_bundle(topic, delay_s, rate, size, clients, matched_each=each))
        return tuple(bundles)


class _Topics(Container[TopicName]):
    """The topics of an edge, looked up instead of copied each second."""

    def __init__(self, simulation: SiteSimulation, edge: int) -> None:
        self._simulation, self._edge = simulation, edge

    def __contains__(self, topic: object) -> bool:
        number = self._simulation._topic_number[topic]  # type: ignore[index]
        return bool(self._simulation._served[number, self._edge])
