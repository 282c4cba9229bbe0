"""FDCC: who may publish how much when nobody has capacity left [ePEER §5.2].

`plan(snapshot, params) -> plan`: a rate limit per publisher, or none. It is asked each second and depends on nothing
but the snapshot: what limits are in force is in there. Each publisher is held to the rate of its class of utility
(§5.2.1); then topics are admitted by importance while brokers have bandwidth for them, and of the first that does not
fit whole its publishers by utility (§5.2.2). When the resources would carry everything again, all limits are lifted.

Beyond the thesis, each because it leaves it open:

- it has one output bandwidth; here each broker a topic leaves through (its edges, its head) has its own, and a topic
  must fit all of them, or one broker would stay overloaded while another has room;
- bandwidth is filled to TH_high, not to the brim: at the brim brokers stay overloaded;
- after the marginal topic the walk goes on, so that smaller topics use what is left;
- a publisher of no use to anybody may send one message in ten seconds, enough to be judged anew. The thesis' lowest
  class would let it send ten a second, although it also says that rates are set to zero (§5.3.4);
- who is stopped earns no feedback: the snapshot's utility is the last one known;
- feedback is noisy: a utility must pass the border of its class by a margin to change class, and a topic that is being
  published counts as a tenth more important, so that two equal ones do not take turns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tocsin.model.ids import BrokerId
from tocsin.policies.sites.congestion_utility import importance, topic_utility
from tocsin.policies.sites.offload_types import PublisherId, Thresholds
from tocsin.policies.topics.types import TopicName


class PublisherView(NamedTuple):
    publisher: PublisherId
    offered_per_s: float
    """What it would publish without a limit: its filter sees what it discards."""
    utility: float
    """U_p."""
    limit_per_s: float | None = None
    """In force now; None for no limit."""


class TopicView(NamedTuple):
    topic: TopicName
    size_bytes: float
    subscribers: int
    copies: Mapping[BrokerId, int]
    """How often a message leaves each broker: once per subscriber at its edges, once per edge at the head."""
    publishers: tuple[PublisherView, ...]


@dataclass(frozen=True, slots=True)
class CongestionSnapshot:
    generation: int
    out_bytes_per_s: Mapping[BrokerId, float]
    """C_o per broker, as it is now."""
    topics: tuple[TopicView, ...]
    limited: bool
    """An overloaded broker found nobody to help it (`OffloadPlan.limited`), or limits are in force."""


@dataclass(frozen=True, slots=True)
class CongestionParams:
    class_rates_per_s: tuple[float, ...] = (10.0, 200.0, 500.0, 900.0, 2000.0)
    """Of utilities in [0, 0.2), [0.2, 0.4), … [0.8, 1] [ePEER §5.2.1]."""
    thresholds: Thresholds = field(default_factory=Thresholds)
    useless_below: float = 0.01
    """Ours: a publisher with less utility is of no use. 0 keeps to the thesis' classes."""
    probe_per_s: float = 0.1
    """Ours: what a publisher of no use may send, to be judged anew."""
    class_margin: float = 0.02
    """Ours: utility beyond the border of a class before a publisher changes class."""
    stickiness: float = 0.10
    """Ours: how much more important a topic counts while it is published."""


@dataclass(frozen=True, slots=True)
class CongestionPlan:
    generation: int
    limits: Mapping[PublisherId, float]
    """Messages per second; publishers not named are not limited."""
    selected: tuple[TopicName, ...]
    """Published whole, within their classes, in order of importance."""
    marginal: tuple[TopicName, ...]
    """Only some of their publishers may publish."""
    stopped: tuple[TopicName, ...]


DEFAULT_PARAMS = CongestionParams()


def class_rate(utility: float, params: CongestionParams = DEFAULT_PARAMS, limit_per_s: float | None = None) -> float:
    """The rate limit that a publisher's utility earns, given the limit in force. The last class includes 1."""
    earned = _class_rate(utility, params)
    if limit_per_s is None or limit_per_s == earned:
        return earned
    nearby = (_class_rate(utility - params.class_margin, params), _class_rate(utility + params.class_margin, params))
    return limit_per_s if limit_per_s in nearby else earned


def _class_rate(utility: float, params: CongestionParams) -> float:
    if utility < params.useless_below:
        return params.probe_per_s
    rates = params.class_rates_per_s
    return rates[min(max(int(utility * len(rates) + 1e-12), 0), len(rates) - 1)]


