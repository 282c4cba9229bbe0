"""The load of brokers that host topics: a base, and a slope per message [ePulsar §3.4.2, §3.4.3].

A broker that hosts nothing uses memory and some CPU already, so utilisation ÷ rate is not the cost of a message: by
that rule a broker with 30 % of its memory in use and one quiet topic has no room for ten messages a second. Here
utilisation = base + slope · rate for each resource, and a plan changes utilisations by slope · rate alone.

Pure. `partition` plans with it; `samples_after` keeps the reports from which slopes are learnt.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numba
import numpy as np
import numpy.typing as npt

from tocsin.coords.distances import Vectors
from tocsin.policies.topics.types import LoadSample, PartitionParams, TopicBroker

Indices = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

SAMPLES_KEPT = 16
"""Ours: reports kept per broker; at a report every 5 s the latest are a minute old."""
NOISE = 0.02
"""Ours: spread of a reported utilisation around base + slope · rate."""
STEEP = 1e-4
"""Ours: a slope that is not unusual, utilisation per message per second. A broker of this slope is full at 10,000 a
second. Evidence below NOISE / STEEP = 200 messages a second of difference is mostly noise and hardly counts."""
_DOUBT = (NOISE / STEEP) ** 2
_IDLE_PER_S = 1e-6
"""A lower rate counts as none: a utilisation divided by it says nothing, and may overflow."""
_ROUNDING = 1e-9
"""Rounding error of sums of shares and rates: it does not overload a broker that is filled exactly to its limit."""


def samples_after(samples: Sequence[LoadSample], latest: LoadSample) -> tuple[LoadSample, ...]:
    """The samples of a broker after another report, oldest first.

    The latest are kept, and always those of the lowest and the highest rate: without them a broker of steady rate would
    forget what a message costs.
    """
    known = [*samples, latest]
    if len(known) <= SAMPLES_KEPT:
        return tuple(known)
    ends = {min(range(len(known)), key=lambda n: known[n].rate_per_s)}
    ends.add(max(range(len(known)), key=lambda n: known[n].rate_per_s))
    dropped = next(n for n in range(len(known)) if n not in ends)
    return tuple(known[:dropped] + known[dropped + 1 :])


def slopes(brokers: Sequence[TopicBroker], rates: Vectors, params: PartitionParams) -> Vectors:
    """Utilisation of CPU, memory and network (columns) per message per second, for each broker (rows).

    Least squares over a broker's own samples. Where they say little, because its rate has hardly changed, the slope
    approaches that of all brokers, and without evidence anywhere the profile of [ePulsar §5.4]: a broker reaches the
    limit of its resources at the limit of its rate. An overloaded broker without evidence is taken to have no base: it
    sheds the fewest topics then, and the next report shows what that has changed. A base is never negative. A resource
    that no broker has ever reported costs nothing: the limit of the output rate alone decides then.
    """
    profile = params.utilisation_limit / params.rate_limit_per_s if params.rate_limit_per_s > 0.0 else 0.0
    squares, products = np.zeros((len(brokers), 1)), np.zeros((len(brokers), 3))
    for row, broker in enumerate(brokers):
        points = [(sample.rate_per_s, sample.cpu, sample.memory, sample.network) for sample in broker.samples]
        points.append((float(rates[row]), broker.cpu, broker.memory, broker.network))
        away = np.array(points, dtype=np.float64)
        away -= away.mean(axis=0)
        squares[row] = away[:, 0] @ away[:, 0]
        products[row] = away[:, 0] @ away[:, 1:]
    common = (products.sum(axis=0) + _DOUBT * profile) / (squares.sum() + _DOUBT)
    own = np.maximum((products + _DOUBT * common) / (squares + _DOUBT), 0.0)
    used = _utilisations(brokers)
    busy = rates > _IDLE_PER_S
    without_base = np.full_like(used, np.inf)
    without_base[busy] = used[busy] / rates[busy, None]
    unknown = (squares < _DOUBT) & (used > params.utilisation_limit) & busy[:, None]
    found: Vectors = np.where(unknown, without_base, np.minimum(own, without_base))
    samples = [(sample.cpu, sample.memory, sample.network) for broker in brokers for sample in broker.samples]
    reported = (used > 0.0).any(axis=0) | (np.array(samples).reshape(-1, 3) > 0.0).any(axis=0)
    found[:, ~reported] = 0.0
    return found


def _utilisations(brokers: Sequence[TopicBroker]) -> Vectors:
    used = [(broker.cpu, broker.memory, broker.network) for broker in brokers]
    return np.array(used, dtype=np.float64).reshape(len(brokers), 3)


class HostLoads(NamedTuple):
    """The load of every broker. `partition` changes the arrays as it places topics. A NamedTuple, because compiled code
    reads it."""

    rates: Vectors
    """Messages in and out of the hosted topics when the plan began, per second."""
    outputs: Vectors
    """Aggregate output message rate of the hosted topics, per second [ePulsar §3.4.2]."""
    output_limits: Vectors
    used: Vectors
    """Utilisation of CPU, memory and network (columns), 0 to 1."""
    costs: Vectors
    """Utilisation of each resource per message per second, in or out."""
    used_limit: float

    @classmethod
    def of(
        cls,
        brokers: Sequence[TopicBroker],
        home: Indices,
        topic_rates: Vectors,
        topic_outputs: Vectors,
        params: PartitionParams,
    ) -> HostLoads:
        def hosted_sum(of_topics: Vectors) -> Vectors:
            hosted = home >= 0
            return np.bincount(home[hosted], weights=of_topics[hosted], minlength=len(brokers)).astype(np.float64)

        own_limits = [broker.rate_limit_per_s for broker in brokers]
        limits = [params.rate_limit_per_s if limit is None else limit for limit in own_limits]
        rates, outputs = hosted_sum(topic_rates), hosted_sum(topic_outputs)
        used, costs = _utilisations(brokers), slopes(brokers, rates, params)
        return cls(rates, outputs, np.array(limits, dtype=np.float64), used, costs, params.utilisation_limit)

    def overloaded(self) -> Flags:
        """The overloaded brokers [ePulsar §3.4.2]: a resource, or the aggregate output rate, is above its limit."""
        too_fast = self.outputs > self.output_limits * (1.0 + _ROUNDING)
        flags: Flags = too_fast | (self.used > self.used_limit + _ROUNDING).any(axis=1)
        return flags

    def excess_per_s(self, broker: int) -> tuple[float, float]:
        """The rates that must leave [ePulsar §3.4.3]: of all messages, so that no resource is above its limit, and of
        outgoing messages, so that the output rate is not.

        A resource whose base alone exceeds the limit asks for nothing: no topic's departure would relieve it.
        """
        excess_per_s = 0.0
        for used, cost in zip(self.used[broker], self.costs[broker], strict=True):
            surplus = float(used - self.used_limit)
            if 0.0 < surplus <= cost * self.rates[broker]:
                excess_per_s = max(excess_per_s, surplus / float(cost))
        return excess_per_s, float(self.outputs[broker] - self.output_limits[broker])


@numba.njit(cache=True)
def is_overloaded(broker: int, extra: float, extra_output: float, loads: HostLoads) -> bool:
    """True if `extra` more messages per second, `extra_output` of them outgoing, would overload the broker."""
    if loads.outputs[broker] + extra_output > loads.output_limits[broker] * (1.0 + _ROUNDING):
        return True
    for resource in range(loads.used.shape[1]):
        if loads.used[broker, resource] + loads.costs[broker, resource] * extra > loads.used_limit + _ROUNDING:
            return True
    return False
