"""`tocsin bench partition`: how long topic partitioning plans, in the worst case: every topic is above its bound."""

from __future__ import annotations

import json
import statistics
import time
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from tocsin.policies.topics.types import PartitionPlan, PartitionSnapshot


def register(app: typer.Typer) -> None:
    app.command()(partition)


def partition(
    topics: Annotated[int, typer.Option(min=1, help="Topics, each above its latency bound.")] = 10_000,
    brokers: Annotated[int, typer.Option(min=2, help="Brokers to choose from.")] = 500,
    repeats: Annotated[int, typer.Option(min=1, help="Plans timed.")] = 7,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line.")] = False,
) -> None:
    """Plan topics that all have to move; the plan is checked before it is timed."""
    from tocsin.policies.topics.partition import plan
    from tocsin.policies.topics.types import PartitionParams

    params = PartitionParams()
    snapshot = _world(topics, brokers)
    answer = plan(snapshot, params)
    _check(snapshot, answer)
    taken_s = []
    for _ in range(repeats):
        started_s = time.perf_counter()
        plan(snapshot, params)
        taken_s.append(time.perf_counter() - started_s)
    result = {
        "plan_s_p50": round(statistics.median(taken_s), 4),
        "plan_s_max": round(max(taken_s), 4),
        "topics": topics,
        "brokers": brokers,
        "moves": len(answer.moves),
        "unmet": len(answer.unmet),
    }
    if as_json:
        typer.echo(json.dumps(result))
    else:
        typer.echo(f"{topics:,} topics over {brokers:,} brokers: {result['plan_s_p50']} s (median of {repeats}), ")
        typer.echo(f"{len(answer.moves):,} moves, {len(answer.unmet):,} topics out of reach; checked.")


def _world(topics: int, brokers: int) -> PartitionSnapshot:
    """Brokers scattered over 100 × 100 ms, topics hosted as far from their clients as can be, brokers 80 % filled."""
    import numpy as np

    from tocsin.coords.coordinate import DIMENSIONS, Coordinate
    from tocsin.model.ids import BrokerId
    from tocsin.policies.topics.monitor import summarise
    from tocsin.policies.topics.types import PartitionSnapshot, Topic, TopicBroker, TopicName

    rng = np.random.default_rng(1)

    def somewhere(middle_s: tuple[float, float], spread_s: float) -> Coordinate:
        x_s, y_s = (float(centre + rng.uniform(-spread_s, spread_s)) for centre in middle_s)
        return Coordinate((x_s, y_s, *[0.0] * (DIMENSIONS - 2)), 1e-3, 0.0, 0.1)

    rates = rng.uniform(50.0, 150.0, topics)
    limit_per_s = float(rates.sum()) / brokers / 0.8
    hosts = [
        TopicBroker(BrokerId(f"broker-{n:04}"), somewhere((0.05, 0.05), 0.05), rate_limit_per_s=limit_per_s)
        for n in range(brokers)
    ]
    points = np.array([host.coordinate.vector[:2] for host in hosts])
    listed = []
    for n in range(topics):
        middle_s = (float(rng.uniform(0.0, 0.1)), float(rng.uniform(0.0, 0.1)))
        home = hosts[int(np.argmax(np.abs(points - np.array(middle_s)).sum(axis=1)))]
        clients = [somewhere(middle_s, 0.002) for _ in range(4)]
        report = summarise(
            TopicName(f"topic-{n:05}"),
            home.broker,
            home.coordinate,
            clients[:1],
            clients[1:],
            in_rate_per_s=float(rates[n]) / 4.0,
            out_rate_per_s=float(rates[n]) * 3.0 / 4.0,
        )
        listed.append(Topic(report, 0.020))
    return PartitionSnapshot(1, 0.0, tuple(listed), tuple(hosts))


def _check(snapshot: PartitionSnapshot, answer: PartitionPlan) -> None:
    """Every topic had to move; each moved topic is promised its bound; nobody who was not overloaded is now."""
    rates = {topic.report.topic: topic.report.rate_per_s for topic in snapshot.topics}
    load = {host.broker: 0.0 for host in snapshot.brokers}
    for topic in snapshot.topics:
        if topic.bound_s is None or topic.report.worst_latency_s <= topic.bound_s:
            raise AssertionError(f"{topic.report.topic} was not above its bound: this is not the worst case")
        load[topic.report.broker] += topic.report.rate_per_s
    limits = {host.broker: host.rate_limit_per_s or 0.0 for host in snapshot.brokers}
    for move in answer.moves:
        load[move.source] -= rates[move.topic]
        load[move.target] += rates[move.topic]
        if load[move.target] > limits[move.target] * (1.0 + 1e-6):
            raise AssertionError(f"moving {move.topic} overloads {move.target}")
    helped = {move.topic for move in answer.moves if move.expected_after_s <= 0.020}
    if len(helped) + len({unmet.topic for unmet in answer.unmet}) < len(snapshot.topics):
        raise AssertionError("a topic was neither helped nor reported")
