"""FDCC: feedback driven congestion control, for a site in which no broker has capacity left [ePEER §5.2].

`plan(snapshot, params) -> plan` returns a rate limit per publisher, or no limits. The driver calls it each second. It
depends on the snapshot alone, which contains the limits in force. Each publisher is limited to the rate of its class of
utility (§5.2.1). Then topics are admitted by importance while brokers have bandwidth for them; of a topic that does not
fit whole, publishers are admitted by utility (§5.2.2). When all offered messages would fit, all limits are lifted.

Where the thesis leaves the choice open:

- It has one output bandwidth. Here each broker that sends a topic's messages (its edges, its head) has its own, and a
  topic must fit all of them; otherwise one broker would stay overloaded while another has room.
- Bandwidth is filled to TH_high, not completely: a completely filled broker would stay overloaded.
- After the marginal topic, the policy still admits smaller topics that fit into the remaining bandwidth.
- A stopped publisher gets no feedback: the snapshot contains its last known utility.
- Feedback is noisy: a class and a selection change only by a margin (`class_margin`, `stickiness`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tocsin.model.ids import BrokerId, SubscriberId
from tocsin.policies.sites.types import LoadThresholds, PublisherId
from tocsin.policies.topics.types import TopicName


class PublisherView(NamedTuple):
    publisher: PublisherId
    offered_per_s: float
    """The publisher's rate without a limit: its rate limit filter also counts discarded messages."""
    utility: float
    """U_p: the utility of the publisher's messages."""
    limit_per_s: float | None = None
    """The limit in force; None for no limit."""


class TopicView(NamedTuple):
    topic: TopicName
    size_bytes: float
    subscribers: int
    copies: Mapping[BrokerId, int]
    """How often each broker sends a message: an edge once per subscriber, the head once per edge."""
    publishers: tuple[PublisherView, ...]


@dataclass(frozen=True, slots=True)
class CongestionSnapshot:
    generation: int
    out_bytes_per_s: Mapping[BrokerId, float]
    """The present C_o of each broker."""
    topics: tuple[TopicView, ...]
    limited: bool
    """True if no other broker can help an overloaded broker (`OffloadPlan.limited`), or limits are in force."""


@dataclass(frozen=True, slots=True)
class CongestionParams:
    class_rates_per_s: tuple[float, ...] = (10.0, 200.0, 500.0, 900.0, 2000.0)
    """Rates for utilities in [0, 0.2), [0.2, 0.4), … [0.8, 1] [ePEER §5.2.1]."""
    thresholds: LoadThresholds = field(default_factory=LoadThresholds)
    useless_below: float = 0.01
    """Ours: a publisher below this utility is useless. 0 gives the classes of the thesis."""
    probe_per_s: float = 0.1
    """Ours: the rate of a useless publisher, enough to be rated again. The thesis' lowest class would allow ten
    messages a second, although the thesis also says that rates are set to zero (§5.3.4)."""
    class_margin: float = 0.02
    """Ours: how far utility must pass the border of a class before a publisher changes class."""
    stickiness: float = 0.10
    """Ours: additional importance of a topic while it is published, so that two equal topics do not alternate."""


@dataclass(frozen=True, slots=True)
class CongestionPlan:
    generation: int
    limits: Mapping[PublisherId, float]
    """Messages per second; other publishers are not limited."""
    selected: tuple[TopicName, ...]
    """Topics whose publishers may all send, at the rates of their classes. In order of importance."""
    marginal: tuple[TopicName, ...]
    """Topics of which only some publishers may send."""
    stopped: tuple[TopicName, ...]


DEFAULT_PARAMS = CongestionParams()


def class_rate(utility: float, params: CongestionParams = DEFAULT_PARAMS, limit_per_s: float | None = None) -> float:
    """The rate limit for a publisher of this utility, given the limit in force. The last class includes 1."""
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
    if not snapshot.limited or fits_without_limits(snapshot, params):
        return CongestionPlan(snapshot.generation, {}, tuple(topic.topic for topic in snapshot.topics), (), ())
    room = {broker: params.thresholds.high * bytes_ for broker, bytes_ in snapshot.out_bytes_per_s.items()}
    limits: dict[PublisherId, float] = {}
    selected: list[TopicName] = []
    marginal: list[TopicName] = []
    stopped: list[TopicName] = []
    rates = {topic.topic: _rates(topic, params) for topic in snapshot.topics}
    worth = {topic.topic: _importance(topic, rates[topic.topic].values(), params) for topic in snapshot.topics}
    for topic in sorted(snapshot.topics, key=lambda topic: (-worth[topic.topic], topic.topic)):
        admitted = _admit(topic, rates[topic.topic], room)
        for view in topic.publishers:
            is_admitted = view.publisher in admitted
            limits[view.publisher] = class_rate(view.utility, params, view.limit_per_s) if is_admitted else 0.0
        is_whole = len(admitted) == len(topic.publishers)
        (selected if is_whole else marginal if admitted else stopped).append(topic.topic)
    return CongestionPlan(snapshot.generation, limits, tuple(selected), tuple(marginal), tuple(stopped))


def fits_without_limits(snapshot: CongestionSnapshot, params: CongestionParams = DEFAULT_PARAMS) -> bool:
    """Whether all offered messages would leave every broker below TH_low: the lost resources have returned."""
    needed: dict[BrokerId, float] = {}
    for topic in snapshot.topics:
        offered = topic.size_bytes * sum(view.offered_per_s for view in topic.publishers)
        for broker, copies in topic.copies.items():
            needed[broker] = needed.get(broker, 0.0) + copies * offered
    return all(
        amount < params.thresholds.low * snapshot.out_bytes_per_s.get(broker, 0.0) for broker, amount in needed.items()
    )


