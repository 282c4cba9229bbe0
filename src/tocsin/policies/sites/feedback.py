"""Utility: subscribers rate messages, edges sum the ratings, the head rates publishers and topics [ePEER §5.2, §5.3.3].

Equations 1–8, and their aggregation along the tree of a site. Pure: the driver carries the values and calls `take`
each second. A subscriber averages over the messages of one publisher (equation 1) and sends one `UtilityFeedback` a
second to its edge. The edge sums the averages by publisher (`EdgeFeedback`) and sends the head one `RatingSum` per
publisher instead of one message per subscriber. The head divides (`HeadUtility`, equation 2).

Feedback decides which publishers a congested site silences, so it is checked:

- `UtilityFeedback.subscriber` is the user of the authenticated session. The driver fills it in; a client cannot.
- A subscriber rates publishers of topics that it subscribes, and only those that sent it messages.
- A subscriber counts once per publisher of a topic, however many connections it has: its latest average counts.
- No subscriber has more than `MOST_WEIGHT` of weight, and a value outside [0, 1] is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from tocsin.model.ids import BrokerId, SubscriberId
from tocsin.policies.sites.types import PublisherId
from tocsin.policies.topics.types import TopicName

MOST_WEIGHT = 2.0
"""Ours: the most that one subscriber counts (W(s) of equation 2). The thesis gives weights no bound, so one subscriber
of a large weight could silence any publisher of its topics."""

Utility = Callable[[Any], float]
"""An application's own rating of a message, in [0, 1]."""
Feedback = Mapping[SubscriberId, Mapping[PublisherId, float]]
"""Ū_m(s, p): the latest averages of the subscribers."""


# The equations.


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


def capped(weight: float) -> float:
    """W(s) within [0, MOST_WEIGHT]; a weight that is not a number counts as 0."""
    return min(max(weight, 0.0), MOST_WEIGHT) if weight == weight else 0.0


