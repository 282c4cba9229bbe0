"""The baselines of topic partitioning, with the same signature [ePulsar §5.5].

`all_pairs` uses the coordinate of every client and so the exact worst pair: it shows the cost of centroids in quality.
`consistent_hash` is Pulsar's placement: it shows the latency when placement ignores it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np

from tocsin.coords.coordinate import Coordinate
from tocsin.coords.distances import Vectors, as_arrays, distances_s
from tocsin.model.ids import BrokerId
from tocsin.policies.topics.partition import plan, plan_with
from tocsin.policies.topics.types import (
    PartitionParams,
    PartitionPlan,
    PartitionPolicy,
    PartitionSnapshot,
    Topic,
    TopicBroker,
    TopicMove,
    TopicMoveReason,
    TopicName,
)


def all_pairs(snapshot: PartitionSnapshot, params: PartitionParams) -> PartitionPlan:
    """Algorithm 1 with the latency of the worst producer–consumer pair, from every client's coordinate."""
    return plan_with(expected_from_all_pairs, snapshot, params)


def expected_from_all_pairs(topics: Sequence[Topic], brokers: Sequence[TopicBroker]) -> Vectors:
    """The exact latency from the slowest producer to the slowest consumer. Raises ValueError for topics without
    `clients`."""
    clients = [topic.clients for topic in topics if topic.clients is not None]
    if len(clients) < len(topics):
        raise ValueError("all-pairs needs the coordinate of every client, but a topic has no clients field")
    producers_s = _slowest_s([of_topic.producers for of_topic in clients], brokers)
    return producers_s + _slowest_s([of_topic.consumers for of_topic in clients], brokers)


def _slowest_s(groups: Sequence[Sequence[Coordinate]], brokers: Sequence[TopicBroker]) -> Vectors:
    """Per group and broker, the longest one-way latency of any member; 0 for an empty group."""
    numbers: dict[Coordinate, int] = {}
    members = np.array([numbers.setdefault(member, len(numbers)) for group in groups for member in group], np.int64)
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
    """Pulsar's placement: each topic goes to the broker that owns the hash of its name [ePulsar §5.5].

    It ignores latency, load, bounds and limits.
    """
    moves = []
    for topic in snapshot.topics if snapshot.brokers else ():
        name, source = topic.report.topic, topic.report.broker
        home = hashed_home(name, [broker.broker for broker in snapshot.brokers])
        if source != home:
            moves.append(TopicMove(name, source, home, TopicMoveReason.HASH, 0.0, 0.0))
    return PartitionPlan(snapshot.generation, tuple(sorted(moves, key=lambda move: move.topic)))


def hashed_home(topic: TopicName, brokers: Sequence[BrokerId]) -> BrokerId:
    """The broker whose share of the hash space contains the topic's name. Shares are equal, in order of names."""
    ranges = sorted(brokers)
    digest = hashlib.blake2b(topic.encode(), digest_size=8).digest()
    return ranges[int.from_bytes(digest, "big") * len(ranges) >> 64]


POLICIES: Mapping[str, PartitionPolicy] = {
    "partition": plan,
    "all-pairs": all_pairs,
    "consistent-hash": consistent_hash,
}
"""The policies by the names that settings, reports and figures use."""