def _admit(topic: TopicView, rates: Mapping[PublisherId, float], room: dict[BrokerId, float]) -> list[PublisherId]:
    """Admit all publishers if they fit together, otherwise those that fit, by utility. Subtract them from `room`."""
    if _reserve(topic, sum(rates.values()), room):
        return [view.publisher for view in topic.publishers]
    by_utility = sorted(topic.publishers, key=lambda view: (-view.utility, view.publisher))
    return [view.publisher for view in by_utility if _reserve(topic, rates[view.publisher], room)]


def _reserve(topic: TopicView, rate_per_s: float, room: dict[BrokerId, float]) -> bool:
    """Subtract the rate from the room of every broker that sends the topic; False if it does not fit."""
    needed = topic.size_bytes * rate_per_s
    if any(copies * needed > room.get(broker, 0.0) + 1e-6 for broker, copies in topic.copies.items()):
        return False
    for broker, copies in topic.copies.items():
        room[broker] -= copies * topic.size_bytes * rate_per_s
    return True


def _rates(topic: TopicView, params: CongestionParams) -> dict[PublisherId, float]:
    """The rate of each publisher within its class."""
    return {
        view.publisher: min(view.offered_per_s, class_rate(view.utility, params, view.limit_per_s))
        for view in topic.publishers
    }


def _importance(topic: TopicView, rates: Iterable[float], params: CongestionParams) -> float:
    """A topic's importance, equation 4. The resource is its output at the rates of its publishers' classes."""
    utility = topic_utility([view.utility for view in topic.publishers])
    required = sum(rates) * topic.size_bytes * max(sum(topic.copies.values()), 1)
    value = importance(utility, topic.subscribers, required)
    published = any(view.limit_per_s is None or view.limit_per_s > 0.0 for view in topic.publishers)
    return value * (1.0 + params.stickiness) if published else value


# Utility of messages, publishers and topics [ePEER §5.2.1–5.2.2, §5.3.3, equations 1–8]. A subscriber rates each
# message (by keywords or by a function of the application) and sends the head an average per publisher each second.

Utility = Callable[[Any], float]
"""An application's own rating of a message, in [0, 1]."""
Feedback = Mapping[SubscriberId, Mapping[PublisherId, float]]
"""Ū_m(s, p): the latest averages of the subscribers."""


def by_keywords(interests: Collection[str], keywords: Collection[str]) -> float:
    """U_m(s, i, p), equation 8: the share of the interests that the message meets, times the share of its keywords that
    are of interest. 0 for a message without keywords or a subscriber without interests."""
    interest_set, keyword_set = set(interests), set(keywords)
    if not interest_set or not keyword_set:
        return 0.0
    matched = len(interest_set & keyword_set)
    return matched / len(interest_set) * (matched / len(keyword_set))


def rated(utility: Utility, message: Any) -> float:
    """An application's rating, clipped to [0, 1]; 0 if it is not a number."""
    value = float(utility(message))
    return min(max(value, 0.0), 1.0) if value == value else 0.0


def average(utilities: Iterable[float]) -> float | None:
    """Ū_m(s, p), equation 1, over the messages of one second; None without messages."""
    values = list(utilities)
    return sum(values) / len(values) if values else None


def publisher_utility(
    feedback: Feedback, weights: Mapping[SubscriberId, float] | None = None
) -> dict[PublisherId, float]:
    """U_p(p), equation 2, for all rated publishers. Weights W(s) default to 1; the result is clipped to [0, 1], the
    range of the rate classes."""
    sums: dict[PublisherId, float] = {}
    counts: dict[PublisherId, int] = {}
    for subscriber, averages in feedback.items():
        weight = 1.0 if weights is None else weights.get(subscriber, 1.0)
        for publisher, value in averages.items():
            sums[publisher] = sums.get(publisher, 0.0) + weight * value
            counts[publisher] = counts.get(publisher, 0) + 1
    return {publisher: min(max(sums[publisher] / counts[publisher], 0.0), 1.0) for publisher in sums}


def topic_utility(utilities: Iterable[float]) -> float:
    """U_t(t), equation 3, from its publishers' utilities; 0 for a topic without publishers."""
    return average(utilities) or 0.0


def importance(utility: float, subscribers: int, required: float) -> float:
    """I_t(t), equation 4. A topic that requires no resource is infinitely important, or 0 without utility."""
    if required <= 0.0:
        return float("inf") if utility * subscribers > 0.0 else 0.0
    return utility * subscribers / required


def mean_experience(
    feedback: Feedback, weights: Mapping[SubscriberId, float] | None = None, silent: int = 0
) -> float | None:
    """Ē_s, equations 5 to 7: the mean over subscribers of E_s(s), the mean over the publishers that each one receives.

    E_s has no value for a subscriber that receives no publisher. The mean leaves those out; `silent` counts that many
    of them as 0. None if no subscriber counts.
    """
    total, count = 0.0, silent
    for subscriber, averages in feedback.items():
        value = average(averages.values())
        if value is not None:
            total += value * (1.0 if weights is None else weights.get(subscriber, 1.0))
            count += 1
    return total / count if count else None
