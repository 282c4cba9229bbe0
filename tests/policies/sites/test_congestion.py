"""Congestion control: equations 1–8 by hand, rate classes, selection of topics, recovery, and invariants."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tocsin.model.ids import BrokerId, SubscriberId
from tocsin.policies.sites.congestion import (
    DEFAULT_PARAMS,
    CongestionParams,
    CongestionPlan,
    CongestionSnapshot,
    PublisherView,
    TopicView,
    average,
    by_keywords,
    class_rate,
    fits_without_limits,
    importance,
    mean_experience,
    plan,
    publisher_utility,
    rated,
    topic_utility,
)
from tocsin.policies.sites.types import PublisherId
from tocsin.policies.topics.types import TopicName

S1, S2 = SubscriberId("s1"), SubscriberId("s2")
P1, P2 = PublisherId("p1"), PublisherId("p2")
E, H = BrokerId("e"), BrokerId("h")

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


@pytest.mark.parametrize(
    ("utility", "rate"),
    [(0.0, 0.1), (0.01, 10), (0.19, 10), (0.2, 200), (0.4, 500), (0.6, 900), (0.8, 2000), (1.0, 2000)],
)
def test_each_class_of_utility_has_its_rate(utility: float, rate: float) -> None:
    assert class_rate(utility) == rate


def test_class_changes_only_beyond_the_margin() -> None:
    assert class_rate(0.39, limit_per_s=500.0) == 500.0
    assert class_rate(0.37, limit_per_s=500.0) == 200.0
    assert class_rate(0.41, limit_per_s=200.0) == 200.0
    assert class_rate(0.005, CongestionParams(useless_below=0.0)) == 10.0, "the thesis' own lowest class"


# Selection.


def topic(name: str, *publishers: tuple[float, float], subscribers: int = 1, size: float = 1.0) -> TopicView:
    """Publishers as (offered per second, utility)."""
    views = tuple(PublisherView(PublisherId(f"{name}-{n}"), *pair) for n, pair in enumerate(publishers))
    return TopicView(TopicName(name), size, subscribers, {E: subscribers, H: 1}, views)


def congested(*topics: TopicView, edge: float = 100.0, head: float = 1e9, limited: bool = True) -> CongestionSnapshot:
    return CongestionSnapshot(1, {E: edge, H: head}, topics, limited)


def test_no_publisher_is_limited_while_another_broker_can_help() -> None:
    assert plan(congested(topic("t", (1_000, 0.9)), limited=False)).limits == {}


def test_more_important_topic_is_selected_and_the_other_stopped() -> None:
    decided = plan(congested(topic("poor", (90, 0.3)), topic("rich", (90, 0.9))))
    assert decided.selected == ("rich",)
    assert decided.stopped == ("poor",)
    assert decided.limits == {"rich-0": 2000.0, "poor-0": 0.0}


def test_importance_is_relative_to_required_bandwidth() -> None:
    decided = plan(congested(topic("large", (90, 0.9)), topic("small", (20, 0.5))))
    assert decided.selected == ("small",), "less useful, but far more useful per byte"


def test_marginal_topic_keeps_its_most_useful_publishers() -> None:
    decided = plan(congested(topic("t", (60, 0.5), (60, 0.9), (30, 0.7))))
    assert decided.marginal == ("t",)
    assert decided.limits == {"t-0": 0.0, "t-1": 2000.0, "t-2": 900.0}


def test_topic_needs_room_at_every_broker_that_sends_it() -> None:
    wide = topic("t", (80, 0.9), subscribers=1)
    assert plan(congested(wide, topic("u", (80, 0.8)), head=1e9)).selected == ("t",)
    assert plan(congested(wide, edge=1_000.0, head=50.0)).stopped == ("t",)


def test_useless_publisher_may_send_enough_to_be_rated_again() -> None:
    decided = plan(congested(topic("t", (500, 0.0), (90, 0.9))))
    assert decided.limits["t-0"] == 0.1  # type: ignore[index]


def test_limits_are_lifted_when_all_offered_messages_fit() -> None:
    topics = topic("t", (50, 0.9)), topic("u", (39, 0.1))
    assert fits_without_limits(congested(*topics))
    assert plan(congested(*topics)).limits == {}
    assert plan(congested(*topics, edge=98.0)).limits, "89 of 98 is above the low threshold"


def test_topics_return_as_bandwidth_returns() -> None:
    topics = [topic(f"t{n}", (30, 0.9 - n / 10)) for n in range(4)]
    published = [len(plan(congested(*topics, edge=room)).selected) for room in (40.0, 70.0, 110.0, 130.0, 200.0)]
    assert published == [1, 2, 3, 4, 4]
    assert plan(congested(*topics, edge=130.0)).limits, "all topics are published, at the rates of their classes"
    assert not plan(congested(*topics, edge=200.0)).limits


def test_published_topic_does_not_alternate_with_an_equal_one() -> None:
    def view(name: str, limit: float, utility: float) -> TopicView:
        return topic(name)._replace(publishers=(PublisherView(PublisherId(f"{name}-0"), 90, utility, limit),))

    assert plan(congested(view("a", 0.0, 0.52), view("b", 500.0, 0.5))).selected == ("b",)
    assert plan(congested(view("a", 0.0, 0.58), view("b", 500.0, 0.5))).selected == ("a",)


utilities = st.floats(0.0, 1.0)


@st.composite
def snapshots(draw: st.DrawFn) -> CongestionSnapshot:
    brokers = [BrokerId(f"e{n}") for n in range(draw(st.integers(1, 3)))]
    topics = []
    for number in range(draw(st.integers(0, 12))):
        edges = draw(st.lists(st.sampled_from(brokers), min_size=1, max_size=2, unique=True))
        copies = {edge: draw(st.integers(1, 5)) for edge in edges} | {H: len(edges)}
        views = tuple(
            PublisherView(PublisherId(f"p{number}-{n}"), draw(st.floats(0.0, 300.0)), draw(utilities), limit)
            for n, limit in enumerate(draw(st.lists(st.sampled_from([None, 0.0, 10.0, 500.0]), max_size=4)))
        )
        topics.append(TopicView(TopicName(f"t{number}"), 10.0, sum(copies.values()), copies, views))
    rooms = {broker: draw(st.floats(0.0, 20_000.0)) for broker in [*brokers, H]}
    return CongestionSnapshot(1, rooms, tuple(topics), True)


def sent(snapshot: CongestionSnapshot, decided: CongestionPlan) -> dict[BrokerId, float]:
    totals = dict.fromkeys(snapshot.out_bytes_per_s, 0.0)
    for topic in snapshot.topics:
        rate = sum(min(view.offered_per_s, decided.limits.get(view.publisher, math.inf)) for view in topic.publishers)
        for broker, copies in topic.copies.items():
            totals[broker] += copies * rate * topic.size_bytes
    return totals


@settings(max_examples=150)
@given(snapshots())
def test_no_broker_exceeds_its_limit_and_each_topic_has_one_outcome(snapshot: CongestionSnapshot) -> None:
    decided = plan(snapshot)
    high = DEFAULT_PARAMS.thresholds.high
    assert all(
        amount <= high * snapshot.out_bytes_per_s[broker] + 1e-3 for broker, amount in sent(snapshot, decided).items()
    )
    assert sorted([*decided.selected, *decided.marginal, *decided.stopped]) == sorted(
        topic.topic for topic in snapshot.topics
    )


@settings(max_examples=100)
@given(snapshots())
def test_no_publisher_is_stopped_in_favour_of_a_less_useful_larger_one(snapshot: CongestionSnapshot) -> None:
    decided = plan(snapshot)
    if not decided.limits:
        return
    for topic in snapshot.topics:
        rates = {
            view.publisher: min(view.offered_per_s, class_rate(view.utility, DEFAULT_PARAMS, view.limit_per_s))
            for view in topic.publishers
        }
        for stopped in (view for view in topic.publishers if decided.limits[view.publisher] == 0.0):
            for other in (view for view in topic.publishers if decided.limits[view.publisher] > 0.0):
                assert stopped.utility <= other.utility or rates[stopped.publisher] > rates[other.publisher]


@settings(max_examples=60)
@given(snapshots())
def test_limits_settle_on_unchanged_feedback(snapshot: CongestionSnapshot) -> None:
    """A published topic counts as a little more important, so the second plan may differ; later plans do not."""
    seen = []
    for _ in range(6):
        decided = plan(snapshot)
        if not decided.limits:
            return
        seen.append(dict(decided.limits))
        topics = tuple(
            topic._replace(
                publishers=tuple(view._replace(limit_per_s=decided.limits[view.publisher]) for view in topic.publishers)
            )
            for topic in snapshot.topics
        )
        snapshot = CongestionSnapshot(snapshot.generation + 1, snapshot.out_bytes_per_s, topics, True)
    assert seen[-1] == seen[-2]
