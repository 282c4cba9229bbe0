"""The overlay on random neighbour graphs with cycles, where clients and heads join, leave and fail in any order.

Messages are delivered in any interleaving that keeps the order on each link. Once the overlay has settled, every
reachable subscriber gets each message exactly once, and other clients get none. No subscriber ever gets a message
twice. When all clients have left, all tables are empty.

Steps are drawn from a seed, not by hypothesis: only crowded worlds show errors, and the lists that hypothesis draws are
mostly sparse.
"""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.coordinator.overlay_worlds import Overlay
from tocsin.coordinator.overlay_head import OverlayHead

HEADS = ("a", "b", "c", "d", "e", "f")
EDGES = ("e1", "e2")
TOPICS = ("t1", "t2")
WEIGHTS = {"connect": 4, "cut": 4, "crash": 1, "publisher": 3, "subscriber": 4, "lose_edge": 1}
WEIGHTS |= {"publish": 10, "deliver": 14}
many = settings(max_examples=120)
seeds, lengths = st.integers(0, 2**32), st.integers(0, 150)


def crowded(choose: random.Random) -> Overlay:
    """Up to six heads, more links than a tree needs, clients at most heads; settled or not."""
    heads = HEADS[: choose.randint(2, 6)]
    links = [(choose.choice(heads), choose.choice(heads)) for _ in range(choose.randint(len(heads), 3 * len(heads)))]
    overlay = Overlay(heads, links)
    for head in heads:
        for topic in TOPICS:
            if choose.random() < 0.5:
                overlay.join_publisher(head, f"p@{head}", topic)
            if choose.random() < 0.6:
                overlay.join_subscriber(head, f"s@{head}", topic, choose.choice(EDGES))
    if choose.random() < 0.5:
        overlay.settle(choose)
    return overlay


def random_steps(overlay: Overlay, steps: int, choose: random.Random) -> None:
    heads = list(overlay.sites)
    for step in range(steps):
        (action,) = choose.choices(list(WEIGHTS), list(WEIGHTS.values()))
        head, other, topic = choose.choice(heads), choose.choice(heads), choose.choice(TOPICS)
        site = overlay.sites[head]
        match action:
            case "connect" | "cut":
                getattr(overlay, action)(head, other)
            case "crash":
                overlay.crash(head)
            case "publisher":
                change = overlay.leave_publisher if (f"p@{head}", topic) in site.publishers else overlay.join_publisher
                change(head, f"p@{head}", topic)
            case "subscriber":
                if (f"s@{head}", topic) in site.subscribers and choose.random() < 0.7:
                    overlay.leave_subscriber(head, f"s@{head}", topic)
                else:
                    overlay.join_subscriber(head, f"s@{head}", topic, choose.choice(EDGES))
            case "lose_edge":
                overlay.lose_edge(head, choose.choice(EDGES))
            case "publish":
                overlay.publish(head, f"p@{head}", topic, f"early {step}")
            case "deliver":
                for _ in range(choose.randint(1, 12)):
                    overlay.deliver_next(choose)
        most = max(Counter(overlay.received).values(), default=1)
        assert most == 1, "a subscriber got a message twice"


def publish_everywhere(overlay: Overlay, choose: random.Random) -> None:
    """Every publisher sends one message. It must reach exactly its audience, once, and no head in vain."""
    for head, site in list(overlay.sites.items()):
        for publisher, topic in list(site.publishers):
            overlay.received.clear()
            overlay.carried.clear()
            overlay.publish(head, publisher, topic, "late")
            overlay.settle(choose)
            receivers = sorted((subscriber, its_topic) for subscriber, its_topic, _ in overlay.received)
            assert receivers == overlay.audience(head, topic)
            check_tree(overlay, head, topic)


def check_tree(overlay: Overlay, head: str, topic: str) -> None:
    """The message travelled along a tree from the source, and every branch ends at a site with a subscriber."""
    entered = Counter(there for _, there in overlay.carried)
    assert head not in entered
    assert max(entered.values(), default=1) == 1
    assert max(overlay.carried.values(), default=1) == 1
    forwarded = {here for here, _ in overlay.carried}
    subscribed = {name for name, site in overlay.sites.items() if any(key[1] == topic for key in site.subscribers)}
    assert set(entered) - forwarded <= subscribed


@many
@given(seeds, lengths)
def test_settled_overlay_delivers_each_message_once_to_its_audience(seed: int, steps: int) -> None:
    choose = random.Random(seed)
    overlay = crowded(choose)
    random_steps(overlay, steps, choose)
    overlay.settle(choose)
    publish_everywhere(overlay, choose)
    for site in overlay.sites.values():
        check_index(site.head)


def check_index(head: OverlayHead) -> None:
    """The index by topic has exactly the flows of the tables that it indexes."""
    flows = {*head.routes.paths, *head._subscribed, *head._received}
    assert {flow for of_topic in head._known.values() for flow in of_topic} == flows
    assert all(flow.topic == topic for topic, of_topic in head._known.items() for flow in of_topic)


@many
@given(seeds, lengths)
def test_tables_are_empty_when_all_clients_have_left(seed: int, steps: int) -> None:
    choose = random.Random(seed)
    overlay = crowded(choose)
    random_steps(overlay, steps, choose)
    for head, site in list(overlay.sites.items()):
        for publisher, topic in list(site.publishers):
            overlay.leave_publisher(head, publisher, topic)
        for subscriber, topic in list(site.subscribers):
            overlay.leave_subscriber(head, subscriber, topic)
    overlay.settle(choose)
    assert overlay.size() == 0


@settings(max_examples=40)
@given(seeds)
def test_unchanged_overlay_loses_no_message(seed: int) -> None:
    """Ten messages published at once, delivered in any interleaving: all arrive, in order."""
    choose = random.Random(seed)
    overlay = crowded(choose)
    overlay.settle(choose)
    overlay.received.clear()
    sources = [(head, publisher, topic) for head, site in overlay.sites.items() for publisher, topic in site.publishers]
    for number in range(10):
        for head, publisher, topic in sources:
            overlay.publish(head, publisher, topic, f"{publisher} {number}")
    overlay.settle(choose)
    assert len(overlay.received) == 10 * sum(len(overlay.audience(head, topic)) for head, _, topic in sources)
    received: dict[tuple[str, str, str], list[int]] = {}
    for subscriber, topic, body in overlay.received:
        source, number_text = body.split()
        received.setdefault((subscriber, topic, source), []).append(int(number_text))
    assert all(numbers == list(range(10)) for numbers in received.values())
