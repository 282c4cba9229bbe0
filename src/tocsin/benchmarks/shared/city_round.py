"""The CPU time of one round: each of the city's channels executed once for all subscriptions, alone and warm.

A data cluster in this process, without schedule, brokers and clients, so that only executions are measured. The
subscriptions are those of all people of the city, the positions their first ones. Each round has new reports, and new
positions before them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from tocsin.benchmarks.shared.harness import benchmark_cluster, publish
from tocsin.benchmarks.shared.processes import cpu_time_s

REPORTS = 285
"""Reports of a round: about five seconds of the city at speed 10, 50 s of its own time."""


@dataclass(frozen=True, slots=True)
class RoundCost:
    cpu_s: float
    """CPU time of a round, of this process and Spark: the median over the measured rounds."""
    wall_s: float
    by_channel_cpu_s: dict[str, float]
    subscriptions: int
    """Backend subscriptions."""
    results: int
    """Results of the last round."""


def measure_round(people: int, seed: int, warm_ups: int, rounds: int) -> RoundCost:
    from tocsin.demo.settings import application_file
    from tocsin.model.ids import BrokerId
    from tocsin.sim.city.crowd import CityCrowd
    from tocsin.sim.city.streets import built_in
    from tocsin.sim.city.subscriptions import CHANNELS, named_places

    streets = built_in()
    places = named_places(streets, seed)
    crowd = CityCrowd(streets, people, seed, places=places)
    application = application_file().absolute()
    with benchmark_cluster(application.read_text(encoding="utf-8"), str(application.parent)) as cluster:
        subscriptions = 0
        for channel in CHANNELS:
            sets = {
                made.parameters for person in crowd.people for made in person.subscriptions if made.channel == channel
            }
            if sets:
                granted = cluster.subscribe(channel, [dict(values) for values in sets], BrokerId("bench"))
                subscriptions += len({made.id for made in granted})
        measured: list[dict[str, tuple[float, float, int]]] = []
        for number in range(warm_ups + rounds):
            _publish_round(cluster, crowd, places, number)
            costs = {channel: _execution_cost(cluster, channel) for channel in CHANNELS}
            if number >= warm_ups:
                measured.append(costs)
    by_channel = {channel: statistics.median(costs[channel][0] for costs in measured) for channel in CHANNELS}
    return RoundCost(
        statistics.median(sum(cost[0] for cost in costs.values()) for costs in measured),
        statistics.median(sum(cost[1] for cost in costs.values()) for costs in measured),
        by_channel,
        subscriptions,
        sum(cost[2] for cost in measured[-1].values()),
    )


def _publish_round(cluster: Any, crowd: Any, places: Any, number: int) -> None:
    now, time_s = datetime.now(UTC).isoformat(), 60.0 * number
    positions = crowd.positions(time_s)
    rows = zip(crowd.people, positions.tolist(), strict=True)
    locations = [{"user_id": person.name, "lat": lat, "lon": lon, "at": now} for person, (lat, lon) in rows]
    publish(cluster, "UserLocations", locations)
    reports = crowd.reports.until(time_s + 60.0)[:REPORTS]
    publish(cluster, "EmergencyReports", [report.record(now) for report in reports])


def _execution_cost(cluster: Any, channel: str) -> tuple[float, float, int]:
    """(CPU seconds, seconds, results) of one execution."""
    cpu_s = _cpu_clock()
    before_s, started_s = cpu_s(), time.perf_counter()
    execution = cluster.execute(channel)
    took_s = time.perf_counter() - started_s
    return cpu_s() - before_s, took_s, 0 if execution is None else execution.results


def _cpu_clock() -> Callable[[], float]:
    """CPU time of this process and of Spark's JVM."""
    import psutil

    this = psutil.Process()
    processes = [this, *(child for child in this.children(recursive=True) if child.name() == "java")]
    return lambda: sum(cpu_time_s(process) for process in processes)
