"""The broker's agent of network coordinates: convergence in known worlds, constant reports, no trust in answers."""

from __future__ import annotations

import heapq
import random
from itertools import count, permutations
from statistics import mean

import msgspec
import numpy as np
import pytest

from tocsin.broker.coordinates import (
    ANSWER_S,
    FIRST_SAMPLES,
    ConnectPeer,
    CoordinateAgent,
    DisconnectPeer,
    Effect,
    PeerConnected,
    PeerLost,
    PeersNamed,
    ProbeAnswered,
    ReportCoordinate,
    SendProbe,
    Ticked,
)
from tocsin.coords import worlds
from tocsin.coords.coordinate import DIMENSIONS, Coordinate, distance_s
from tocsin.coords.distances import Vectors
from tocsin.model.ids import BrokerId
from tocsin.wire.coordinates import CoordinatePeers, Peer, ProbeAnswer

TICK_S = 0.1
A, B = BrokerId("a"), BrokerId("b")
NEAR = Coordinate((0.01, *[0.0] * (DIMENSIONS - 1)), 0.001, 0.0, 0.2)


def new_agent(seed: int = 1) -> CoordinateAgent:
    rng = random.Random(seed)
    return CoordinateAgent(lambda: rng.gauss(0.0, 1.0), rng.random)


def named(*brokers: BrokerId) -> PeersNamed:
    return PeersNamed(CoordinatePeers([Peer(broker, f"ws://{broker}") for broker in brokers]))


class World:
    """Agents that probe each other; an answer arrives after the world's round-trip time."""

    def __init__(self, rtt_s: Vectors, peers: int | None = None) -> None:
        self.rtt_s = rtt_s
        self.names = [BrokerId(f"b{number:02}") for number in range(len(rtt_s))]
        self.agents = [new_agent(number) for number in range(len(rtt_s))]
        self.reports: list[ReportCoordinate] = []
        self.probes = 0
        self.now_s = 1_000.0
        self._arriving: list[tuple[float, int, int, int, int]] = []
        self._order = count()
        rng = random.Random(5)
        for node, agent in enumerate(self.agents):
            others = [name for name in self.names if name != self.names[node]]
            chosen = others if peers is None else rng.sample(others, peers)
            agent.handle(named(*chosen), self.now_s)
            for name in chosen:
                agent.handle(PeerConnected(name), self.now_s)

    def run(self, seconds: float) -> None:
        until_s = self.now_s + seconds
        tick_s = self.now_s
        while tick_s < until_s:
            tick_s += TICK_S
            while self._arriving and self._arriving[0][0] <= tick_s:
                self.now_s, _, node, peer, number = heapq.heappop(self._arriving)
                answer = ProbeAnswer(number, self.agents[peer].answer)
                self.do(node, self.agents[node].handle(ProbeAnswered(self.names[peer], answer), self.now_s))
            self.now_s = tick_s
            for node, agent in enumerate(self.agents):
                self.do(node, agent.handle(Ticked(), self.now_s))

    def do(self, node: int, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, SendProbe):
                self.probes += 1
                peer = self.names.index(effect.broker)
                arrival = (self.now_s + float(self.rtt_s[node, peer]), next(self._order))
                heapq.heappush(self._arriving, (*arrival, node, peer, effect.probe.number))
            elif isinstance(effect, ReportCoordinate):
                self.reports.append(effect)

    def error(self) -> float:
        """The mean relative error over all pairs, also those that never measured each other."""
        errors = []
        for one, other in permutations(range(len(self.agents)), 2):
            predicted_s = distance_s(self.agents[one].answer, self.agents[other].answer)
            errors.append(abs(predicted_s - self.rtt_s[one, other]) / self.rtt_s[one, other])
        return float(mean(errors))


def triangle() -> Vectors:
    return np.array([[0.0, 0.020, 0.080], [0.020, 0.0, 0.080], [0.080, 0.080, 0.0]])


def test_three_brokers_predict_their_distances_after_fifteen_seconds() -> None:
    world = World(triangle())
    world.run(15.0)
    assert world.error() < 0.10
    assert all(agent.coordinate is not None and agent.coordinate.is_settled for agent in world.agents)


def test_brokers_with_few_peers_predict_pairs_that_never_measured() -> None:
    world = World(worlds.grid(25, 0.010), peers=8)
    world.run(240.0)
    assert world.error() < 0.15


