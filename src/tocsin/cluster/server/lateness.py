"""Since when channels are late: records or ticks are waiting that no execution has covered. Drives nothing.

A channel may wait for Spark, for ingestion, for a failing execution or for a long one. Subscribers notice only that
results are missing, and so does this module: it compares what waits with the time since when it waits.
"""

from __future__ import annotations

from dataclasses import dataclass

from tocsin.cluster.engine import DataCluster
from tocsin.cluster.live import LiveChannel
from tocsin.cluster.schedule import Schedule
from tocsin.model.ids import ChannelName

LATE_AFTER_S = 5.0
"""A channel is late when something has waited for it this long. A usual execution of a busy machine takes less."""


@dataclass(frozen=True, slots=True)
class LateChannel:
    channel: ChannelName
    since_s: float
    """When the oldest waiting record was accepted, or the oldest tick that was not covered. Unix time."""
    late_s: float


def late_channels(cluster: DataCluster, schedule: Schedule, clock_s: float) -> list[LateChannel]:
    """The late channels, by name. `clock_s` is the time of the schedule's clock. Reads feed logs, so it may block."""
    now_s = cluster.now_s()
    waiting = _oldest_waiting(cluster)
    late = []
    for live in cluster.channels.all():
        since_s = _since_s(live, waiting, schedule.due_since_s(live.name, clock_s), now_s - clock_s)
        if since_s is not None and now_s - since_s >= LATE_AFTER_S and live.subscribers.count:
            late.append(LateChannel(live.name, round(since_s, 3), round(now_s - since_s, 3)))
    return late


def _oldest_waiting(cluster: DataCluster) -> dict[str, float]:
    """When the oldest record of each backlog was accepted, by dataset."""
    waiting = {}
    for dataset in cluster.datasets.all():
        since_s = None if dataset.gateway is None else dataset.gateway.waiting_since_s()
        if since_s is not None:
            waiting[str(dataset.name)] = since_s
    return waiting


def _since_s(live: LiveChannel, waiting: dict[str, float], due_s: float | None, epoch_s: float) -> float | None:
    """The earliest time since when the channel waits. `epoch_s` is the wall time at which the schedule's clock was 0.

    A repetitive channel may leave a record waiting for one period.
    """
    period_s = live.prepared.channel.period_s or 0.0
    times = [waiting[str(name)] + period_s for name in live.positions if str(name) in waiting]
    if due_s is not None:
        times.append(due_s + epoch_s)
    return min(times, default=None)
