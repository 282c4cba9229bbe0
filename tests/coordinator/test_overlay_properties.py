"""The overlay on random neighbour graphs with cycles, where clients and heads come, go and fail in any order.

Messages are delivered in any interleaving that keeps the order on each link. Once the overlay is at rest, every
subscriber that can be reached gets each message exactly once and nobody else does; at no time does anybody get one
twice. When all clients are gone, so is all state.

A walk is drawn from a seed rather than step by step: a world must be crowded for anything to go wrong in it, and lists
that hypothesis draws are mostly sparse.
"""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.coordinator.overlay_worlds import Overlay

HEADS = ("a", "b", "c", "d", "e", "f")
EDGES = ("e1", "e2")
TOPICS = ("t1", "t2")
WEIGHTS = {
    "connect": 4, "cut": 4, "crash": 1, "publisher": 3, "subscriber": 4, "lose_edge": 1, "publish": 10, "deliver": 14,
}  # fmt: skip
many = settings(max_examples=120)
seeds, lengths = st.integers(0, 2**32), st.integers(0, 150)


def crowded(choose: random.Random) -> Overlay:
    """Up to six heads, more links than a tree needs, clients at most heads, everybody connected or not yet."""
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


def wander(overlay: Overlay, steps: int, choose: random.Random) -> None:
    """Anything, `steps` times."""
    heads = list(overlay.sites)
    for step in range(steps):
        (what,) = choose.choices(list(WEIGHTS), list(WEIGHTS.values()))
        head, other, topic = choose.choice(heads), choose.choice(heads), choose.choice(TOPICS)
        site = overlay.sites[head]
        match what:
            case "connect" | "cut":
                getattr(overlay, what)(head, other)
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
                    overlay.deliver_one(choose)
        most = max(Counter(overlay.received).values(), default=1)
        assert most == 1, "nobody gets a message twice, whatever changes meanwhile"


def publish_everywhere(overlay: Overlay, choose: random.Random) -> None:
    """Every publisher says one thing; each must reach exactly its audience, once, and only heads that pass it on."""
    for head, site in list(overlay.sites.items()):
        for publisher, topic in list(site.publishers):
            overlay.received.clear()
            overlay.carried.clear()
            overlay.publish(head, publisher, topic, "late")
            overlay.settle(choose)
            assert sorted((subscriber, heard) for subscriber, heard, _ in overlay.received) == overlay.audience(
                head, topic
            )
            check_tree(overlay, head, topic)


def check_tree(overlay: Overlay, head: str, topic: str) -> None:
    """What was carried is a tree from the source whose every branch ends at a subscriber."""
    entered = Counter(there for _, there in overlay.carried)
    assert head not in entered
    assert max(entered.values(), default=1) == 1
    assert max(overlay.carried.values(), default=1) == 1
    left = {here for here, _ in overlay.carried}
    wanting = {name for name, site in overlay.sites.items() if any(heard == topic for _, heard in site.subscribers)}
    assert set(entered) - left <= wanting


@many
@given(seeds, lengths)
def test_at_rest_every_subscriber_gets_each_message_once_and_nobody_else_does(seed: int, steps: int) -> None:
    choose = random.Random(seed)
    overlay = crowded(choose)
    wander(overlay, steps, choose)
    overlay.settle(choose)
    publish_everywhere(overlay, choose)


@many
@given(seeds, lengths)
def test_state_shrinks_to_nothing_when_all_clients_have_left(seed: int, steps: int) -> None:
    choose = random.Random(seed)
    overlay = crowded(choose)
    wander(overlay, steps, choose)
    for head, site in list(overlay.sites.items()):
        for publisher, topic in list(site.publishers):
            overlay.leave_publisher(head, publisher, topic)
        for subscriber, topic in list(site.subscribers):
            overlay.leave_subscriber(head, subscriber, topic)
    overlay.settle(choose)
    assert overlay.size() == 0


@settings(max_examples=40)
@given(seeds)
def test_without_changes_nothing_is_lost_however_slow_the_links_are(seed: int) -> None:
    """Ten messages published at once, delivered in any interleaving: all arrive, in order."""
    choose = random.Random(seed)
    overlay = crowded(choose)
    overlay.settle(choose)
    overlay.received.clear()
    said = [(head, who, topic) for head, site in overlay.sites.items() for who, topic in site.publishers]
    for number in range(10):
        for head, who, topic in said:
            overlay.publish(head, who, topic, f"{who} {number}")
    overlay.settle(choose)
    assert len(overlay.received) == 10 * sum(len(overlay.audience(head, topic)) for head, _, topic in said)
    heard: dict[tuple[str, str, str], list[int]] = {}
    for subscriber, topic, body in overlay.received:
        speaker, number_text = body.split()
        heard.setdefault((subscriber, topic, speaker), []).append(int(number_text))
    assert all(numbers == list(range(10)) for numbers in heard.values())
