"""Sites at the coordinator: homes on heads, standby edges, and the edge for new receivers of each topic."""

from __future__ import annotations

from dataclasses import replace

from tests.coordinator.bench import B1, B2, B3
from tests.coordinator.test_topics import RULES, T, TopicBench, code
from tocsin.coordinator.core import Coordinator
from tocsin.coordinator.events import ReceiverLocated, ReceiversRedirected, TopicCreated
from tocsin.coordinator.rules import CoordinatorRules
from tocsin.coordinator.topic_homes import LEASE_MARGIN
from tocsin.coordinator.topic_records import TopicRecord
from tocsin.coordinator.topic_views import topic_entry
from tocsin.coords.coordinate import DIMENSIONS, Coordinate
from tocsin.model.ids import BrokerId, TopicName
from tocsin.model.topic import TopicDefinition
from tocsin.model.topic_persistence import Persistence
from tocsin.policies.sites.types import BrokerReport, Load, LoadState, SiteId
from tocsin.wire.coordinates import CoordinateReport
from tocsin.wire.errors import Code
from tocsin.wire.site_link import ExpectReceivers, RedirectReceivers, Role, TopicLoad
from tocsin.wire.topic_link import TopicOpened

CAPACITY = Load(100.0, 100.0, 100.0)


class SiteBench(TopicBench):
    """A head B1, an edge B2 and a standby edge B3."""

    def __init__(self, rules: CoordinatorRules = RULES) -> None:
        super().__init__(rules=rules)
        self.join(B1, Role.HEAD)
        self.join(B2, Role.EDGE)
        self.join(B3, Role.EDGE, standby=True)

    def join(self, broker: BrokerId, role: Role, *, standby: bool = False) -> None:
        self.register(broker, topics=True, role=role, standby=standby)
        self.renew(broker)
        if broker not in self.live:
            self.live.append(broker)

    def receive_at(self, name: TopicName = T) -> str | None:
        return topic_entry(self.registry, self.registry.topics.topics[name], edge=True).receive_at

    def locate(self, ms: float) -> None:
        """A receiver of T is so far away."""
        self.ask(lambda ask: ReceiverLocated(ask, (T,), near(ms)))

    def reports(self, **used: float) -> None:
        """Let B2 and B3 report these shares of their capacity, as `b2` and `b3`."""

        def report(broker: BrokerId) -> BrokerReport | None:
            if broker not in used:
                return None
            load, state = Load(0.0, 100.0 * used[broker], 0.0), LoadState.LOW
            if used[broker] >= 0.9:
                state = LoadState.OVERLOAD if used[broker] > 0.95 else LoadState.HIGH
            return BrokerReport(broker, SiteId(""), False, state, load, CAPACITY)

        self.core.topic_edges.report = report


def test_homes_are_heads_while_one_is_alive() -> None:
    bench = SiteBench()
    assert {bench.made(TopicName(f"t/{number}")).home for number in range(4)} == {B1}
    assert code(bench.order(B3)) is Code.UNKNOWN_TOPIC
    bench.made()
    assert code(bench.order(B3)) is Code.NOT_READY


def test_standby_edge_takes_over_from_a_dead_head_and_returns_the_topic() -> None:
    bench = SiteBench()
    record = bench.made()
    bench.live.remove(B1)
    bench.cut(B1)
    bench.pass_time(10.0)
    assert record.home == B3
    assert bench.made(TopicName("t/later")).home == B3
    bench.send(B3, TopicOpened(T, record.epoch))
    bench.join(B1, Role.HEAD)
    bench.pass_time(RULES.probation_s + 2.0)
    assert record.move is not None
    assert (record.move.target, record.home) == (B1, B3)


def test_plain_network_has_homes_anywhere_and_no_edges() -> None:
    bench = TopicBench(B1, B2)
    record = bench.made()
    assert record.home == B1
    assert topic_entry(bench.registry, record, edge=True).receive_at is None


def test_replicas_of_a_persistent_topic_are_the_head_and_edges() -> None:
    bench = SiteBench()
    definition = TopicDefinition(T, persistence=Persistence(2, 2))
    record = bench.ask(lambda ask: TopicCreated(ask, definition))
    assert isinstance(record, TopicRecord) and record.log is not None
    assert record.log.replicas == (B1, B3)


def test_topics_without_load_reports_are_spread_over_edges() -> None:
    bench = SiteBench()
    names = [TopicName(f"t/{number}") for number in range(4)]
    for name in names:
        bench.made(name)
    assert [bench.receive_at(name) for name in names] == ["ws://b2", "ws://b3", "ws://b2", "ws://b3"]


def test_lost_edge_is_replaced_and_its_return_changes_nothing() -> None:
    bench = SiteBench()
    bench.made()
    assert bench.receive_at() == "ws://b2"
    bench.registry.topics.unannounced.clear()
    bench.live.remove(B2)
    bench.cut(B2)
    assert bench.receive_at() == "ws://b3"
    assert T in bench.registry.topics.unannounced
    bench.join(B2, Role.EDGE)
    bench.pass_time(RULES.probation_s + 1.0)
    assert bench.receive_at() == "ws://b3"


