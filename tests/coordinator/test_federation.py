"""A coordinator and its neighbours: what they may make it do, and which flows its homes import."""

from __future__ import annotations

from itertools import count

import pytest

from tests.coordinator.bench import B1, Bench
from tocsin.coordinator.core import Coordinator
from tocsin.coordinator.effects import SendToBroker, SendToNeighbour, StoredState, StoreFact
from tocsin.coordinator.events import (
    NeighbourClosed,
    NeighbourMessageReceived,
    NeighbourOpened,
    TopicCreated,
    TopicDeleted,
)
from tocsin.coordinator.federation import Federation
from tocsin.coordinator.rules import CoordinatorRules
from tocsin.coordinator.watching import measured
from tocsin.model.flow import LARGEST_NUMBER, flow_number
from tocsin.model.ids import TopicName
from tocsin.model.topic import TopicDefinition
from tocsin.model.trace import Kind
from tocsin.wire import neighbour_link as wire
from tocsin.wire.site_link import FlowCount, FlowCounts, FlowDemand, ImportFlows, NeighbourAccess, TopicDemand
from tocsin.wire.topic_link import RenewLease

T = TopicName("waves")
RULES = CoordinatorRules(
    site="m",
    neighbours=tuple(NeighbourAccess(site, f"http://{site}", "token") for site in ("w", "x")),
    neighbour_topics=20,
)


class SiteBench(Bench):
    """The coordinator of the site m, whose neighbours w and x play their part by hand. m opens both connections."""

    def __init__(self, rules: CoordinatorRules = RULES, now_s: float = 100.0) -> None:
        super().__init__(rules, now_s)
        self.connections: dict[str, int] = {}
        self._numbers = count(1)
        self.register(B1, topics=True)
        self.wait(0.5)

    @property
    def federation(self) -> Federation:
        assert self.core.federation is not None
        return self.core.federation

    def link(self, *sites: str) -> None:
        for site in sites:
            number = self.connections[site] = next(self._numbers)
            self.handle(NeighbourOpened(site, number))
            [hello] = [effect.message for effect in self.effects if isinstance(effect, SendToNeighbour)]
            assert isinstance(hello, wire.Hello)
            self.hear(site, wire.Welcome(site, hello.link, 1))

    def hear(self, site: str, message: wire.FromNeighbour) -> None:
        self.handle(NeighbourMessageReceived(site, self.connections[site], message))

    def to(self, site: str) -> list[wire.FromNeighbour]:
        """The messages of the last event to this neighbour."""
        sent = [effect for effect in self.effects if isinstance(effect, SendToNeighbour)]
        return [effect.message for effect in sent if effect.connection == self.connections[site]]

    def topics(self) -> list[str]:
        return list(self.registry.topics.topics)

    def demand(self, *, published: bool = False, received: bool = False) -> None:
        self.send(B1, FlowDemand([TopicDemand(T, 1 << 30, published, received)]))

    def imports(self) -> list[dict[str, list[str]]]:
        """The orders of the last event."""
        sent = [effect.message for effect in self.effects if isinstance(effect, SendToBroker)]
        return [message.flows for message in sent if isinstance(message, ImportFlows)]


# -- what a neighbour may do -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "message",
    [
        wire.Advertise(T, []),
        wire.Advertise(T, ["x"]),
        wire.Advertise(T, ["a", "a", "w"]),
        wire.Advertise(T, ["a\nb", "w"]),
        wire.Advertise(T, ["a" * 200, "w"]),
        wire.Advertise(T, [*map(str, range(100)), "w"]),
        wire.Advertise(TopicName("a//b"), ["w"]),
        wire.Advertise(TopicName("a" * 300), ["w"]),
        wire.Advertise(T, ["w"], wire.Kept(0, 1, 1 << 30)),
        wire.Advertise(T, ["w"], wire.Kept(10**9, 1, 1 << 30)),
        wire.Advertise(T, ["w"], wire.Kept(1, -1, 1 << 30)),
        wire.Advertise(T, ["w"], wire.Kept(1, 1, 1 << 70)),
        wire.Advertise(T, ["w"], wire.Kept(1, 1, 1 << 30, 1e300)),
    ],
)
def test_invalid_advertisement_changes_nothing(message: wire.Advertise) -> None:
    bench = SiteBench()
    bench.link("w")
    bench.hear("w", message)
    bench.wait(12.0, B1)
    assert bench.topics() == []
    assert bench.federation.links.head.size() == 0
    assert sum(bench.federation.links.rejections.values()) == 1


