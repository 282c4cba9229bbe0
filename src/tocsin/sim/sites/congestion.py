"""One site whose bandwidth breaks down and returns, with and without congestion control [ePEER §5.3].

The simulation advances by seconds, not by messages: rates are constant, so a second is a few sums. The limits of a plan
apply from the next second. Where other edges can take an overloaded edge's load, DRD-LB moves it first.

Two comparisons: load reductions are relative to the same site without congestion control, which gets all messages that
its publishers offer. Utility is relative to the same cut made blindly: every edge sends as many bytes as under
congestion control, and all its publishers are cut by the same share. That is also the mean of any other cut to the same
bytes that ignores utility.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np

from tocsin.model.ids import BrokerId
from tocsin.policies.sites.congestion import plan
from tocsin.policies.sites.congestion_types import CongestionParams, CongestionSnapshot, PublisherView, TopicView
from tocsin.policies.sites.load import state_of, subscriber_bundle
from tocsin.policies.sites.offload import DRD_LB, drd_edge
from tocsin.policies.sites.types import BrokerReport, Bundle, Load, LoadState, OffloadSnapshot, utilisation
from tocsin.sim.kernel import Kernel
from tocsin.sim.sites.audience import Audience
from tocsin.sim.sites.workload import HEAD, SITE, EdgeProfiles, Floats, SiteWorld


@dataclass(frozen=True)
class DamageTiming:
    """Times of the damage and of the control loop [ePEER §5.3.1.2]."""

    damage_s: int = 301
    repair_s: int = 900
    end_s: int = 1_000
    revise_s: int = 5
    """Ours: feedback arrives each second, but limits are revised less often, because each revision sends a message to
    every publisher whose limit changes."""


@dataclass
class Second:
    """Measurements of one second."""

    used: Floats
    """Utilisation by edge and metric (Ui, Uo, Um)."""
    offered: Floats
    """Utilisation by edge and metric without any limit."""
    qoe_all: float
    """Ē_s over all subscribers (equations 5–7); a subscriber that receives no publisher counts as 0."""
    qoe_heard: float | None
    """Ē_s over the subscribers that receive any publisher."""
    qoe_by_message: float
    """Like `qoe_all`, but a subscriber's mean is over messages, not over publishers."""
    served: float
    """Share of subscribers that receive any publisher."""
    sent_bytes: float
    """Bytes that the edges send."""
    utility: float
    """Σ of U_m over the messages that subscribers receive."""
    blind_utility: float
    """The same for the same cut made blindly."""


@dataclass
class DamageLog:
    seconds: list[Second] = field(default_factory=list)
    limited_from_s: int | None = None
    recovered_s: int | None = None
    stopped_topics: float = 0.0
    """Stopped topics, summed over revisions; divide by `revisions`."""
    revisions: int = 0
    changes: int = 0
    """Limits that changed after they were first set. Each is a notification to a publisher."""
    offloads: int = 0