def publisher_utility(
    feedback: Feedback, weights: Mapping[SubscriberId, float] | None = None
) -> dict[PublisherId, float]:
    """U_p(p), equation 2, for all rated publishers. Weights W(s) default to 1 and are capped; the result is clipped to
    [0, 1], the range of the rate classes."""
    sums = rating_sums(feedback.items(), weights or {})
    return {publisher: ratings.utility for publisher, ratings in sums.items()}


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

    E_s has no value for a subscriber that receives no publisher. Equation 5 divides by the number of all subscribers,
    so these count as 0: `silent` is their number. None if no subscriber counts.
    """
    total, count = 0.0, silent
    for subscriber, averages in feedback.items():
        value = average(averages.values())
        if value is not None:
            total += value * (1.0 if weights is None else weights.get(subscriber, 1.0))
            count += 1
    return total / count if count else None


# Aggregation: from subscribers to an edge, from edges to the head.


class RatingSum(NamedTuple):
    """The ratings of one publisher so far: Σ W(s)·Ū_m(s, p) and |S(p)| of equation 2."""

    weighted: float = 0.0
    subscribers: int = 0

    def plus(self, weighted: float, subscribers: int = 1) -> RatingSum:
        return RatingSum(self.weighted + weighted, self.subscribers + subscribers)

    @property
    def utility(self) -> float:
        """U_p(p), clipped to [0, 1]; 0 without ratings."""
        return min(max(self.weighted / self.subscribers, 0.0), 1.0) if self.subscribers else 0.0


NO_RATINGS = RatingSum()


def rating_sums(
    averages: Iterable[tuple[SubscriberId, Mapping[PublisherId, float]]], weights: Mapping[SubscriberId, float]
) -> dict[PublisherId, RatingSum]:
    """The ratings of each publisher by these subscribers. Weights W(s) default to 1 and are capped."""
    sums: dict[PublisherId, RatingSum] = {}
    for subscriber, rated_publishers in averages:
        weight = capped(weights.get(subscriber, 1.0))
        for publisher, value in rated_publishers.items():
            sums[publisher] = sums.get(publisher, NO_RATINGS).plus(weight * value)
    return sums


@dataclass(frozen=True, slots=True)
class UtilityFeedback:
    """One second of one subscriber. `subscriber` is the user of the session that carried it, never a field of it."""

    subscriber: SubscriberId
    topic: TopicName
    averages: Mapping[PublisherId, float]
    """Ū_m(s, p) of the publishers that sent this subscriber messages in the last second."""


class FeedbackCode(StrEnum):
    NOT_SUBSCRIBED = "not-subscribed"
    NOT_A_PUBLISHER = "not-a-publisher"
    NOT_A_UTILITY = "not-a-utility"


@dataclass(frozen=True, slots=True)
class FeedbackRejection:
    """Feedback that changed nothing."""

    code: FeedbackCode
    detail: str


@dataclass
class EdgeFeedback:
    """The feedback of one edge's subscribers in the present second.

    `serves` and `publishes` are the edge's own tables: does this subscriber subscribe the topic here, and has this
    publisher sent messages on it?
    """

    serves: Callable[[SubscriberId, TopicName], bool]
    publishes: Callable[[PublisherId, TopicName], bool]
    weights: Mapping[SubscriberId, float] = field(default_factory=dict)
    """W(s), set by the operator; 1 for others."""
    _latest: dict[tuple[SubscriberId, TopicName], dict[PublisherId, float]] = field(default_factory=dict)

    def accept(self, feedback: UtilityFeedback) -> FeedbackRejection | None:
        """Keep the feedback, in place of an earlier one of the same second, or reject all of it."""
        subscriber, topic = feedback.subscriber, feedback.topic
        if not self.serves(subscriber, topic):
            return FeedbackRejection(FeedbackCode.NOT_SUBSCRIBED, f"{subscriber} does not subscribe {topic} here")
        for publisher, value in feedback.averages.items():
            if not self.publishes(publisher, topic):
                return FeedbackRejection(FeedbackCode.NOT_A_PUBLISHER, f"{publisher} has not published {topic}")
            if not (math.isfinite(value) and 0.0 <= value <= 1.0):
                return FeedbackRejection(FeedbackCode.NOT_A_UTILITY, f"{subscriber} rates {publisher} {value}")
        self._latest[subscriber, topic] = dict(feedback.averages)
        return None

    def take(self) -> dict[PublisherId, RatingSum]:
        """The sums of the second that ends, for the head; the next second starts empty."""
        latest = ((subscriber, averages) for (subscriber, _), averages in self._latest.items())
        sums = rating_sums(latest, self.weights)
        self._latest.clear()
        return sums


@dataclass
class HeadUtility:
    """U_p of each publisher from the latest sums of all edges (equation 2).

    A publisher that no edge rated in a second keeps its last utility: a stopped publisher gets no feedback, and a quiet
    alarm must not lose its standing. The head forgets a publisher that leaves.
    """

    _sums: dict[BrokerId, Mapping[PublisherId, RatingSum]] = field(default_factory=dict)
    _utility: dict[PublisherId, float] = field(default_factory=dict)

    def receive(self, edge: BrokerId, sums: Mapping[PublisherId, RatingSum]) -> None:
        """Take the sums of one edge, in place of its earlier ones of the same second."""
        self._sums[edge] = sums

    def close_second(self) -> None:
        """Compute the utilities of the second that ends; the next second starts empty."""
        totals: dict[PublisherId, RatingSum] = {}
        for sums in self._sums.values():
            for publisher, ratings in sums.items():
                totals[publisher] = totals.get(publisher, NO_RATINGS).plus(*ratings)
        self._utility |= {publisher: ratings.utility for publisher, ratings in totals.items() if ratings.subscribers}
        self._sums.clear()

    def utility(self, publisher: PublisherId) -> float | None:
        """U_p(p); None before the first rating."""
        return self._utility.get(publisher)

    def forget(self, publisher: PublisherId) -> None:
        self._utility.pop(publisher, None)
