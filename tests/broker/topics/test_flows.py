"""Flows at a home: neighbouring sites receive some flows of a topic, and continue by number wherever they attach."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import count

import msgspec
import pytest

from tests.broker.topics.home_bench import HomeBench, T
from tocsin.broker.topics import effects, events, flow_reports
from tocsin.broker.topics.events import ConnectionId
from tocsin.broker.topics.home_log import HomeLog
from tocsin.model.flow import flow_number, flow_publisher, mark_of
from tocsin.wire import topic as wire
from tocsin.wire import topic_link
from tocsin.wire.errors import Code
from tocsin.wire.site_link import (
    Federate,
    FlowCounts,
    FlowDemand,
    ImportFlows,
    NeighbourAccess,
    PublisherRates,
    ReportPublishers,
    TopicDemand,
)
from tocsin.wire.topic_log import LogPlan

A, B, C = (flow_publisher(site) for site in "ABC")


class SiteBench(HomeBench):
    """The home of a topic at site A. Site B is a neighbour, and site C lies behind B."""

    def __init__(self, *, epoch: int = 1, **limits: int) -> None:
        self.imports: list[effects.StartImport] = []
        self.stopped: list[int] = []
        self.requests = count(100)
        super().__init__(T, epoch=epoch, **limits)
        self.federate()

    def federate(self, *imports: ImportFlows) -> None:
        neighbours = [NeighbourAccess("B", "http://b", "token")]
        self.do(events.FederationReceived(Federate("A", neighbours, list(imports))))

    def order(self, *sources: str, created: int = 1) -> None:
        flows = {"B": list(sources)} if sources else {}
        self.do(events.FederationReceived(ImportFlows(T, created, flows)))

    def carry_out(self, effect: effects.Effect) -> None:
        match effect:
            case effects.StartImport():
                self.imports.append(effect)
            case effects.StopImport(number):
                self.stopped.append(number)

    def neighbour(self, flows: dict[str, int], after: tuple[int, int] | None = None) -> ConnectionId:
        connection = self.connect("site-B")
        self.ask(connection, wire.AttachReceiver(next(self.requests), T, after, flows=flows))
        return connection

    def receive(self, *entries: wire.Entry) -> None:
        self.do(events.ImportReceived(self.imports[-1].number, list(entries)))

    def crossed(self, connection: ConnectionId) -> list[wire.Entry]:
        """The entries that the neighbour got since the last call."""
        taken = [message for message in self.take(connection) if isinstance(message, wire.Messages)]
        return [entry for message in taken for entry in message.messages]


def test_neighbour_gets_the_flow_with_positions_as_numbers() -> None:
    bench = SiteBench()
    sender, neighbour = bench.sender(), bench.neighbour({"A": 0})
    bench.publish(sender, 1, b"x", b"y")
    assert bench.crossed(neighbour) == [(A, flow_number(1, 1), b"x"), (A, flow_number(1, 2), b"y")]


def test_attach_with_too_many_flows_is_refused() -> None:
    bench = SiteBench()
    neighbour = bench.neighbour({f"s{number}": 0 for number in range(1_001)})
    refusal = bench.last(neighbour)
    assert isinstance(refusal, wire.Refused) and refusal.code == Code.TOO_MANY
    assert not bench.core.state.topics[T].flows


def test_attach_with_impossible_numbers_searches_no_messages() -> None:
    class Searched(deque[wire.Entry]):
        searches = 0

        def __reversed__(self) -> Iterator[wire.Entry]:
            type(self).searches += 1
            return super().__reversed__()

    bench = SiteBench()
    bench.publish(bench.sender(), 1, b"x", b"y")
    topic = bench.core.state.topics[T]
    topic.recent = Searched(topic.recent)
    neighbour = bench.neighbour({"A": -1} | {f"s{number}": -number for number in range(1, 999)})
    assert Searched.searches == 0
    assert [entry[2] for entry in bench.crossed(neighbour)] == [b"x", b"y"]


def test_neighbour_continues_behind_its_number_on_a_new_connection() -> None:
    bench = SiteBench()
    sender = bench.sender()
    bench.publish(sender, 1, b"x", b"y", b"z")
    assert bench.crossed(bench.neighbour({"A": flow_number(1, 2)})) == [(A, flow_number(1, 3), b"z")]


def test_neighbour_never_gets_flows_that_it_did_not_name() -> None:
    bench = SiteBench()
    bench.order("B", "C")
    sender, neighbour = bench.sender(), bench.neighbour({"A": 0})
    bench.receive((B, 5, b"of B"), (C, 6, b"of C"))
    bench.publish(sender, 1, b"own")
    assert [entry[2] for entry in bench.crossed(neighbour)] == [b"own"]


def test_new_sequence_of_a_volatile_topic_is_a_mark() -> None:
    bench = SiteBench(epoch=7)
    sender, neighbour = bench.sender(), bench.neighbour({"A": flow_number(3, 40)})
    bench.publish(sender, 1, b"x")
    assert [entry[0] for entry in bench.crossed(neighbour)] == [mark_of(A), A]


def test_messages_that_the_home_has_dropped_are_a_mark() -> None:
    bench = SiteBench(topic_recent_bytes=2)
    sender = bench.sender()
    bench.publish(sender, 1, b"a", b"b", b"c", b"d")
    crossed = bench.crossed(bench.neighbour({"A": flow_number(1, 1)}))
    assert [(entry[0], entry[2]) for entry in crossed] == [(mark_of(A), b""), (A, b"c"), (A, b"d")]


def test_slow_receiver_that_rates_messages_gets_a_gap_for_a_mark() -> None:
    bench = SiteBench()
    bench.order("B")
    receiver = bench.receiver()
    bench.receive((B, 5, b"x"))
    bench.ask(receiver, wire.Feedback(bench.core.state.topics[T].at, {B: 1.0}, may_skip=True))
    bench.take(receiver)
    bench.do(events.ConnectionBlocked(receiver))
    bench.receive((mark_of(B), 0, b""), (B, 7, b"y"))
    bench.do(events.ConnectionDrained(receiver))
    gap, messages = bench.take(receiver)
    assert isinstance(gap, wire.Gap) and (gap.first, gap.last) == (2, 2)
    assert isinstance(messages, wire.Messages) and messages.messages == [(B, 7, b"y")]


def test_home_without_a_site_refuses_flows() -> None:
    bench = HomeBench(T)
    connection = bench.connect()
    bench.ask(connection, wire.AttachReceiver(1, T, flows={"A": 0}))
    refusal = bench.last(connection)
    assert isinstance(refusal, wire.Refused) and refusal.code == Code.NOT_READY


def test_import_delivers_each_number_once_to_receivers_of_this_site() -> None:
    bench = SiteBench()
    receiver = bench.receiver()
    bench.order("B")
    assert bench.imports[-1].sources == ("B",)
    bench.receive((B, 10, b"x"), (B, 11, b"y"))
    bench.receive((B, 11, b"y"), (B, 12, b"z"), (C, 1, b"not ordered"))
    assert bench.data(receiver) == [b"x", b"y", b"z"]
    assert (bench.core.importing.received, bench.core.importing.repeated) == (4, 1)


def test_import_begins_again_behind_the_last_number() -> None:
    bench = SiteBench()
    bench.order("B")
    bench.receive((B, 10, b"x"))
    first = bench.imports[-1].number
    bench.order()
    assert bench.stopped == [first]
    bench.order("B")
    assert bench.core.importing.numbers(bench.imports[-1].number) == {"B": 10}


def test_broken_import_begins_again_after_a_pause() -> None:
    bench = SiteBench()
    bench.order("B")
    bench.do(events.ImportBroken(bench.imports[-1].number, "reset"))
    assert len(bench.imports) == 1
    bench.pass_time(0.3)
    assert len(bench.imports) == 2


def test_import_that_ended_begins_when_the_log_has_room() -> None:
    bench = SiteBench(topic_uncommitted_bytes=100)
    bench.order("B")
    topic = bench.core.state.topics[T]
    topic.log = HomeLog(LogPlan(1, [], 1, 1 << 30), uncommitted_bytes=51)
    bench.do(events.ImportBroken(bench.imports[-1].number, "full"))
    bench.pass_time(1.0)
    assert len(bench.imports) == 1
    topic.log.uncommitted_bytes = 50
    bench.pass_time(0.3)
    assert len(bench.imports) == 2


def test_mark_of_a_known_flow_is_a_gap_for_receivers() -> None:
    bench = SiteBench()
    receiver = bench.receiver()
    bench.order("B")
    bench.receive((mark_of(B), 0, b""), (B, 10, b"x"), (mark_of(B), 0, b""), (B, 20, b"y"))
    got = [message for message in bench.take(receiver) if not isinstance(message, wire.ReceiverAttached)]
    assert [type(message) for message in got] == [wire.Messages, wire.Gap, wire.Messages]
    assert isinstance(got[1], wire.Gap) and (got[1].first, got[1].last) == (2, 2)


def test_mark_behind_the_last_number_reaches_a_neighbour_that_attaches_later() -> None:
    bench = SiteBench()
    bench.order("B")
    bench.receive((B, 10, b"x"), (mark_of(B), 0, b""))
    neighbour = bench.neighbour({"B": 10})  # its home has changed: it has no position of this site
    assert bench.crossed(neighbour) == [(mark_of(B), 0, b"")]
    bench.receive((B, 14, b"y"))
    assert bench.crossed(neighbour) == [(B, 14, b"y")]


def test_mark_in_front_of_what_a_neighbour_has_is_not_repeated() -> None:
    bench = SiteBench()
    bench.order("B")
    bench.receive((B, 9, b"w"), (mark_of(B), 0, b""), (B, 12, b"x"))
    neighbour = bench.neighbour({"B": 12})
    bench.receive((B, 13, b"y"))
    assert bench.crossed(neighbour) == [(B, 13, b"y")]


def test_too_large_message_is_a_gap_also_as_the_first_one() -> None:
    bench = SiteBench(topic_message_bytes=4)
    receiver = bench.receiver()
    bench.order("B")
    bench.receive((B, 10, b"large"), (B, 11, b"y"))
    got = [message for message in bench.take(receiver) if not isinstance(message, wire.ReceiverAttached)]
    assert [type(message) for message in got] == [wire.Gap, wire.Messages]


def test_message_that_is_too_large_crosses_once() -> None:
    bench = SiteBench(topic_message_bytes=4)
    bench.order("B")
    bench.receive((B, 9, b"x"), (B, 10, b"large"))
    assert bench.core.importing.numbers(bench.imports[-1].number) == {"B": 10}


def test_imported_flow_keeps_its_numbers_on_the_way_on() -> None:
    bench = SiteBench()
    bench.order("B")
    neighbour = bench.neighbour({"B": 10})
    bench.receive((B, 9, b"w"), (B, 10, b"x"), (B, 11, b"y"))
    assert bench.crossed(neighbour) == [(B, 11, b"y")]


def test_home_reports_demand_of_its_site_alone() -> None:
    bench = SiteBench()
    bench.neighbour({"A": 0})
    bench.order("B")
    bench.receive((B, 10, b"x"))
    bench.pass_time(0.3)
    demands = [report.topics for report in bench.reports if isinstance(report, FlowDemand)]
    assert demands == [[TopicDemand(T, 1, False, False)]]
    bench.sender()
    bench.receiver()
    bench.pass_time(0.3)
    demands = [report.topics for report in bench.reports if isinstance(report, FlowDemand)]
    assert demands[-1] == [TopicDemand(T, 1, True, True)]


def test_home_reports_demand_again_when_a_topic_returns() -> None:
    bench = SiteBench()
    bench.receiver()
    bench.pass_time(0.3)
    bench.hear(topic_link.ReleaseTopic(T, 1))
    bench.pass_time(0.3)
    bench.hear(topic_link.OwnTopics([topic_link.OwnedTopic(T, 1)]))
    before = len(bench.reports)
    bench.pass_time(0.3)
    again = [report.topics for report in bench.reports[before:] if isinstance(report, FlowDemand)]
    assert again == [[TopicDemand(T, 1, False, False)]]


def test_home_with_many_topics_reports_demand_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow_reports, "_FEW", 0.1)  # one topic is ten times as many
    bench = SiteBench()
    bench.receiver()
    bench.pass_time(1.0)
    assert sum(isinstance(report, FlowDemand) for report in bench.reports) == 1
    bench.pass_time(1.2)
    assert sum(isinstance(report, FlowDemand) for report in bench.reports) == 2


def test_home_reports_what_has_crossed_each_link() -> None:
    bench = SiteBench()
    bench.order("B", "C")
    bench.receive((B, 10, b"x"), (C, 4, b"y"), (C, 4, b"y"))
    bench.pass_time(1.1)
    counts = [report.flows for report in bench.reports if isinstance(report, FlowCounts)][-1]
    assert {(flow.neighbour, flow.source, flow.received, flow.repeated) for flow in counts} == {
        ("B", "B", 1, 0),
        ("B", "C", 2, 1),
    }


def test_home_reports_the_rates_of_imported_flows() -> None:
    bench = SiteBench()
    bench.order("B")
    bench.do(events.LimitsReceived(ReportPublishers(1)))
    for number in range(1, 41):
        bench.receive((B, number, b"x" * 50), (B, number, b"x" * 50))
        bench.pass_time(0.05)
    bench.do(events.LimitsReceived(ReportPublishers(2)))
    report = bench.reports[-1]
    assert isinstance(report, PublisherRates)
    ((publisher, per_s, size_bytes, _),) = [msgspec.structs.astuple(rate) for rate in report.topics[T]]
    assert (publisher, size_bytes) == (B, 50.0)
    assert per_s == pytest.approx(20.0, rel=0.1), "repeats do not count"


@pytest.mark.parametrize("forged", [1 << 64, 1 << 70, 0, -1])
def test_impossible_number_neither_fails_the_home_nor_hides_later_messages(forged: int) -> None:
    bench = SiteBench()
    bench.order("B")
    reader = bench.receiver()
    bench.receive((B, flow_number(1, 1), b"x"))
    bench.receive((B, forged, b"forged"))
    bench.receive((B, flow_number(1, 2), b"y"))
    data = [
        entry[2] for message in bench.take(reader) if isinstance(message, wire.Messages) for entry in message.messages
    ]
    assert data == [b"x", b"y"]
    assert bench.core.state.topics[T].publishers[B] == flow_number(1, 2)


@pytest.mark.parametrize(
    ("position", "answer", "of_b"), [(1, 1, 1), (2, 2, 1), (3, 3, 3), (9, 4, 4)], ids=["early", "own", "flow", "beyond"]
)
def test_home_names_the_numbers_of_flows_at_a_position(position: int, answer: int, of_b: int) -> None:
    bench = SiteBench()
    bench.order("B")
    bench.receive((B, flow_number(1, 1), b"b1"))
    bench.publish(bench.sender(), 1, b"a")
    bench.receive((B, flow_number(1, 3), b"b3"), (B, flow_number(1, 4), b"b4"))
    reader = bench.receiver()
    bench.ask(reader, wire.FindPosition(50, T, None, (1, position)))
    found = bench.last(reader)
    assert isinstance(found, wire.PositionFound)
    assert (found.own, found.epoch, found.sequence) == (A, 1, answer)
    expected = flow_number(1, 4) if of_b == 4 else flow_number(1, {1: 2, 3: 3}[of_b])
    assert found.flows == {B: expected}, "everything up to this number is at or before the position"


def test_home_finds_the_position_behind_which_messages_are_missing() -> None:
    bench = SiteBench()
    bench.order("B")
    bench.receive((B, flow_number(1, 1), b"b1"))
    bench.publish(bench.sender(), 1, b"a")
    bench.receive((B, flow_number(1, 3), b"b3"))
    reader = bench.receiver()
    bench.ask(reader, wire.FindPosition(50, T, {A: flow_number(1, 2), B: flow_number(1, 1)}))
    found = bench.last(reader)
    assert isinstance(found, wire.PositionFound)
    assert (found.sequence, found.own_sequence) == (1, 2), "b3 is missing, and b1 and a are not"


def test_receiver_gets_no_flow_again_because_another_is_unknown() -> None:
    bench = SiteBench()
    bench.order("B", "C")
    bench.receive((B, flow_number(1, 1), b"b1"), (B, flow_number(1, 2), b"b2"))
    reader = bench.receiver()
    bench.ask(reader, wire.FindPosition(50, T, {B: flow_number(1, 2)}))
    assert bench.last(reader).sequence == 2, "no client here has published"  # type: ignore[union-attr]
    bench.receive((C, flow_number(1, 9), b"c9"), (B, flow_number(1, 3), b"b3"))
    bench.ask(reader, wire.FindPosition(51, T, {B: flow_number(1, 3)}))
    assert bench.last(reader).sequence == 2, "c9 is missing"  # type: ignore[union-attr]
