"""Hand-made worlds for topic partitioning, and the world after a plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tocsin.coords.coordinate import DIMENSIONS, Coordinate
from tocsin.model.ids import BrokerId
from tocsin.policies.topics.monitor import summarise
from tocsin.policies.topics.types import (
    Clients,
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
    """The same clients and brokers after the plan: new homes, E(t), loads and departures."""
    brokers = {broker.broker: broker for broker in snapshot.brokers}
    costs = {name: _cost(snapshot, broker) for name, broker in brokers.items()}
    topics = {topic.report.topic: topic for topic in snapshot.topics}
    for move in plan.moves:
        moved = topics[move.topic]
        assert moved.clients is not None
        assert moved.report.broker == move.source
        for name, sign in ((move.source, -1.0), (move.target, 1.0)):
            extra = [sign * cost * moved.report.rate_per_s for cost in costs[name]]
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
    return PartitionSnapshot(
        snapshot.generation + 1, snapshot.now_s + elapsed_s, tuple(topics.values()), tuple(brokers.values())
    )


def rate_of(snapshot: PartitionSnapshot, name: str) -> float:
    return sum(topic.report.rate_per_s for topic in snapshot.topics if topic.report.broker == name)


def _cost(snapshot: PartitionSnapshot, host: TopicBroker) -> tuple[float, float, float]:
    """CPU, memory and network per message per second; those of the median broker for an idle one."""
    rates = {broker.broker: rate_of(snapshot, broker.broker) for broker in snapshot.brokers}
    hosts = [host] if rates[host.broker] > 0 else [broker for broker in snapshot.brokers if rates[broker.broker] > 0]
    if not hosts:
        return 0.0, 0.0, 0.0
    used = [(broker.cpu, broker.memory, broker.network) for broker in hosts]
    costs = [[part / rates[broker.broker] for part in parts] for broker, parts in zip(hosts, used, strict=True)]
    cpu, memory, network = np.median(costs, axis=0).tolist()
    return cpu, memory, network


def overloaded(snapshot: PartitionSnapshot, params: PartitionParams = PARAMS) -> set[str]:
    """The overloaded brokers by the words of [ePulsar §3.4.2]."""
    names = set()
    for broker in snapshot.brokers:
        limit = params.rate_limit_per_s if broker.rate_limit_per_s is None else broker.rate_limit_per_s
        used = max(broker.cpu, broker.memory, broker.network)
        if used > params.utilisation_limit + 1e-6 or rate_of(snapshot, broker.broker) > limit * (1 + 1e-6):
            names.add(str(broker.broker))
    return names
