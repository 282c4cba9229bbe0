"""Congestion control: rate classes, budgets, selection of topics, fair shares, protection, recovery, invariants."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tocsin.model.ids import BrokerId
from tocsin.policies.sites.budget import Columns
from tocsin.policies.sites.congestion import fits_without_limits, plan
from tocsin.policies.sites.congestion_types import (
    DEFAULT_PARAMS,
    CongestionParams,
    CongestionPlan,
    CongestionSnapshot,
    PublisherView,
    TopicView,
    class_rate,
    utility_of,
)
from tocsin.policies.sites.types import Load, Metric, PublisherId
from tocsin.policies.topics.types import TopicName

E, H = BrokerId("e"), BrokerId("h")

# Classes.


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
    copies = {E: subscribers, H: 1} if subscribers else {H: 0}
    return TopicView(TopicName(name), size, subscribers, copies, views)


def congested(
    *topics: TopicView,
    edge: float = 100.0,
    head: float = 1e9,
    limited: bool = True,
    matching: float = 1e9,
    received: float = 1e9,
) -> CongestionSnapshot:
    """An edge that sends `edge` bytes/s, receives `received` and matches `matching` messages/s."""
    capacity = {E: Load(received, edge, matching), H: Load(head, head, math.inf)}
    return CongestionSnapshot(1, capacity, topics, limited)


def limits_of(decided: CongestionPlan) -> dict[str, float]:
    return {str(publisher): limit for publisher, limit in decided.limits.items()}


def test_no_publisher_is_limited_while_another_broker_can_help() -> None:
    assert plan(congested(topic("t", (1_000, 0.9)), limited=False)).limits == {}


def test_more_important_topic_is_selected_and_the_other_gets_the_rest() -> None:
    decided = plan(congested(topic("poor", (90, 0.3)), topic("rich", (90, 0.9))))
    assert decided.selected == ("rich",)
    assert decided.marginal == ("poor",)
    assert limits_of(decided) == pytest.approx({"rich-0": 2000.0, "poor-0": 5.0})


def test_importance_is_relative_to_required_bandwidth() -> None:
    decided = plan(congested(topic("large", (90, 0.9)), topic("small", (20, 0.5))))
    assert decided.selected == ("small",), "less useful, but far more useful per byte"


def test_marginal_topic_keeps_its_most_useful_publishers() -> None:
    decided = plan(congested(topic("t", (60, 0.5), (60, 0.9), (30, 0.7))))
    assert decided.marginal == ("t",)
    assert limits_of(decided) == pytest.approx({"t-0": 5.0, "t-1": 2000.0, "t-2": 900.0})


def test_topic_needs_room_at_every_broker_that_sends_it() -> None:
    wide = topic("t", (80, 0.9), subscribers=1)
    assert plan(congested(wide, topic("u", (80, 0.8)), head=1e9)).selected == ("t",)
    narrow = plan(congested(wide, edge=1_000.0, head=50.0))
    assert narrow.marginal == ("t",)
    assert limits_of(narrow) == pytest.approx({"t-0": 0.95 * 50})


def test_useless_publisher_may_send_enough_to_be_rated_again() -> None:
    decided = plan(congested(topic("t", (500, 0.0), (90, 0.9))))
    assert limits_of(decided)["t-0"] == 0.1


# Every budget, and publishers without subscribers.


@pytest.mark.parametrize("scarce", ["matching", "received"])
def test_broker_short_of_matching_or_input_limits_publishers(scarce: str) -> None:
    topics = [topic(f"t{n}", (50, 0.3 + n / 5), subscribers=4) for n in range(3)]
    snapshot = congested(*topics, edge=1e9, **{scarce: 100.0})  # type: ignore[arg-type]
    decided = plan(snapshot)
    assert decided.selected == ("t2",)
    assert sum(min(50.0, limit) for limit in decided.limits.values()) == pytest.approx(95.0)


def test_publishers_without_subscribers_stop_before_useful_ones() -> None:
    """The head is overloaded by input that no edge receives: useful publishers keep their rates."""
    unheard = topic("unheard", (500, 0.9), (500, 0.2), subscribers=0)
    decided = plan(congested(unheard, topic("t", (60, 0.3)), head=100.0))
    assert limits_of(decided) == {"unheard-0": 0.0, "unheard-1": 0.0}
    assert decided.stopped == ("unheard",)
    assert decided.selected == ("t",)


def test_publishers_without_subscribers_stay_stopped_in_deeper_congestion() -> None:
    decided = plan(congested(topic("unheard", (50, 0.9), subscribers=0), topic("t", (160, 0.9)), head=100.0))
    assert limits_of(decided) == pytest.approx({"unheard-0": 0.0, "t-0": 95.0})


# Importance and the audience.


@pytest.mark.parametrize(("resource", "first"), [(None, "few"), (Metric.MATCHING, "many")])
def test_audience_counts_only_if_the_resource_excludes_fan_out(resource: Metric | None, first: str) -> None:
    """Equation 4: with output as R, S(t) cancels, so the slightly more useful topic wins over eighty subscribers."""
    topics = topic("few", (10, 0.55)), topic("many", (10, 0.50), subscribers=80)
    decided = plan(congested(*topics, edge=845.0), CongestionParams(resource=resource, stickiness=0.0))
    assert decided.selected == (first,)


def test_scarce_matching_prefers_the_larger_audience() -> None:
    topics = topic("few", (60, 0.55)), topic("many", (60, 0.50), subscribers=80)
    assert plan(congested(*topics, edge=1e9, matching=100.0)).selected == ("many",)


# Work conservation.


def test_class_rate_is_a_floor_where_capacity_is_left() -> None:
    """An overload of a fifth of the offered load cuts a fifth. Ceilings cut 45 %."""
    topics = [topic(f"t{n}", (100, utility)) for n, utility in enumerate((0.1, 0.1, 0.5, 0.5))]
    snapshot = congested(*topics, edge=316.0 / 0.95)
    limits = limits_of(plan(snapshot))
    assert limits == pytest.approx({"t0-0": 58.0, "t1-0": 58.0, "t2-0": 500.0, "t3-0": 500.0}), "10, and half of 96"
    ceilings = limits_of(plan(snapshot, CongestionParams(shares_the_rest=False)))
    passed = [sum(min(100.0, limit) for limit in of.values()) / 400.0 for of in (limits, ceilings)]
    assert passed == pytest.approx([0.79, 0.55])


def test_rest_is_divided_by_utility_above_the_floors() -> None:
    low = CongestionParams(class_rates_per_s=(10.0,) * 5)
    decided = plan(congested(topic("a", (100, 0.2)), topic("b", (100, 0.6)), edge=100.0), low)
    assert limits_of(decided) == pytest.approx({"a-0": 10 + 75 / 4, "b-0": 10 + 75 * 3 / 4})


# Protection.


def test_protected_topic_keeps_its_rate_whatever_its_utility() -> None:
    alarm = topic("alarm", (8, 0.0), (1, 0.0))._replace(protected_per_s=6.0)
    decided = plan(congested(alarm, topic("t", (500, 0.9))))
    assert decided.limits[PublisherId("alarm-0")] >= 5.0
    assert decided.limits[PublisherId("alarm-1")] >= 1.0


def test_quiet_alarm_may_fire_before_the_next_plan() -> None:
    alarm = topic("alarm", (0.0, 0.0))._replace(protected_per_s=6.0)
    assert plan(congested(alarm, topic("t", (500, 0.9)))).limits[PublisherId("alarm-0")] == 6.0
    unheard = topic("alarm", (0.0, 0.0), subscribers=0)._replace(protected_per_s=6.0)
    assert plan(congested(unheard, topic("t", (500, 0.9)))).limits[PublisherId("alarm-0")] == 6.0


def test_unrated_and_new_publishers_are_not_useless() -> None:
    never, young, old = (
        PublisherView(PublisherId(name), 10.0, utility, None, age_s)
        for name, utility, age_s in (("never", None, 900.0), ("young", 0.0, 3.0), ("old", 0.0, 30.0))
    )
    assert [utility_of(view) for view in (never, young, old)] == [0.5, 0.5, 0.0]
    assert utility_of(young._replace(utility=0.9)) == 0.9
    views = topic("t")._replace(publishers=(never, young, old))
    decided = plan(congested(views, topic("u", (500, 0.4))))
    assert limits_of(decided)["never"] == limits_of(decided)["young"] == 500.0
    assert limits_of(decided)["old"] == 0.1


# Recovery.


def limited_to(topic: TopicView, limit: float) -> TopicView:
    return topic._replace(publishers=tuple(view._replace(limit_per_s=limit) for view in topic.publishers))


def test_limits_are_lifted_when_all_offered_messages_fit() -> None:
    topics = limited_to(topic("t", (50, 0.9)), 5.0), limited_to(topic("u", (39, 0.1)), 5.0)
    assert fits_without_limits(congested(*topics))
    assert plan(congested(*topics)).limits == {}
    assert plan(congested(*topics, edge=98.0)).limits, "89 of 98 is above the low threshold"


def test_topics_return_as_bandwidth_returns() -> None:
    topics = [limited_to(topic(f"t{n}", (30, 0.9 - n / 10)), 5.0) for n in range(4)]
    published = [len(plan(congested(*topics, edge=room)).selected) for room in (40.0, 70.0, 110.0, 130.0, 200.0)]
    assert published == [1, 2, 3, 4, 4]
    assert plan(congested(*topics, edge=130.0)).limits, "all topics are published, at the rates of their classes"
    assert not plan(congested(*topics, edge=200.0)).limits


def test_published_topic_does_not_alternate_with_an_equal_one() -> None:
    def view(name: str, limit: float, utility: float) -> TopicView:
        return topic(name)._replace(publishers=(PublisherView(PublisherId(f"{name}-0"), 90, utility, limit),))

    assert plan(congested(view("a", 0.0, 0.52), view("b", 500.0, 0.5))).selected == ("b",)
    assert plan(congested(view("a", 0.0, 0.58), view("b", 500.0, 0.5))).selected == ("a",)


# Invariants.

utilities = st.none() | st.floats(0.0, 1.0)
rooms = st.floats(0.0, 20_000.0)


@st.composite
def snapshots(draw: st.DrawFn) -> CongestionSnapshot:
    brokers = [BrokerId(f"e{n}") for n in range(draw(st.integers(1, 3)))]
    topics = []
    for number in range(draw(st.integers(0, 12))):
        edges = draw(st.lists(st.sampled_from(brokers), max_size=2, unique=True))
        copies = {edge: draw(st.integers(1, 5)) for edge in edges}
        views = tuple(
            PublisherView(PublisherId(f"p{number}-{n}"), draw(st.floats(0.0, 300.0)), draw(utilities), limit)
            for n, limit in enumerate(draw(st.lists(st.sampled_from([None, 0.0, 10.0, 500.0]), max_size=4)))
        )
        name, audience = TopicName(f"t{number}"), sum(copies.values())
        topics.append(TopicView(name, 10.0, audience, copies | {H: len(edges)}, views))
    capacity = {broker: Load(draw(rooms), draw(rooms), draw(st.floats(0.0, 2_000.0))) for broker in brokers}
    head = {H: Load(draw(rooms), draw(rooms), math.inf)}
    return CongestionSnapshot(1, capacity | head, tuple(topics), True)


def passed(view: PublisherView, decided: CongestionPlan) -> float:
    return min(view.offered_per_s, decided.limits.get(view.publisher, math.inf))


def loads(snapshot: CongestionSnapshot, decided: CongestionPlan) -> dict[BrokerId, list[float]]:
    """λ, μ and σ of each broker under the plan."""
    totals = {broker: [0.0, 0.0, 0.0] for broker in snapshot.capacity}
    for topic in snapshot.topics:
        rate = sum(passed(view, decided) for view in topic.publishers)
        for broker, copies in topic.copies.items():
            for metric, cost in enumerate((topic.size_bytes, copies * topic.size_bytes, 1.0)):
                totals[broker][metric] += cost * rate
    return totals


@settings(max_examples=200)
@given(snapshots())
def test_no_budget_is_exceeded_and_each_topic_has_one_outcome(snapshot: CongestionSnapshot) -> None:
    decided = plan(snapshot)
    high = DEFAULT_PARAMS.thresholds.high
    for broker, load in loads(snapshot, decided).items():
        assert all(part <= high * whole + 1e-3 for part, whole in zip(load, snapshot.capacity[broker], strict=True))
    assert sorted([*decided.selected, *decided.marginal, *decided.stopped]) == sorted(
        topic.topic for topic in snapshot.topics
    )


@settings(max_examples=200)
@given(snapshots())
def test_useful_publisher_is_cut_only_if_a_budget_is_full(snapshot: CongestionSnapshot) -> None:
    """Work conservation, but for the margin by which a limit in force may stay lower."""
    decided = plan(snapshot, CongestionParams(limit_margin=0.0))
    high = DEFAULT_PARAMS.thresholds.high
    used = loads(snapshot, decided)
    for topic in (topic for topic in snapshot.topics if topic.subscribers):
        route = [
            part >= high * whole - 0.01
            for broker in topic.copies
            for part, whole in zip(used[broker], snapshot.capacity[broker], strict=True)
        ]
        for view in topic.publishers:
            if utility_of(view) >= DEFAULT_PARAMS.useless_below and passed(view, decided) < view.offered_per_s - 1e-3:
                assert any(route), (view, decided)


@settings(max_examples=100)
@given(snapshots())
def test_publisher_below_its_class_is_not_displaced_by_a_less_useful_one(snapshot: CongestionSnapshot) -> None:
    decided = plan(snapshot)
    if not decided.limits:
        return
    for topic in (topic for topic in snapshot.topics if topic.subscribers):
        floors = {
            view: min(view.offered_per_s, class_rate(utility_of(view), DEFAULT_PARAMS, view.limit_per_s))
            for view in topic.publishers
        }
        displaced = [view for view, floor in floors.items() if passed(view, decided) < 0.9 * floor]
        admitted = [view for view, floor in floors.items() if passed(view, decided) >= floor > 0.0]
        for view in displaced:
            for other in admitted:
                assert utility_of(view) <= utility_of(other) or floors[view] > floors[other]


@settings(max_examples=60)
@given(snapshots())
def test_limits_settle_on_unchanged_feedback(snapshot: CongestionSnapshot) -> None:
    """A selected topic counts as a little more important, so the second plan may differ; later plans do not."""
    seen = []
    for _ in range(6):
        decided = plan(snapshot)
        seen.append(dict(decided.limits))
        topics = tuple(
            topic._replace(
                publishers=tuple(
                    view._replace(limit_per_s=decided.limits.get(view.publisher)) for view in topic.publishers
                )
            )
            for topic in snapshot.topics
        )
        snapshot = CongestionSnapshot(snapshot.generation + 1, snapshot.capacity, topics, True)
    assert seen[-1] == pytest.approx(seen[-2])


def test_columns_leave_out_the_infinite_matching_of_a_head() -> None:
    columns = Columns(congested(topic("t", (10, 0.5), subscribers=3, size=2.0)))
    assert len(columns.whole) == 5
    assert sorted(columns.cost[TopicName("t")].tolist()) == [1.0, 2.0, 2.0, 2.0, 6.0]


def test_limits_below_the_fill_end_when_all_messages_fit_the_lower_threshold() -> None:
    """A plan fills less than TH_low, and the limits still end as soon as TH_low holds."""
    params, capacity = CongestionParams(fill=0.875), {E: Load(math.inf, 100_000.0, math.inf)}

    def made(offered_per_s: float) -> CongestionPlan:
        unheard = TopicView(TopicName("u"), 1_000.0, 0, {E: 0}, (PublisherView(PublisherId("q"), 1.0, None, 0.0),))
        view = PublisherView(PublisherId("p"), offered_per_s, 0.9, 50.0)
        heard = TopicView(TopicName("t"), 1_000.0, 1, {E: 1}, (view,))
        return plan(CongestionSnapshot(1, capacity, (heard, unheard), limited=True), params)

    assert made(92.0).limits[PublisherId("p")] == pytest.approx(87.5)
    assert "p" not in made(89.0).limits