def test_agent_probes_about_once_a_second_after_the_first_samples() -> None:
    world = World(triangle())
    world.run(60.0)
    assert all(agent.samples >= FIRST_SAMPLES for agent in world.agents)
    before = world.probes
    world.run(60.0)
    assert 0.75 * 180 <= world.probes - before <= 1.25 * 180


def test_report_has_a_size_that_does_not_grow_with_the_network() -> None:
    sizes = []
    for nodes in (3, 25):
        world = World(worlds.grid(nodes, 0.010))
        world.run(20.0)
        sizes.append(max(len(msgspec.json.encode(report.report)) for report in world.reports))
        assert len(world.reports) <= nodes * 20
    assert max(sizes) <= 260


def test_new_list_of_peers_connects_disconnects_and_asks_for_a_report() -> None:
    agent = new_agent()
    assert agent.handle(named(A, B), 0.0) == [ConnectPeer(A, "ws://a"), ConnectPeer(B, "ws://b")]
    assert agent.handle(named(B), 1.0) == [DisconnectPeer(A)]
    agent.handle(PeerConnected(B), 1.0)
    [probe] = agent.handle(Ticked(), 1.0)
    assert isinstance(probe, SendProbe)
    agent.handle(ProbeAnswered(B, ProbeAnswer(probe.probe.number, NEAR)), 1.02)
    assert any(isinstance(effect, ReportCoordinate) for effect in agent.handle(Ticked(), 1.05))
    agent.handle(named(B), 1.06)
    reports = [effect for effect in agent.handle(Ticked(), 1.07) if isinstance(effect, ReportCoordinate)]
    assert len(reports) == 1, "again, after a new list"
    moved = PeersNamed(CoordinatePeers([Peer(B, "ws://elsewhere")]))
    assert agent.handle(moved, 2.0) == [DisconnectPeer(B), ConnectPeer(B, "ws://elsewhere")]


def test_answer_with_unknown_number_is_ignored() -> None:
    """An answer that arrives before its probe would make a peer look near."""
    agent = new_agent()
    agent.handle(named(A), 0.0)
    agent.handle(PeerConnected(A), 0.0)
    [probe] = agent.handle(Ticked(), 0.0)
    assert isinstance(probe, SendProbe)
    for number in (probe.probe.number + 1, 0):
        agent.handle(ProbeAnswered(A, ProbeAnswer(number, NEAR)), 0.001)
    agent.handle(ProbeAnswered(B, ProbeAnswer(probe.probe.number, NEAR)), 0.001)
    assert agent.coordinate is None
    for _ in range(2):
        agent.handle(ProbeAnswered(A, ProbeAnswer(probe.probe.number, NEAR)), 0.05)
    assert agent.samples == 1
    assert agent.measured_s() == {A: pytest.approx(0.05)}


def test_absurd_coordinate_of_a_peer_is_refused_and_counted() -> None:
    agent = new_agent()
    agent.handle(named(A), 0.0)
    agent.handle(PeerConnected(A), 0.0)
    [probe] = agent.handle(Ticked(), 0.0)
    assert isinstance(probe, SendProbe)
    absurd = Coordinate((float("nan"),) * DIMENSIONS)
    agent.handle(ProbeAnswered(A, ProbeAnswer(probe.probe.number, absurd)), 0.05)
    assert (agent.coordinate, agent.rejected) == (None, 1)


def test_lost_peer_and_lost_probe_do_not_stop_the_agent() -> None:
    agent = new_agent()
    agent.handle(named(A), 0.0)
    assert agent.handle(Ticked(), 0.0) == [], "it is not connected"
    agent.handle(PeerConnected(A), 0.0)
    assert len(agent.handle(Ticked(), 0.0)) == 1
    assert agent.handle(Ticked(), ANSWER_S - 0.1) == [], "one probe is on its way"
    assert len(agent.handle(Ticked(), ANSWER_S + 0.1)) == 1
    agent.handle(PeerLost(A), ANSWER_S + 0.2)
    assert agent.handle(Ticked(), ANSWER_S + 9.0) == []
    agent.handle(PeerConnected(A), ANSWER_S + 9.0)
    assert len(agent.handle(Ticked(), ANSWER_S + 9.0)) == 1
