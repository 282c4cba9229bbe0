"""Three sites in a ring with random delays and faults: the network, the steps, and the checks of what arrived."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tests.sim.network.interleaving import Action, RandomSteps
from tests.sim.network.topic_interleaving import RULES, check_homes
from tocsin.broker.topics.limits import TopicLimits
from tocsin.client.topic_events import Item, PublishRequested, SubscribeRequested, TopicGap, TopicMessage
from tocsin.model.flow import flow_number, flow_publisher, is_flow
from tocsin.model.ids import BrokerId, TopicName
from tocsin.model.topic_persistence import Persistence
from tocsin.sim.kernel import Kernel
from tocsin.sim.network.federation import SimulatedFederation
from tocsin.sim.network.topic_broker import Accepted
from tocsin.sim.network.topic_client import SimulatedTopicClient
from tocsin.sim.network.topic_network import SimulatedTopicNetwork
from tocsin.wire.site_link import Role

TOPIC = TopicName("swarm/1")
SITES = {"A": ["a0", "a1"], "B": ["b0", "b1"], "C": ["c0", "c1"]}
LINKS = [("A", "B"), ("A", "C"), ("B", "C")]


class SiteRing:
    """Each site has two brokers, a publisher and a subscriber of one topic."""

    def __init__(
        self,
        seed: int,
        persistence: Persistence | None = None,
        links: list[tuple[str, str]] = LINKS,
        roles: Mapping[str, Role] = {},
    ) -> None:
        kernel = Kernel(seed)
        self.rng = kernel.stream("faults")
        self.links = links
        self.persistent = persistence is not None
        limits = TopicLimits(topic_recent_bytes=int(self.rng.choice((60, 100_000))))
        self.federation = SimulatedFederation(kernel, SITES, links, replace(RULES, forgive_s=5.0), limits, roles)
        self.steps = {site: RandomSteps(kernel, network, 1.5, (0.02, 0.2)) for site, network in self.sites.items()}
        self.publishers = {site: network.add_client(f"p{site}") for site, network in self.sites.items()}
        self.subscribers = {site: network.add_client(f"s{site}") for site, network in self.sites.items()}
        self.tickets: dict[int, tuple[str, bytes]] = {}
        self.log = self.steps["A"].log
        self.run(8.0)
        if persistence is not None:
            self.sites["A"].create(TOPIC, persistence)
            self.publish("A")  # the advertisement creates it at the other sites
            self.run(3.0)
        for subscriber in self.subscribers.values():
            subscriber.handle(SubscribeRequested(1, "swarm/#"))
        for site in SITES:
            self.publish(site)
        self.run(12.0)
        self.begun = len(self.tickets)
        """Tickets from before the subscriptions: subscribers of other sites may get them, as older messages."""
        for site, network in self.sites.items():
            network.transport.delay_s = self.steps[site].draw_delay_s

    @property
    def sites(self) -> dict[str, SimulatedTopicNetwork]:
        return self.federation.sites

    def run(self, seconds: float) -> None:
        self.federation.kernel.run(self.federation.kernel.now_s + seconds)

    def publish(self, site: str) -> int:
        ticket = len(self.tickets) + 1
        data = b"%s%d" % (site.encode(), ticket)
        self.tickets[ticket] = (site, data)
        self.publishers[site].handle(PublishRequested(ticket, TOPIC, data))
        return ticket

    def step(self) -> None:
        """Do something at random."""
        rng, federation = self.rng, self.federation
        site = "ABC"[int(rng.integers(3))]
        network = self.sites[site]
        broker = BrokerId(SITES[site][int(rng.integers(2))])
        link = self.links[int(rng.integers(len(self.links)))]
        connections = [connection for client in network.clients.values() for connection in client.connections.values()]

        def publish() -> None:
            for _ in range(int(rng.integers(1, 6))):
                self.publish(site)

        def break_connection() -> None:
            if connections:
                connections[int(rng.integers(len(connections)))].break_off()

        def cut() -> None:
            federation.cut_link(link)
            federation.kernel.call_after(float(rng.choice((0.2, 2.0, 10.0))), federation.restore_link, link)

        def kill_coordinator() -> None:
            federation.kill_coordinator(site)
            federation.kernel.call_after(float(rng.choice((0.5, 5.0))), federation.restart_coordinator, site)

        actions: list[Action] = [
            (14, "publish", publish),
            (3, "move", lambda: network.move(TOPIC, broker)),
            (2, "break connection", break_connection),
            (3, "cut site link", cut),
            (1, "cut broker link", lambda: network.coordinator.cut_link(network.brokers[broker])),
            (1, "crash broker", lambda: network.crash_broker(broker)),
            (1, "stop broker", lambda: network.stop_broker(broker)),
            (1, "pause broker", lambda: network.pause_broker(broker, float(rng.choice((0.5, 2.5))))),
            (1, "restart coordinator", lambda: federation.restart_coordinator(site)),
            (1, "kill coordinator", kill_coordinator),
            (3, "let everything arrive", lambda: self.run(1.5)),
        ]
        self.steps["A"].take(actions, f"{site} {broker} {link}")
        self.run(float(rng.exponential(0.2)))

    def settle(self) -> None:
        """No more faults. Last messages of every site must reach every subscriber."""
        for steps in self.steps.values():
            steps.settle()
        self.run(45.0)
        self.last = {site: self.publish(site) for site in SITES}
        self.run(10.0)

    # -- checks --------------------------------------------------------------------------------------------------------

    def check(self) -> None:
        for ticket, (site, data) in self.tickets.items():
            assert self.publishers[site].settled.get(ticket, "pending") is None, data
        for network in self.sites.values():
            check_homes([entry for entry in network.accepted if entry.topic == TOPIC])
        for site, subscriber in self.subscribers.items():
            items = subscriber.items.get(TOPIC, [])
            check_order(items)
            for source in SITES:
                assert self.data(subscriber, source)[-1] == self.tickets[self.last[source]][1], (site, source)
                if self.persistent:
                    later = [data for other, data in self.tickets.values() if other == source and self.is_later(data)]
                    got = [data for data in self.data(subscriber, source) if self.is_later(data)]
                    assert got == later, (site, source)
                elif source != site:
                    check_flow(items, source, self.sites[source].accepted)
            if self.persistent:
                assert not [item for item in items if isinstance(item, TopicGap)], site

    def is_later(self, data: bytes) -> bool:
        """True for a message from after the subscriptions."""
        return int(data[1:]) > self.begun

    def data(self, subscriber: SimulatedTopicClient, source: str) -> list[bytes]:
        """The messages of a site's publisher that a subscriber got."""
        items = subscriber.items.get(TOPIC, [])
        return [item.data for item in items if isinstance(item, TopicMessage) and item.data.startswith(source.encode())]


