"""Network coordinates at the coordinator: peers of brokers, reports, and placement by them."""

from __future__ import annotations

from dataclasses import replace

from tests.coordinator.bench import B1, B2, B3, Bench
from tests.coordinator.test_topics import T, TopicBench
from tocsin.coordinator.events import Placed, TopicCreated, TopicsUsed
from tocsin.coordinator.network_coordinates import CHOOSE_S, DISTANT_PEERS, NEAR_PEERS, choose_peers, landmarks
from tocsin.coordinator.topic_records import TopicRecord
from tocsin.coordinator.topic_views import topic_entry
from tocsin.coordinator.views import broker_view
from tocsin.coords.coordinate import DIMENSIONS, Coordinate
from tocsin.model.ids import BrokerId, TopicName
from tocsin.model.snapshot import Place
from tocsin.model.topic import TopicDefinition
from tocsin.wire.coordinates import CoordinatePeers, CoordinateReport, Peer
from tocsin.wire.topic_link import TopicLatency


def at(x_s: float, error: float = 0.1) -> Coordinate:
    return Coordinate((x_s, *[0.0] * (DIMENSIONS - 1)), 0.0005, 0.0, error)


def peers_of(bench: Bench, broker: BrokerId) -> list[BrokerId] | None:
    sent = bench.sent(broker, CoordinatePeers)
    return [peer.broker for peer in sent[-1].peers] if sent else None


class MeasuringBench(TopicBench):
    """Brokers that can be homes and measure coordinates."""

    def register(self, *brokers: BrokerId, **fields: object) -> None:
        super().register(*brokers, **({"coordinates": True, "topics": True} | fields))

    def report(self, broker: BrokerId, coordinate: Coordinate) -> None:
        self.send(broker, CoordinateReport(coordinate))

    def home_of_new(self, **fields: object) -> BrokerId | None:
        record = self.ask(lambda ask: TopicCreated(ask, TopicDefinition(T), **fields))  # type: ignore[arg-type]
        assert isinstance(record, TopicRecord), record
        return record.home


def test_brokers_of_a_small_network_measure_all_others() -> None:
    bench = MeasuringBench(B1, B2, B3)
    bench.wait(0.5, B1, B2, B3)
    assert bench.sent(B1, CoordinatePeers) == [CoordinatePeers([Peer(B2, "ws://b2"), Peer(B3, "ws://b3")])]
    bench.wait(0.5, B1, B2, B3)
    assert peers_of(bench, B1) is None, "nothing has changed"


def test_broker_that_leaves_or_returns_changes_the_peers_of_others() -> None:
    bench = MeasuringBench(B1, B2, B3)
    bench.wait(0.5, B1, B2, B3)
    bench.cut(B3)
    bench.wait(0.5, B1, B2)
    assert peers_of(bench, B1) == [B2]
    bench.register(B3)
    bench.wait(0.5, B1, B2, B3)
    assert peers_of(bench, B1) == [B2, B3]
    assert peers_of(bench, B3) == [B1, B2], "its new link has no list yet"


def test_broker_that_does_not_measure_gets_no_peers_and_is_no_peer() -> None:
    bench = MeasuringBench(B1, B2)
    bench.register(B3, coordinates=False)
    bench.wait(0.5, B1, B2, B3)
    assert (peers_of(bench, B1), peers_of(bench, B3)) == ([B2], None)
    bench.report(B3, at(0.0))
    assert bench.broker(B3).coordinate is None


def test_large_network_has_few_peers_near_and_distant_and_is_connected() -> None:
    names = [BrokerId(f"b{number:03}") for number in range(100)]
    coordinates = {name: at(number * 0.001) for number, name in enumerate(names)}
    mesh = {name: set(choose_peers(name, coordinates)) for name in names}
    assert all(len(peers) <= NEAR_PEERS + DISTANT_PEERS and name not in peers for name, peers in mesh.items())
    assert {names[49], names[51]} <= mesh[names[50]], "its neighbours"
    without = {name: set(choose_peers(name, dict.fromkeys(names))) for name in names}
    for network in (mesh, without):
        reached, border = {names[0]}, {names[0]}
        while border:
            border = set().union(*(network[name] for name in border)) - reached
            reached |= border
        assert reached == set(names)