def plan(snapshot: CongestionSnapshot, params: CongestionParams = DEFAULT_PARAMS) -> CongestionPlan:
    if not snapshot.limited or is_carried(snapshot, params):
        return CongestionPlan(snapshot.generation, {}, tuple(topic.topic for topic in snapshot.topics), (), ())
    return _select(snapshot, params)


def is_carried(snapshot: CongestionSnapshot, params: CongestionParams = DEFAULT_PARAMS) -> bool:
    """Whether everything offered would leave every broker below TH_low: then resources have returned."""
    needed: dict[BrokerId, float] = {}
    for topic in snapshot.topics:
        offered = topic.size_bytes * sum(one.offered_per_s for one in topic.publishers)
        for broker, copies in topic.copies.items():
            needed[broker] = needed.get(broker, 0.0) + copies * offered
    return all(
        amount < params.thresholds.low * snapshot.out_bytes_per_s.get(broker, 0.0) for broker, amount in needed.items()
    )


def _select(snapshot: CongestionSnapshot, params: CongestionParams) -> CongestionPlan:
    left = {broker: params.thresholds.high * room for broker, room in snapshot.out_bytes_per_s.items()}
    limits: dict[PublisherId, float] = {}
    kinds: dict[str, list[TopicName]] = {"selected": [], "marginal": [], "stopped": []}
    rates = {topic.topic: _rates(topic, params) for topic in snapshot.topics}
    worth = {topic.topic: _importance(topic, rates[topic.topic].values(), params) for topic in snapshot.topics}
    for topic in sorted(snapshot.topics, key=lambda topic: (-worth[topic.topic], topic.topic)):
        chosen = _admit(topic, rates[topic.topic], left)
        for one in topic.publishers:
            limit = class_rate(one.utility, params, one.limit_per_s) if one.publisher in chosen else 0.0
            limits[one.publisher] = limit
        whole = len(chosen) == len(topic.publishers)
        kinds["selected" if whole else "marginal" if chosen else "stopped"].append(topic.topic)
    return CongestionPlan(
        snapshot.generation, limits, tuple(kinds["selected"]), tuple(kinds["marginal"]), tuple(kinds["stopped"])
    )


def _admit(topic: TopicView, rates: Mapping[PublisherId, float], left: dict[BrokerId, float]) -> list[PublisherId]:
    """All publishers if they fit together, otherwise by utility as far as they fit. Takes what it needs from `left`."""
    if _fits(topic, sum(rates.values()), left):
        _spend(topic, sum(rates.values()), left)
        return [one.publisher for one in topic.publishers]
    chosen: list[PublisherId] = []
    for one in sorted(topic.publishers, key=lambda one: (-one.utility, one.publisher)):
        if _fits(topic, rates[one.publisher], left):
            _spend(topic, rates[one.publisher], left)
            chosen.append(one.publisher)
    return chosen


def _fits(topic: TopicView, rate_per_s: float, left: Mapping[BrokerId, float]) -> bool:
    needed = topic.size_bytes * rate_per_s
    return all(copies * needed <= left.get(broker, 0.0) + 1e-6 for broker, copies in topic.copies.items())


def _spend(topic: TopicView, rate_per_s: float, left: dict[BrokerId, float]) -> None:
    for broker, copies in topic.copies.items():
        left[broker] -= copies * topic.size_bytes * rate_per_s


def _rates(topic: TopicView, params: CongestionParams) -> dict[PublisherId, float]:
    """What each publisher would send within its class."""
    return {
        one.publisher: min(one.offered_per_s, class_rate(one.utility, params, one.limit_per_s))
        for one in topic.publishers
    }


def _importance(topic: TopicView, rates: Iterable[float], params: CongestionParams) -> float:
    """Equation 4; the resource is what the topic sends at the rates of its publishers' classes."""
    utility = topic_utility([one.utility for one in topic.publishers])
    required = sum(rates) * topic.size_bytes * max(sum(topic.copies.values()), 1)
    value = importance(utility, topic.subscribers, required)
    published = any(one.limit_per_s is None or one.limit_per_s > 0.0 for one in topic.publishers)
    return value * (1.0 + params.stickiness) if published else value