def check_order(items: list[Item]) -> None:
    """No number of a publisher or a flow comes twice, and each publisher's messages are in order."""
    numbers: dict[int, int] = {}
    first: dict[bytes, int] = {}
    for item in items:
        if isinstance(item, TopicMessage):
            assert item.number > numbers.get(item.publisher, 0), f"{item} is repeated or late"
            numbers[item.publisher] = item.number
            first.setdefault(item.data, len(first))
    for source in SITES:
        tickets = [int(data[1:]) for data in first if data.startswith(source.encode())]
        assert tickets == sorted(tickets), f"messages of {source} are out of order"


def check_flow(items: list[Item], source: str, accepted: list[Accepted]) -> None:
    """A message that is missing between two others of its flow lies behind a gap."""
    flow = flow_publisher(source)
    got = {
        item.number: place
        for place, item in enumerate(items)
        if isinstance(item, TopicMessage) and item.publisher == flow
    }
    gaps = [place for place, item in enumerate(items) if isinstance(item, TopicGap)]
    numbers = sorted(got)
    for entry in accepted:
        number = flow_number(entry.epoch, entry.sequence)
        if entry.topic != TOPIC or is_flow(entry.publisher) or number in got or not numbers or number < numbers[0]:
            continue
        before = max(known for known in numbers if known < number)
        behind = min(known for known in numbers if known > number)
        assert any(got[before] < gap < got[behind] for gap in gaps), f"{entry} was lost without a gap"
