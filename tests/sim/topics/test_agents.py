"""Network coordinate agents in virtual time: the order of probes, and coordinates that follow the network."""

from __future__ import annotations

from collections import Counter

import numpy as np

from tocsin.coords.coordinate import distance_s
from tocsin.sim.kernel import Kernel
from tocsin.sim.topics.agents import CoordinateAgents, ProbeOrder
from tocsin.sim.topics.network import Network
from tocsin.sim.topics.places import edge_sites


def test_every_peer_has_its_turn_and_fast_peers_have_every_second_probe() -> None:
    peers = [f"peer-{n}" for n in range(7)]
    order = ProbeOrder(peers, np.random.default_rng(1))
    for number, peer in enumerate(peers):
        order.note(peer, 0.001 * (number + 1))
    asked = [order.next_peer() for _ in range(28)]
    assert Counter(asked[0::2]) == Counter(peers * 2)
    assert set(asked[1::2]) == {"peer-0", "peer-1"}
    assert ProbeOrder([], np.random.default_rng(1)).next_peer() is None


def sites() -> tuple[Kernel, Network, CoordinateAgents]:
    kernel = Kernel(3)
    network = Network(kernel, edge_sites(3).delay_s)
    for zone in range(3):
        network.add(f"edge-{zone}", zone)
        network.add(f"proxy-{zone}", zone, 0.0005)
    return (
        kernel,
        network,
        CoordinateAgents(kernel, network, [f"{kind}-{n}" for kind in ("edge", "proxy") for n in range(3)]),
    )


def test_settled_agents_predict_near_and_far_peers() -> None:
    _, _, agents = sites()
    near_s = distance_s(agents.coordinate("edge-0"), agents.coordinate("proxy-0"))
    far_s = distance_s(agents.coordinate("edge-0"), agents.coordinate("edge-1"))
    assert near_s < 0.010
    assert 0.024 < far_s < 0.036


def test_coordinates_change_during_a_run_and_follow_a_node_that_moves() -> None:
    kernel, network, agents = sites()
    before = agents.coordinate("proxy-0")
    agents.start()
    kernel.run(until_s=5.0)
    assert agents.coordinate("proxy-0") != before
    network.move("proxy-0", 1)
    kernel.run(until_s=300.0)
    moved = agents.coordinate("proxy-0")
    assert distance_s(moved, agents.coordinate("edge-1")) < 0.5 * distance_s(moved, agents.coordinate("edge-0"))
