"""What topic partitioning is compared with, behind the same interface [ePulsar §5.5].

`all_pairs` knows the coordinate of every client and so the exact worst pair; it shows what centroids cost in quality.
`consistent_hash` is what Pulsar does: it shows what latency costs when nobody looks at it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np

from tocsin.coords.coordinate import Coordinate, Vectors, as_arrays, distances_s
from tocsin.policies.topics.partition import plan, plan_with
from tocsin.policies.topics.types import (
    Broker,
    Move,
    PartitionParams,
    PartitionPlan,
    PartitionPolicy,
    PartitionSnapshot,
    Reason,
    Topic,
    TopicName,
)


def all_pairs(snapshot: PartitionSnapshot, params: PartitionParams) -> PartitionPlan:
    """Algorithm 1 with the latency of the worst producer–consumer pair, from every client's own coordinate."""
    return plan_with(expected_from_all_pairs, snapshot, params)


def expected_from_all_pairs(topics: Sequence[Topic], brokers: Sequence[Broker]) -> Vectors:
    """The slowest way in plus the slowest way out, exactly. Topics must carry their clients."""
    sides = [topic.clients for topic in topics]
    if any(clients is None for clients in sides):
        raise ValueError("all-pairs needs the coordinate of every client, and a topic came without")
    producers = _slowest_s([() if one is None else one.producers for one in sides], brokers)
    consumers = _slowest_s([() if one is None else one.consumers for one in sides], brokers)
    return producers + consumers


def _slowest_s(groups: Sequence[Sequence[Coordinate]], brokers: Sequence[Broker]) -> Vectors:
    """Per group and broker, the longest one-way latency of any member; 0 for a group without members."""
    numbers: dict[Coordinate, int] = {}
    members = np.array([numbers.setdefault(one, len(numbers)) for group in groups for one in group], dtype=np.int64)
    slowest_s = np.zeros((len(groups), len(brokers)))
    if not numbers:
        return slowest_s
    legs_s = distances_s(*as_arrays(list(numbers)), *as_arrays([broker.coordinate for broker in brokers])) / 2.0
    sizes = np.array([len(group) for group in groups])
    filled = np.flatnonzero(sizes)
    starts = np.concatenate(([0], np.cumsum(sizes[filled])[:-1]))
    slowest_s[filled] = np.maximum.reduceat(legs_s[members], starts, axis=0)
    return slowest_s


def consistent_hash(snapshot: PartitionSnapshot, params: PartitionParams) -> PartitionPlan:
    """Pulsar's way: the hash space divided evenly among the brokers, each topic where its name falls [ePulsar §5.5].

    Blind to latency and to load, so neither bounds nor limits are looked at.
    """
    moves = []
    for topic in snapshot.topics if snapshot.brokers else ():
        home = hashed_home(topic.report.topic, snapshot.brokers).broker
        if topic.report.broker != home:
            moves.append(Move(topic.report.topic, topic.report.broker, home, Reason.HASH, 0.0, 0.0))
    return PartitionPlan(snapshot.generation, tuple(sorted(moves, key=lambda move: move.topic)))


def hashed_home(topic: TopicName, brokers: Sequence[Broker]) -> Broker:
    """The broker whose share of the hash space the name falls into: equal shares, in the order of their names."""
    ranges = sorted(brokers, key=lambda broker: broker.broker)
    return ranges[_hash(topic) * len(ranges) >> 64]


def _hash(topic: TopicName) -> int:
    return int.from_bytes(hashlib.blake2b(topic.encode(), digest_size=8).digest(), "big")


POLICIES: Mapping[str, PartitionPolicy] = {
    "partition": plan,
    "all-pairs": all_pairs,
    "consistent-hash": consistent_hash,
}
"""By the names that settings, reports and figures use."""
