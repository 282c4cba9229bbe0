"""Congestion control at the coordinator, with a simulated home that obeys limits and edges that rate publishers."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import pytest

from tests.coordinator.simulated_site import HEAD, SimulatedSite, Topic
from tocsin.coordinator.effects import Effect, SendToBroker
from tocsin.coordinator.events import Event, TopicCreated, TopicDeleted
from tocsin.coordinator.rules import CoordinatorRules
from tocsin.model.flow import flow_publisher, is_flow
from tocsin.model.ids import BrokerId, TopicName
from tocsin.model.topic import TopicDefinition
from tocsin.wire.site_link import (
    Capacity,
    LimitPublishers,
    PublisherRate,
    PublisherRates,
    Ratings,
    ReportPublishers,
    Role,
    SiteLoad,
    TopicLoad,
)

E1, E2 = BrokerId("e1"), BrokerId("e2")
WHOLE, DAMAGED = Capacity(out_bytes_per_s=1_000_000.0), Capacity(out_bytes_per_s=250_000.0)


class CongestedSite(SimulatedSite):
    """Two edges at 70 %. Each topic has publishers; the home passes on what their limits allow."""

    def __init__(self, rules: CoordinatorRules | None = None) -> None:
        self.offered: dict[TopicName, dict[int, float]] = {}
        self.limits: dict[tuple[TopicName, int], float] = {}
        self.utility: dict[int, float] = {}
        self.answers = True
        self.queued = {E1: 0.0, E2: 0.0}
        self.queues: list[tuple[float, float]] = []
        """(time, bytes that wait at both edges)."""
        super().__init__((E1, E2), WHOLE, rules)

    def publish(
        self, name: str, edge: BrokerId, receivers: int, rates: Iterable[tuple[int, float, float]], **clauses: float
    ) -> None:
        """`rates`: (publisher, messages per second, utility)."""
        topic = self.add_topic(name, edge, receivers, Topic(0.0))
        if clauses:
            definition = TopicDefinition(topic, **clauses)  # type: ignore[arg-type]
            self.ask(lambda ask: TopicCreated(ask, definition, replace=True))
        self.offered[topic] = {}
        for publisher, rate, utility in rates:
            self.offered[topic][publisher] = rate
            self.utility[publisher] = utility

    def granted(self, topic: TopicName, publisher: int) -> float:
        if is_flow(publisher):
            return self.offered[topic][publisher]  # a home never limits another site
        return min(self.offered[topic][publisher], self.limits.get((topic, publisher), float("inf")))

    def waiting_bytes(self, edge: BrokerId) -> float:
        return self.queued[edge]

    def damage(self, capacity: Capacity) -> float:
        for edge in (E1, E2):
            self.core.site_loads.set_capacity(edge, capacity)
        return self.now_s

    def handle(self, event: Event) -> list[Effect]:
        effects = super().handle(event)
        for effect in effects:
            if isinstance(effect, SendToBroker) and effect.broker == HEAD and self.answers:
                match effect.message:
                    case ReportPublishers(number):
                        self._after(0.01, lambda number=number: self._report(number))  # type: ignore[misc]
                    case LimitPublishers(limits):
                        named = {(topic, key): rate for topic, rates in limits.items() for key, rate in rates}
                        self._after(0.05, lambda named=named: self._limit(named))  # type: ignore[misc]
        return effects

    def _report(self, number: int) -> None:
        topics = {
            topic: [PublisherRate(publisher, rate, 1_000.0, 100.0) for publisher, rate in rates.items()]
            for topic, rates in self.offered.items()
        }
        self.send(HEAD, PublisherRates(number, topics))

    def _limit(self, limits: dict[tuple[TopicName, int], float]) -> None:
        self.limits = limits

    def _step(self) -> None:
        for topic, rates in self.offered.items():
            self.topics[topic].rate_per_s = sum(self.granted(topic, publisher) for publisher in rates)
        super()._step()
        for edge in (E1, E2):
            capacity = self.core.site_loads.capacity(edge).out_bytes_per_s
            sent = self.utilisation(edge) * capacity
            self.queued[edge] = max(0.0, self.queued[edge] + (sent - capacity) * 0.05)
        self.queues.append((self.now_s, sum(self.queued.values())))

    def _measure(self) -> None:
        super()._measure()
        loads = [
            TopicLoad(topic, 1_000.0 * own.rate_per_s, 1_000.0 * own.rate_per_s, own.rate_per_s, 1, 1)
            for topic, own in self.topics.items()
            if any(edge.receivers.get(topic) for edge in self.edges.values())
        ]
        self.send(HEAD, SiteLoad(loads))
        for name, edge in self.edges.items():
            ratings = {
                topic: [
                    (publisher, self.utility[publisher] * len(clients), len(clients))
                    for publisher in self.offered[topic]
                    if self.granted(topic, publisher) > 0.0
                ]
                for topic, clients in edge.receivers.items()
                if clients
            }
            self.send(name, Ratings(ratings))


def site(rules: CoordinatorRules | None = None) -> CongestedSite:
    """Each topic has a useful publisher and a useless one; the alarm is quiet, and `unheard` has no receivers."""
    made = CongestedSite(rules)
    for number, edge in enumerate((E1, E2)):
        for share in range(5):
            first = 100 * number + 10 * share
            made.publish(f"t/{number}/{share}", edge, 7, [(first + 1, 10.0, 0.9), (first + 2, 10.0, 0.0)])
    made.publish("alarm", E1, 5, [(900, 2.0, 0.0)], protected_per_s=5.0)
    made.publish("unheard", E1, 0, [(901, 50.0, 0.0)])
    made.run(5.0)
    assert made.limits == {}
    return made


def test_queues_stop_growing_within_three_seconds_and_output_stays_used() -> None:
    made = site()
    began_s = made.damage(DAMAGED)
    made.run(30.0)
    late = [waiting for at_s, waiting in made.queues if at_s >= began_s + 3.0]
    assert all(after <= before + 1e-6 for before, after in pairwise(late)), "they only shrink"
    used = [shares for at_s, shares in made.used if at_s >= began_s + 4.0]
    assert all(0.8 <= share <= 0.95 + 1e-6 for shares in used for share in shares.values()), used[-1]


def test_useful_publishers_go_before_useless_ones_and_the_alarm_keeps_its_rate() -> None:
    made = site()
    made.damage(DAMAGED)
    made.run(10.0)
    useful = sum(made.granted(TopicName(f"t/0/{share}"), 10 * share + 1) for share in range(5))
    useless = sum(made.granted(TopicName(f"t/0/{share}"), 10 * share + 2) for share in range(5))
    assert useful > 20 * useless
    assert made.granted(TopicName("alarm"), 900) == 2.0
    assert made.limits[TopicName("alarm"), 900] >= 5.0, "it may fire at its guaranteed rate"
    assert made.limits[TopicName("unheard"), 901] == 0.0


def test_limits_are_lifted_within_two_seconds_after_the_repair() -> None:
    made = site()
    made.damage(DAMAGED)
    made.run(10.0)
    assert made.limits
    made.damage(WHOLE)
    made.run(2.0)
    assert made.limits == {} and made.core.site_congestion.limits == {}
    rows = [(row.moves, row.note) for row in made.rows if row.kind == "limits"]
    assert [moves == 0 for moves, _ in rows] == [False, True]
    made.run(10.0)
    assert made.limits == {}


def test_poisoned_feedback_does_not_silence_a_protected_alarm() -> None:
    made = site()
    made.offered[TopicName("alarm")][900] = 20.0
    made.run(2.0)
    made.damage(Capacity(out_bytes_per_s=100_000.0))
    made.run(10.0)
    assert made.granted(TopicName("alarm"), 900) == pytest.approx(5.0, abs=0.01)


def test_site_that_can_offload_limits_no_publisher() -> None:
    made = site()
    made.core.site_loads.set_capacity(E1, Capacity(out_bytes_per_s=650_000.0))
    made.core.site_loads.set_capacity(E2, Capacity(out_bytes_per_s=2_000_000.0))
    made.run(10.0)
    assert made.redirected and made.limits == {}


def test_homes_of_a_site_count_from_the_start() -> None:
    made = CongestedSite()
    asked: list[int] = []
    made._report = asked.append  # type: ignore[method-assign, assignment]
    made.run(5.0)
    assert asked == [0]
    made.register(HEAD, topics=True, role=Role.HEAD)
    made.run(3.0)
    assert asked == [0, 0]


def test_congestion_control_can_be_switched_off() -> None:
    made = site(CoordinatorRules(site_congestion=False))
    made.damage(DAMAGED)
    made.run(5.0)
    assert made.core.site_control.limited and made.limits == {}


def test_home_that_does_not_answer_leaves_other_limits_alone() -> None:
    made = site()
    made.damage(DAMAGED)
    made.run(5.0)
    made.answers = False
    before = made.limits
    made.run(3.0)
    assert made.limits == before
    made.answers = True
    made.damage(WHOLE)
    made.run(3.0)
    assert made.limits == {}


def test_limits_of_topics_that_are_deleted_end() -> None:
    made = site()
    made.damage(DAMAGED)
    made.run(5.0)
    assert made.core.site_congestion.limits
    for topic in list(made.topics):
        made.ask(lambda ask, topic=topic: TopicDeleted(ask, topic))  # type: ignore[misc]
        for edge in made.edges.values():
            edge.receivers.pop(topic, None)
    made.offered.clear()
    made.run(8.0)
    assert made.core.site_congestion.limits == {} and not made.core.site_loads.has_demand


def test_limits_end_when_receivers_can_move_to_a_repaired_edge() -> None:
    """All receivers are at one edge: without limits it would be overloaded, and the other edge has room."""
    made = site()
    made.damage(DAMAGED)
    made.run(10.0)
    for topic, clients in made.edges[E2].receivers.items():
        made.edges[E1].receivers.setdefault(topic, []).extend(clients)
    made.edges[E2].receivers.clear()
    made.run(5.0)
    assert made.limits
    made.damage(WHOLE)
    repaired_s = made.now_s
    made.run(8.0)
    assert made.limits == {}
    assert made.redirected and all(source == E1 for _, _, _, source, _ in made.redirected)
    assert all(share <= 0.95 for at_s, used in made.used if at_s >= repaired_s for share in used.values())
    moves = len(made.redirected)
    made.run(30.0)
    assert len(made.redirected) == moves and made.limits == {}, "the site comes to rest"


def test_limited_site_without_room_moves_no_receiver() -> None:
    made = site()
    made.damage(DAMAGED)
    made.run(60.0)
    assert made.limits and made.redirected == []


def test_long_queue_limits_publishers_although_an_offloading_is_in_progress() -> None:
    made = site()
    made.edges[E1].answers = False
    made.core.site_loads.set_capacity(E2, Capacity(out_bytes_per_s=4_000_000.0))
    made.core.site_loads.set_capacity(E1, DAMAGED)
    made.run(1.0)
    assert E1 in made.busy() and made.limits == {}
    made.run(5.0)
    assert E1 in made.busy() and made.limits
    assert max(waiting for _, waiting in made.queues) < 4.0 * 250_000.0, "four seconds"


def test_messages_of_other_sites_leave_less_to_the_publishers_of_this_one() -> None:
    made = site()
    abroad = flow_publisher("abroad")
    made.publish("abroad", E1, 10, [(abroad, 12.0, 0.9)])
    began_s = made.damage(DAMAGED)
    made.run(15.0)
    used = [shares[E1] for at_s, shares in made.used if at_s >= began_s + 6.0]
    assert max(used) <= 0.95 + 1e-6, "12 messages/s × 10 receivers take 48 % of the edge"
    assert min(used) >= 0.8
    assert made.limits and not any(is_flow(publisher) for _, publisher in made.limits)
    made.damage(WHOLE)
    made.run(2.0)
    assert made.limits == {}