def test_edge_with_most_capacity_left_gets_receivers_until_it_is_overloaded() -> None:
    bench = SiteBench()
    bench.reports(b2=0.6, b3=0.3)
    bench.made()
    assert bench.receive_at() == "ws://b3"
    bench.reports(b2=0.6, b3=0.93)
    bench.pass_time(1.0)
    assert bench.receive_at() == "ws://b3"
    bench.reports(b2=0.6, b3=0.97)
    bench.pass_time(1.0)
    assert bench.receive_at() == "ws://b2"


def test_edge_that_relays_the_topic_is_preferred() -> None:
    bench = SiteBench()
    loads = {T: TopicLoad(T, 1.0, 2.0, 1.0, 5, 0)}
    bench.core.topic_edges.topics = lambda broker: loads if broker == B3 else {}
    bench.core.topic_edges.report = lambda broker: BrokerReport(
        broker, SiteId(""), False, LoadState.LOW, Load(), CAPACITY, loads if broker == B3 else ()
    )
    bench.made()
    assert bench.receive_at() == "ws://b3"


def test_administrator_redirects_receivers_between_edges() -> None:
    bench = SiteBench()
    bench.made()
    assert bench.ask(lambda ask: ReceiversRedirected(ask, T, B2, B3, ("ann/7",))) is True
    assert bench.sent(B3, ExpectReceivers) == [ExpectReceivers(T, ["ann/7"])]
    assert bench.sent(B2, RedirectReceivers) == [RedirectReceivers(T, ["ann/7"], B3, "ws://b3")]
    assert code(bench.ask(lambda ask: ReceiversRedirected(ask, T, B2, B1))) is Code.NOT_FOUND


def test_roles_survive_a_restart_and_a_standby_waits_for_the_head() -> None:
    bench = SiteBench()
    bench.made()
    bench.core = Coordinator(RULES, "e2", memory=bench.store.load(), now_s=bench.now_s)
    bench.registry = bench.core.registry
    roles = {name: (record.role, record.standby) for name, record in bench.registry.brokers.items()}
    assert roles == {B1: (Role.HEAD, False), B2: (Role.EDGE, False), B3: (Role.EDGE, True)}
    assert list(bench.registry.heads) == [B1] and list(bench.registry.edges) == [B2, B3]
    assert bench.core.site_loads.capacity(B1).matched_per_s == float("inf")
    bench.live = []
    bench.join(B3, Role.EDGE, standby=True)
    new = bench.made(TopicName("new"))
    assert LEASE_MARGIN * RULES.topic_lease_s + 1.0 < RULES.grace_s
    bench.pass_time(LEASE_MARGIN * RULES.topic_lease_s + 1.0)
    assert new.home is None, "the head has not had time to register"
    bench.join(B1, Role.HEAD)
    bench.pass_time(1.0)
    assert new.home == B1


def test_standby_becomes_the_home_if_the_head_stays_away_after_a_restart() -> None:
    bench = SiteBench()
    bench.made()
    bench.core = Coordinator(RULES, "e2", memory=bench.store.load(), now_s=bench.now_s)
    bench.registry = bench.core.registry
    bench.live = []
    bench.join(B3, Role.EDGE, standby=True)
    bench.pass_time(2 * RULES.grace_s + 2 * RULES.topic_lease_s)
    assert bench.registry.topics.topics[T].home == B3


def near(ms: float) -> Coordinate:
    """A place on a line, so many milliseconds from its beginning."""
    return Coordinate((ms / 1_000, *(0.0,) * (DIMENSIONS - 1)), error=0.1)


def test_first_receiver_chooses_the_nearest_edge() -> None:
    bench = SiteBench(replace(RULES, site_by_distance=True))
    for edge, ms in ((B2, 10.0), (B3, 90.0)):
        bench.registry.brokers[edge].measures = True
        bench.send(edge, CoordinateReport(near(ms)))
    bench.reports(b2=0.1, b3=0.7)
    bench.made()
    for ms, edge in ((80.0, B3), (5.0, B3)):
        bench.locate(ms)
        assert bench.receive_at() == f"ws://{edge}", "later receivers follow the first one"


def test_distance_counts_for_low_edges_alone() -> None:
    bench = SiteBench(replace(RULES, site_by_distance=True))
    for edge, ms in ((B2, 10.0), (B3, 90.0)):
        bench.registry.brokers[edge].measures = True
        bench.send(edge, CoordinateReport(near(ms)))
    bench.reports(b2=0.1, b3=0.92)
    bench.made()
    bench.locate(80.0)
    assert bench.receive_at() == f"ws://{B2}"


def test_site_without_distances_chooses_by_capacity() -> None:
    bench = SiteBench()
    for edge, ms in ((B2, 10.0), (B3, 90.0)):
        bench.registry.brokers[edge].measures = True
        bench.send(edge, CoordinateReport(near(ms)))
    bench.reports(b2=0.1, b3=0.7)
    bench.made()
    bench.locate(80.0)
    assert bench.receive_at() == f"ws://{B2}"