def test_advertisement_in_front_of_the_greeting_creates_no_topic() -> None:
    bench = SiteBench()
    bench.connections["w"] = 1
    bench.handle(NeighbourOpened("w", 1))
    bench.hear("w", wire.Advertise(T, ["w"]))
    assert bench.topics() == []


def test_advertisement_of_a_site_that_is_no_neighbour_creates_no_topic() -> None:
    bench = SiteBench()
    bench.connections["z"] = 7
    bench.hear("z", wire.Advertise(T, ["z"]))
    assert bench.topics() == []


def test_neighbour_creates_a_limited_number_of_topics() -> None:
    bench = SiteBench()
    bench.link("w", "x")
    for number in range(50):
        bench.hear("w", wire.Advertise(TopicName(f"offered/{number}"), ["w"]))
    assert len(bench.topics()) == len(bench.federation.links.head.routes.paths) == 20
    for number in range(50):  # one after the other
        bench.hear("x", wire.Advertise(TopicName(f"brief/{number}"), ["x"]))
        bench.hear("x", wire.Withdraw(TopicName(f"brief/{number}"), "x"))
        bench.wait(0.5, B1)
    assert len(bench.topics()) == 40
    bench.ask(lambda ask: TopicCreated(ask, TopicDefinition(T)))
    assert T in bench.topics()


def test_neighbour_may_change_the_path_of_a_flow_at_the_limit() -> None:
    bench = SiteBench()
    bench.link("w")
    for number in range(20):
        bench.hear("w", wire.Advertise(TopicName(str(number)), ["a", "w"]))
    bench.hear("w", wire.Advertise(TopicName("7"), ["a", "b", "w"]))
    assert not bench.federation.links.rejections
    bench.hear("w", wire.Withdraw(TopicName("3"), "a"))
    bench.hear("w", wire.Advertise(T, ["w"]))
    assert not bench.federation.links.rejections


def test_subscription_of_a_flow_that_is_not_offered_is_not_kept() -> None:
    bench = SiteBench()
    bench.link("w")
    bench.hear("w", wire.SubscribeFlow(T, "m"))
    bench.hear("w", wire.SubscribeFlow(TopicName("x" * 10_000), "y"))
    assert bench.federation.links.head.size() == 0
    assert bench.federation.links.rejections == {"not-offered": 2}


# -- imports -----------------------------------------------------------------------------------------------------------


def follow(bench: SiteBench, seconds: float) -> list[dict[str, list[str]]]:
    """The orders of the next seconds."""
    orders = []
    for _ in range(int(2 * seconds)):
        bench.send(B1, RenewLease(1))
        orders += bench.imports()
        bench.wait(0.5, B1)
        orders += bench.imports()
    return orders


def test_passing_flow_is_imported_when_its_topic_gets_a_broker() -> None:
    """The persistent topic of a site between two others waits for brokers when the subscription arrives."""
    bench = SiteBench()
    bench.link("w", "x")
    bench.hear("w", wire.Advertise(T, ["w"], wire.Kept(2, 2, 1 << 30)))
    bench.hear("x", wire.SubscribeFlow(T, "w"))
    assert bench.topics() == []
    assert follow(bench, 15.0) == [{"w": ["w"]}]


def test_passing_flow_is_imported_again_when_its_topic_returns() -> None:
    bench = SiteBench()
    bench.link("w", "x")
    bench.hear("w", wire.Advertise(T, ["w"]))
    bench.hear("x", wire.SubscribeFlow(T, "w"))
    assert follow(bench, 5.0) == [{"w": ["w"]}]
    bench.ask(lambda ask: TopicDeleted(ask, T))
    bench.wait(1.0, B1)
    bench.ask(lambda ask: TopicCreated(ask, TopicDefinition(T)))
    assert [*bench.imports(), *follow(bench, 5.0)] == [{"w": ["w"]}]


def test_import_names_the_epoch_of_a_topic_that_was_replaced_at_once() -> None:
    bench = SiteBench()
    bench.link("w")
    bench.hear("w", wire.Advertise(T, ["w"]))
    follow(bench, 5.0)
    bench.demand(received=True)
    bench.ask(lambda ask: TopicDeleted(ask, T))
    bench.ask(lambda ask: TopicCreated(ask, TopicDefinition(T)))
    created = bench.registry.topics.topics[T].created
    sent = [effect.message for effect in bench.effects if isinstance(effect, SendToBroker)]
    assert [message.created for message in sent if isinstance(message, ImportFlows)] == [created]


