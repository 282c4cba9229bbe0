"""The coordinator's status, sampled once a second: the curves of the report."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class DemoSample:
    at_s: float
    """Seconds of real time since the day started."""
    loads_bytes_per_s: dict[str, float]
    subscribers: dict[str, int]
    cov: float
    notifications_per_s: float
    hand_overs: int
    """Hand-overs, as the clients count them."""


@dataclass(frozen=True, slots=True)
class BalancingRound:
    """A balancing round with moves."""

    at_s: float
    policy: str
    moves: int
    cov_before: float
    cov_after: float
    note: str


@dataclass(slots=True)
class Samples:
    samples: list[DemoSample] = field(default_factory=list)
    rounds: list[BalancingRound] = field(default_factory=list)
    _last: Any = None

    def add(self, at_s: float, status: dict[str, Any], hand_overs: int) -> DemoSample:
        brokers = status["brokers"]
        sample = DemoSample(
            at_s,
            {broker["broker"]: broker["load_bytes_per_s"] for broker in brokers},
            {broker["broker"]: broker["subscribers"] for broker in brokers},
            status["cov"],
            sum(broker["notifications_per_s"] for broker in brokers),
            hand_overs,
        )
        self.samples.append(sample)
        self._add_round(at_s, status["balance"]["last_round"])
        return sample

    def _add_round(self, at_s: float, last: dict[str, Any] | None) -> None:
        if last is not None and last != self._last and last["taken"]:
            self.rounds.append(
                BalancingRound(at_s, last["policy"], last["taken"], last["cov_before"], last["cov_after"], last["note"])
            )
        self._last = last

    def cov_at(self, at_s: float) -> float | None:
        """Return the cov of the last sample until `at_s`, or None."""
        return next((sample.cov for sample in reversed(self.samples) if sample.at_s <= at_s), None)

    def maximum_at(self, at_s: float) -> float | None:
        """Return the highest load of the last sample until `at_s`, or None."""
        earlier = (sample for sample in reversed(self.samples) if sample.at_s <= at_s)
        return next((max(sample.loads_bytes_per_s.values()) for sample in earlier), None)

    def cov_between(self, from_s: float, to_s: float) -> float | None:
        covs = [sample.cov for sample in self.samples if from_s <= sample.at_s <= to_s]
        return float(np.mean(covs)) if covs else None

    def maximum_between(self, from_s: float, to_s: float) -> float | None:
        maxima = [max(sample.loads_bytes_per_s.values()) for sample in self.samples if from_s <= sample.at_s <= to_s]
        return float(np.mean(maxima)) if maxima else None
