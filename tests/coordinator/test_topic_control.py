"""The control loop of topics: it plans with the homes' reports and starts the moves."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.coordinator.bench import B1, B2, B3
from tests.coordinator.test_topics import RULES, STATE, T, TopicBench
from tocsin.coordinator.rules import TopicLoop
from tocsin.coordinator.topic_records import TopicRecord
from tocsin.coordinator.topic_views import topic_entry
from tocsin.coords.coordinate import DIMENSIONS, Coordinate
from tocsin.model.ids import BrokerId, TopicName
from tocsin.policies.topics.types import TopicMoveReason
from tocsin.wire.coordinates import CoordinateReport
from tocsin.wire.topic_link import (
    PrepareTopic,
    ReportTopics,
    TopicLatency,
    TopicOpened,
    TopicPrepared,
    TopicStopped,
)

ON = replace(RULES, topic_balancing=True, topic_balance_s=5.0, topic_output_per_s=1_000.0)


def at(ms: float) -> Coordinate:
    """A coordinate this many milliseconds of round trip from the first broker."""
    return Coordinate((ms / 1_000.0,) + (0.0,) * (DIMENSIONS - 1), error=0.1)


class ControlBench(TopicBench):
    """Three brokers at 0, 40 and 80 ms of round trip from the first."""

    def __init__(self, loop: TopicLoop = TopicLoop.TOCSIN, **rules: float) -> None:
        super().__init__(B1, B2, B3, rules=replace(ON, topic_loop=loop, **rules))  # type: ignore[arg-type]
        for broker, ms in ((B1, 0.0), (B2, 40.0), (B3, 80.0)):
            self.registry.brokers[broker].measures = True
            self.send(broker, CoordinateReport(at(ms)))

    def report(self, record: TopicRecord, clients_ms: float, worst_ms: float, out_per_s: float = 10.0) -> None:
        assert record.home is not None
        place = at(clients_ms)
        figures = (worst_ms / 1_000.0, 1, 10, place, place, 0.0, out_per_s / 10, out_per_s)
        self.send(record.home, TopicLatency(record.name, record.epoch, *figures))

    def move_of(self, record: TopicRecord) -> tuple[BrokerId, str] | None:
        return None if record.move is None else (record.move.target, record.move.reason)


def test_topic_above_its_bound_moves_to_the_broker_near_its_clients() -> None:
    bench = ControlBench()
    record = bench.made()
    bench.report(record, clients_ms=80.0, worst_ms=80.0)
    bench.pass_time(6.0)
    assert bench.move_of(record) == (B3, "80 ms at b1, 0 ms expected, bound 40 ms")
    assert bench.sent(B3, PrepareTopic) or record.move is not None
    assert [departure.reason for departure in record.departures] == [TopicMoveReason.LATENCY]


def test_topic_within_its_bound_stays() -> None:
    bench = ControlBench()
    record = bench.made()
    bench.report(record, clients_ms=0.0, worst_ms=5.0)
    bench.pass_time(11.0)
    assert bench.move_of(record) is None


def test_topic_that_no_broker_can_serve_in_time_says_so() -> None:
    bench = ControlBench()
    record = bench.made()
    bench.report(record, clients_ms=-200.0, worst_ms=200.0)
    bench.pass_time(6.0)
    assert bench.move_of(record) is None
    entry = topic_entry(bench.registry, record, latency=True)
    assert entry.shortfall == ("no broker is near enough to its clients (b1 could reach 200 ms, the bound is 40 ms)")


def test_overloaded_home_is_relieved_within_two_periods() -> None:
    bench = ControlBench()
    records = [bench.made(TopicName(f"game/{number}")) for number in range(6)]
    homed = [record for record in records if record.home == B1]
    assert len(homed) == 2
    for record in homed:
        bench.report(record, clients_ms=20.0, worst_ms=20.0, out_per_s=700.0)
    bench.pass_time(10.0)
    moves = [bench.move_of(record) for record in homed]
    assert [move for move in moves if move is not None] == [(B2, "b1 sends more than 1,000 messages/s")]


@pytest.mark.parametrize(("loop", "moves"), [(TopicLoop.TOCSIN, True), (TopicLoop.PAPER, False)])
def test_only_the_own_loop_keeps_a_share_of_the_bound_free(loop: TopicLoop, moves: bool) -> None:
    bench = ControlBench(loop)
    record = bench.made()
    bench.report(record, clients_ms=80.0, worst_ms=39.0)
    bench.pass_time(9.0)
    assert (record.move is not None) is moves


def test_loop_that_is_off_moves_nothing() -> None:
    bench = ControlBench(topic_balancing=False)
    record = bench.made()
    bench.report(record, clients_ms=80.0, worst_ms=80.0)
    bench.pass_time(6.0)
    assert record.move is None


def test_report_of_a_former_home_is_ignored() -> None:
    bench = ControlBench()
    record = bench.made()
    bench.send(B2, TopicLatency(T, record.epoch, 0.08, 1, 1, at(80.0), at(80.0)))
    bench.pass_time(6.0)
    assert record.latency is None and record.move is None


def test_topic_that_has_lost_its_home_is_not_planned() -> None:
    bench = ControlBench()
    record = bench.made()
    bench.report(record, clients_ms=80.0, worst_ms=80.0)
    bench.live.clear()
    bench.pass_time(30.0)
    assert record.home is None and record.move is None


def test_own_loop_asks_the_homes_a_moment_before_it_plans() -> None:
    bench = ControlBench()
    record = bench.made()
    assert record.home == B1
    bench.pass_time(5.5)
    assert bench.sent(B1, ReportTopics) == [ReportTopics()]
    assert bench.sent(B2, ReportTopics) == []
    bench.report(record, clients_ms=80.0, worst_ms=80.0)
    bench.pass_time(0.5)
    assert record.move is not None


def test_loop_of_the_paper_starts_moves_half_a_period_after_the_plan() -> None:
    bench = ControlBench(TopicLoop.PAPER)
    record = bench.made()
    bench.report(record, clients_ms=80.0, worst_ms=80.0)
    bench.pass_time(6.0)
    assert record.move is None
    bench.pass_time(2.5)
    assert record.move is not None


def test_topic_that_just_moved_counts_at_its_new_home() -> None:
    bench = ControlBench()
    records = [bench.made(TopicName(f"game/{number}")) for number in range(6)]
    homed = [record for record in records if record.home == B1]
    for record in homed:
        bench.report(record, clients_ms=20.0, worst_ms=20.0, out_per_s=700.0)
    bench.pass_time(6.0)
    [moving] = [record for record in homed if record.move is not None]
    assert moving.move is not None
    for step in (TopicPrepared(moving.name, moving.move.epoch), TopicStopped(moving.name, moving.epoch, STATE)):
        bench.send(B2 if isinstance(step, TopicPrepared) else B1, step)
    bench.send(B2, TopicOpened(moving.name, moving.epoch))
    assert moving.home == B2
    assert moving.reported is None
    [staying] = [record for record in homed if record is not moving]
    other = next(record for record in records if record.home == B3)
    bench.report(other, clients_ms=40.0, worst_ms=100.0, out_per_s=700.0)
    bench.pass_time(5.5)
    assert bench.move_of(other) is None, "b1 and b2 have no room for 700 messages/s more"
    assert staying.home == B1


def test_move_with_a_target_that_disappeared_does_not_stop_the_others() -> None:
    bench = ControlBench(TopicLoop.PAPER)
    first, second = bench.made(), bench.made(TopicName("game/2"))
    assert (first.home, second.home) == (B1, B2)
    bench.report(first, clients_ms=80.0, worst_ms=80.0)
    bench.report(second, clients_ms=0.0, worst_ms=80.0)
    bench.pass_time(5.5)
    bench.live.remove(B3)
    del bench.registry.brokers[B3]
    bench.pass_time(2.5)
    assert first.move is None
    assert bench.move_of(second) is not None


def test_broker_without_a_coordinate_can_relieve_but_meets_no_bound() -> None:
    bench = ControlBench()
    records = [bench.made(TopicName(f"game/{number}")) for number in range(6)]
    for broker in (B2, B3):
        bench.registry.brokers[broker].coordinate = None
    homed = [record for record in records if record.home == B1]
    far = next(record for record in records if record.home == B2)
    for record in homed:
        record.within_s = None
        bench.report(record, clients_ms=20.0, worst_ms=20.0, out_per_s=700.0)
    bench.report(far, clients_ms=100.0, worst_ms=80.0)
    bench.pass_time(6.0)
    assert [record.move is None for record in homed] == [False, True]
    assert far.move is None


def test_idle_broker_takes_a_topic_whose_output_alone_fits() -> None:
    bench = ControlBench()
    records = [bench.made(TopicName(f"game/{number}")) for number in range(6)]
    homed = [record for record in records if record.home == B1]
    for record in homed:
        place = at(20.0)
        bench.send(B1, TopicLatency(record.name, record.epoch, 0.02, 1, 1, place, place, 0.0, 700.0, 700.0))
    bench.pass_time(6.0)
    assert [record.move is None for record in homed] == [False, True]
