"""Two coordinators: an overloaded site sends receivers to edges of its neighbour, which accepts or refuses them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial

import pytest

from tests.coordinator.simulated_site import STEP_S, SimulatedSite, Topic
from tocsin.coordinator.core import Coordinator
from tocsin.coordinator.effects import Effect, SendHosting, SendToBroker, SendToNeighbour
from tocsin.coordinator.events import (
    Event,
    NeighbourClosed,
    NeighbourMeasured,
    NeighbourMessageReceived,
    NeighbourOpened,
)
from tocsin.coordinator.rules import CoordinatorRules
from tocsin.model.ids import BrokerId, TopicName
from tocsin.policies.sites.types import LoadState
from tocsin.wire import link
from tocsin.wire.neighbour_link import (
    Advertised,
    BrokerState,
    Exchange,
    FromNeighbour,
    Hello,
    Hosting,
    HostReceivers,
    NotHosting,
    SiteReport,
    Welcome,
)
from tocsin.wire.site_link import (
    Capacity,
    NeighbourAccess,
    ReceiverArrived,
    ReceiverLeft,
    RedirectReceivers,
    ReleaseVisitors,
    Role,
    visitor_user,
)

E1, E2 = BrokerId("e1"), BrokerId("e2")
CAPACITY = Capacity(None, 1_000_000.0, None)
"""1 MB/s of output: 100 receivers of ten messages a second of 1 kB each."""
CONNECTION = 7


class LinkedSite(SimulatedSite):
    def __init__(self, name: str, other: str, edges: Iterable[str]) -> None:
        neighbour = NeighbourAccess(other, f"http://{other}", f"token-of-{name}")
        self.rules = CoordinatorRules(site=name, neighbours=(neighbour,))
        self.name = name
        self.other: LinkedSite
        self.told: list[FromNeighbour] = []
        """Everything that was sent to the neighbour."""
        self.released: list[tuple[BrokerId, str | None]] = []
        self.is_linked = False
        super().__init__(edges, CAPACITY, self.rules)

    def admit_only(self, token: str) -> None:
        """Start again, and accept this token of the neighbour only."""
        self.core.site_control.join(
            self.core.site_control.exchange,  # type: ignore[arg-type]
            lambda topic: self.core.federation.reach_of(topic),  # type: ignore[union-attr]
            lambda site, topic, given: given == token,
        )

    def handle(self, event: Event) -> list[Effect]:
        effects = super().handle(event)
        for effect in effects:
            match effect:
                case SendToNeighbour(_, message):
                    self._to_other(message)
                case SendHosting(_, number):
                    users = {client: client.rpartition("/")[0] for client in effect.clients}
                    tokens = {client: visitor_user(effect.site, user) for client, user in users.items()}
                    self._to_other(Hosting(number, effect.address, effect.home, tokens))
                case SendToBroker(broker, _, ReleaseVisitors(site)):
                    self.released.append((broker, site))
        return effects

    def _to_other(self, message: FromNeighbour) -> None:
        self.told.append(message)
        self._after(0.01, lambda: self.other.hear(message) if self.is_linked else None)

    def hear(self, message: FromNeighbour) -> None:
        self.handle(NeighbourMessageReceived(self.other.name, CONNECTION, message))

    def _receive(self, broker: BrokerId, message: link.FromCoordinator) -> None:
        if not isinstance(message, RedirectReceivers) or not message.visitors:
            super()._receive(broker, message)
            return
        assert message.address == f"ws://{message.broker.partition('/')[2]}"
        for client, access in message.visitors.items():
            self.redirected.append((self.now_s, client, message.topic, broker, message.broker))
            self._after(self.move_s, partial(self._leave, client, access.token, message, broker))

    def _leave(self, client: str, user: str, order: RedirectReceivers, source: BrokerId) -> None:
        name, target = f"{user}/{client.rpartition('/')[2]}", BrokerId(order.broker.partition("/")[2])
        self.edges[source].receivers[order.topic].remove(client)
        self.other.edges[target].receivers.setdefault(order.topic, []).append(name)
        self.other.send(target, ReceiverArrived(order.topic, name))
        self.send(source, ReceiverLeft(order.topic, client))


class TwoSites:
    """The sites a and b. Each edge of b has a receiver of each shared topic, so that b has their flows."""

    def __init__(self, edges_of_a: tuple[str, ...] = ("e1",), round_trip_s: float = 0.05) -> None:
        self.a, self.b = LinkedSite("a", "b", edges_of_a), LinkedSite("b", "a", ("e1", "e2"))
        self.a.other, self.b.other = self.b, self.a
        self.round_trip_s = round_trip_s
        self.link()

    def link(self) -> None:
        self.a.is_linked = self.b.is_linked = True
        self.a.handle(NeighbourOpened("b", CONNECTION))
        self.run(0.5)
        for site in (self.a, self.b):
            site.handle(NeighbourMeasured(site.other.name, self.round_trip_s))

    def cut(self) -> None:
        for site in (self.a, self.b):
            site.is_linked = False
            site.handle(NeighbourClosed(site.other.name, CONNECTION))

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds / STEP_S)):
            self.a.run(STEP_S)
            self.b.run(STEP_S)

    def add(self, name: str, receivers: int, delay_s: float | None = 1.0, *, at_b: bool = True) -> TopicName:
        """A topic with receivers at the first edge of a, and with one at b."""
        self.b.add_topic(name, E1, 1 if at_b else 0, Topic(10.0, delay_s=delay_s))
        return self.a.add_topic(name, E1, receivers, Topic(10.0, delay_s=delay_s))

    def burst(self, factor: float = 1.6) -> None:
        """Publishers of a send more to every topic of its first edge."""
        for topic in self.a.topics:
            self.a.topics[topic].rate_per_s *= factor
            self.b.topics[topic].rate_per_s *= factor


def busy_sites(edges_of_a: tuple[str, ...] = ("e1",), round_trip_s: float = 0.05) -> TwoSites:
    """The edge of a is at 70 %."""
    sites = TwoSites(edges_of_a, round_trip_s)
    for number in range(5):
        sites.add(f"t/{number}", 14)
    sites.run(5.0)
    return sites


def at_b(sites: TwoSites) -> int:
    """The number of visitors of a at edges of b."""
    return sum(
        name.startswith("a:") for edge in sites.b.edges.values() for of in edge.receivers.values() for name in of
    )


def test_neighbours_know_the_loads_of_each_others_brokers() -> None:
    sites = busy_sites()
    exchange = sites.b.core.site_control.exchange
    assert exchange is not None
    [edge] = [report for report in exchange.of("a", sites.b.now_s) if not report.is_head]
    assert (edge.broker, edge.state) == ("a/e1", LoadState.LOW)
    assert edge.used.output == pytest.approx(0.7)


def test_site_without_room_sends_receivers_to_its_neighbour() -> None:
    sites = busy_sites()
    before = len(sites.a.clients())
    sites.burst()
    began_s = sites.a.now_s
    sites.run(30.0)
    assert at_b(sites) == before - len(sites.a.clients()) > 0
    assert sites.a.utilisation(E1) <= 0.95
    seen_s = next(at_s for at_s, states in sites.a.states if states[E1] is LoadState.OVERLOAD and at_s > began_s)
    calm_s = max(at_s for at_s, states in sites.a.states if states[E1] in (LoadState.OVERLOAD, LoadState.BUSY))
    assert seen_s - began_s <= 2.0
    assert calm_s - began_s <= 5.0
    assert sites.a.busy() == sites.b.busy() == frozenset()
    assert all(sites.b.utilisation(edge) <= 0.9 for edge in sites.b.edges)


def test_one_offloading_moves_several_topics_to_one_edge() -> None:
    """Each request makes the edge BUSY, and the next one belongs to the same offloading."""
    sites = TwoSites(("e1", "e2"))
    for number in range(10):
        edge = (E1, E2)[number % 2]
        sites.b.add_topic(f"t/{number}", edge, 1, Topic(15.6, delay_s=1.0))
        sites.a.add_topic(f"t/{number}", edge, 8, Topic(15.6, delay_s=1.0))
    sites.run(5.0)
    sites.burst(2.0)
    began_s = sites.a.now_s
    sites.run(12.0)
    assert [message for message in sites.b.told if isinstance(message, NotHosting)] == []
    assert len({(topic, target) for _, _, topic, _, target in sites.a.redirected}) == 4
    loaded = (LoadState.OVERLOAD, LoadState.BUSY)
    assert max(at_s for at_s, states in sites.a.states if set(loaded) & set(states.values())) - began_s <= 5.0
    assert sites.b.busy() == frozenset()
    assert all(sites.b.utilisation(edge) <= 0.9 for edge in sites.b.edges)


def test_edge_that_expects_visitors_takes_no_more_than_it_has_room_for() -> None:
    sites = busy_sites()
    free = 850_000.0 - 1e6 * sites.b.utilisation(E2)
    for number, share in enumerate((0.6, 0.6, 0.3)):
        load = (0.0, share * free, 1.0)
        sites.b.hear(HostReceivers(number, TopicName(f"t/{number}"), E2, ["ann/5"], load, "token-of-a"))
    answers = [type(message) for message in sites.b.told if isinstance(message, NotHosting)]
    assert answers == [NotHosting]
    hosted = [message.number for message in sites.b.told if isinstance(message, Hosting)]
    assert hosted == [0, 2]


def test_receivers_stay_in_a_site_that_can_help_itself() -> None:
    sites = busy_sites(("e1", "e2"))
    sites.burst()
    sites.run(30.0)
    assert at_b(sites) == 0
    assert sites.a.utilisation(E2) > 0.0


def test_requirement_shorter_than_the_way_keeps_receivers_at_home() -> None:
    sites = TwoSites(round_trip_s=0.3)
    for number in range(5):
        sites.add(f"t/{number}", 14, delay_s=0.25 if number else 5.0)
    sites.run(5.0)
    sites.burst(1.5)
    sites.run(30.0)
    moved = {topic for _, _, topic, _, _ in sites.a.redirected}
    assert moved == {"t/0"}


def test_topic_whose_flow_the_neighbour_lacks_stays() -> None:
    sites = TwoSites()
    for number in range(5):
        sites.add(f"t/{number}", 14, at_b=False)
    sites.run(5.0)
    sites.burst()
    sites.run(10.0)
    assert at_b(sites) == 0
    assert sites.a.core.site_control.limited == (E1,)


def test_refused_request_ends_the_offloading_at_once() -> None:
    sites = busy_sites()
    sites.b.admit_only("another token")
    sites.burst()
    sites.run(8.0)
    assert at_b(sites) == 0
    assert any(isinstance(message, NotHosting) for message in sites.b.told)
    assert "a neighbour refuses receivers" in sites.a.all_notes
    assert sum(isinstance(message, HostReceivers) for message in sites.a.told) <= 6, (
        "a refusal counts for three seconds"
    )
    sites.run(2.0)
    assert sites.b.busy() == frozenset()


def test_host_ends_visits_when_the_link_is_lost() -> None:
    sites = busy_sites()
    sites.burst()
    sites.run(15.0)
    assert at_b(sites) > 0
    sites.cut()
    sites.run(1.0)
    assert {(E1, "a"), (E2, "a")} <= set(sites.b.released)


def test_offloading_ends_when_the_link_breaks_before_the_answer() -> None:
    sites = busy_sites()
    sites.burst()
    while not any(isinstance(message, HostReceivers) for message in sites.a.told):
        sites.run(STEP_S)
    sites.cut()
    sites.run(5.0)
    assert sites.a.core.site_control.busy == frozenset()
    assert at_b(sites) == 0


def test_overloaded_host_sends_visitors_home() -> None:
    sites = busy_sites()
    sites.burst()
    sites.run(15.0)
    assert at_b(sites) > 0
    for edge in (E1, E2):
        sites.b.add_topic(f"own/{edge}", edge, 95, Topic(10.0))
    sites.run(6.0)
    assert (E1, None) in sites.b.released or (E2, None) in sites.b.released


def test_edge_without_visitors_is_not_asked_to_end_visits() -> None:
    """A broker of an earlier release would break its link at that message."""
    sites = TwoSites()
    for number in range(5):
        sites.add(f"t/{number}", 14, at_b=False)
    sites.run(5.0)
    sites.burst()
    sites.run(5.0)
    assert sites.a.core.site_control.limited == (E1,)
    assert sites.a.released == []


def test_edge_expects_a_limited_number_of_visitors() -> None:
    """A neighbour may state no load."""
    sites = busy_sites()
    clients = [f"ann/{run}" for run in range(6_000)]
    for number in range(2):
        sites.b.hear(HostReceivers(number, TopicName(f"t/{number}"), E2, clients, (0.0, 0.0, 0.0), "token-of-a"))
    hosted = [message.number for message in sites.b.told if isinstance(message, Hosting)]
    assert hosted == [0]


def test_host_sends_visitors_home_and_not_to_another_site() -> None:
    """Their own site has room again, so that a plan could use its edge."""
    sites = busy_sites()
    sites.burst()
    sites.run(15.0)
    assert at_b(sites) > 0
    for topic in sites.a.topics:
        sites.a.edges[E1].receivers[topic] = [f"{topic}-user/1"]
    sites.run(5.0)
    sites.b.add_topic("own/1", E1, 82, Topic(10.0))
    sites.b.add_topic("own/2", E2, 75, Topic(10.0))
    sites.run(6.0)
    assert [client for _, client, *_ in sites.b.redirected if client.startswith("a:")] == []
    assert (E2, None) in sites.b.released


def test_neighbour_of_an_earlier_release_gets_no_unknown_message() -> None:
    """Its greeting says nothing of visits. It would end the connection at the first report."""
    sites = busy_sites()
    sites.a.handle(NeighbourClosed("b", CONNECTION))
    sites.a.told.clear()
    sites.a.handle(NeighbourOpened("b", CONNECTION + 1))
    [link] = [message.link for message in sites.a.told if isinstance(message, Hello)]
    sites.a.handle(NeighbourMessageReceived("b", CONNECTION + 1, Welcome("b", link, 1)))
    for topic in sites.a.topics.values():
        topic.rate_per_s *= 1.6
    sites.a.run(6.0)
    assert sites.a.core.site_control.limited == (E1,)
    assert any(isinstance(message, Advertised) for message in sites.a.told)
    assert [message for message in sites.a.told if isinstance(message, Exchange)] == []


def test_neighbour_cannot_pass_its_visitors_on() -> None:
    sites = busy_sites()
    request = HostReceivers(1, TopicName("t/0"), E2, ["ann/5", "c:bob/5"], (0.0, 1.0, 1.0), "token-of-a")
    sites.b.hear(request)
    [answer] = [message for message in sites.b.told if isinstance(message, Hosting | NotHosting)]
    assert isinstance(answer, NotHosting)
    assert "names" in answer.reason


def test_report_with_impossible_values_names_no_helper() -> None:
    sites = busy_sites()
    control = sites.a.core.site_control
    good = BrokerState(BrokerId("e9"), Role.EDGE, 0, (0.0, 0.0, 0.0), (None, 1e6, None), [])
    for bad in (
        BrokerState(BrokerId("e1"), Role.EDGE, 0, (float("nan"), 0.0, 0.0), (None, 1e6, None), []),
        BrokerState(BrokerId("e2"), Role.EDGE, 0, (0.0, 0.0, 0.0), (None, -1.0, None), []),
        BrokerState(BrokerId("e3"), Role.EDGE, 9, (0.0, 0.0, 0.0), (None, 1e6, None), []),
        BrokerState(BrokerId("b/e4"), Role.EDGE, 0, (0.0, 0.0, 0.0), (None, 1e6, None), []),
    ):
        sites.a.hear(SiteReport([bad, good]))
        assert control.exchange is not None
        assert [report.broker for report in control.exchange.of("b", sites.a.now_s)] == ["b/e9"]


def test_site_without_visits_refuses_receivers() -> None:
    sites = busy_sites()
    sites.b.core.rules = replace(sites.b.core.rules, site_visits=False)
    sites.burst()
    sites.run(8.0)
    assert at_b(sites) == 0
    [reason] = {message.reason for message in sites.b.told if isinstance(message, NotHosting)}
    assert "site_visits" in reason
    assert isinstance(sites.b.core, Coordinator)