def test_report_is_shown_and_forgotten_when_the_process_restarts() -> None:
    bench = MeasuringBench(B1)
    bench.report(B1, at(0.02))
    bench.report(B1, replace(at(0.03), height_s=-1.0))
    assert bench.broker(B1).coordinate == at(0.02), "an absurd report is ignored"
    assert broker_view(bench.core, bench.broker(B1), bench.now_s)["coordinate"]["error"] == 0.1
    bench.register(B1)
    assert bench.broker(B1).coordinate == at(0.02), "the same process has reconnected"
    bench.broker(B1).incarnation = "i0"
    bench.register(B1)
    assert bench.broker(B1).coordinate is None


def test_topic_gets_the_home_nearest_to_its_clients_coordinate() -> None:
    bench = MeasuringBench(B1, B2, B3)
    for broker, x_s in ((B1, 0.0), (B2, 0.04), (B3, 0.08)):
        bench.report(broker, at(x_s))
    assert bench.home_of_new(coordinate=at(0.05)) == B2


def test_topic_made_on_use_gets_the_home_nearest_to_its_publisher() -> None:
    bench = MeasuringBench(B1, B2)
    bench.report(B1, at(0.0))
    bench.report(B2, at(0.04))
    name = TopicName("game/1")
    assert bench.ask(lambda ask: TopicsUsed(ask, (name,), coordinate=at(0.03))) == {}
    assert bench.registry.topics.topics[name].home == B2


def test_topic_goes_by_place_while_brokers_have_no_settled_coordinate() -> None:
    bench = MeasuringBench()
    for broker, lat in ((B1, 60.0), (B2, 48.0)):
        bench.register(broker, lat=lat, lon=2.0)
        bench.renew(broker)
    bench.report(B1, at(0.0, error=1.2))
    assert bench.home_of_new(coordinate=at(0.0), place=Place(48.8, 2.3)) == B2


def test_topic_without_located_brokers_goes_to_the_least_loaded_one() -> None:
    bench = MeasuringBench(B1, B2)
    name = TopicName("game/1")
    bench.ask(lambda ask: TopicsUsed(ask, (name,)))
    taken = bench.registry.topics.topics[name].home
    assert bench.home_of_new(coordinate=at(0.0), place=Place(48.8, 2.3)) == ({B1, B2} - {taken}).pop()


def test_subscriber_with_a_coordinate_gets_the_nearest_broker() -> None:
    bench = MeasuringBench(B1, B2, B3)
    for broker, x_s in ((B1, 0.0), (B2, 0.04), (B3, 0.08)):
        bench.report(broker, at(x_s))
    placed = bench.place("ada", coordinate=at(0.07))
    assert isinstance(placed, Placed)
    assert placed.broker == B3


def test_peers_are_chosen_again_now_and_then() -> None:
    bench = MeasuringBench(*(BrokerId(f"b{number:02}") for number in range(12)))
    names = list(bench.registry.brokers)
    bench.wait(0.5, *names)
    before = peers_of(bench, names[0])
    for number, name in enumerate(names):
        bench.report(name, at(0.01 * number))
    changes = []
    for _ in range(int(2 * CHOOSE_S) + 2):
        bench.wait(0.5, *names)
        changes.append(peers_of(bench, names[0]))
    assert before is not None and len(before) <= DISTANT_PEERS
    [after] = [peers for peers in changes if peers is not None]
    assert names[1] in after and set(before) <= set(after)


def test_landmarks_are_settled_brokers_far_from_each_other() -> None:
    names = [BrokerId(f"b{number}") for number in range(6)]
    bench = MeasuringBench(*names)
    assert landmarks(bench.registry) == []
    for name, x_s in zip(names, (0.0, 0.001, 0.002, 0.05, 0.1, 0.2), strict=True):
        bench.report(name, at(x_s))
    assert landmarks(bench.registry) == ["ws://b0", "ws://b5", "ws://b4", "ws://b3"]
    bench.report(names[5], at(0.2, error=1.0))
    assert "ws://b5" not in landmarks(bench.registry)


def test_latency_report_counts_only_from_the_present_home_and_epoch() -> None:
    bench = MeasuringBench(B1, B2)
    home = bench.home_of_new()
    assert home is not None
    other = B2 if home == B1 else B1
    record = bench.registry.topics.topics[T]
    bench.send(other, TopicLatency(T, record.epoch, 0.9))
    bench.send(home, TopicLatency(T, record.epoch - 1, 0.9))
    assert record.latency is None
    bench.send(home, TopicLatency(T, record.epoch, 0.04, 1, 1))
    assert topic_entry(bench.registry, record, latency=True).worst_latency_s == 0.04
    assert topic_entry(bench.registry, record).worst_latency_s is None, "a watch would end at every report"
    record.epoch += 1
    assert topic_entry(bench.registry, record, latency=True).worst_latency_s is None, "another home has begun"
