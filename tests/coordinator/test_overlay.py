"""The overlay of heads on worlds made by hand: the thesis' example, its pitfalls, and what a peer may send."""

from __future__ import annotations

import random

import pytest

from tests.coordinator.overlay_worlds import Overlay
from tocsin.coordinator.overlay import OverlayHead
from tocsin.coordinator.overlay_messages import (
    Advertise,
    Carry,
    Code,
    Flow,
    MessageReceived,
    NeighbourJoined,
    NeighbourLost,
    Number,
    Published,
    PublisherJoined,
    Reject,
    SendToHead,
    Subscribe,
    SubscriberJoined,
    Withdraw,
)
from tocsin.model.ids import BrokerId, SubscriberId
from tocsin.policies.sites.offload_types import PublisherId
from tocsin.policies.topics.types import TopicName

# [ePEER figure 4-3]: warning centres and the regions they watch.
HEADS = ("rtwc1", "ntwc1", "ntwc2", "ntwc3", "loc1a", "loc1b", "loc2a", "loc3a")
LINKS = (
    ("rtwc1", "ntwc1"), ("rtwc1", "ntwc2"), ("rtwc1", "ntwc3"), ("ntwc1", "ntwc2"), ("ntwc2", "ntwc3"),
    ("ntwc1", "loc1a"), ("ntwc1", "loc1b"), ("ntwc2", "loc2a"), ("ntwc3", "loc3a"),
)  # fmt: skip
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


def test_a_message_flows_head_to_head_to_edge_only_along_the_subscription(
    tsunami: Overlay, choose: random.Random
) -> None:
    tsunami.publish("rtwc1", "p1", "t1", "wave")
    tsunami.settle(choose)
    assert tsunami.received == [("s", "t1", "wave")]
    assert dict(tsunami.carried) == {("rtwc1", "ntwc1"): 1, ("ntwc1", "loc1a"): 1}


def test_a_duplicate_advertisement_is_not_passed_on(choose: random.Random) -> None:
    overlay = Overlay(HEADS, LINKS)
    overlay.settle(choose)
    overlay.join_publisher("rtwc1", "p1", "t1")
    overlay.settle(choose)
    assert overlay.advertised <= 2 * len(LINKS), "each head passes a flow on once, so a link carries it twice at most"
    before = overlay.advertised
    overlay.join_publisher("rtwc1", "p2", "t1")
    overlay.settle(choose)
    assert overlay.advertised == before, "a second publisher of a topic is no news to other sites"


def test_two_sites_that_publish_and_subscribe_one_topic_do_not_echo_each_other(choose: random.Random) -> None:
    """What federations kept per topic, as in figure 4-11, would do."""
    overlay = Overlay(("a", "b"), [("a", "b")])
    for head in ("a", "b"):
        overlay.join_publisher(head, f"p-{head}", "t1")
        overlay.join_subscriber(head, f"s-{head}", "t1", f"e-{head}")
    overlay.settle(choose)
    overlay.publish("a", "p-a", "t1", "hello")
    overlay.settle(choose)
    assert sorted(overlay.received) == [("s-a", "t1", "hello"), ("s-b", "t1", "hello")]
    assert overlay.carried.total() == 1


def test_a_lost_neighbour_is_routed_around_and_healed(tsunami: Overlay, choose: random.Random) -> None:
    tsunami.cut("rtwc1", "ntwc1")
    tsunami.settle(choose)
    tsunami.publish("rtwc1", "p1", "t1", "around")
    tsunami.settle(choose)
    assert tsunami.received == [("s", "t1", "around")]
    assert ("rtwc1", "ntwc1") not in tsunami.carried
    tsunami.cut("ntwc1", "ntwc2")
    tsunami.settle(choose)
    tsunami.publish("rtwc1", "p1", "t1", "nobody can hear it")
    tsunami.settle(choose)
    assert tsunami.received == [("s", "t1", "around")]
    tsunami.connect("rtwc1", "ntwc1")
    tsunami.settle(choose)
    tsunami.publish("rtwc1", "p1", "t1", "healed")
    tsunami.settle(choose)
    assert tsunami.received == [("s", "t1", "around"), ("s", "t1", "healed")]


def test_the_last_subscriber_takes_the_subscription_with_it(tsunami: Overlay, choose: random.Random) -> None:
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


