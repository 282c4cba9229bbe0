"""What the coordinator says about its network, once a second: the curves of the report."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class Sample:
    at_s: float
    """Seconds of real time since the city woke."""
    loads_bytes_per_s: dict[str, float]
    subscribers: dict[str, int]
    cov: float
    notifications_per_s: float
    hand_overs: int
    """By the clients' own count."""


@dataclass(frozen=True, slots=True)
class Round:
    """A round of the balancer that moved somebody."""

    at_s: float
    policy: str
    moves: int
    cov_before: float
    cov_after: float
    note: str


@dataclass(slots=True)
class Samples:
    samples: list[Sample] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)
    _last: Any = None

    def add(self, at_s: float, status: dict[str, Any], hand_overs: int) -> Sample:
        brokers = status["brokers"]
        sample = Sample(
            at_s,
            {one["broker"]: one["load_bytes_per_s"] for one in brokers},
            {one["broker"]: one["subscribers"] for one in brokers},
            status["cov"],
            sum(one["notifications_per_s"] for one in brokers),
            hand_overs,
        )
        self.samples.append(sample)
        self._look_at_round(at_s, status["balance"]["last_round"])
        return sample

    def _look_at_round(self, at_s: float, last: dict[str, Any] | None) -> None:
        if last is not None and last != self._last and last["taken"]:
            self.rounds.append(
                Round(at_s, last["policy"], last["taken"], last["cov_before"], last["cov_after"], last["note"])
            )
        self._last = last

    def cov_at(self, at_s: float) -> float | None:
        """The last before that moment."""
        found = [one.cov for one in self.samples if one.at_s <= at_s]
        return found[-1] if found else None

    def maximum_at(self, at_s: float) -> float | None:
        """Of the last sample before that moment."""
        found = [max(one.loads_bytes_per_s.values()) for one in self.samples if one.at_s <= at_s]
        return found[-1] if found else None

    def cov_between(self, from_s: float, to_s: float) -> float | None:
        found = [one.cov for one in self.samples if from_s <= one.at_s <= to_s]
        return float(np.mean(found)) if found else None

    def maximum_between(self, from_s: float, to_s: float) -> float | None:
        found = [max(one.loads_bytes_per_s.values()) for one in self.samples if from_s <= one.at_s <= to_s]
        return float(np.mean(found)) if found else None
