"""`tocsin bench partition`: plan topic partitioning in the worst case, with every topic above its latency bound.

Timed: planning alone, several times, on the same snapshot.
Checked by: a walk over the moves that adds up the brokers' loads (`_check`), before anything is timed.
Prints: median and maximum of the plans, how many topics move and how many bounds no broker can meet.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tocsin.benchmarks.shared.harness import command, timed

if TYPE_CHECKING:
    from tocsin.policies.topics.types import PartitionPlan, PartitionSnapshot

BOUND_S = 0.020


def partition(
    topics: Annotated[int, typer.Option(min=1, help="Topics, each above its latency bound.")] = 10_000,
    brokers: Annotated[int, typer.Option(min=2, help="Brokers to choose from.")] = 500,
    repeats: Annotated[int, typer.Option(min=1, help="Plans timed.")] = 7,
) -> dict[str, Any]:
    """Plan topics that all have to move; the plan is checked before it is timed."""
    from tocsin.policies.topics.partition import plan
    from tocsin.policies.topics.types import PartitionParams

    params = PartitionParams()
    snapshot = _make_snapshot(topics, brokers)
    checked = plan(snapshot, params)
    _check(snapshot, checked)
    times_s = [timed(lambda: plan(snapshot, params))[1] for _ in range(repeats)]
    return {
        "plan_s_p50": round(statistics.median(times_s), 4),
        "plan_s_max": round(max(times_s), 4),
        "topics": topics,
        "brokers": brokers,
        "moves": len(checked.moves),
        "unmet": len(checked.unmet),
    }


register = command(partition)


def _make_snapshot(topics: int, brokers: int) -> PartitionSnapshot:
    """Brokers scattered over 100 × 100 ms and 80 % filled; each topic's home is as far from its clients as possible."""
    import numpy as np

    from tocsin.coords.coordinate import DIMENSIONS, Coordinate
    from tocsin.model.ids import BrokerId
    from tocsin.policies.topics.monitor import summarise
    from tocsin.policies.topics.types import PartitionSnapshot, Topic, TopicBroker, TopicName

    rng = np.random.default_rng(1)

    def coordinate_near(middle_s: tuple[float, float], spread_s: float) -> Coordinate:
        x_s, y_s = (float(centre + rng.uniform(-spread_s, spread_s)) for centre in middle_s)
        return Coordinate((x_s, y_s, *[0.0] * (DIMENSIONS - 2)), 1e-3, 0.0, 0.1)

    rates = rng.uniform(50.0, 150.0, topics)
    limit_per_s = 0.75 * float(rates.sum()) / brokers / 0.8  # three of four messages are outgoing
    hosts = [
        TopicBroker(BrokerId(f"broker-{n:04}"), coordinate_near((0.05, 0.05), 0.05), rate_limit_per_s=limit_per_s)
        for n in range(brokers)
    ]
    points = np.array([host.coordinate.vector[:2] for host in hosts])
    listed = []
    for n in range(topics):
        middle_s = (float(rng.uniform(0.0, 0.1)), float(rng.uniform(0.0, 0.1)))
        home = hosts[int(np.argmax(np.abs(points - np.array(middle_s)).sum(axis=1)))]
        clients = [coordinate_near(middle_s, 0.002) for _ in range(4)]
        name, in_rate_per_s = TopicName(f"topic-{n:05}"), float(rates[n]) / 4.0
        rates_per_s = {"in_rate_per_s": in_rate_per_s, "out_rate_per_s": in_rate_per_s * 3.0}
        report = summarise(name, home.broker, home.coordinate, clients[:1], clients[1:], **rates_per_s)
        listed.append(Topic(report, BOUND_S))
    return PartitionSnapshot(1, 0.0, tuple(listed), tuple(hosts))


def _check(snapshot: PartitionSnapshot, plan: PartitionPlan) -> None:
    """Raise unless every topic was above its bound, no move overloads its target, and every topic has an outcome.

    The outcome of a topic is a move that meets its bound, or a report that no broker can meet it.
    """
    rates = {topic.report.topic: topic.report.out_rate_per_s for topic in snapshot.topics}
    load = {host.broker: 0.0 for host in snapshot.brokers}
    for topic in snapshot.topics:
        if topic.bound_s is None or topic.report.worst_latency_s <= topic.bound_s:
            raise AssertionError(f"{topic.report.topic} was not above its bound: this is not the worst case")
        load[topic.report.broker] += topic.report.out_rate_per_s
    limits = {host.broker: host.rate_limit_per_s or 0.0 for host in snapshot.brokers}
    for move in plan.moves:
        load[move.source] -= rates[move.topic]
        load[move.target] += rates[move.topic]
        if load[move.target] > limits[move.target] * (1.0 + 1e-6):
            raise AssertionError(f"moving {move.topic} overloads {move.target}")
    helped = {move.topic for move in plan.moves if move.expected_after_s <= BOUND_S}
    if len(helped) + len({unmet.topic for unmet in plan.unmet}) < len(snapshot.topics):
        raise AssertionError("a topic was neither moved within its bound nor reported as unmet")
