"""Congestion control of a live site: limit publishers by utility where no broker can help [ePEER chapter 5].

`core` hands in ratings and rates, and calls `check` at every tick with the brokers that offloading cannot help. While
there are such brokers, or a queue is long, or limits are in force, a round runs each second: ask the homes for the
rates of their publishers, plan with `policies.sites.congestion`, send each home its limits. Homes forget limits that
are not repeated, so a coordinator that fails does not silence publishers. Messages of other sites are not limited: they
take a part of the capacity, and the publishers of this site share the rest.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

from tocsin.coordinator.rules import CoordinatorRules
from tocsin.coordinator.site_loads import Demand, SiteLoads
from tocsin.coordinator.site_plans import thresholds_of
from tocsin.coordinator.turn import Turn
from tocsin.model.feedback import HeadUtility, RatingSum
from tocsin.model.flow import is_flow
from tocsin.model.ids import BrokerId, PublisherId, TopicName, publisher_name, split_publisher
from tocsin.model.trace import Kind
from tocsin.policies.sites.congestion import plan
from tocsin.policies.sites.congestion_types import (
    CongestionParams,
    CongestionPlan,
    CongestionSnapshot,
    PublisherView,
    TopicView,
)
from tocsin.policies.sites.types import Load
from tocsin.wire.site_link import (
    LIMITS_S,
    LimitPublishers,
    PublisherRate,
    PublisherRates,
    Ratings,
    ReportPublishers,
    Role,
)

_ROUND_S = 1.0
_ANSWER_S = 0.5
"""Time that homes have to report their publishers."""
_MOST_FRAME_BYTES = 200.0
"""Most bytes that a frame adds to a message. Receivers that moved within the second of a measurement would make a
message look larger."""
_BACKLOG_S = 2.0
"""A broker with a longer queue does not wait for an offloading: at a quarter of the capacity that it needs, its queue
grows by three seconds each second of the offloading."""
_RATED_S = 3_600.0
"""A publisher without ratings for so long loses its utility. A quiet alarm keeps its utility longer than it is quiet,
and PROTECTED guarantees its rate anyway."""


@dataclass
class _Round:
    number: int
    until_s: float
    missing: set[BrokerId]
    rates: dict[BrokerId, PublisherRates] = field(default_factory=dict)


def live_params(rules: CoordinatorRules) -> CongestionParams:
    """Fill brokers to half the distance of the thresholds below TH_low: measured seconds vary by some whole messages,
    and a mean of TH_high, which is enough in simulation, would let brokers return to OVERLOAD again and again."""
    thresholds = thresholds_of(rules)
    return CongestionParams(thresholds=thresholds, fill=thresholds.low - (thresholds.high - thresholds.low) / 2)


class SiteCongestion:
    def __init__(self, loads: SiteLoads) -> None:
        self._loads = loads
        self._utility = HeadUtility()
        self._rated_s: dict[PublisherId, float] = {}
        self.limits: dict[PublisherId, float] = {}
        """The limits in force, in messages per second."""
        self._homes: dict[PublisherId, BrokerId] = {}
        """The homes of the publishers with limits."""
        self._round: _Round | None = None
        self._number = 0
        self._next_s = self._answered_s = float("-inf")
        self._second_s = float("-inf")
        self._counting: dict[BrokerId, int] = {}
        """Brokers that count the messages of publishers → the link over which the coordinator asked for that."""

    def limited_at(self, home: BrokerId) -> int:
        """The number of publishers with a limit whose home is this broker."""
        return sum(broker == home for broker in self._homes.values())

    def utility(self, topic: TopicName, publisher: int) -> float | None:
        return self._utility.utility(publisher_name(topic, publisher))

    # -- messages of brokers -------------------------------------------------------------------------------------------

    def handle(self, turn: Turn, broker: BrokerId, message: Ratings | PublisherRates) -> None:
        if isinstance(message, Ratings):
            sums = {
                publisher_name(topic, number): RatingSum(weighted, subscribers)
                for topic, ratings in message.topics.items()
                for number, weighted, subscribers in ratings
                if subscribers > 0 and 0.0 <= weighted <= 1e9
            }
            self._utility.receive(broker, sums)
            self._rated_s |= dict.fromkeys(sums, turn.now_s)
        elif self._round is not None and message.number == self._round.number and broker in self._round.missing:
            self._round.missing.discard(broker)
            self._round.rates[broker] = message
            if not self._round.missing:
                self._plan(turn)

    # -- time ----------------------------------------------------------------------------------------------------------

    def check(self, turn: Turn, limited: Collection[BrokerId]) -> None:
        """Called at every tick. `limited`: the overloaded brokers that no other broker can help."""
        if turn.now_s - self._second_s >= _ROUND_S:
            self._second_s = turn.now_s
            self._utility.close_second()
            self._forget_unrated(turn.now_s)
            self._let_homes_count(turn)
        if not turn.rules.site_congestion:
            self._apply(turn, CongestionPlan(0, {}, (), (), ()), {})
            self._loads.set_demand({})
            self._round = None
            return
        if self._round is not None and turn.now_s >= self._round.until_s:
            self._plan(turn)
        if (
            self._round is None
            and turn.now_s >= self._next_s
            and (limited or self.limits or self._loads.has_backlog(_BACKLOG_S))
        ):
            self._start_round(turn)

    def _let_homes_count(self, turn: Turn) -> None:
        """Ask the brokers of the site to count from the start: the first plan of a congestion needs rates at once."""
        for broker in turn.registry.brokers.values():
            link, takes_part = broker.link, broker.role is not Role.PLAIN and broker.topics
            if takes_part and link is not None and self._counting.get(broker.id) != link:
                turn.send(broker.id, ReportPublishers(0))
                self._counting[broker.id] = link

    def _forget_unrated(self, now_s: float) -> None:
        for publisher in [name for name, at_s in self._rated_s.items() if now_s - at_s > _RATED_S]:
            del self._rated_s[publisher]
            self._utility.forget(publisher)

    def _start_round(self, turn: Turn) -> None:
        self._next_s = turn.now_s + _ROUND_S
        self._number += 1
        homes = {record.home for record in turn.registry.topics.topics.values() if record.home is not None}
        asked = {home for home in homes if turn.send(home, ReportPublishers(self._number))}
        self._round = _Round(self._number, turn.now_s + _ANSWER_S, asked)

    # -- plans ---------------------------------------------------------------------------------------------------------

    def _plan(self, turn: Turn) -> None:
        assert self._round is not None
        rates, silent, self._round = self._round.rates, self._round.missing, None
        if not rates:
            if turn.now_s - self._answered_s > LIMITS_S:  # no home answers: the limits have ended there
                self._apply(turn, CongestionPlan(0, {}, (), (), ()), {})
                self._loads.set_demand({})
            return
        self._answered_s = turn.now_s
        views, imported = self._views(turn, rates.values())
        snapshot = self._snapshot(turn, views, imported)
        made = plan(snapshot, live_params(turn.rules))
        homes = {
            publisher_name(topic, rate.publisher): home
            for home, message in rates.items()
            for topic, reported in message.topics.items()
            for rate in reported
        }
        kept = {name: limit for name, limit in self.limits.items() if self._homes.get(name) in silent}
        self._apply(turn, made, homes, kept)
        self._loads.set_demand(_demand((*views, *imported)) if self.limits else {})

    def _views(
        self, turn: Turn, reports: Iterable[PublisherRates]
    ) -> tuple[tuple[TopicView, ...], tuple[TopicView, ...]]:
        """The topics with the publishers of this site, and those with the flows of other sites."""
        own: dict[TopicName, list[PublisherRate]] = {}
        imported: dict[TopicName, list[PublisherRate]] = {}
        for report in reports:
            for topic, rates in report.topics.items():
                for rate in rates if topic in turn.registry.topics.topics else ():
                    (imported if is_flow(rate.publisher) else own).setdefault(topic, []).append(rate)
        views, flows = (
            tuple(self._topic(turn, topic, rates) for topic, rates in topics.items()) for topics in (own, imported)
        )
        return views, flows

    def _snapshot(
        self, turn: Turn, views: tuple[TopicView, ...], imported: tuple[TopicView, ...]
    ) -> CongestionSnapshot:
        brokers = [broker.id for broker in turn.registry.brokers.values() if broker.role is not Role.PLAIN]
        brokers += [broker for view in (*views, *imported) for broker in view.copies]
        capacity: dict[BrokerId, Load] = {broker: self._loads.capacity(broker) for broker in brokers}
        filled = live_params(turn.rules).filled
        for view in imported:
            for broker, load in _loads_of(view).items():
                left = (whole - part / filled for whole, part in zip(capacity[broker], load, strict=True))
                capacity[broker] = Load(*(max(0.0, part) for part in left))
        return CongestionSnapshot(turn.registry.generation, capacity, views, limited=True)

    def _topic(self, turn: Turn, topic: TopicName, rates: list[PublisherRate]) -> TopicView:
        record = turn.registry.topics.topics[topic]
        edges = {
            broker.id: reported.receivers
            for broker in turn.registry.brokers.values()
            if broker.role is Role.EDGE and broker.id != record.home and broker.linked
            if (reported := self._loads.topics(broker.id).get(topic)) is not None and reported.receivers
        }
        copies, subscribers = dict(edges), sum(edges.values())
        if record.home is not None:
            at_home = self._loads.topics(record.home).get(topic)
            copies[record.home] = max(len(edges), 0 if at_home is None else at_home.receivers)
            subscribers += copies[record.home] - len(edges)  # receivers at the home itself
        size_bytes = _mean_bytes(rates)
        size_bytes = max(size_bytes, min(self._sent_bytes(topic, edges), size_bytes + _MOST_FRAME_BYTES))
        publishers = tuple(self._publisher(topic, rate) for rate in rates)
        return TopicView(topic, size_bytes, subscribers, copies, publishers, record.protected_per_s or 0.0)

    def _sent_bytes(self, topic: TopicName, edges: Iterable[BrokerId]) -> float:
        """The bytes in which edges send a message to a receiver: its frame counts against their output too."""
        loads = [load for edge in edges if (load := self._loads.topics(edge).get(topic)) is not None]
        sent = [(load.out_bytes_per_s, load.matched_per_s * load.receivers) for load in loads]
        return max((bytes_per_s / messages for bytes_per_s, messages in sent if messages > 0.0), default=0.0)

    def _publisher(self, topic: TopicName, rate: PublisherRate) -> PublisherView:
        name = publisher_name(topic, rate.publisher)
        return PublisherView(name, rate.offered_per_s, self._utility.utility(name), self.limits.get(name), rate.age_s)

    # -- limits --------------------------------------------------------------------------------------------------------

    def _apply(
        self,
        turn: Turn,
        made: CongestionPlan,
        homes: dict[PublisherId, BrokerId],
        kept: dict[PublisherId, float] | None = None,
    ) -> None:
        """Send every home its limits, also unchanged ones, and those without any more an empty list. `kept`: limits at
        homes that did not answer."""
        before, before_homes = self.limits, self._homes
        self.limits = {**(kept or {}), **made.limits}
        self._homes = {name: homes.get(name) or before_homes[name] for name in self.limits}
        by_home: dict[BrokerId, dict[TopicName, list[tuple[int, float]]]] = {home: {} for home in before_homes.values()}
        for name, limit in self.limits.items():
            topic, number = split_publisher(name)
            by_home.setdefault(self._homes[name], {}).setdefault(topic, []).append((number, limit))
        for home, limits in by_home.items():
            turn.send(home, LimitPublishers(limits))
        self._record(turn, bool(before), made)

    def _record(self, turn: Turn, was_limited: bool, made: CongestionPlan) -> None:
        if bool(self.limits) == was_limited:
            return
        outcome: dict[str, Any] = {"marginal": list(made.marginal), "stopped": list(made.stopped)}
        if self.limits:
            text = f"no broker can help: {len(self.limits)} publishers are limited by utility"
            turn.note("publishers limited", publishers=len(self.limits), **outcome)
        else:
            text = "all messages fit again: the limits of publishers end"
            turn.note("limits of publishers end")
        turn.trace(Kind.LIMITS, moves=len(self.limits), note=text, detail=outcome)


def _loads_of(view: TopicView) -> dict[BrokerId, Load]:
    """What all offered messages of a topic cost each broker on its route [ePEER table 4-3]."""
    rate_per_s = sum(publisher.offered_per_s for publisher in view.publishers)
    bytes_per_s = rate_per_s * view.size_bytes
    return {broker: Load(bytes_per_s, copies * bytes_per_s, rate_per_s) for broker, copies in view.copies.items()}


def _demand(views: Iterable[TopicView]) -> dict[TopicName, Demand]:
    """The messages of each topic, those of other sites included."""
    demand: dict[TopicName, Demand] = {}
    for view in views:
        known = demand.get(view.topic, Demand(0.0, 0.0))
        rate_per_s = known.messages_per_s + sum(publisher.offered_per_s for publisher in view.publishers)
        demand[view.topic] = Demand(rate_per_s, max(known.size_bytes, view.size_bytes))
    return demand


def _mean_bytes(rates: list[PublisherRate]) -> float:
    """The mean size of an offered message."""
    offered = sum(rate.offered_per_s for rate in rates)
    return sum(rate.offered_per_s * rate.size_bytes for rate in rates) / offered if offered > 0.0 else 0.0