def test_nothing_is_left_when_the_last_publisher_and_subscriber_are_gone(
    tsunami: Overlay, choose: random.Random
) -> None:
    tsunami.publish("rtwc1", "p1", "t1", "wave")
    tsunami.settle(choose)
    tsunami.leave_publisher("rtwc1", "p1", "t1")
    tsunami.leave_subscriber("loc1a", "s", "t1")
    tsunami.settle(choose)
    assert tsunami.size() == 0


def test_a_subscriber_that_changes_its_edge_is_served_there_and_nowhere_else(
    tsunami: Overlay, choose: random.Random
) -> None:
    tsunami.join_subscriber("loc1a", "s", "t1", "e2")
    tsunami.publish("rtwc1", "p1", "t1", "wave")
    tsunami.settle(choose)
    assert tsunami.received == [("s", "t1", "wave")]
    tsunami.lose_edge("loc1a", "e2")
    tsunami.publish("rtwc1", "p1", "t1", "after the edge")
    tsunami.settle(choose)
    assert len(tsunami.received) == 1


# What a peer may send.

A, B = BrokerId("a"), BrokerId("b")


def joined(head: OverlayHead) -> OverlayHead:
    head.handle(NeighbourJoined(B, 1))
    return head


@pytest.mark.parametrize("path", [(), (BrokerId("c"),), (B, BrokerId("c"), B)])
def test_an_advertisement_whose_path_makes_no_sense_changes_nothing(path: tuple[BrokerId, ...]) -> None:
    head = joined(OverlayHead(A))
    (effect,) = head.handle(MessageReceived(B, 1, Advertise(T, path)))
    assert isinstance(effect, Reject)
    assert effect.code is Code.BAD_PATH
    assert head.size() == 0


def test_strangers_and_old_links_are_refused() -> None:
    head = joined(OverlayHead(A))
    head.handle(NeighbourJoined(B, 3))
    stranger = MessageReceived(BrokerId("c"), 1, Advertise(T, (BrokerId("c"),)))
    late = MessageReceived(B, 1, Advertise(T, (B,)))
    codes = [effect.code for event in (stranger, late) for effect in head.handle(event) if isinstance(effect, Reject)]
    assert codes == [Code.NOT_A_NEIGHBOUR, Code.OLD_LINK]
    assert head.handle(NeighbourLost(B, 1)) == [], "that link was replaced long ago"
    assert B in head.links


def test_a_publisher_that_never_registered_cannot_publish() -> None:
    (effect,) = OverlayHead(A).handle(Published(PublisherId("p"), T, "x"))
    assert isinstance(effect, Reject)
    assert effect.code is Code.UNKNOWN_PUBLISHER


def test_messages_nobody_asked_for_and_repeated_ones_go_nowhere() -> None:
    head = joined(OverlayHead(A))
    flow = Flow(T, B)
    unasked = head.handle(MessageReceived(B, 1, Carry(flow, Number(0, 1), "x")))
    head.handle(SubscriberJoined(SubscriberId("s"), T, BrokerId("e")))
    head.handle(MessageReceived(B, 1, Advertise(T, (B,))))
    first = head.handle(MessageReceived(B, 1, Carry(flow, Number(0, 2), "x")))
    again = head.handle(MessageReceived(B, 1, Carry(flow, Number(0, 2), "x")))
    assert [effect.code for effect in (*unasked, *again) if isinstance(effect, Reject)] == [
        Code.NOT_ASKED_FOR,
        Code.REPEATED,
    ]
    assert len(first) == 1


def test_a_way_that_leads_through_oneself_counts_as_withdrawn() -> None:
    head = joined(OverlayHead(A))
    head.handle(SubscriberJoined(SubscriberId("s"), T, BrokerId("e")))
    source = BrokerId("c")
    asked = head.handle(MessageReceived(B, 1, Advertise(T, (source, B))))
    assert SendToHead(B, Subscribe(Flow(T, source))) in asked
    head.handle(MessageReceived(B, 1, Advertise(T, (source, A, B))))
    assert head.routes.chosen(Flow(T, source)) is None


def test_a_head_withdraws_what_it_can_no_longer_offer() -> None:
    head = joined(OverlayHead(A))
    c = BrokerId("c")
    head.handle(NeighbourJoined(c, 1))
    (passed_on,) = head.handle(MessageReceived(c, 1, Advertise(T, (c,))))
    assert passed_on == SendToHead(B, Advertise(T, (c, A)))
    assert head.handle(NeighbourLost(c, 1)) == [SendToHead(B, Withdraw(Flow(T, c)))]
    head.handle(PublisherJoined(PublisherId("p"), T))
    assert head.size() == 2, "one publisher, one neighbour told"
