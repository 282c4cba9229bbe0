"""Hand-made and random worlds for topic partitioning, and what the world is like after a plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tocsin.coords.coordinate import DIMENSIONS, Coordinate
from tocsin.model.ids import BrokerId
from tocsin.policies.topics.monitor import summarise
from tocsin.policies.topics.types import (
    Broker,
    Clients,
    PartitionParams,
    PartitionPlan,
    PartitionSnapshot,
    Topic,
    TopicName,
    remembered,
)

PARAMS = PartitionParams(headroom=0.0)
"""Without headroom, so that hand-made worlds have round numbers; it has a test of its own."""


def at(x_ms: float, y_ms: float = 0.0, height_ms: float = 0.0) -> Coordinate:
    """A place whose *one-way* latencies are distances on the map, in milliseconds."""
    return Coordinate((2e-3 * x_ms, 2e-3 * y_ms, *[0.0] * (DIMENSIONS - 2)), 2e-3 * height_ms, 0.0, 0.1)


def broker(name: str, where: Coordinate, **changes: float) -> Broker:
    return replace(Broker(BrokerId(name), where), **changes)  # type: ignore[arg-type]


def topic(
    name: str,
    home: Broker,
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


def world(topics: Sequence[Topic], brokers: Sequence[Broker], now_s: float = 0.0) -> PartitionSnapshot:
    return PartitionSnapshot(7, now_s, tuple(topics), tuple(brokers))


def after(snapshot: PartitionSnapshot, plan: PartitionPlan, elapsed_s: float = 5.0) -> PartitionSnapshot:
    """The same clients and brokers once the plan has been carried out: homes, E(t), loads and memory."""
    brokers = {one.broker: one for one in snapshot.brokers}
    costs = {name: _cost(snapshot, one) for name, one in brokers.items()}
    topics = {one.report.topic: one for one in snapshot.topics}
    for move in plan.moves:
        moved = topics[move.topic]
        assert moved.clients is not None
        assert moved.report.broker == move.source
        for name, sign in ((move.source, -1.0), (move.target, 1.0)):
            extra = [sign * cost * moved.report.rate_per_s for cost in costs[name]]
            was = brokers[name]
            brokers[name] = replace(
                was, cpu=was.cpu + extra[0], memory=was.memory + extra[1], network=was.network + extra[2]
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
            departures=remembered(moved, move, snapshot.now_s),
        )
    return PartitionSnapshot(
        snapshot.generation + 1, snapshot.now_s + elapsed_s, tuple(topics.values()), tuple(brokers.values())
    )


def rate_of(snapshot: PartitionSnapshot, name: str) -> float:
    return sum(one.report.rate_per_s for one in snapshot.topics if one.report.broker == name)


def _cost(snapshot: PartitionSnapshot, one: Broker) -> tuple[float, float, float]:
    rates = {other.broker: rate_of(snapshot, other.broker) for other in snapshot.brokers}
    if rates[one.broker] > 0:
        rate = rates[one.broker]
        return one.cpu / rate, one.memory / rate, one.network / rate
    busy = [other for other in snapshot.brokers if rates[other.broker] > 0]
    if not busy:
        return 0.0, 0.0, 0.0
    middle = np.median(
        [[o.cpu / rates[o.broker], o.memory / rates[o.broker], o.network / rates[o.broker]] for o in busy], 0
    )
    return float(middle[0]), float(middle[1]), float(middle[2])


def overloaded(snapshot: PartitionSnapshot, params: PartitionParams = PARAMS) -> set[str]:
    """[ePulsar §3.4.2], straight from the words."""
    found = set()
    for one in snapshot.brokers:
        limit = params.rate_limit_per_s if one.rate_limit_per_s is None else one.rate_limit_per_s
        used = max(one.cpu, one.memory, one.network)
        if used > params.utilisation_limit + 1e-6 or rate_of(snapshot, one.broker) > limit * (1 + 1e-6):
            found.add(str(one.broker))
    return found