def test_flow_that_no_site_subscribes_ends_with_its_topic() -> None:
    bench = SiteBench()
    bench.link("w")
    bench.hear("w", wire.Advertise(T, ["w"]))
    follow(bench, 5.0)
    bench.demand(received=True)
    assert bench.imports() == [{"w": ["w"]}]
    bench.ask(lambda ask: TopicDeleted(ask, T))
    bench.wait(1.0, B1)
    bench.ask(lambda ask: TopicCreated(ask, TopicDefinition(T)))
    assert [*bench.imports(), *follow(bench, 5.0)] == []


# -- links that return -------------------------------------------------------------------------------------------------


def two_routes(*, receives: bool = True) -> SiteBench:
    """The flow of w comes from w, and x offers it too."""
    bench = SiteBench()
    bench.link("w", "x")
    bench.hear("w", wire.Advertise(T, ["w"]))
    bench.hear("x", wire.Advertise(T, ["w", "x"]))
    if receives:
        bench.demand(received=True)
        assert bench.federation.imports.source_of(T, "w") == "w"
    return bench


def close(bench: SiteBench, site: str) -> None:
    bench.handle(NeighbourClosed(site, bench.connections[site], False))


def test_link_that_returns_at_once_keeps_its_routes() -> None:
    bench = two_routes()
    close(bench, "w")
    bench.link("w")
    assert wire.SubscribeFlow(T, "w") in bench.to("w") and wire.Advertised() in bench.to("w")
    assert bench.to("x") == []
    bench.hear("w", wire.Advertise(T, ["w"]))
    bench.hear("w", wire.Advertised())
    bench.wait(1.0, B1)
    assert bench.federation.imports.source_of(T, "w") == "w"


def test_route_that_is_not_advertised_again_is_left() -> None:
    """The neighbour withdrew it while the link was broken, or its coordinator is a new process."""
    bench = two_routes()
    close(bench, "w")
    bench.link("w")
    bench.hear("w", wire.Advertised())
    assert wire.SubscribeFlow(T, "w") in bench.to("x")
    assert bench.federation.imports.source_of(T, "w") == "x"


def test_link_that_does_not_return_is_left() -> None:
    bench = two_routes()
    close(bench, "w")
    bench.wait(1.0, B1)
    assert bench.federation.imports.source_of(T, "w") == "x"


def test_subscription_of_a_neighbour_ends_with_its_former_link() -> None:
    bench = two_routes(receives=False)
    bench.hear("x", wire.SubscribeFlow(T, "w"))
    assert wire.SubscribeFlow(T, "w") in bench.to("w")
    close(bench, "x")
    bench.link("x")
    assert wire.UnsubscribeFlow(T, "w") in bench.to("w")
    bench.hear("x", wire.SubscribeFlow(T, "w"))
    assert wire.SubscribeFlow(T, "w") in bench.to("w")


# -- the dashboard -----------------------------------------------------------------------------------------------------


def test_dashboard_gets_the_neighbours_with_what_crossed_their_links() -> None:
    bench = SiteBench()
    bench.link("w")
    bench.hear("w", wire.Advertise(T, ["w"]))
    bench.demand(received=True)
    bench.send(B1, FlowCounts([FlowCount("w", "w", T, 7, 2)]))
    [row] = [row for row in measured(bench.core, bench.now_s) if row.kind == Kind.SITES]
    assert row.detail is not None and row.detail["site"] == "m"
    west, other = row.detail["neighbours"]
    assert (west["site"], west["state"], west["flows"], west["messages"], west["repeated"]) == ("w", "up", 1, 7, 2)
    assert (other["site"], other["state"], other["flows"], other["messages"]) == ("x", "down", 0, 0)


# -- a lost store ------------------------------------------------------------------------------------------------------


def test_new_store_gives_out_later_runs_and_epochs_than_a_lost_one() -> None:
    """Neighbours drop messages whose numbers they know already, and links of earlier runs."""

    def numbers(now_s: float) -> tuple[int, int]:
        bench = SiteBench(now_s=now_s)
        bench.ask(lambda ask: TopicCreated(ask, TopicDefinition(T)))
        return bench.federation.links.run, bench.registry.topics.topics[T].created

    run, epoch = numbers(1_800_000_000.0)
    later_run, later_epoch = numbers(1_800_003_600.0)
    assert later_run > run > 0 and later_epoch > epoch > 0
    assert flow_number(later_epoch + 4_000_000, 1) < LARGEST_NUMBER, "four million more epochs fit"


def test_site_with_a_stored_epoch_continues_it() -> None:
    facts = (StoreFact("topic_epoch", "7"), StoreFact("site_run", "3"))
    core = Coordinator(RULES, "e", memory=StoredState(facts=facts), now_s=1_800_000_000.0)
    assert core.federation is not None
    assert (core.registry.topics.epoch, core.federation.links.run) == (7, 4)
