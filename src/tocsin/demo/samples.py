"""The coordinator's status, sampled once a second: the curves of the report."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(slots=True)
class Activity:
    """What people did so far, as they count it themselves."""

    hand_overs: int = 0
    moves: Counter[str] = field(default_factory=Counter)
    """Hand-overs from or to each broker."""
    session_changes: Counter[str] = field(default_factory=Counter)
    """Logins and logouts at each broker."""


@dataclass(frozen=True, slots=True)
class BrokerSample:
    """What the load model predicts for a broker, and what the broker has counted."""

    modelled_bytes_per_s: float
    """F_j [BAD eq. 5] of the present assignment, of the subscribers that are logged in, and of the current λ."""
    moved_bytes: int
    """Bytes fetched and delivered since the broker's start, until its latest load report."""
    catch_up_bytes: int
    """The part of them that brought sessions up to date after a login or a move; λ does not predict it."""
    reported_at_s: float
    """Time of that report."""
    moves: int
    """Hand-overs from and to this broker so far."""
    session_changes: int
    """Logins and logouts at this broker so far."""


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
    brokers: dict[str, BrokerSample]
    """Brokers without a load report, or unknown to the model, are left out."""


@dataclass(frozen=True, slots=True)
class BalancingRound:
    """A balancing round with moves."""

    at_s: float
    policy: str
    moves: int
    cov_before: float
    cov_after: float
    """The cov that the plan promises: modelled, as is the maximum."""
    maximum_after_bytes_per_s: float
    note: str


@dataclass(slots=True)
class Samples:
    samples: list[DemoSample] = field(default_factory=list)
    rounds: list[BalancingRound] = field(default_factory=list)
    balance: dict[str, Any] = field(default_factory=dict)
    """The coordinator's balancing settings, of the last sample."""
    _last: Any = None

    def add(self, at_s: float, status: dict[str, Any], activity: Activity) -> DemoSample:
        brokers = status["brokers"]
        sample = DemoSample(
            at_s,
            {broker["broker"]: broker["load_bytes_per_s"] for broker in brokers},
            {broker["broker"]: broker["subscribers"] for broker in brokers},
            status["cov"],
            sum(broker["notifications_per_s"] for broker in brokers),
            activity.hand_overs,
            {
                broker["broker"]: _broker_sample(broker, activity)
                for broker in brokers
                if broker["modelled_bytes_per_s"] is not None and broker["reported_at_s"] is not None
            },
        )
        self.samples.append(sample)
        self.balance = status["balance"]
        self._add_round(at_s, status["balance"]["last_round"])
        return sample

    def _add_round(self, at_s: float, last: dict[str, Any] | None) -> None:
        if last is not None and last != self._last and last["taken"]:
            self.rounds.append(
                BalancingRound(
                    at_s,
                    last["policy"],
                    last["taken"],
                    last["cov_before"],
                    last["cov_after"],
                    last["maximum_after"],
                    last["note"],
                )
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


def _broker_sample(broker: dict[str, Any], activity: Activity) -> BrokerSample:
    return BrokerSample(
        broker["modelled_bytes_per_s"],
        broker["fetched_bytes"] + broker["delivered_bytes"],
        broker["catch_up_bytes"],
        broker["reported_at_s"],
        activity.moves[broker["broker"]],
        activity.session_changes[broker["broker"]],
    )
