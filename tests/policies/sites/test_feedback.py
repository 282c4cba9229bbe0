"""Utility: equations 1–8 by hand, aggregation at edges and head, and feedback that tries to cheat."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.model.ids import BrokerId, SubscriberId
from tocsin.policies.sites.congestion import plan
from tocsin.policies.sites.congestion_types import CongestionSnapshot, PublisherView, TopicView
from tocsin.policies.sites.feedback import (
    MOST_WEIGHT,
    EdgeFeedback,
    FeedbackCode,
    HeadUtility,
    UtilityFeedback,
    average,
    by_keywords,
    importance,
    mean_experience,
    publisher_utility,
    rated,
    topic_utility,
)
from tocsin.policies.sites.types import Load, PublisherId
from tocsin.policies.topics.types import TopicName

S1, S2 = SubscriberId("s1"), SubscriberId("s2")
P1, P2 = PublisherId("p1"), PublisherId("p2")
T = TopicName("t")

# Equations.


def test_utility_is_share_of_interests_times_share_of_keywords() -> None:
    assert by_keywords({"wave", "gate"}, {"wave", "cat", "dog", "tea"}) == pytest.approx(1 / 2 * 1 / 4)
    assert by_keywords({"wave"}, {"wave"}) == 1.0
    assert by_keywords(set(), {"wave"}) == by_keywords({"wave"}, set()) == by_keywords({"a"}, {"b"}) == 0.0


def test_application_rating_is_clipped_to_zero_and_one() -> None:
    assert [rated(lambda message: message, value) for value in (-3.0, 0.25, 7.0, math.nan)] == [0.0, 0.25, 1.0, 0.0]


def test_publisher_and_topic_utility_and_importance_follow_equations_1_to_4() -> None:
    assert average([0.2, 0.4]) == pytest.approx(0.3)
    assert average([]) is None
    feedback = {S1: {P1: 0.9, P2: 0.1}, S2: {P1: 0.5}}
    assert publisher_utility(feedback) == pytest.approx({P1: 0.7, P2: 0.1})
    assert publisher_utility(feedback, {S1: 0.5}) == pytest.approx({P1: 0.475, P2: 0.05})
    assert topic_utility([0.7, 0.1]) == pytest.approx(0.4)
    assert importance(0.4, 10, 200.0) == pytest.approx(0.02)
    assert importance(0.4, 10, 0.0) == math.inf
    assert importance(0.0, 10, 0.0) == 0.0


def test_experience_averages_publishers_then_subscribers() -> None:
    feedback = {S1: {P1: 0.8, P2: 0.0}, S2: {P1: 0.6}}
    assert mean_experience(feedback) == pytest.approx((0.4 + 0.6) / 2)
    assert mean_experience(feedback, silent=2) == pytest.approx(0.25)
    assert mean_experience({S1: {}}) is None


# Aggregation.


def edge_of(
    publishers: tuple[PublisherId, ...] = (P1, P2), weights: dict[SubscriberId, float] | None = None
) -> EdgeFeedback:
    """An edge that serves topic t to all subscribers but intruders."""
    return EdgeFeedback(
        lambda subscriber, topic: topic == T and not subscriber.startswith("intruder"),
        lambda publisher, topic: topic == T and publisher in publishers,
        weights or {},
    )


ratings = st.dictionaries(
    st.sampled_from([SubscriberId(f"s{n}") for n in range(8)]),
    st.dictionaries(st.sampled_from([P1, P2]), st.floats(0.0, 1.0), min_size=1),
)


@given(ratings, st.dictionaries(st.sampled_from([S1, S2]), st.floats(0.0, 5.0)))
def test_edges_and_head_together_compute_equation_2(
    feedback: dict[SubscriberId, dict[PublisherId, float]], weights: dict[SubscriberId, float]
) -> None:
    edges = {BrokerId(f"e{n}"): edge_of(weights=weights) for n in range(3)}
    for number, (subscriber, averages) in enumerate(feedback.items()):
        assert edges[BrokerId(f"e{number % 3}")].accept(UtilityFeedback(subscriber, T, averages)) is None
    head = HeadUtility()
    for name, edge in edges.items():
        head.receive(name, edge.take())
    head.close_second()
    expected = publisher_utility(feedback, weights)
    for publisher in (P1, P2):
        assert head.utility(publisher) == pytest.approx(expected.get(publisher))


def test_publisher_without_new_ratings_keeps_its_utility() -> None:
    head, edge = HeadUtility(), edge_of()
    assert head.utility(P1) is None
    edge.accept(UtilityFeedback(S1, T, {P1: 0.8}))
    head.receive(BrokerId("e"), edge.take())
    head.close_second()
    head.receive(BrokerId("e"), edge.take())
    head.close_second()
    assert head.utility(P1) == 0.8
    head.forget(P1)
    assert head.utility(P1) is None


# Poison.


def utilities(edge: EdgeFeedback) -> dict[PublisherId, float]:
    return {publisher: ratings.utility for publisher, ratings in edge.take().items()}


@pytest.mark.parametrize(
    ("subscriber", "averages", "code"),
    [
        ("intruder", {P1: 0.0}, FeedbackCode.NOT_SUBSCRIBED),
        ("s1", {PublisherId("elsewhere"): 0.0}, FeedbackCode.NOT_A_PUBLISHER),
        ("s1", {P1: math.nan}, FeedbackCode.NOT_A_UTILITY),
        ("s1", {P1: 0.5, P2: 1e9}, FeedbackCode.NOT_A_UTILITY),
        ("s1", {P1: -1e9}, FeedbackCode.NOT_A_UTILITY),
    ],
)
def test_invalid_feedback_is_rejected_and_changes_nothing(
    subscriber: str, averages: dict[PublisherId, float], code: FeedbackCode
) -> None:
    edge = edge_of()
    edge.accept(UtilityFeedback(S1, T, {P1: 0.9}))
    rejection = edge.accept(UtilityFeedback(SubscriberId(subscriber), T, averages))
    assert rejection is not None
    assert rejection.code is code
    assert utilities(edge) == {P1: 0.9}


def test_flood_of_feedback_counts_once() -> None:
    edge = edge_of()
    for number in range(9):
        edge.accept(UtilityFeedback(SubscriberId(f"honest{number}"), T, {P1: 0.9}))
    for _ in range(1_000):
        edge.accept(UtilityFeedback(SubscriberId("attacker"), T, {P1: 0.0}))
    assert utilities(edge) == pytest.approx({P1: 0.81})


def test_weight_of_one_subscriber_is_capped() -> None:
    edge = edge_of(weights={SubscriberId("s9"): 1e6, SubscriberId("s8"): math.nan})
    for number in range(8):
        edge.accept(UtilityFeedback(SubscriberId(f"s{number}"), T, {P1: 0.1}))
    edge.accept(UtilityFeedback(SubscriberId("s9"), T, {P1: 1.0}))
    edge.accept(UtilityFeedback(SubscriberId("s8"), T, {P1: 1.0}))
    assert utilities(edge) == pytest.approx({P1: (0.8 + MOST_WEIGHT) / 10})


def test_poisoned_alarm_keeps_its_protected_rate() -> None:
    """Attackers outnumber honest subscribers, rate an alarm 0 and a flood 1; the alarm still has its guarantee."""
    edge, alarm, flood = edge_of(), P1, P2
    edge.accept(UtilityFeedback(SubscriberId("honest"), T, {alarm: 1.0, flood: 0.0}))
    for number in range(200):
        edge.accept(UtilityFeedback(SubscriberId(f"attacker{number}"), T, {alarm: 0.0, flood: 1.0}))
    head = HeadUtility()
    head.receive(BrokerId("e"), edge.take())
    head.close_second()
    copies = {BrokerId("e"): 10}
    topics = (
        TopicView(TopicName("alarm"), 10.0, 10, copies, (PublisherView(alarm, 4.0, head.utility(alarm)),), 5.0),
        TopicView(TopicName("flood"), 10.0, 10, copies, (PublisherView(flood, 900.0, head.utility(flood)),)),
    )
    capacity = {BrokerId("e"): Load(1e6, 10_000.0, 1e6)}
    limits = plan(CongestionSnapshot(1, capacity, topics, True)).limits
    assert limits[alarm] >= 4.0
    assert limits[flood] < 100.0
    unprotected = (topics[0]._replace(protected_per_s=0.0), topics[1])
    assert plan(CongestionSnapshot(1, capacity, unprotected, True)).limits[alarm] < 4.0, "what the attack would do"
