"""Where clients of topics are: the broker's own measurement, the check of what they report, and the topic's report."""

from __future__ import annotations

from itertools import count

import msgspec
import pytest

from tests.broker.topics.home_bench import HomeBench, T
from tocsin.broker.topics.client_coordinates import KEPT_S, PROBE_S, REPORT_S
from tocsin.broker.topics.events import ConnectionId
from tocsin.coords.coordinate import DIMENSIONS, Coordinate, distance_s
from tocsin.wire import topic as wire
from tocsin.wire.topic_link import OwnedTopic, OwnTopics, ReportTopics, TopicLatency


def at(x_s: float, error: float = 0.1) -> Coordinate:
    return Coordinate((x_s, *[0.0] * (DIMENSIONS - 1)), 0.0, 0.0, error)


OWN = at(0.0)


class ProbedBench(HomeBench):
    """A home at the origin whose clients answer probes after a chosen round trip."""

    def __init__(self, own: Coordinate | None = OWN) -> None:
        super().__init__(T)
        self.core.clients.own = lambda: own
        self.core.clients.draw_nonce = count(1_000_000, 7_919).__next__

    def probed(self, client: ConnectionId) -> wire.Probed:
        self.now_s += 2 * PROBE_S
        self.renew()
        self.ask(client, wire.Probe(-1))
        [answer] = [message for message in self.take(client) if isinstance(message, wire.Probed)]
        return answer

    def locate(self, client: ConnectionId, coordinate: Coordinate | None, rtt_s: float) -> Coordinate | None:
        """Let the client answer; returns the coordinate that the broker believes."""
        answer = self.probed(client)
        self.now_s += rtt_s
        self.ask(client, wire.Locate(answer.nonce, coordinate))
        return self.core.state.connections[client].coordinate

    def latencies(self) -> list[TopicLatency]:
        """The reports of the next seconds."""
        before = len(self.reports)
        for _ in range(int(REPORT_S / 0.1) + 2):
            self.pass_time(0.1)
            self.renew()
        return [report for report in self.reports[before:] if isinstance(report, TopicLatency)]


def test_coordinate_that_agrees_with_the_measured_round_trip_is_believed() -> None:
    bench = ProbedBench()
    client = bench.connect()
    assert bench.probed(client).coordinate == OWN
    assert bench.locate(client, at(0.050), 0.052) == at(0.050)
    assert bench.core.clients.corrected == 0


@pytest.mark.parametrize("claimed", [at(0.001), at(0.300), Coordinate((9e9,) * DIMENSIONS)])
def test_lying_client_counts_at_its_measured_distance(claimed: Coordinate) -> None:
    bench = ProbedBench()
    client = bench.connect()
    believed = bench.locate(client, claimed, 0.050)
    assert believed is not None
    assert distance_s(OWN, believed) == pytest.approx(0.050)
    assert bench.core.clients.corrected == 1


def test_client_cannot_look_nearer_by_guessing_or_repeating_a_number() -> None:
    bench = ProbedBench()
    client = bench.connect()
    nonce = bench.probed(client).nonce
    for guess in (0, nonce - 1, nonce + 1):
        bench.ask(client, wire.Locate(guess, at(0.0)))
    connection = bench.core.state.connections[client]
    assert not connection.round_trips
    bench.now_s += 0.050
    bench.ask(client, wire.Locate(nonce, at(0.050)))
    bench.ask(client, wire.Locate(nonce, at(0.0)))
    assert connection.rtt_s == pytest.approx(0.050)
    assert connection.coordinate == at(0.050)


def test_probes_are_limited_and_refused_by_a_broker_that_does_not_measure() -> None:
    bench = ProbedBench()
    client = bench.connect()
    bench.ask(client, wire.Probe(-1))
    bench.ask(client, wire.Probe(-2))
    assert isinstance(bench.take(client)[-1], wire.Refused)
    off = HomeBench(T)
    client = off.connect()
    off.ask(client, wire.Probe(-1))
    assert isinstance(off.take(client)[-1], wire.Refused)


def test_unsettled_broker_tells_no_coordinate_and_believes_none() -> None:
    bench = ProbedBench(at(0.0, error=1.4))
    client = bench.connect()
    assert bench.probed(client).coordinate is None
    assert bench.locate(client, at(0.050), 0.050) is None


