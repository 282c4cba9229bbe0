"""Receivers visit edges of other sites and return, while everything fails: nothing is lost in silence or repeated."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.sim.network.interleaving import Action
from tests.sim.network.site_ring import LINKS, SITES, TOPIC, SiteRing, check_order
from tocsin.client.topic_events import Item, TopicGap, TopicMessage
from tocsin.model.flow import is_flow
from tocsin.model.ids import BrokerId
from tocsin.model.topic_persistence import Persistence
from tocsin.wire.site_link import Role

ROLES = {f"{site}0": Role.HEAD for site in "abc"} | {f"{site}1": Role.EDGE for site in "abc"}


class VisitedRing(SiteRing):
    """Each site has a head and an edge. Subscribers are sent to edges of other sites."""

    def __init__(self, seed: int, persistence: Persistence | None = None, *, crashes: bool = True) -> None:
        super().__init__(seed, persistence, LINKS, ROLES)
        self.crashes = crashes

    def visit(self, site: str, host: str) -> None:
        """Send the receivers of a site that are at its own edge to the edge of another site."""
        self.federation.visit(TOPIC, BrokerId(SITES[site][1]), host, BrokerId(SITES[host][1]))

    def where(self, site: str) -> str | None:
        """The broker that serves a site's subscriber."""
        return self.subscribers[site].session.receives_at(TOPIC)

    def step(self) -> None:
        rng = self.rng
        if rng.random() < 0.75 and self.crashes:
            super().step()
            return
        site, host = (str(name) for name in rng.choice(list(SITES), 2, replace=False))
        subscriber = self.subscribers[site]
        connections = list(subscriber.connections.values())

        def break_connection() -> None:
            if connections:
                connections[int(rng.integers(len(connections)))].break_off()

        def publish() -> None:
            for _ in range(int(rng.integers(1, 6))):
                self.publish(site)

        actions: list[Action] = [
            (4, "visit", lambda: self.visit(site, host)),
            (1, "release", lambda: self.federation.release(host)),
            (1, "break connection", break_connection),
            (4, "publish", publish),
            (1, "move home", lambda: self.sites[site].move(TOPIC, BrokerId(SITES[site][0]))),
            (1, "let everything arrive", lambda: self.run(1.5)),
        ]
        self.steps["A"].take(actions, f"{site} at {host}")
        self.run(float(rng.exponential(0.2)))

    def check(self) -> None:
        for site, subscriber in self.subscribers.items():
            items = subscriber.items.get(TOPIC, [])
            check_order(items)
            for source in SITES:
                got = self.data(subscriber, source)
                assert got[-1] == self.tickets[self.last[source]][1], (site, source)
                if not self.crashes:
                    repeated = [data for data, count in Counter(got).items() if count > 1]
                    assert not repeated, (site, source, repeated)
                if self.persistent:
                    later = [data for other, data in self.tickets.values() if other == source and self.is_later(data)]
                    assert list(dict.fromkeys(data for data in got if self.is_later(data))) == later, (site, source)
                else:
                    self.check_gaps(site, items, source)
            if self.persistent:
                assert not [item for item in items if isinstance(item, TopicGap)], site

    def check_gaps(self, site: str, items: list[Item], source: str) -> None:
        """A message that is missing between two others of its source lies behind a gap."""
        places = {
            item.data: place
            for place, item in reversed(list(enumerate(items)))
            if isinstance(item, TopicMessage) and item.data.startswith(source.encode())
        }
        gaps = [place for place, item in enumerate(items) if isinstance(item, TopicGap)]
        before: int | None = None
        missing: list[bytes] = []
        own = [entry for entry in self.sites[source].accepted if entry.topic == TOPIC and not is_flow(entry.publisher)]
        for data in dict.fromkeys(entry.data for entry in own):
            if data not in places:
                missing += [data] if before is not None and self.is_later(data) else []
                continue
            if missing:
                begun, ended = before or 0, places[data]
                assert any(begun < gap < ended for gap in gaps), f"{site} lost {missing} without a gap"
                missing = []
            before = places[data]


def checked(ring: VisitedRing) -> None:
    ring.settle()
    try:
        ring.check()
    except (AssertionError, KeyError, IndexError) as error:
        raise AssertionError("\n".join([repr(error), *ring.log[-60:]])) from error


def still(ring: VisitedRing) -> VisitedRing:
    """Without random delays."""
    for network in ring.sites.values():
        network.transport.delay_s = lambda usual_s: usual_s
    return ring


def test_receiver_continues_at_an_edge_of_another_site() -> None:
    ring = still(VisitedRing(1, crashes=False))
    assert ring.where("A") == "ws://a1"
    for number in range(40):
        for site in SITES:
            ring.publish(site)
        if number == 10:
            ring.visit("A", "B")
        if number == 20:
            assert ring.where("A") == "ws://b1"
        ring.run(0.05)
    checked(ring)
    assert not [item for item in ring.subscribers["A"].items[TOPIC] if isinstance(item, TopicGap)]


def test_receiver_returns_when_the_host_ends_the_visit() -> None:
    ring = still(VisitedRing(1, crashes=False))
    for number in range(60):
        for site in SITES:
            ring.publish(site)
        if number == 10:
            ring.visit("A", "B")
        if number == 30:
            ring.federation.release("B")
        ring.run(0.05)
    assert ring.where("A") == "ws://a1"
    checked(ring)
    assert not [item for item in ring.subscribers["A"].items[TOPIC] if isinstance(item, TopicGap)]


def test_receiver_returns_when_the_edge_of_the_host_dies() -> None:
    ring = still(VisitedRing(1, crashes=False))
    for number in range(60):
        for site in SITES:
            ring.publish(site)
        if number == 10:
            ring.visit("A", "B")
        if number == 30:
            ring.sites["B"].crash_broker(BrokerId("b1"))
        ring.run(0.05)
    assert ring.where("A") == "ws://a1"
    checked(ring)


@pytest.mark.parametrize("seed", range(12))
def test_visits_without_crashes_repeat_and_lose_nothing(seed: int) -> None:
    ring = VisitedRing(seed, crashes=False)
    for _ in range(60):
        ring.step()
    checked(ring)


@pytest.mark.parametrize("seed", range(12))
def test_visits_to_a_volatile_topic_lose_nothing_in_silence(seed: int) -> None:
    ring = VisitedRing(100 + seed)
    for _ in range(60):
        ring.step()
    checked(ring)


@pytest.mark.parametrize("seed", range(12))
def test_visits_to_a_persistent_topic_lose_nothing(seed: int) -> None:
    ring = VisitedRing(200 + seed, Persistence(2, 2 - seed % 2))
    for _ in range(60):
        ring.step()
    checked(ring)
