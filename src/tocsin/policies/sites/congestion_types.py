"""The input and output of congestion control: publishers, topics, snapshot, parameters, plan [ePEER §5.2].

Plain values, and the rate classes of utility. `congestion.py` plans with them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tocsin.model.ids import BrokerId
from tocsin.policies.sites.types import Load, LoadThresholds, Metric, PublisherId
from tocsin.policies.topics.types import TopicName


class PublisherView(NamedTuple):
    """A publisher of one topic. A client that publishes on two topics is two publishers, each with its own limit."""

    publisher: PublisherId
    offered_per_s: float
    """The publisher's rate without a limit: its rate limit filter also counts discarded messages."""
    utility: float | None
    """U_p: the utility of the publisher's messages; None before the first rating."""
    limit_per_s: float | None = None
    """The limit in force; None for no limit."""
    age_s: float = math.inf
    """Time since the publisher's first message."""


class TopicView(NamedTuple):
    topic: TopicName
    size_bytes: float
    subscribers: int
    """Here and at other sites. 0: the publishers of this topic have no subscribers."""
    copies: Mapping[BrokerId, int]
    """The brokers that receive the topic, and how often each sends a message: an edge once per subscriber, the head
    once per edge or neighbouring head. A head that sends none is listed with 0: it still receives."""
    publishers: tuple[PublisherView, ...]
    protected_per_s: float = 0.0
    """The rate that the topic's publishers have together in any congestion (PROTECTED); 0: not protected."""


@dataclass(frozen=True, slots=True)
class CongestionSnapshot:
    generation: int
    capacity: Mapping[BrokerId, Load]
    """The present C_i, C_o and C_m of each broker. A head's C_m is infinite."""
    topics: tuple[TopicView, ...]
    limited: bool
    """True if no other broker can help an overloaded broker (`OffloadPlan.limited`), or limits are in force."""


@dataclass(frozen=True, slots=True)
class CongestionParams:
    class_rates_per_s: tuple[float, ...] = (10.0, 200.0, 500.0, 900.0, 2000.0)
    """Rates for utilities in [0, 0.2), [0.2, 0.4), … [0.8, 1] [ePEER §5.2.1]."""
    thresholds: LoadThresholds = field(default_factory=LoadThresholds)
    fill: float | None = None
    """Ours: the share of each capacity that a plan grants while publishers are limited. None: TH_high. A live site
    measures whole messages in a second, so a load with the mean TH_high exceeds it in every other second."""
    shares_the_rest: bool = True
    """Divide the capacity that is left among useful publishers: the rate of a class is a floor. False: it is a ceiling,
    as in the thesis (§5.2.1), and cuts more than the overload requires."""
    resource: Metric | None = None
    """R_t of equation 4. None: the scarcest metric of each overloaded broker. `Metric.MATCHING`: the thesis' example
    (§5.2.2). `Metric.OUTPUT`: the bytes that the head and the edges send."""
    useless_below: float = 0.01
    """Ours: a publisher below this utility is useless. 0 gives the classes of the thesis."""
    probe_per_s: float = 0.1
    """Ours: the rate of a useless publisher, enough to be rated again. The thesis' lowest class would allow ten
    messages a second, although the thesis also says that rates are set to zero (§5.3.4)."""
    unrated_utility: float = 0.5
    """Ours: the utility of a publisher that no subscriber has rated. A rarely used alarm is not useless."""
    grace_s: float = 10.0
    """Ours: the age until which a publisher counts at least as `unrated_utility`: its first ratings are few."""
    class_margin: float = 0.02
    """Ours: how far utility must pass the border of a class before a publisher changes class."""
    stickiness: float = 0.10
    """Ours: additional importance of a topic while it is selected, so that two equal topics do not alternate."""
    limit_margin: float = 0.05
    """Ours: a limit rises only by more than this share; each change is a message to a publisher."""

    @property
    def filled(self) -> float:
        return self.thresholds.high if self.fill is None else self.fill


@dataclass(frozen=True, slots=True)
class CongestionPlan:
    generation: int
    limits: Mapping[PublisherId, float]
    """Messages per second; other publishers are not limited."""
    selected: tuple[TopicName, ...]
    """Topics whose publishers all have at least the rates of their classes. In order of importance."""
    marginal: tuple[TopicName, ...]
    """Topics that are published at less."""
    stopped: tuple[TopicName, ...]


DEFAULT_PARAMS = CongestionParams()


def utility_of(view: PublisherView, params: CongestionParams = DEFAULT_PARAMS) -> float:
    """The utility with which a publisher counts."""
    if view.utility is None:
        return params.unrated_utility
    return max(view.utility, params.unrated_utility) if view.age_s < params.grace_s else view.utility


def class_rate(utility: float, params: CongestionParams = DEFAULT_PARAMS, limit_per_s: float | None = None) -> float:
    """The rate of a publisher of this utility, given the limit in force. The last class includes 1."""
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
