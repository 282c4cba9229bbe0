"""Network coordinate agents in virtual time: each runs the live estimator and probes its peers while topics move.

An agent probes one peer a second, as Serf's failure detector does: it takes its peers in a shuffled order, so that each
peer has its turn, and shuffles again. Every second probe goes to one of the fastest peers. A probe travels through the
simulated network, and the reply brings the peer's coordinate at that moment. Coordinates therefore change during a run.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tocsin.coords.coordinate import Coordinate
from tocsin.coords.estimator import Estimator
from tocsin.sim.kernel import Kernel
from tocsin.sim.topics.network import Network
from tocsin.sim.topics.places import NEAR, SETTLE_ROUNDS, jitter

PROBE_EVERY_S = 1.0


class ProbeOrder:
    """Which peer an agent probes next."""

    def __init__(self, peers: Sequence[str], rng: np.random.Generator) -> None:
        self._peers, self._rng = list(peers), rng
        self._turns: list[str] = []
        self._rtts_s: dict[str, float] = {}
        self._probes = 0

    def next_peer(self) -> str | None:
        """The next peer; None for an agent that is alone."""
        if not self._peers:
            return None
        self._probes += 1
        if self._probes % 2 == 0 and self._rtts_s:
            fastest = sorted(self._rtts_s, key=lambda peer: (self._rtts_s[peer], peer))[:NEAR]
            return fastest[int(self._rng.integers(len(fastest)))]
        if not self._turns:
            self._turns = [self._peers[n] for n in self._rng.permutation(len(self._peers))]
        return self._turns.pop()

    def note(self, peer: str, rtt_s: float) -> None:
        self._rtts_s[peer] = rtt_s


class CoordinateAgents:
    def __init__(self, kernel: Kernel, network: Network, nodes: Sequence[str]) -> None:
        """The agents at these nodes of the network. They have settled for ten minutes [ePulsar §5.5.1]."""
        self._kernel, self._network, self._rng = kernel, network, kernel.stream("probes")
        self._estimators = {node: Estimator(kernel.stream(f"agent {node}").standard_normal) for node in nodes}
        self._orders = {node: ProbeOrder([peer for peer in nodes if peer != node], self._rng) for node in nodes}
        for _ in range(SETTLE_ROUNDS):
            for node, order in self._orders.items():
                peer = order.next_peer()
                if peer is not None:
                    rtt_s = network.delay_s(node, peer) + network.delay_s(peer, node)
                    self._observe(node, peer, self.coordinate(peer), rtt_s)

    def coordinate(self, node: str) -> Coordinate:
        return self._estimators[node].coordinate

    def start(self) -> None:
        """Probe every second, each agent at its own phase."""
        for node in self._estimators:
            first_s = self._kernel.now_s + float(self._rng.uniform(0.0, PROBE_EVERY_S))
            self._kernel.every(PROBE_EVERY_S, self._probe, node, first_s=first_s)

    def _probe(self, node: str) -> None:
        peer = self._orders[node].next_peer()
        if peer is not None:
            self._network.send(node, peer, self._reply, node, peer, self._kernel.now_s)

    def _reply(self, node: str, peer: str, sent_s: float) -> None:
        self._network.send(peer, node, self._receive_reply, node, peer, self.coordinate(peer), sent_s)

    def _receive_reply(self, node: str, peer: str, coordinate: Coordinate, sent_s: float) -> None:
        self._observe(node, peer, coordinate, self._kernel.now_s - sent_s)

    def _observe(self, node: str, peer: str, coordinate: Coordinate, rtt_s: float) -> None:
        measured_s = float(jitter(np.array([rtt_s]), self._rng)[0])
        self._orders[node].note(peer, measured_s)
        self._estimators[node].observe(peer, coordinate, measured_s)
