"""When a topic was above its latency bound, and for how long: spans of time from a record of deliveries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MERGED_WITHIN_S = 1.0
"""Violations less than this apart are one transient: producers of one topic do not recover in the same instant."""


@dataclass(frozen=True, slots=True)
class Transient:
    began_s: float
    ended_s: float
    """When the last late message was published."""
    peak_s: float
    """The highest latency in it."""

    @property
    def duration_s(self) -> float:
        return self.ended_s - self.began_s


def transients(latencies: Sequence[tuple[float, float]], bound_s: float) -> list[Transient]:
    """From (published, latency) of one topic's messages, in any order, both in seconds."""
    found: list[Transient] = []
    for published_s, latency_s in sorted(latencies):
        if latency_s <= bound_s:
            continue
        if found and published_s - found[-1].ended_s <= MERGED_WITHIN_S:
            last = found[-1]
            found[-1] = Transient(last.began_s, published_s, max(last.peak_s, latency_s))
        else:
            found.append(Transient(published_s, published_s, latency_s))
    return found