def test_home_reports_the_worst_pair_in_constant_size() -> None:
    bench = ProbedBench()
    sender = bench.connect()
    bench.ask(sender, wire.AttachSender(1, T, 7))
    assert bench.latencies() == [], "no client is measured"
    bench.locate(sender, at(0.020), 0.020)
    sizes = []
    for number in range(40):
        receiver = bench.connect()
        bench.ask(receiver, wire.AttachReceiver(1, T))
        bench.locate(receiver, at(-0.001 * number - 0.010), 0.010 + 0.001 * number)
        if number in (0, 39):
            report = bench.latencies()[-1]
            sizes.append(len(msgspec.json.encode(report)))
    assert report.worst_s == pytest.approx((0.020 + 0.049) / 2)
    assert (report.senders, report.receivers) == (1, 40)
    assert report.receiver_centroid is not None
    assert report.receiver_centroid.vector[0] == pytest.approx(-0.0295, abs=1e-4)
    assert report.deviation_s == pytest.approx(0.0195 / 2, abs=1e-4)
    assert abs(sizes[0] - sizes[1]) < 40
    assert bench.latencies() == [], "nothing has changed"


class PairBench(ProbedBench):
    """A sender and a receiver at the same place, 20 ms of round trip from the home."""

    def __init__(self) -> None:
        super().__init__()
        self.sending, self.receiving = self.sender(), self.receiver()
        self.take(self.sending)
        self.take(self.receiving)

    def stay(self, place: Coordinate, rtt_s: float, *, moved: bool = False) -> None:
        for client in (self.sending, self.receiving):
            answer = self.probed(client)
            self.now_s += rtt_s
            self.ask(client, wire.Locate(answer.nonce, place, moved))


def test_home_forgets_the_round_trips_of_a_client_that_moved() -> None:
    bench = PairBench()
    bench.stay(at(0.020), 0.020)
    assert bench.latencies()[-1].worst_s == pytest.approx(0.020)
    bench.stay(at(0.080), 0.080, moved=True)
    [report] = bench.latencies()
    assert report.worst_s == pytest.approx(0.080)
    assert report.sender_centroid == at(0.080)


def test_old_round_trips_stop_counting_after_a_while() -> None:
    bench = PairBench()
    bench.stay(at(0.020), 0.020)
    for _ in range(int(KEPT_S / REPORT_S) + 1):
        bench.latencies()
    bench.stay(at(0.080), 0.080)
    assert bench.latencies()[-1].worst_s == pytest.approx(0.080)


def test_clients_that_move_to_the_same_distance_are_reported() -> None:
    bench = PairBench()
    bench.stay(at(0.080), 0.080)
    bench.latencies()
    bench.stay(at(-0.080), 0.080, moved=True)
    [report] = bench.latencies()
    assert report.receiver_centroid == at(-0.080)


def test_home_reports_at_once_when_the_coordinator_asks() -> None:
    bench = PairBench()
    bench.latencies()
    bench.stay(at(0.080), 0.080)
    before = len(bench.reports)
    bench.hear(ReportTopics())
    [report] = bench.reports[before:]
    assert isinstance(report, TopicLatency)
    assert report.worst_s == pytest.approx(0.080)


def test_home_repeats_its_reports_to_a_coordinator_that_registers_it_again() -> None:
    bench = PairBench()
    bench.stay(at(0.080), 0.080)
    first = bench.latencies()[-1]
    assert bench.latencies() == []
    bench.hear(OwnTopics([OwnedTopic(T, 1)]))
    bench.renew()
    assert bench.latencies() == [first]


def test_first_report_of_a_new_home_has_the_rate() -> None:
    bench = PairBench()
    bench.stay(at(0.010), 0.010)
    bench.publish(bench.sending, 1, *[b"x"] * 500)
    bench.pass_time(2.0)
    bench.renew()
    before = len(bench.reports)
    bench.hear(ReportTopics())
    [report] = bench.reports[before:]
    assert isinstance(report, TopicLatency)
    assert report.in_per_s == pytest.approx(500 / (bench.now_s - 100.0), rel=0.01)
    assert report.out_per_s == report.in_per_s
