"""The budgets of a congested site: input, output and matching of every broker, and the rates granted from them.

Used by `congestion.plan`, which decides the order of the grants. Every grant is subtracted from all budgets on the
topic's route, so no order overloads a broker.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tocsin.model.feedback import importance, topic_utility
from tocsin.policies.sites.congestion_types import (
    CongestionParams,
    CongestionSnapshot,
    PublisherView,
    TopicView,
    class_rate,
    utility_of,
)
from tocsin.policies.sites.fair import Floats, max_min
from tocsin.policies.sites.types import Load, Metric, PublisherId


class Columns:
    """The budgets of a site as one row: input, output and matching of each broker, without infinite ones."""

    def __init__(self, snapshot: CongestionSnapshot) -> None:
        # A broker without a stated capacity has none.
        brokers = {broker: Load() for topic in snapshot.topics for broker in topic.copies} | dict(snapshot.capacity)
        whole = np.array(list(brokers.values()), dtype=np.float64).reshape(-1, len(Metric))
        self._row = {broker: row for row, broker in enumerate(brokers)}
        self._shape = whole.shape
        self._finite = np.isfinite(whole).ravel()
        self.whole: Floats = whole.ravel()[self._finite]
        self.broker = np.repeat(np.arange(len(brokers)), len(Metric))[self._finite]
        self.metric = np.tile(np.arange(len(Metric)), len(brokers))[self._finite]
        self.cost = {topic.topic: self._cost(topic) for topic in snapshot.topics}
        """The cost of one message of each topic."""

    def _cost(self, topic: TopicView) -> Floats:
        """A broker receives and matches a message once, and sends its copies [ePEER table 4-3]."""
        cost = np.zeros(self._shape)
        for broker, copies in topic.copies.items():
            cost[self._row[broker]] = (topic.size_bytes, copies * topic.size_bytes, 1.0)
        return np.asarray(cost.ravel()[self._finite])

    def needed(self, topics: Iterable[TopicView]) -> Floats:
        """The load of all offered messages of the topics."""
        needed = np.zeros(len(self.whole))
        for topic in topics:
            needed += self.cost[topic.topic] * sum(view.offered_per_s for view in topic.publishers)
        return needed


class Budget:
    """The capacity of a site as far as a plan fills it, and the rates granted from it so far."""

    def __init__(self, snapshot: CongestionSnapshot, params: CongestionParams) -> None:
        self._params = params
        self._columns = columns = Columns(snapshot)
        self._room: Floats = params.filled * columns.whole
        self._views = [(topic, view) for topic in snapshot.topics for view in topic.publishers]
        self._utility = {view.publisher: utility_of(view, params) for _, view in self._views}
        self._class = {
            view.publisher: class_rate(self._utility[view.publisher], params, view.limit_per_s)
            for _, view in self._views
        }
        self.granted: dict[PublisherId, float] = dict.fromkeys(self._class, 0.0)
        self._guaranteed: dict[PublisherId, float] = {}
        """The lowest limit of a publisher of a PROTECTED topic."""
        self._resource = self._scarcest([topic for topic in snapshot.topics if topic.subscribers])

    def all_fit(self, topics: Iterable[TopicView], *, has_limits: bool) -> bool:
        """Whether all that the topics still offer fits below TH_high besides the rates granted so far. Limits in force
        leave less room: they end below TH_low."""
        topics, thresholds = list(topics), self._params.thresholds
        needed = self._columns.needed(topics)
        for topic in topics:
            needed -= self._columns.cost[topic.topic] * sum(self.granted[view.publisher] for view in topic.publishers)
        most = thresholds.low if has_limits else thresholds.high
        reserved = (self._params.filled - most) * self._columns.whole
        return bool(((needed + reserved <= self._room + 1e-6) | (needed <= 0.0)).all())

    def protect(self, topic: TopicView) -> None:
        """Grant a PROTECTED topic its rate, divided among its publishers by max-min.

        A quiet alarm offers nothing and may fire before the next plan. So the limit of a publisher that gets all that
        it offers also covers the part of the guarantee that no publisher uses. If protected topics exceed the capacity
        together, the first ones get theirs: the operator must not protect more than the site has.
        """
        if topic.protected_per_s <= 0.0 or not topic.publishers:
            return
        offered = np.array([view.offered_per_s for view in topic.publishers])
        cost = np.vstack([np.append(self._columns.cost[topic.topic], 1.0)] * len(offered))
        granted = max_min(offered, np.ones(len(offered)), cost, np.append(self._room, topic.protected_per_s))
        unused = topic.protected_per_s - float(granted.sum())
        for view, rate in zip(topic.publishers, granted.tolist(), strict=True):
            self._grant(topic, view, rate)
            self._guaranteed[view.publisher] = rate + (unused if rate >= view.offered_per_s else 0.0)

    def importance(self, topic: TopicView) -> float:
        """A topic's importance, equation 4, at the rates of its publishers' classes."""
        utility = topic_utility(self._utility[view.publisher] for view in topic.publishers)
        rate = sum(self._floor(view) for view in topic.publishers)
        required = rate * float((self._columns.cost[topic.topic] * self._resource).sum())
        value = importance(utility, topic.subscribers, required)
        is_selected = any(
            view.limit_per_s is None or (view.limit_per_s >= self._floor(view) and view.limit_per_s > 0.0)
            for view in topic.publishers
        )
        return value * (1.0 + self._params.stickiness) if is_selected else value

    def admit(self, topic: TopicView) -> None:
        """Admit all publishers if they fit together, otherwise those that fit, by utility."""
        missing = {view: max(self._floor(view) - self.granted[view.publisher], 0.0) for view in topic.publishers}
        if self._fits(self._columns.cost[topic.topic] * sum(missing.values())):
            for view, rate in missing.items():
                self._grant(topic, view, rate)
            return
        for view in sorted(missing, key=lambda view: (-self._utility[view.publisher], view.publisher)):
            if self._fits(self._columns.cost[topic.topic] * missing[view]):
                self._grant(topic, view, missing[view])

    def share_the_rest(self, topics: Iterable[TopicView]) -> None:
        """Divide the remaining capacity among useful publishers that offer more than they were granted."""
        views = [(topic, view) for topic in topics for view in topic.publishers]
        if not views:
            return
        utility = np.array([self._utility[view.publisher] for _, view in views])
        weight = np.where(utility >= max(self._params.useless_below, 1e-6), utility, 0.0)
        missing = np.array([view.offered_per_s - self.granted[view.publisher] for _, view in views])
        cost = np.array([self._columns.cost[topic.topic] for topic, _ in views])
        more = max_min(np.maximum(missing, 0.0), weight, cost, self._room)
        for (topic, view), rate in zip(views, more.tolist(), strict=True):
            self._grant(topic, view, rate)

    def limit(self, view: PublisherView, class_rate: float | None = None) -> float:
        """The limit of a publisher: the rate of its class (or `class_rate`) if it gets all that it offers, otherwise
        the granted rate."""
        granted = max(self.granted[view.publisher], self._guaranteed.get(view.publisher, 0.0))
        of_class = self._class[view.publisher] if class_rate is None else class_rate
        if granted >= view.offered_per_s * (1.0 - 1e-9):
            return max(of_class, granted)
        current = view.limit_per_s
        keeps = current is not None and granted * (1.0 - self._params.limit_margin) <= current <= granted
        return current if keeps and current is not None else granted

    def outcome(self, topic: TopicView) -> str:
        granted = [(self.granted[view.publisher], self._floor(view)) for view in topic.publishers]
        if topic.subscribers and all(rate >= floor * (1.0 - 1e-9) for rate, floor in granted):
            return "selected"
        return "marginal" if any(rate > 0.0 for rate, _ in granted) else "stopped"

    def _floor(self, view: PublisherView) -> float:
        return min(view.offered_per_s, self._class[view.publisher])

    def _fits(self, needed: Floats) -> bool:
        return bool(((needed <= self._room + 1e-6) | (needed <= 0.0)).all())

    def _grant(self, topic: TopicView, view: PublisherView, rate_per_s: float) -> None:
        self._room = self._room - self._columns.cost[topic.topic] * rate_per_s
        self.granted[view.publisher] += rate_per_s

    def _scarcest(self, topics: Iterable[TopicView]) -> Floats:
        """The price of each budget in R_t. 1 for all budgets of the chosen metric; without one, 1 ÷ capacity for the
        scarcest budget of each broker that the topics would overload, and 0 for other budgets."""
        columns = self._columns
        if self._params.resource is not None:
            is_chosen = columns.metric == list(Metric).index(self._params.resource)
            return np.where(is_chosen, 1.0, 0.0)
        used = columns.needed(topics) / np.maximum(columns.whole, 1e-9)
        price = np.zeros(len(used))
        for broker in np.unique(columns.broker):
            of_broker = np.flatnonzero(columns.broker == broker)
            worst = int(of_broker[used[of_broker].argmax()])
            if used[worst] > self._params.thresholds.high:
                price[worst] = 1.0 / max(float(columns.whole[worst]), 1e-9)
        return price
