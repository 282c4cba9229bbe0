"""The inner loop of topic partitioning, compiled: the load of brokers, who can host what, first fit by rank.

Arrays in, arrays out; `partition` gives them meaning. Apart because it is the one place where 10,000 topics meet 500
brokers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numba
import numpy as np
import numpy.typing as npt

from tocsin.coords.coordinate import Vectors
from tocsin.policies.topics.types import Broker, PartitionParams

FINE, OUT_OF_REACH, NO_ROOM, RESTING = 0, 1, 2, 3
"""What `place` says of a topic beside its target."""

_ROUNDING = 1e-9
"""Sums of shares and rates are exact to this; a broker filled to its limit is not overloaded by the last digit."""

Indices = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Loads:
    """The load of every broker; the arrays change as topics are placed."""

    rates: Vectors
    """Aggregate message rate of the topics it hosts, per second."""
    rate_limits: Vectors
    used: Vectors
    """Utilisation of CPU, memory and network (columns), 0 to 1."""
    costs: Vectors
    """What one message per second uses of each."""
    used_limit: float

    @classmethod
    def of(cls, brokers: Sequence[Broker], home: Indices, topic_rates: Vectors, params: PartitionParams) -> Loads:
        """Two topics of equal rate cost a broker the same [ePulsar §3.4.3], so a message costs use / rate.

        An idle broker does not say what a message would cost it; it is taken to cost what it costs the median broker.
        """
        hosted = home >= 0
        rates = np.bincount(home[hosted], weights=topic_rates[hosted], minlength=len(brokers)).astype(np.float64)
        used = np.array([(broker.cpu, broker.memory, broker.network) for broker in brokers], dtype=np.float64)
        busy = rates > 0.0
        costs = np.zeros_like(used)
        costs[busy] = used[busy] / rates[busy, None]
        if busy.any():
            costs[~busy] = np.median(costs[busy], axis=0)
        limits = [
            params.rate_limit_per_s if broker.rate_limit_per_s is None else broker.rate_limit_per_s
            for broker in brokers
        ]
        return cls(rates, np.array(limits, dtype=np.float64), used, costs, params.utilisation_limit)

    def excess_per_s(self, broker: int) -> float:
        """The message rate that has to go so that no resource and no rate is above its limit [ePulsar §3.4.3]."""
        excess_per_s = float(self.rates[broker] - self.rate_limits[broker])
        for used, cost in zip(self.used[broker], self.costs[broker], strict=True):
            if cost > 0.0:
                excess_per_s = max(excess_per_s, float((used - self.used_limit) / cost))
        return excess_per_s

    def arrays(self) -> tuple[Vectors, Vectors, Vectors, Vectors, float]:
        return self.rates, self.rate_limits, self.used, self.costs, self.used_limit


def overloaded(loads: Loads) -> Flags:
    """[ePulsar §3.4.2]: any resource above its limit, or the aggregate rate above its own."""
    too_fast = loads.rates > loads.rate_limits * (1.0 + _ROUNDING)
    flags: Flags = too_fast | (loads.used > loads.used_limit + _ROUNDING).any(axis=1)
    return flags


@numba.njit(cache=True)
def _is_overloaded(
    broker: int, extra: float, rates: Vectors, rate_limits: Vectors, used: Vectors, costs: Vectors, used_limit: float
) -> bool:
    """Would the broker be overloaded with `extra` messages per second more?"""
    if rates[broker] + extra > rate_limits[broker] * (1.0 + _ROUNDING):
        return True
    for resource in range(used.shape[1]):
        if used[broker, resource] + costs[broker, resource] * extra > used_limit + _ROUNDING:
            return True
    return False


@numba.njit(cache=True)
def place(
    order: Indices,
    home: Indices,
    topic_rates: Vectors,
    expected_s: Vectors,
    candidates: Flags,
    reachable: Flags,
    resting: Flags,
    violated: Flags,
    gain_s: float,
    rates: Vectors,
    rate_limits: Vectors,
    used: Vectors,
    costs: Vectors,
    used_limit: float,
) -> tuple[Indices, Indices]:
    """For each topic in `order`: the candidate of least expected latency that can host it, or -1; and what fell short.

    The first of a ranked list that can host is the least of those that can, so nothing is sorted.
    """
    targets = np.full(len(home), -1, dtype=np.int64)
    shortfalls = np.zeros(len(home), dtype=np.int64)
    for topic in order:
        source, rate = home[topic], topic_rates[topic]
        if source < 0:
            continue
        relieved = not _is_overloaded(source, 0.0, rates, rate_limits, used, costs, used_limit)
        if relieved and not violated[topic]:
            continue  # picked to relieve its broker, which others have done by now
        # To stay is an alternative for a topic that violates its bound, unless its broker has to be relieved as well.
        limit_s = np.inf
        if relieved:
            limit_s = expected_s[topic, source]
            if not reachable[topic]:
                limit_s -= gain_s
        best, full, rests = -1, False, False
        for broker in range(expected_s.shape[1]):
            if broker == source or not candidates[topic, broker] or expected_s[topic, broker] >= limit_s:
                continue
            if resting[topic, broker]:
                rests = True
            elif _is_overloaded(broker, rate, rates, rate_limits, used, costs, used_limit):
                full = True
            else:
                best, limit_s = broker, expected_s[topic, broker]
        if not reachable[topic]:
            shortfalls[topic] = OUT_OF_REACH
        elif best < 0:
            shortfalls[topic] = NO_ROOM if full else RESTING if rests else FINE
        if best >= 0:
            targets[topic] = best
            for broker, sign in ((source, -1.0), (best, 1.0)):
                for resource in range(used.shape[1]):
                    used[broker, resource] += sign * costs[broker, resource] * rate
                rates[broker] += sign * rate
    return targets, shortfalls
