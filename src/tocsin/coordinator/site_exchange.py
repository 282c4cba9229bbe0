"""Neighbouring sites exchange the loads of their brokers [ePEER §4.4.1.3, decision 24].

Each second a coordinator reports its heads and edges to its neighbours, over the control connection. Offloading between
sites plans with these reports (`site_control`), and the dashboard of each site shows them. The delay between two sites
is the round trip that the control connection measures. `site_visits` and `site_hosting` carry moves out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice

from tocsin.coordinator.effects import SendToNeighbour
from tocsin.coordinator.neighbour_links import NeighbourLinks
from tocsin.coordinator.site_loads import SiteLoads
from tocsin.coordinator.turn import Turn
from tocsin.model.ids import BrokerId, TopicName
from tocsin.policies.sites.types import BrokerReport, Load, LoadState, SiteId
from tocsin.wire import neighbour_link as wire
from tocsin.wire.site_link import Role

_REPORT_S = 1.0
_STALE_S = 3.0
"""A neighbour's report counts for so long: three reports are missing."""
_MOST_BROKERS = 256
"""In one report of a neighbour."""
_SEPARATOR = "/"


def broker_of(site: str, broker: BrokerId) -> BrokerId:
    """The name of a neighbour's broker in plans of this site. No broker's own name has a slash."""
    return BrokerId(f"{site}{_SEPARATOR}{broker}")


def site_of(broker: BrokerId) -> tuple[str, BrokerId] | None:
    """The site of a neighbour's broker, and its name there; None for a broker of this site."""
    site, mark, name = broker.partition(_SEPARATOR)
    return (site, BrokerId(name)) if mark else None


@dataclass(slots=True)
class _Reported:
    at_s: float
    brokers: list[BrokerReport] = field(default_factory=list)
    topics: frozenset[TopicName] = frozenset()
    """Shared topics of any of its brokers: their flows are at the site."""


class SiteExchange:
    def __init__(self, links: NeighbourLinks, loads: SiteLoads, shares: Callable[[TopicName], bool]) -> None:
        self.links = links
        self.round_trips_s: dict[str, float] = {}
        """Neighbour → the median of the last round trips on the control connection."""
        self._loads = loads
        self._shares = shares
        self._reported: dict[str, _Reported] = {}
        self._next_s = float("-inf")

    def send(self, turn: Turn, site: str, message: wire.Exchange) -> bool:
        """Send a message to a neighbour. False if there is no connection, or its release does not know the message."""
        neighbour = self.links.neighbours.get(site)
        if neighbour is None or neighbour.connection is None or not neighbour.visits:
            return False
        turn.do(SendToNeighbour(neighbour.connection, message))
        return True

    def link_of(self, site: str) -> int | None:
        """The epoch of the link to a neighbour; None while it has none."""
        neighbour = self.links.neighbours.get(site)
        return None if neighbour is None or neighbour.connection is None else neighbour.link

    def is_lost(self, site: str) -> bool:
        """True once the time for the return of a broken connection is over."""
        neighbour = self.links.neighbours.get(site)
        return neighbour is None or (neighbour.connection is None and neighbour.lost_s is None)

    def is_shared(self, topic: TopicName) -> bool:
        return self._shares(topic)

    # -- reports -------------------------------------------------------------------------------------------------------

    def check(self, turn: Turn) -> None:
        """Called at every tick: report to the neighbours once a second."""
        if turn.now_s < self._next_s:
            return
        self._next_s = turn.now_s + _REPORT_S
        report = wire.SiteReport(list(self._own_brokers(turn)))
        for site in self.links.neighbours:
            self.send(turn, site, report)

    def _own_brokers(self, turn: Turn) -> Iterator[wire.BrokerState]:
        for broker in turn.registry.brokers.values():
            report = self._loads.report(broker.id)
            if broker.role is Role.PLAIN or not broker.linked or report is None:
                continue
            state = report.state if broker.trusted else max(report.state, LoadState.HIGH)
            capacity = tuple(None if math.isinf(limit) else limit for limit in report.capacity)
            topics = [topic for topic in self._loads.topics(broker.id) if self._shares(topic)]
            load = (report.load[0], report.load[1], report.load[2])
            limits = (capacity[0], capacity[1], capacity[2])
            yield wire.BrokerState(broker.id, broker.role, int(state), load, limits, topics)

    def receive(self, turn: Turn, site: str, report: wire.SiteReport) -> None:
        """A neighbour's report. Its values are checked: they decide where receivers of this site move."""
        shown = [broker for broker in islice(report.brokers, _MOST_BROKERS) if _is_sane(broker)]
        most = turn.rules.neighbour_topics
        known = [frozenset(topic for topic in islice(broker.topics, most) if self._shares(topic)) for broker in shown]
        reports = [_report(site, broker, topics) for broker, topics in zip(shown, known, strict=True)]
        self._reported[site] = _Reported(turn.now_s, reports, frozenset().union(*known))

    def of(self, site: str, now_s: float) -> list[BrokerReport]:
        """The brokers of a neighbour as it has reported them lately."""
        reported = self._reported.get(site)
        return [] if reported is None or now_s - reported.at_s > _STALE_S else reported.brokers

    def helpers(self, turn: Turn, busy: Collection[BrokerId]) -> tuple[BrokerReport, ...]:
        """Edges of neighbours for a plan. An edge takes receivers of topics whose flows its site has. Messages reach
        them later by the round trip at most: one way to the other home, one way back to the receivers."""
        helpers: list[BrokerReport] = []
        for site, reported in self._reported.items():
            delay_s = self.round_trips_s.get(site)
            is_able = self.link_of(site) is not None and self.links.neighbours[site].visits
            if delay_s is None or not is_able or turn.now_s - reported.at_s > _STALE_S:
                continue
            helpers += [
                replace(report, delay_s=delay_s, offers=reported.topics)
                for report in reported.brokers
                if not report.is_head and report.broker not in busy
            ]
        return tuple(helpers)


def _is_sane(broker: wire.BrokerState) -> bool:
    loads = all(0.0 <= value < math.inf for value in broker.load)
    limits = all(limit is None or 0.0 < limit < math.inf for limit in broker.capacity)
    is_state = broker.state in LoadState.__members__.values()
    return loads and limits and is_state and bool(broker.broker) and _SEPARATOR not in broker.broker


def _report(site: str, broker: wire.BrokerState, topics: frozenset[TopicName]) -> BrokerReport:
    capacity = Load(*(math.inf if limit is None else limit for limit in broker.capacity))
    name, is_head = broker_of(site, broker.broker), broker.role is Role.HEAD
    return BrokerReport(name, SiteId(site), is_head, LoadState(broker.state), Load(*broker.load), capacity, topics)
