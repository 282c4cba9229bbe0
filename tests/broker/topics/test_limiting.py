"""Limits of publishers at a home: announced, enforced, counted, and ended."""

from __future__ import annotations

from itertools import count

import pytest

from tests.broker.topics.home_bench import HomeBench, T
from tocsin.broker.topics.events import ConnectionId, LimitsReceived
from tocsin.model.topic import publisher_id
from tocsin.wire import topic as wire
from tocsin.wire.site_link import LimitPublishers, PublisherRate, PublisherRates, ReportPublishers

ANN = publisher_id("ann", 7)
BOB = publisher_id("bob", 7)


class LimitBench(HomeBench):
    def __init__(self) -> None:
        super().__init__(T)
        self._asked = count(1)

    def limit(self, **rates: float) -> None:
        named = [(publisher_id(user, 7), rate) for user, rate in rates.items()]
        self.do(LimitsReceived(LimitPublishers({T: named})))

    def rates(self) -> dict[int, PublisherRate]:
        number = next(self._asked)
        self.do(LimitsReceived(ReportPublishers(number)))
        report = self.reports[-1]
        assert isinstance(report, PublisherRates) and report.number == number
        return {rate.publisher: rate for rate in report.topics.get(T, [])}

    def flood(self, sender: ConnectionId, first: int, seconds: int, per_s: int) -> int:
        """Publish evenly, and keep the lease and the limits alive. Returns the next number."""
        for _ in range(seconds * 20):
            self.pass_time(0.05)
            self.publish(sender, first, *[b"x" * 100] * (per_s // 20))
            first += per_s // 20
        return first


def limits(messages: list[wire.ToClient]) -> list[float | None]:
    return [message.per_s for message in messages if isinstance(message, wire.Limit)]


def test_home_announces_changed_limits_to_the_sender_alone() -> None:
    bench = LimitBench()
    ann, bob = bench.sender(), bench.sender(user="bob")
    bench.take(ann), bench.take(bob)
    bench.limit(ann=10.0)
    bench.limit(ann=10.0)
    bench.limit(ann=5.0)
    bench.limit()
    assert limits(bench.take(ann)) == [10.0, 5.0, None]
    assert limits(bench.take(bob)) == []


def test_sender_that_attaches_learns_its_limit() -> None:
    bench = LimitBench()
    bench.limit(ann=0.0)
    assert limits(bench.take(bench.sender())) == [0.0]


def test_excess_of_a_disobedient_publisher_is_dropped_and_each_message_refused() -> None:
    bench = LimitBench()
    ann, receiver = bench.sender(), bench.receiver()
    bench.take(ann), bench.take(receiver)
    bench.limit(ann=10.0)
    bench.flood(ann, 1, 4, 1_000)
    refused = [message for message in bench.take(ann) if isinstance(message, wire.NotAccepted)]
    delivered = sum(len(message.messages) for message in bench.take(receiver) if isinstance(message, wire.Messages))
    assert delivered + len(refused) == 4_000
    assert len(refused) >= 0.99 * (4_000 - 40)
    assert {message.code for message in refused} == {"limited"}
    assert bench.core.limiting.dropped == len(refused)


def test_limited_publisher_does_not_escape_by_a_new_run() -> None:
    bench = LimitBench()
    ann, receiver = bench.sender(), bench.receiver()
    bench.publish(ann, 1, b"x")
    bench.take(receiver)
    sent = 0
    for second in range(10):
        bench.limit(ann=10.0)  # the coordinator never learns of the later runs in time
        bench.renew()
        for part in range(2):
            runner = bench.sender(run=100 + 2 * second + part)
            bench.flood(runner, 1, 1, 500)
            sent += 500
    delivered = sum(len(message.messages) for message in bench.take(receiver) if isinstance(message, wire.Messages))
    assert delivered <= 20 * 10 + 20, "20 seconds of the limit"
    newcomer = bench.sender(user="bob")
    bench.flood(newcomer, 1, 1, 500)
    assert sum(len(m.messages) for m in bench.take(receiver) if isinstance(m, wire.Messages)) == 500


def test_limit_of_a_new_run_ends_with_the_limits() -> None:
    bench = LimitBench()
    bench.sender()
    bench.limit(ann=10.0)
    later = bench.sender(run=8)
    assert limits(bench.take(later)) == [10.0]
    bench.do(LimitsReceived(LimitPublishers({T: [(ANN, 10.0), (publisher_id("ann", 8), 30.0)]})))
    assert limits(bench.take(later)) == [30.0]
    last = bench.sender(run=9)
    bench.take(last)
    for _ in range(3):
        bench.pass_time(1.0)
        bench.limit(ann=10.0)
    assert limits(bench.take(last)) == [None], "the coordinator has left it without a limit"
    bench.limit()
    assert bench.core.limiting.limits_any is False


def test_obedient_and_unlimited_publishers_lose_nothing() -> None:
    bench = LimitBench()
    ann, bob = bench.sender(), bench.sender(user="bob")
    bench.limit(ann=100.0)
    bench.flood(ann, 1, 2, 100)
    bench.flood(bob, 1, 2, 1_000)
    assert bench.core.limiting.dropped == 0


def test_numbers_continue_behind_dropped_messages() -> None:
    bench = LimitBench()
    ann, receiver = bench.sender(), bench.receiver()
    bench.limit(ann=1.0)
    bench.publish(ann, 1, *[b"early"] * 5)
    bench.limit()
    bench.publish(ann, 6, b"late")
    assert bench.data(receiver)[-1] == b"late"


def test_limits_end_if_the_coordinator_is_silent() -> None:
    bench = LimitBench()
    ann = bench.sender()
    bench.limit(ann=1.0)
    bench.take(ann)
    bench.pass_time(2.0)
    bench.renew()
    bench.pass_time(2.0)
    assert limits(bench.take(ann)) == []
    bench.pass_time(2.0)
    assert limits(bench.take(ann)) == [None]


def test_home_reports_offered_rates_with_dropped_and_discarded_messages() -> None:
    bench = LimitBench()
    assert bench.rates() == {}
    ann, bob = bench.sender(), bench.sender(user="bob")
    bench.flood(bob, 1, 2, 40)
    bench.limit(ann=1.0, bob=1.0)
    at = bench.core.state.topics[T].at
    bench.flood(ann, 1, 3, 200)
    bench.ask(bob, wire.Offered(at, 70.0))
    bench.ask(bob, wire.Offered(at, -1.0))
    rates = bench.rates()
    assert rates[ANN].offered_per_s == pytest.approx(200.0, rel=0.1)
    assert rates[ANN].size_bytes == 100.0
    assert rates[BOB].offered_per_s == 70.0


def test_rate_before_the_limit_counts_until_the_sender_reports() -> None:
    bench = LimitBench()
    bench.rates()
    ann = bench.sender()
    bench.flood(ann, 1, 2, 200)
    bench.limit(ann=1.0)
    for _ in range(3):
        bench.pass_time(1.0)
        bench.limit(ann=1.0)
    assert bench.rates()[ANN].offered_per_s == pytest.approx(200.0, rel=0.1)
    bench.ask(ann, wire.Offered(bench.core.state.topics[T].at, 20.0))
    assert bench.rates()[ANN].offered_per_s == 20.0


def test_sender_that_reports_far_more_than_it_sent_is_not_believed() -> None:
    bench = LimitBench()
    bench.rates()
    ann, bob, at = bench.sender(), bench.sender(user="bob"), bench.core.state.topics[T].at
    bench.ask(ann, wire.Offered(at, 1e6))
    assert ANN not in bench.rates(), "a sender without a limit has nothing to report"
    bench.flood(ann, 1, 2, 100)
    bench.limit(ann=1.0, bob=1.0)
    for _ in range(3):
        bench.pass_time(1.0)
        bench.limit(ann=1.0, bob=1.0)
        bench.ask(ann, wire.Offered(at, 1e6))
        bench.ask(bob, wire.Offered(at, 1e6))
    rates = bench.rates()
    assert rates[ANN].offered_per_s == pytest.approx(200.0, rel=0.1)
    assert rates[BOB].offered_per_s == 10.0


def test_publisher_is_as_old_as_its_first_message() -> None:
    bench = LimitBench()
    bench.rates()
    ann, bob = bench.sender(), bench.sender(user="bob")
    bench.publish(ann, 1, b"x")
    bench.pass_time(1.5)
    bench.publish(bob, 1, b"x")
    bench.pass_time(2.0)
    rates = bench.rates()
    assert rates[ANN].age_s == 86_400.0, "it may have published before the home counted"
    assert rates[BOB].age_s == pytest.approx(2.0)
