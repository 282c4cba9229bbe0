"""A publisher's limits and a receiver's ratings in the topic session."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.client.test_topic_session import SessionBench, T
from tocsin.client import topic_events as events
from tocsin.client.topic_events import TopicMessage
from tocsin.client.topic_limits import PublishLimits
from tocsin.client.topic_rating import Rater, keyword_utility
from tocsin.client.topic_session import TopicSession
from tocsin.model.ids import BrokerId, TopicName
from tocsin.model.topic import Position
from tocsin.wire import topic as wire
from tocsin.wire.topic_directory import TopicEntry

HOME = "ws://one"


class LimitedBench(SessionBench):
    def __init__(self, rater: Rater | None = None) -> None:
        super().__init__()
        self.session = TopicSession(7, lambda: 0.0, rater=rater)

    def attach_sender(self) -> None:
        self.do(events.PublishRequested(1, T, b"x"))
        self.learn(HOME)
        self.hear(HOME, wire.SenderAttached(self.take(wire.AttachSender)[-1].id, 3, 1))
        self.hear(HOME, wire.Acknowledged(3, 1))


def message(publisher: int, data: bytes = b"x", number: int = 1) -> TopicMessage:
    return TopicMessage(T, data, Position(1, number), publisher, number)


def test_limit_of_the_home_reaches_the_application_once() -> None:
    bench = LimitedBench()
    bench.attach_sender()
    for per_s in (10.0, 10.0, None):
        bench.hear(HOME, wire.Limit(3, per_s))
    assert bench.take(events.LimitChanged) == [events.LimitChanged(T, 10.0), events.LimitChanged(T, None)]


def test_limited_sender_reports_what_the_application_offers() -> None:
    bench = LimitedBench()
    bench.attach_sender()
    bench.hear(HOME, wire.Limit(3, 10.0))
    limits = bench.session.limits
    admitted = 0
    for _ in range(40):
        bench.pass_time(0.1)
        for _ in range(5):
            admitted += limits.may_publish(T, bench.now_s) and limits.admit(T, bench.now_s)
    assert admitted == pytest.approx(50, abs=2), "ten at once, then ten a second"
    offered = [report.per_s for report in bench.take(wire.Offered)]
    assert offered == pytest.approx([50.0] * len(offered), rel=0.2) and len(offered) >= 3


def test_limit_ends_with_a_home_that_does_not_repeat_it() -> None:
    bench = LimitedBench()
    bench.attach_sender()
    bench.hear(HOME, wire.Limit(3, 0.0))
    assert not bench.session.limits.may_publish(T, bench.now_s)
    bench.do(events.ConnectionLost(max(bench.addresses), "test"))
    bench.pass_time(2.0)
    bench.hear(HOME, wire.SenderAttached(bench.take(wire.AttachSender)[-1].id, 3, 2))
    assert bench.session.limits.may_publish(T, bench.now_s)


def test_topic_without_a_limit_is_neither_counted_nor_reported() -> None:
    limits = PublishLimits()
    assert limits.may_publish(T, 1.0) and limits.admit(T, 1.0)
    assert limits.take_offered(10.0) == {} and limits.rate_per_s(T) is None


def test_receiver_sends_its_average_ratings_once_a_second() -> None:
    bench = LimitedBench(Rater(lambda received: 1.0 if received.data == b"good" else 0.0))
    bench.do(events.SubscribeRequested(1, "a/+"))
    bench.learn(HOME)
    bench.attach_receiver(HOME)
    bench.pass_time(1.0)
    bench.hear(HOME, wire.Messages(3, 1, 1, [(5, 1, b"good"), (5, 2, b"bad"), (6, 1, b"good")]))
    bench.pass_time(3.0)
    assert bench.take(wire.Feedback) == [wire.Feedback(3, {5: 0.5, 6: 1.0}, may_skip=True)]


@pytest.mark.parametrize(
    ("definition", "may_skip", "tolerates_s"),
    [
        ({}, True, None),
        ({"delay_s": 2.0, "within_s": 0.1}, True, 2.0),
        ({"within_s": 0.1}, True, 0.1),
        ({"persistent": True, "delay_s": 2.0}, False, None),
    ],
)
def test_slow_receiver_may_skip_messages_of_volatile_topics_only(
    definition: dict[str, Any], may_skip: bool, tolerates_s: float | None
) -> None:
    rater = Rater(lambda received: 1.0)
    rater.learn(TopicEntry(T, 1, 1, BrokerId("b"), HOME, **definition))
    assert rater.feedback(T, 3, {5: 1.0}) == wire.Feedback(3, {5: 1.0}, may_skip, tolerates_s)
    unknown = rater.feedback(TopicName("a/other"), 4, {5: 1.0})
    assert not unknown.may_skip


def test_keywords_rate_messages_by_equation_eight() -> None:
    utility = keyword_utility(["fire", "flood"])
    assert utility(message(5, json.dumps({"keywords": ["fire"], "text": "…"}).encode())) == 0.5
    assert utility(message(5, json.dumps({"keywords": ["fire", "flood", "a", "b"]}).encode())) == 0.5
    assert utility(message(5, b"no object")) is None
    assert utility(message(5, b"{}")) is None


def test_ratings_of_the_application_are_clipped() -> None:
    rater = Rater(lambda received: {b"high": 7.0, b"low": -1.0, b"nan": float("nan")}.get(received.data))
    rater.rate([message(1, b"high"), message(2, b"low"), message(3, b"nan"), message(4, b"none"), message(-5, b"high")])
    assert rater.take(10.0) == {T: {1: 1.0, 2: 0.0, 3: 0.0}}
