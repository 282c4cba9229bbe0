"""Predicted and measured loads of brokers, from samples of the coordinator's status. Pure.

The load model computes the load of a broker, F_j [BAD eq. 5], from the assignment and the rates λ of one moment. The
broker counts the bytes that it fetched and delivered. A window compares the model with the bytes per second counted
over the window: the mean of the model's values in the window, on which plans were made then, and the value at its
start, which is a forecast and cannot know which subscribers will log in, log out or move.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from tocsin.demo.samples import DemoSample


@dataclass(frozen=True, slots=True)
class LoadWindow:
    """One broker over one window of time."""

    at_s: float
    """The start, in real seconds of the day."""
    broker: str
    modelled_bytes_per_s: float
    """The mean of the model's loads in the window."""
    forecast_bytes_per_s: float
    """The model's load at the start."""
    measured_bytes_per_s: float
    live_bytes_per_s: float
    """The measured load without the bytes that brought sessions up to date."""
    migrations: int
    """Migrations from or to this broker inside the window."""
    follows_migration: bool
    """True if the window has no migration, and one happened at most one window's length before its start."""
    session_changes: int
    """Logins and logouts at this broker inside the window."""


def load_windows(samples: Sequence[DemoSample], from_s: float, window_s: float) -> list[LoadWindow]:
    """A window from each sample at or after `from_s`, as long as there are samples until its end."""
    times_s = [sample.at_s for sample in samples]
    windows = []
    for index in range(bisect_left(times_s, from_s), len(samples)):
        start = samples[index]
        end_index = bisect_left(times_s, start.at_s + window_s)
        if end_index == len(samples):
            break
        end = samples[end_index]
        earlier = samples[max(0, bisect_right(times_s, start.at_s - window_s) - 1)]
        live = measured_loads(start, end, catch_up=False)
        for broker, bytes_per_s in measured_loads(start, end).items():
            before, after = start.brokers[broker], end.brokers[broker]
            moves = after.moves - before.moves
            inside = (sample.brokers.get(broker) for sample in samples[index : end_index + 1])
            modelled = [view.modelled_bytes_per_s for view in inside if view is not None]
            moved_before = broker in earlier.brokers and before.moves > earlier.brokers[broker].moves
            windows.append(
                LoadWindow(
                    start.at_s,
                    broker,
                    sum(modelled) / len(modelled),
                    before.modelled_bytes_per_s,
                    bytes_per_s,
                    live[broker],
                    moves,
                    not moves and moved_before,
                    after.session_changes - before.session_changes,
                )
            )
    return windows


def measured_loads(start: DemoSample, end: DemoSample, *, catch_up: bool = True) -> dict[str, float]:
    """Bytes fetched and delivered per second between two samples, by broker; all, or without those that caught up.

    A broker that reported no load in between, or restarted, is left out.
    """
    loads = {}
    for broker, before in start.brokers.items():
        after = end.brokers.get(broker)
        if after is None or after.reported_at_s <= before.reported_at_s or after.moved_bytes < before.moved_bytes:
            continue
        moved_bytes = after.moved_bytes - before.moved_bytes
        if not catch_up:
            moved_bytes -= after.catch_up_bytes - before.catch_up_bytes
        loads[broker] = moved_bytes / (after.reported_at_s - before.reported_at_s)
    return loads
