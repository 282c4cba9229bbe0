"""Hand-made worlds for topic partitioning, and the world after a plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tocsin.coords.coordinate import DIMENSIONS, Coordinate
from tocsin.model.ids import BrokerId
from tocsin.policies.topics.load import samples_after, slopes
from tocsin.policies.topics.monitor import summarise
from tocsin.policies.topics.types import (
    Clients,
    LoadSample,
    PartitionParams,
    PartitionPlan,
    PartitionSnapshot,
    Topic,
    TopicBroker,
    TopicName,
    departures_after,
)

PARAMS = PartitionParams(headroom=0.0)
"""Without headroom, so that hand-made worlds have round numbers. Headroom has its own test."""


def at(x_ms: float, y_ms: float = 0.0, height_ms: float = 0.0) -> Coordinate:
    """A coordinate whose *one-way* latencies are distances on the map, in milliseconds."""
    return Coordinate((2e-3 * x_ms, 2e-3 * y_ms, *[0.0] * (DIMENSIONS - 2)), 2e-3 * height_ms, 0.0, 0.1)


def broker(name: str, coordinate: Coordinate, **changes: float) -> TopicBroker:
    return replace(TopicBroker(BrokerId(name), coordinate), **changes)  # type: ignore[arg-type]


def topic(
    name: str,
    home: TopicBroker,
    producers: Sequence[Coordinate],
    consumers: Sequence[Coordinate],
    *,
    bound_ms: float | None = None,
    rate_per_s: float = 10.0,
) -> Topic:
    return Topic(
        summarise(
            TopicName(name),
            home.broker,
            home.coordinate,
            producers,
            consumers,
            in_rate_per_s=rate_per_s / 2,
            out_rate_per_s=rate_per_s / 2,
        ),
        None if bound_ms is None else bound_ms * 1e-3,
        (),
        Clients(tuple(producers), tuple(consumers)),
    )


def world(topics: Sequence[Topic], brokers: Sequence[TopicBroker], now_s: float = 0.0) -> PartitionSnapshot:
    return PartitionSnapshot(7, now_s, tuple(topics), tuple(brokers))


def after(snapshot: PartitionSnapshot, plan: PartitionPlan, elapsed_s: float = 5.0) -> PartitionSnapshot:
    """The same clients and brokers after the plan: new homes, E(t), loads, load samples and departures.

    A message costs each broker what the policy believed when it planned.
    """
    brokers = {broker.broker: broker for broker in snapshot.brokers}
    before = {name: rate_of(snapshot, name) for name in brokers}
    believed = slopes(list(brokers.values()), np.array(list(before.values())), PARAMS)
    costs = dict(zip(brokers, believed.tolist(), strict=True))
    topics = {topic.report.topic: topic for topic in snapshot.topics}
    for move in plan.moves:
        moved = topics[move.topic]
        assert moved.clients is not None
        assert moved.report.broker == move.source
        for name, sign in ((move.source, -1.0), (move.target, 1.0)):
            extra = [sign * cost * moved.report.rate_per_s if moved.report.rate_per_s else 0.0 for cost in costs[name]]
            old = brokers[name]
            brokers[name] = replace(
                old, cpu=old.cpu + extra[0], memory=old.memory + extra[1], network=old.network + extra[2]
            )
        topics[move.topic] = replace(
            moved,
            report=summarise(
                move.topic,
                move.target,
                brokers[move.target].coordinate,
                moved.clients.producers,
                moved.clients.consumers,
                in_rate_per_s=moved.report.in_rate_per_s,
                out_rate_per_s=moved.report.out_rate_per_s,
            ),
            departures=departures_after(moved, move, snapshot.now_s),
        )
    for name, old in brokers.items():
        first = next(broker for broker in snapshot.brokers if broker.broker == name)
        sample = LoadSample(before[name], first.cpu, first.memory, first.network)
        brokers[name] = replace(old, samples=samples_after(old.samples, sample))
    return PartitionSnapshot(
        snapshot.generation + 1, snapshot.now_s + elapsed_s, tuple(topics.values()), tuple(brokers.values())
    )


def rate_of(snapshot: PartitionSnapshot, name: str) -> float:
    """Messages in and out of the broker's topics, per second."""
    return sum(topic.report.rate_per_s for topic in snapshot.topics if topic.report.broker == name)


def output_of(snapshot: PartitionSnapshot, name: str) -> float:
    return sum(topic.report.out_rate_per_s for topic in snapshot.topics if topic.report.broker == name)


def overloaded(snapshot: PartitionSnapshot, params: PartitionParams = PARAMS) -> set[str]:
    """The overloaded brokers by the words of [ePulsar §3.4.2]."""
    names = set()
    for broker in snapshot.brokers:
        limit = params.rate_limit_per_s if broker.rate_limit_per_s is None else broker.rate_limit_per_s
        used = max(broker.cpu, broker.memory, broker.network)
        if used > params.utilisation_limit + 1e-6 or output_of(snapshot, broker.broker) > limit * (1 + 1e-6):
            names.add(str(broker.broker))
    return names