class DamagedSite:
    def __init__(
        self,
        kernel: Kernel,
        world: SiteWorld,
        audience: Audience,
        factors: Floats,
        head_factor: float,
        params: CongestionParams | None = None,
        timing: DamageTiming | None = None,
        *,
        one_budget: bool = False,
    ) -> None:
        """`factors`: the share of its bandwidth that each edge keeps. `one_budget`: select topics under the sum of all
        edges' output bandwidth, as the thesis words it, instead of under each broker's own."""
        self.world, self.audience = world, audience
        self.params = params or CongestionParams()
        self.timing = timing or DamageTiming()
        self.log = DamageLog()
        self._rng = kernel.stream("feedback")
        self._factors, self._head_factor, self._one_budget = factors, head_factor, one_budget
        self._offered = np.concatenate(world.rates_per_s)
        self._names = [publisher for publishers in world.publishers for publisher in publishers]
        self._limit = np.full(len(self._offered), math.inf)
        self._utility = np.full(len(self._offered), 0.5)
        self._joined = np.zeros(len(world.topics), dtype=bool)
        """True for topics whose clients have registered."""
        self._edge = np.full(len(world.topics), -1)
        """The edge of each topic's subscribers (-1: none): DRD-LB keeps them together."""
        self._counts = world.audience
        self._pair_topic = audience.publisher_topic[audience.pair_publisher]
        self._unlimited: Floats | None = None
        """Loads without limits; None after a topic was placed or moved."""
        self._second = 0
        self._is_limited = False

    def run(self) -> DamageLog:
        for second in range(1, self.timing.end_s + 1):
            self._second = second
            if second <= len(self.world.topics):
                self._place(second - 1)
            self._collect_feedback()
            self._decide()
        return self.log

    # The world.

    @property
    def _is_damaged(self) -> bool:
        return self.timing.damage_s <= self._second < self.timing.repair_s

    def _bandwidth(self) -> Floats:
        factors: Floats = self._factors if self._is_damaged else np.ones(len(self.world.edges))
        return np.asarray(self.world.edge_bytes_per_s * factors, dtype=np.float64)

    def _head_bandwidth(self) -> float:
        return self.world.head_bytes_per_s * (self._head_factor if self._is_damaged else 1.0)

    def _place(self, topic: int) -> None:
        self._joined[topic] = True
        if not self._counts[topic]:
            return
        chosen = drd_edge(self.world.topics[topic], self._reports(), self.params.thresholds)
        assert chosen is not None
        self._unlimited = None
        self._edge[topic] = self.world.edges.index(chosen)

    def _published(self) -> Floats:
        joined = self._joined[self.audience.publisher_topic]
        return np.where(joined, np.minimum(self._offered, self._limit), 0.0)

    def _loads(self, rates: Floats) -> Floats:
        """The load of each edge: one row (λ, μ, σ) per edge."""
        world = self.world
        per_topic = np.bincount(self.audience.publisher_topic, rates, len(world.topics))
        bytes_ = per_topic * world.size_bytes
        served, edges = self._edge >= 0, len(world.edges)
        columns = (bytes_, bytes_ * self._counts, per_topic)
        return np.stack([np.bincount(self._edge[served], column[served], edges) for column in columns], axis=1)

    def _capacity(self) -> Floats:
        bandwidth = self._bandwidth()
        return np.stack([bandwidth, bandwidth, self.world.matching_per_s], axis=1)

    # Feedback, each second.

    def _collect_feedback(self) -> None:
        audience, rates = self.audience, self._published()
        averages = audience.averages(rates, self._rng)
        # A publisher that sends less than a message a second is received in that share of the seconds.
        sending = self._rng.random(len(rates)) < rates
        active = sending[audience.pair_publisher]
        ratings = np.bincount(audience.pair_publisher[active], minlength=len(rates))
        sums = np.bincount(audience.pair_publisher[active], averages[active], len(rates))
        self._utility = np.where(ratings > 0, sums / np.maximum(ratings, 1), self._utility)
        subscribers = len(audience.subscriber_topic)
        sources = np.bincount(audience.pair_subscriber[active], minlength=subscribers)
        utilities = np.bincount(audience.pair_subscriber[active], averages[active], subscribers)
        messages = rates[audience.pair_publisher]
        received = np.bincount(audience.pair_subscriber, messages, subscribers)
        worth = np.bincount(audience.pair_subscriber, messages * averages, subscribers)
        served = sources > 0
        experience = utilities[served] / sources[served]
        joined = max(int((self._edge[audience.subscriber_topic] >= 0).sum()), 1)
        capacity = self._capacity()
        if self._unlimited is None:
            self._unlimited = self._loads(np.where(self._joined[audience.publisher_topic], self._offered, 0.0))
        loads = self._loads(rates)
        share = loads[:, 1] / np.maximum(self._unlimited[:, 1], 1e-9)
        offered = np.where(self._edge[self._pair_topic] >= 0, self._offered[audience.pair_publisher], 0.0)
        blind = offered * share[np.maximum(self._edge[self._pair_topic], 0)]
        self.log.seconds.append(
            Second(
                used=loads / capacity,
                offered=self._unlimited / capacity,
                qoe_all=float(experience.sum()) / joined,
                qoe_heard=float(experience.mean()) if served.any() else None,
                qoe_by_message=float((worth[served] / received[served]).sum()) / joined,
                served=float(served.sum()) / joined,
                sent_bytes=float(loads[:, 1].sum()),
                utility=float(messages @ audience.pair_mean),
                blind_utility=float(blind @ audience.pair_mean),
            )
        )

    # Decisions.

    def _decide(self) -> None:
        if not self._is_limited:
            reports = self._reports()
            if not any(report.state is LoadState.OVERLOAD for report in reports):
                return
            profiles = EdgeProfiles(self.world, self._profile)
            offloading = DRD_LB.plan(OffloadSnapshot(self._second, float(self._second), tuple(reports), profiles))
            for move in (move for offload in offloading.offloads for move in offload.moves):
                self._edge[self.world.topics.index(move.topic)] = self.world.edges.index(move.target)
            self._unlimited = None
            self.log.offloads += len(offloading.offloads)
            self._is_limited = bool(offloading.limited)
            if not self._is_limited:
                return
            self.log.limited_from_s = self.log.limited_from_s or self._second
        elif self._second % self.timing.revise_s:
            return
        decided = plan(self._snapshot(), self.params)
        limits = np.array([decided.limits.get(name, math.inf) for name in self._names])
        if self._second != self.log.limited_from_s:
            self.log.changes += int((limits != self._limit).sum())
        self._limit = limits
        self.log.stopped_topics += len(decided.stopped)
        self.log.revisions += 1
        if not decided.limits:
            self._is_limited = False
            self.log.recovered_s = self._second

    def _reports(self) -> list[BrokerReport]:
        loads, capacity = self._loads(self._published()).tolist(), self._capacity().tolist()
        reports = []
        for name, load, whole in zip(self.world.edges, loads, capacity, strict=True):
            state = state_of(utilisation(Load(*load), Load(*whole)), self.params.thresholds)
            reports.append(BrokerReport(name, SITE, False, state, Load(*load), Load(*whole)))
        return reports

    def _snapshot(self) -> CongestionSnapshot:
        world, capacity = self.world, [Load(*row) for row in self._capacity().tolist()]
        all_edges, head = BrokerId("all edges"), self._head_bandwidth()
        rooms = {HEAD: Load(head, head, math.inf)} | dict(zip(world.edges, capacity, strict=True))
        if self._one_budget:
            rooms = {all_edges: Load(math.inf, sum(edge.out_bytes_per_s for edge in capacity), math.inf)}
        offered, utility, limit = self._offered.tolist(), self._utility.tolist(), self._limit.tolist()
        topics, at = [], 0
        for number, publishers in enumerate(world.publishers):
            views = tuple(
                PublisherView(name, offered[n], utility[n], None if math.isinf(limit[n]) else limit[n])
                for n, name in enumerate(publishers, start=at)
            )
            at += len(publishers)
            size_bytes, count = float(world.size_bytes[number]), len(world.subscribers[number])
            copies = {world.edges[int(self._edge[number])]: count, HEAD: 1} if count else {HEAD: 0}
            if self._one_budget:
                copies = {all_edges: count}
            topics.append(TopicView(world.topics[number], size_bytes, count, copies, views))
        return CongestionSnapshot(self._second, rooms, tuple(topics), limited=True)

    def _profile(self, edge: int) -> tuple[Bundle, ...]:
        world, bundles = self.world, []
        per_topic = np.bincount(self.audience.publisher_topic, self._published(), len(world.topics))
        for number in np.flatnonzero(self._edge == edge).tolist():
            topic, delay_s = world.topics[number], float(world.delay_s[number])
            rate, size = float(per_topic[number]), float(world.size_bytes[number])
            whole = subscriber_bundle(topic, delay_s, rate, size, world.subscribers[number])
            # The policy must not split topics here, so all subscribers of a topic are one client.
            sent = whole.load.out_bytes_per_s
            bundles.append(replace(whole, clients=whole.clients[:1], client_bytes_per_s=(sent,)))
        return tuple(bundles)
