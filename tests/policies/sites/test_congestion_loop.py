"""Congestion control as a closed loop: publishers with rate limit filters, brokers that count whole messages, plans.

The rates are those of `tocsin experiment epeer-live`: some thirty messages per second fit an edge, so that one message
more or less is three hundredths of its matching capacity.
"""

from __future__ import annotations

import heapq
import math
import random
from dataclasses import dataclass, field

import numpy as np

from tocsin.client.topic_limits import PublishLimits
from tocsin.coordinator.rules import CoordinatorRules
from tocsin.coordinator.site_congestion import live_params
from tocsin.model.ids import BrokerId, PublisherId
from tocsin.policies.sites.congestion import plan
from tocsin.policies.sites.congestion_types import CongestionParams, CongestionSnapshot, PublisherView, TopicView
from tocsin.policies.sites.load import Window
from tocsin.policies.sites.types import Load
from tocsin.policies.topics.types import TopicName

EDGES = [BrokerId(f"edge-{number}") for number in range(4)]
TOPICS = [TopicName(f"site/{number:02}") for number in range(20)]
RATE_PER_S = 12.5
MATCHED_PER_S = 0.25 * 2 * RATE_PER_S * len(TOPICS) / len(EDGES)
LONGEST_S, SETTLED_S = 30.0, 8.0


@dataclass(eq=False)
class Publisher:
    name: PublisherId
    topic: TopicName
    edge: BrokerId
    rate_per_s: float
    utility: float
    reports_s: float
    offered_per_s: float
    filter: PublishLimits = field(default_factory=PublishLimits)

    def view(self) -> PublisherView:
        limit = self.filter.rate_per_s(self.topic)
        return PublisherView(self.name, self.offered_per_s, self.utility, limit)

    def report(self, now_s: float) -> None:
        if now_s >= self.reports_s:
            self.reports_s += 1.0
            self.offered_per_s = self.filter.take_offered(now_s).get(self.topic, self.offered_per_s)


def publishers_of(rng: random.Random) -> list[Publisher]:
    """Two per topic, their utilities spread evenly over 0 to 1. The first topic is slow and protected."""
    made = []
    for number, topic in enumerate(TOPICS):
        for key in range(2):
            utility = (2 * number + key + 0.5) / (2 * len(TOPICS)) if number else 0.0
            rate = RATE_PER_S if number else 2.5
            where = (topic, EDGES[number % len(EDGES)])
            made.append(Publisher(PublisherId(f"{topic}/{key}"), *where, rate, utility, rng.uniform(0.3, 1.3), rate))
    return made


def limit(publishers: list[Publisher], params: CongestionParams, now_s: float) -> None:
    views = tuple(
        TopicView(
            topic,
            1_000.0,
            8,
            {next(one.edge for one in publishers if one.topic == topic): 8},
            tuple(one.view() for one in publishers if one.topic == topic),
            5.0 if topic == TOPICS[0] else 0.0,
        )
        for topic in TOPICS
    )
    capacity = dict.fromkeys(EDGES, Load(math.inf, math.inf, MATCHED_PER_S))
    limits = plan(CongestionSnapshot(1, capacity, views, limited=True), params).limits
    for one in publishers:
        one.filter.set(one.topic, limits.get(one.name), now_s)


def used_shares(params: CongestionParams, seed: int) -> list[float]:
    """The averaged Um of all edges in each second after the control has settled."""
    rng, now_s, next_plan_s = random.Random(seed), 0.0, 1.0
    publishers = publishers_of(rng)
    counts, windows = dict.fromkeys(EDGES, 0), dict.fromkeys(EDGES, Window())
    measured_s = {edge: rng.random() for edge in EDGES}
    due = [(rng.random() / one.rate_per_s, number) for number, one in enumerate(publishers)]
    heapq.heapify(due)
    used: list[float] = []
    while now_s < LONGEST_S:
        now_s, number = heapq.heappop(due)
        for edge in EDGES:
            if now_s >= measured_s[edge]:
                measured_s[edge] += 1.0
                windows[edge] = windows[edge].with_(Load(0.0, 0.0, counts[edge]))
                counts[edge] = 0
                if now_s > SETTLED_S:
                    used.append(windows[edge].average().matched_per_s / MATCHED_PER_S)
        if now_s >= next_plan_s:
            next_plan_s += 1.05
            limit(publishers, params, now_s)
        one = publishers[number]
        one.report(now_s)
        counts[one.edge] += one.filter.admit(one.topic, now_s)
        heapq.heappush(due, (now_s + 1.0 / one.rate_per_s, number))
    return used


def test_live_control_keeps_the_matching_of_edges_between_080_and_095() -> None:
    used = [share for seed in range(3) for share in used_shares(live_params(CoordinatorRules()), seed)]
    assert np.quantile(used, 0.05) >= 0.80 and np.quantile(used, 0.95) <= 0.95
    assert 0.86 <= np.mean(used) <= 0.89


def test_control_that_fills_to_the_threshold_exceeds_it_every_other_second() -> None:
    used = used_shares(CongestionParams(), 0)
    assert np.mean(np.array(used) > 0.95) > 0.3
