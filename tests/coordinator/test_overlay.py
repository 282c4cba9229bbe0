"""The overlay of heads on hand-made worlds: the thesis' example, its pitfalls, and bad input from peers."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from tests.coordinator.overlay_worlds import Overlay
from tocsin.coordinator.overlay_head import OverlayHead
from tocsin.coordinator.overlay_messages import (
    Advertise,
    Carry,
    Flow,
    HeadMessageReceived,
    MessagePublished,
    NeighbourJoined,
    NeighbourLost,
    Number,
    OverlayCode,
    OverlayRejection,
    PublisherJoined,
    SendToHead,
    SubscribeFlow,
    SubscriberJoined,
    SubscriberLeft,
    UnsubscribeFlow,
    Withdraw,
)
from tocsin.model.ids import BrokerId, SubscriberId
from tocsin.policies.sites.types import PublisherId
from tocsin.policies.topics.types import TopicName

# [ePEER figure 4-3]: warning centres and the regions they watch.
HEADS = ("rtwc1", "ntwc1", "ntwc2", "ntwc3", "loc1a", "loc1b", "loc2a", "loc3a")
NEIGHBOURS = {
    "rtwc1": ("ntwc1", "ntwc2", "ntwc3"),
    "ntwc1": ("ntwc2", "loc1a", "loc1b"),
    "ntwc2": ("ntwc3", "loc2a"),
    "ntwc3": ("loc3a",),
}
LINKS = tuple((head, other) for head, others in NEIGHBOURS.items() for other in others)
T = TopicName("t1")


@pytest.fixture
def choose() -> random.Random:
    return random.Random(7)


@pytest.fixture
def tsunami(choose: random.Random) -> Overlay:
    """[ePEER figures 4-7 and 4-10]: p1 publishes at RTWC1, s subscribes at Loc. 1a."""
    overlay = Overlay(HEADS, LINKS)
    overlay.join_publisher("rtwc1", "p1", "t1")
    overlay.settle(choose)
    overlay.join_subscriber("loc1a", "s", "t1", "e1")
    overlay.settle(choose)
    return overlay


def test_message_flows_only_along_the_subscription(tsunami: Overlay, choose: random.Random) -> None:
    tsunami.publish("rtwc1", "p1", "t1", "wave")
    tsunami.settle(choose)
    assert tsunami.received == [("s", "t1", "wave")]
    assert dict(tsunami.carried) == {("rtwc1", "ntwc1"): 1, ("ntwc1", "loc1a"): 1}


def test_duplicate_advertisement_is_not_forwarded(choose: random.Random) -> None:
    overlay = Overlay(HEADS, LINKS)
    overlay.settle(choose)
    overlay.join_publisher("rtwc1", "p1", "t1")
    overlay.settle(choose)
    assert overlay.advertised <= 2 * len(LINKS), "each head forwards a flow once, so a link carries it twice at most"
    before = overlay.advertised
    overlay.join_publisher("rtwc1", "p2", "t1")
    overlay.settle(choose)
    assert overlay.advertised == before, "a second publisher of a topic changes nothing for other sites"


def test_two_sites_with_publishers_and_subscribers_do_not_echo_messages(choose: random.Random) -> None:
    """With federations per topic, as in figure 4-11, the two sites would echo messages for ever."""
    overlay = Overlay(("a", "b"), [("a", "b")])
    for head in ("a", "b"):
        overlay.join_publisher(head, f"p-{head}", "t1")
        overlay.join_subscriber(head, f"s-{head}", "t1", f"e-{head}")
    overlay.settle(choose)
    overlay.publish("a", "p-a", "t1", "hello")
    overlay.settle(choose)
    assert sorted(overlay.received) == [("s-a", "t1", "hello"), ("s-b", "t1", "hello")]
    assert overlay.carried.total() == 1


def test_overlay_routes_around_a_lost_neighbour_until_it_returns(tsunami: Overlay, choose: random.Random) -> None:
    tsunami.cut("rtwc1", "ntwc1")
    tsunami.settle(choose)
    tsunami.publish("rtwc1", "p1", "t1", "around")
    tsunami.settle(choose)
    assert tsunami.received == [("s", "t1", "around")]
    assert ("rtwc1", "ntwc1") not in tsunami.carried
    tsunami.cut("ntwc1", "ntwc2")
    tsunami.settle(choose)
    tsunami.publish("rtwc1", "p1", "t1", "unreachable")
    tsunami.settle(choose)
    assert tsunami.received == [("s", "t1", "around")]
    tsunami.connect("rtwc1", "ntwc1")
    tsunami.settle(choose)
    tsunami.publish("rtwc1", "p1", "t1", "healed")
    tsunami.settle(choose)
    assert tsunami.received == [("s", "t1", "around"), ("s", "t1", "healed")]


def test_last_subscriber_withdraws_the_subscription(tsunami: Overlay, choose: random.Random) -> None:
    tsunami.join_subscriber("loc1b", "s2", "t1", "e9")
    tsunami.settle(choose)
    tsunami.leave_subscriber("loc1a", "s", "t1")
    tsunami.settle(choose)
    tsunami.publish("rtwc1", "p1", "t1", "one")
    tsunami.settle(choose)
    tsunami.leave_subscriber("loc1b", "s2", "t1")
    tsunami.settle(choose)
    tsunami.publish("rtwc1", "p1", "t1", "two")
    tsunami.settle(choose)
    assert tsunami.received == [("s2", "t1", "one")]
    assert tsunami.carried.total() == 2


def test_tables_are_empty_after_the_last_publisher_and_subscriber_left(tsunami: Overlay, choose: random.Random) -> None:
    tsunami.publish("rtwc1", "p1", "t1", "wave")
    tsunami.settle(choose)
    tsunami.leave_publisher("rtwc1", "p1", "t1")
    tsunami.leave_subscriber("loc1a", "s", "t1")
    tsunami.settle(choose)
    assert tsunami.size() == 0


def test_subscriber_that_changes_its_edge_is_served_only_there(tsunami: Overlay, choose: random.Random) -> None:
    tsunami.join_subscriber("loc1a", "s", "t1", "e2")
    tsunami.publish("rtwc1", "p1", "t1", "wave")
    tsunami.settle(choose)
    assert tsunami.received == [("s", "t1", "wave")]
    tsunami.lose_edge("loc1a", "e2")
    tsunami.publish("rtwc1", "p1", "t1", "after the edge")
    tsunami.settle(choose)
    assert len(tsunami.received) == 1


# Input from peers.

A, B = BrokerId("a"), BrokerId("b")


def joined(head: OverlayHead) -> OverlayHead:
    head.handle(NeighbourJoined(B, 1))
    return head


@pytest.mark.parametrize("path", [(), (BrokerId("c"),), (B, BrokerId("c"), B)])
def test_advertisement_with_an_invalid_path_changes_nothing(path: tuple[BrokerId, ...]) -> None:
    head = joined(OverlayHead(A))
    (effect,) = head.handle(HeadMessageReceived(B, 1, Advertise(T, path)))
    assert isinstance(effect, OverlayRejection)
    assert effect.code is OverlayCode.BAD_PATH
    assert head.size() == 0


def test_unknown_heads_and_old_links_are_rejected() -> None:
    head = joined(OverlayHead(A))
    head.handle(NeighbourJoined(B, 3))
    unknown = HeadMessageReceived(BrokerId("c"), 1, Advertise(T, (BrokerId("c"),)))
    late = HeadMessageReceived(B, 1, Advertise(T, (B,)))
    effects = [effect for event in (unknown, late) for effect in head.handle(event)]
    codes = [effect.code for effect in effects if isinstance(effect, OverlayRejection)]
    assert codes == [OverlayCode.NOT_A_NEIGHBOUR, OverlayCode.OLD_LINK]
    assert head.handle(NeighbourLost(B, 1)) == [], "that link has been replaced"
    assert B in head.links


def test_unregistered_publisher_cannot_publish() -> None:
    (effect,) = OverlayHead(A).handle(MessagePublished(PublisherId("p"), T, "x"))
    assert isinstance(effect, OverlayRejection)
    assert effect.code is OverlayCode.UNKNOWN_PUBLISHER


def test_unsubscribed_and_repeated_messages_are_rejected() -> None:
    head = joined(OverlayHead(A))
    flow = Flow(T, B)
    unsubscribed = head.handle(HeadMessageReceived(B, 1, Carry(flow, Number(0, 1), "x")))
    head.handle(SubscriberJoined(SubscriberId("s"), T, BrokerId("e")))
    head.handle(HeadMessageReceived(B, 1, Advertise(T, (B,))))
    first = head.handle(HeadMessageReceived(B, 1, Carry(flow, Number(0, 2), "x")))
    again = head.handle(HeadMessageReceived(B, 1, Carry(flow, Number(0, 2), "x")))
    assert [effect.code for effect in (*unsubscribed, *again) if isinstance(effect, OverlayRejection)] == [
        OverlayCode.NOT_ASKED_FOR,
        OverlayCode.REPEATED,
    ]
    assert len(first) == 1


def test_route_through_the_head_itself_counts_as_withdrawn() -> None:
    head = joined(OverlayHead(A))
    head.handle(SubscriberJoined(SubscriberId("s"), T, BrokerId("e")))
    source = BrokerId("c")
    effects = head.handle(HeadMessageReceived(B, 1, Advertise(T, (source, B))))
    assert SendToHead(B, SubscribeFlow(Flow(T, source))) in effects
    head.handle(HeadMessageReceived(B, 1, Advertise(T, (source, A, B))))
    assert Flow(T, source) not in head.routes.chosen


class Unscanned(dict[Flow, dict[BrokerId, tuple[BrokerId, ...]]]):
    """A table that a client's join must not read from end to end."""

    def __iter__(self) -> Iterator[Flow]:
        raise AssertionError("the head reads all its flows")


