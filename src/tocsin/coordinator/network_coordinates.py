"""Network coordinates at the coordinator [ePulsar §3.2]: which brokers measure which, and the reports of brokers.

Each broker measures a few others, so that the cost of a broker does not grow with the network: near ones, which place
it among its neighbours, and distant ones, which hold the whole together [Dabek §4.2].
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping

from tocsin.coordinator.records import BrokerRecord
from tocsin.coordinator.registry import Registry
from tocsin.coordinator.turn import Turn
from tocsin.coords.coordinate import Coordinate, distance_s
from tocsin.model.ids import BrokerId
from tocsin.wire.coordinates import CoordinatePeers, CoordinateReport, Peer

NEAR_PEERS = 4
DISTANT_PEERS = 4
LANDMARKS = 4
CHOOSE_S = 30.0
"""Pause between two choices of peers while no broker arrives or leaves: coordinates may have changed."""


def handle_report(broker: BrokerRecord, message: CoordinateReport) -> None:
    """A coordinate that cannot be is ignored: the broker keeps its former one."""
    if broker.measures and message.coordinate.is_sane:
        broker.coordinate = message.coordinate


def check(turn: Turn) -> None:
    """Called at every tick: choose peers when a broker arrived or left, and now and then."""
    registry = turn.registry
    members = {broker.id: broker for broker in registry.brokers.values() if broker.measures and broker.linked}
    measuring = frozenset((broker.id, broker.address) for broker in members.values())
    unsent = any(broker.peers is None for broker in members.values())
    if measuring == registry.measuring and turn.now_s < registry.peers_due_s and not unsent:
        return
    registry.measuring, registry.peers_due_s = measuring, turn.now_s + CHOOSE_S
    coordinates = {name: broker.settled_coordinate for name, broker in members.items()}
    for name, broker in members.items():
        peers = tuple(Peer(peer, members[peer].address) for peer in choose_peers(name, coordinates))
        if peers != broker.peers:
            broker.peers = peers
            turn.send(name, CoordinatePeers(list(peers)))


def landmarks(registry: Registry) -> list[str]:
    """The addresses of a few brokers that are far from each other: a client finds its coordinate by measuring them."""
    left = [
        (broker.settled_coordinate, broker.address)
        for broker in registry.brokers.values()
        if broker.settled_coordinate is not None and registry.accepting(broker) and broker.topics
    ]
    chosen = left[:1]
    del left[:1]
    while left and len(chosen) < LANDMARKS:
        furthest = max(left, key=lambda broker: min(distance_s(broker[0], other[0]) for other in chosen))
        left.remove(furthest)
        chosen.append(furthest)
    return [address for _, address in chosen]


def choose_peers(broker: BrokerId, coordinates: Mapping[BrokerId, Coordinate | None]) -> list[BrokerId]:
    """The peers of one broker among all that measure; in a small network all others, in the order of their names."""
    others = sorted(name for name in coordinates if name != broker)
    if len(others) <= NEAR_PEERS + DISTANT_PEERS:
        return others
    # A ring in an order that has nothing to do with names, which often follow places. Peers at distances 1, 2, 4 and 8
    # in the ring connect all brokers.
    ring = sorted((*others, broker), key=lambda name: (zlib.crc32(name.encode()), name))
    position = ring.index(broker)
    distant = [ring[(position + (1 << step)) % len(ring)] for step in range(DISTANT_PEERS)]
    near = [name for name in _nearest_first(broker, others, coordinates) if name not in distant][:NEAR_PEERS]
    return sorted({*distant, *near})


def _nearest_first(
    broker: BrokerId, others: list[BrokerId], coordinates: Mapping[BrokerId, Coordinate | None]
) -> list[BrokerId]:
    """The brokers with a settled coordinate, nearest first; none while the broker's own is not settled."""
    own = coordinates[broker]
    if own is None:
        return []
    placed = [(distance_s(own, other), name) for name in others if (other := coordinates[name]) is not None]
    return [name for _, name in sorted(placed)]
