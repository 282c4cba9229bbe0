"""Feedback of receivers at a broker: checked, summed once a second, and not to be poisoned."""

from __future__ import annotations

from tests.broker.topics.home_bench import HomeBench, T
from tocsin.broker.topics.events import ConnectionId
from tocsin.model.topic import publisher_id
from tocsin.wire import topic as wire
from tocsin.wire.site_link import Ratings

ANN, BOB = publisher_id("ann", 7), publisher_id("bob", 7)


class RatingBench(HomeBench):
    def __init__(self) -> None:
        super().__init__(T)
        self.ann, self.bob = self.sender(), self.sender(user="bob")
        self.at = self.core.state.topics[T].at
        self.pass_time(1.0)

    def reader(self, user: str) -> ConnectionId:
        connection = self.connect(user)
        self.ask(connection, wire.AttachReceiver(1, T))
        return connection

    def rate(self, connection: ConnectionId, **ratings: float) -> None:
        named = {publisher_id(user, 7): value for user, value in ratings.items()}
        self.ask(connection, wire.Feedback(self.at, named))

    def second(self) -> dict[int, tuple[float, int]]:
        """Publisher → (sum, receivers) of the second that ends."""
        before = len(self.reports)
        self.pass_time(1.0)
        sums = [report for report in self.reports[before:] if isinstance(report, Ratings)]
        return {number: (weighted, many) for each in sums for number, weighted, many in each.topics[T]}


def test_broker_reports_the_sums_of_each_second() -> None:
    bench = RatingBench()
    one, two = bench.reader("one"), bench.reader("two")
    bench.publish(bench.ann, 1, b"x")
    bench.publish(bench.bob, 1, b"x")
    bench.rate(one, ann=0.8, bob=0.1)
    bench.rate(two, ann=0.6)
    assert bench.second() == {ANN: (1.4, 2), BOB: (0.1, 1)}
    assert bench.second() == {}


def test_user_counts_once_with_many_connections_and_messages() -> None:
    bench = RatingBench()
    bench.publish(bench.ann, 1, b"x")
    honest, attackers = bench.reader("honest"), [bench.reader("mallory") for _ in range(50)]
    bench.rate(honest, ann=1.0)
    for attacker in attackers:
        for _ in range(10):
            bench.rate(attacker, ann=0.0)
    assert bench.second() == {ANN: (1.0, 2)}


def test_feedback_that_breaks_a_rule_changes_nothing() -> None:
    bench = RatingBench()
    bench.publish(bench.ann, 1, b"x")
    reader, stranger = bench.reader("one"), bench.connect("two")
    bench.rate(stranger, ann=0.0)
    for ratings in ({"ann": 1.5}, {"ann": float("nan")}, {"ann": -1.0}, {"ann": 0.5, "nobody": 0.5}, {}):
        bench.rate(reader, **ratings)
    bench.ask(reader, wire.Feedback(999, {ANN: 0.0}))
    bench.ask(reader, wire.Feedback(bench.at, dict.fromkeys(range(2_000), 0.0)))
    assert bench.core.rating.rejected == 8
    assert bench.second() == {}


def test_publisher_that_has_not_published_cannot_be_rated() -> None:
    bench = RatingBench()
    reader = bench.reader("one")
    bench.publish(bench.ann, 1, b"x")
    bench.rate(reader, bob=0.0)
    assert bench.core.rating.rejected == 1
    bench.publish(bench.bob, 1, b"x")
    bench.rate(reader, bob=0.0)
    assert bench.second() == {BOB: (0.0, 1)}


def test_feedback_on_a_topic_without_messages_does_not_break_later_ticks() -> None:
    bench = RatingBench()
    reader = bench.reader("mallory")
    bench.rate(reader, ann=0.0)
    assert bench.core.rating.rejected == 1
    bench.pass_time(1.0)
    bench.pass_time(1.0)
    bench.publish(bench.ann, 1, b"x")
    bench.rate(reader, ann=0.5)
    assert bench.second() == {ANN: (0.5, 1)}


def test_publishers_that_have_left_a_busy_topic_are_forgotten() -> None:
    bench = RatingBench()
    reader = bench.reader("one")
    for run in range(1, 301):
        bench.publish(bench.sender(run=run), 1, b"x")
        bench.publish(bench.bob, run, b"x")
        bench.rate(reader, bob=0.5)
        bench.pass_time(1.0)
        bench.renew()
    known = [len(publishers) for publishers in bench.core.rating._publishers.values()]
    assert known and max(known) < 70