def test_joining_subscriber_costs_the_flows_of_its_topic_only() -> None:
    head = joined(OverlayHead(A))
    for number in range(50):
        head.handle(HeadMessageReceived(B, 1, Advertise(TopicName(f"t{number}"), (B,))))
    head.routes.paths = Unscanned(head.routes.paths)
    seventh = Flow(TopicName("t7"), B)
    effects = head.handle(SubscriberJoined(SubscriberId("s"), seventh.topic, BrokerId("e")))
    assert effects == [SendToHead(B, SubscribeFlow(seventh))]
    assert head.handle(SubscriberLeft(SubscriberId("s"), seventh.topic)) == [SendToHead(B, UnsubscribeFlow(seventh))]


def test_head_withdraws_a_flow_that_it_can_no_longer_offer() -> None:
    head = joined(OverlayHead(A))
    c = BrokerId("c")
    head.handle(NeighbourJoined(c, 1))
    (forwarded,) = head.handle(HeadMessageReceived(c, 1, Advertise(T, (c,))))
    assert forwarded == SendToHead(B, Advertise(T, (c, A)))
    assert head.handle(NeighbourLost(c, 1)) == [SendToHead(B, Withdraw(Flow(T, c)))]
    head.handle(PublisherJoined(PublisherId("p"), T))
    assert head.size() == 2, "one publisher, one advertisement"
