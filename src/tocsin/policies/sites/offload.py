"""DRD-LB: delay requirements driven load balancing [ePEER §4.4.2–4.4.4].

`DRD_LB.plan(snapshot, params, rng) -> plan`. An overloaded edge offloads subscribers to LOW edges of its site, and
those without room there to LOW edges of neighbouring sites. An overloaded head offloads publishers to LOW heads of
neighbouring sites. No broker is overloaded by the load that it accepts. If all acceptors together have too little
capacity, nothing moves: half an offloading would delay messages without ending the overload. The broker is then
`waiting` if the brokers that are BUSY now could help, and otherwise `limited`.

The thesis drops its choice inside the site as soon as that is not enough, and chooses again among other sites. Here the
choice inside the site is kept and other sites take the other clients, so that fewer clients leave their site.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from tocsin.model.ids import BrokerId
from tocsin.policies.sites.load import overloaded_metrics, state_of
from tocsin.policies.sites.types import (
    NO_LOAD,
    BrokerReport,
    Bundle,
    ClientId,
    Load,
    LoadState,
    LoadThresholds,
    Metric,
    Offload,
    OffloadParams,
    OffloadPlan,
    OffloadSnapshot,
    Reach,
    SiteMove,
    utilisation,
)
from tocsin.policies.topics.types import TopicName

DEFAULT_PARAMS = OffloadParams()


class Balancer(Protocol):
    """The interface of the three policies."""

    @property
    def name(self) -> str: ...

    def edge_for(
        self, topic: TopicName, edges: Sequence[BrokerReport], params: OffloadParams, rng: np.random.Generator
    ) -> BrokerId | None:
        """The edge for a new subscriber of `topic` [ePEER §4.4.2]; None if the site has no edge."""

    def plan(
        self, snapshot: OffloadSnapshot, params: OffloadParams, rng: np.random.Generator | None = None
    ) -> OffloadPlan: ...


class DrdLb:
    name = "drd-lb"

    def edge_for(
        self, topic: TopicName, edges: Sequence[BrokerReport], params: OffloadParams, rng: np.random.Generator
    ) -> BrokerId | None:
        return drd_edge(topic, edges, params.thresholds)

    def plan(
        self, snapshot: OffloadSnapshot, params: OffloadParams = DEFAULT_PARAMS, rng: np.random.Generator | None = None
    ) -> OffloadPlan:
        """Relieve the most overloaded broker first. A broker takes part in at most one offloading."""
        offloads: list[Offload] = []
        helpless: list[BrokerReport] = []
        taken: set[BrokerId] = set()
        overloaded = [report for report in snapshot.brokers if report.state is LoadState.OVERLOAD]
        for report in sorted(overloaded, key=lambda report: (-max(report.used), report.broker)):
            offload = _relieve(report, snapshot, params, taken)
            if offload is None:
                helpless.append(report)
            elif offload.moves:
                offloads.append(offload)
                taken |= set(offload.brokers)
        waiting, limited = without_help(helpless, snapshot, offloads, params)
        return OffloadPlan(snapshot.generation, self.name, tuple(offloads), waiting, limited)


DRD_LB = DrdLb()


def _relieve(
    source: BrokerReport, snapshot: OffloadSnapshot, params: OffloadParams, taken: set[BrokerId]
) -> Offload | None:
    """The offload that relieves `source`; None if all acceptors together have too little capacity."""
    selection = OffloadSelection(source, params.thresholds)
    metrics = overloaded_metrics(source.used, params.thresholds)
    bundles = snapshot.bundles.get(source.broker, ())
    for between_sites in (False, True):
        low = [
            report
            for report in (snapshot.neighbours if between_sites else snapshot.brokers)
            if report.state is LoadState.LOW and report.is_head == source.is_head and report.broker not in taken
        ]
        acceptors = acceptors_of(low, params.thresholds)
        if source.is_head:
            ordered = publishers_first(bundles, Metric.INPUT if Metric.INPUT in metrics else Metric.OUTPUT)
        else:
            ordered = subscribers_first(bundles, between_sites)
        selection.take(ordered, acceptors)
        selection.split(ordered, acceptors)
    if selection.overload():
        return None
    worst = ", ".join(f"{metric} {100 * source.used.of(metric):.1f} %" for metric in metrics)
    return Offload(source.broker, tuple(selection.moves), f"overloaded: {worst}")


def without_help(
    helpless: Sequence[BrokerReport], snapshot: OffloadSnapshot, offloads: Sequence[Offload], params: OffloadParams
) -> tuple[tuple[BrokerId, ...], tuple[BrokerId, ...]]:
    """Separate overloaded brokers into those that wait for a BUSY helper and those that no broker can help.

    A BUSY broker counts with its present load, and a broker of this plan with its load after the plan. If they could
    end the overload together with LOW brokers, and LOW brokers alone could not, the overloaded broker waits: an
    offloading always ends, at the time-out at the latest.
    """
    if not helpless:
        return (), ()
    settled = replace(
        snapshot,
        brokers=tuple(_settled(report, snapshot, offloads, params) for report in snapshot.brokers),
        neighbours=tuple(_settled(report, snapshot, offloads, params) for report in snapshot.neighbours),
    )
    taken = {broker for offload in offloads for broker in offload.brokers}
    waiting = [
        report.broker
        for report in helpless
        if _relieve(report, settled, params, set()) is not None and _relieve(report, snapshot, params, taken) is None
    ]
    return tuple(waiting), tuple(report.broker for report in helpless if report.broker not in waiting)


def _settled(
    report: BrokerReport, snapshot: OffloadSnapshot, offloads: Sequence[Offload], params: OffloadParams
) -> BrokerReport:
    """A broker as it will be after the offloads, and not BUSY."""
    load = report.load
    leaving = {bundle.topic: bundle.load for bundle in snapshot.bundles.get(report.broker, ())}
    for move in (move for offload in offloads for move in offload.moves):
        if move.target == report.broker:
            load = load.plus(move.accepted)
        elif move.source == report.broker and move.is_whole:
            load = load.minus(leaving.get(move.topic, NO_LOAD))
    return replace(report, load=load, state=state_of(utilisation(load, report.capacity), params.thresholds))


# Load distribution [ePEER §4.4.2, figure 4-13]: publishers always get the head.


def drd_edge(
    topic: TopicName,
    edges: Sequence[BrokerReport],
    thresholds: LoadThresholds,
    delay_s: Mapping[BrokerId, float] | None = None,
) -> BrokerId | None:
    """The edge for a new subscriber; None if the site has no edge.

    Subscribers of one topic share an edge, so that its messages go to one edge only. A topic that is new to the site
    goes to the edge with most capacity left (sites in one LAN) or, with `delay_s` from the subscriber to each edge, to
    the nearest (sites over a WAN). The thesis does not cover a site without a LOW edge; here the least loaded edge that
    is not BUSY takes the client, because a client without an edge gets no messages at all.
    """
    for edge in edges:
        if topic in edge.topics:
            return edge.broker
    low = [edge for edge in edges if edge.state is LoadState.LOW]
    if delay_s is not None and low:
        return min(low, key=lambda edge: (delay_s.get(edge.broker, float("inf")), edge.broker)).broker
    choice = low or [edge for edge in edges if edge.state is not LoadState.BUSY] or list(edges)
    if not choice:
        return None
    return min(choice, key=lambda edge: (-edge.headroom(thresholds), edge.broker)).broker


# Priorities [ePEER §4.4.3.2, tables 4-4 to 4-7]. Within a class the more delay-tolerant topic moves first, because
# moving delays messages.

_PUBLISHERS = {
    Metric.INPUT: (Reach.NONE, Reach.REMOTE, Reach.BOTH, Reach.LOCAL),
    Metric.OUTPUT: (Reach.REMOTE, Reach.BOTH, Reach.LOCAL, Reach.NONE),
}
"""[ePEER table 4-5]. Publishers without subscribers cost input only."""
_SUBSCRIBERS_BETWEEN_SITES = (Reach.REMOTE, Reach.BOTH, Reach.LOCAL, Reach.NONE)
"""[ePEER table 4-7]. Within a site the first three are equal and the last is last."""


def publishers_first(bundles: Iterable[Bundle], metric: Metric) -> list[Bundle]:
    """Bundles of a head in the order of offloading. Matching never overloads a head."""
    return _by_priority(bundles, {reach: rank for rank, reach in enumerate(_PUBLISHERS[metric])})


def subscribers_first(bundles: Iterable[Bundle], between_sites: bool) -> list[Bundle]:
    """Bundles of an edge in the order of offloading, whichever metric is overloaded."""
    if between_sites:
        return _by_priority(bundles, {reach: rank for rank, reach in enumerate(_SUBSCRIBERS_BETWEEN_SITES)})
    return _by_priority(bundles, {reach: int(reach is Reach.NONE) for reach in Reach})


def _by_priority(bundles: Iterable[Bundle], rank: Mapping[Reach, int]) -> list[Bundle]:
    return sorted(bundles, key=lambda bundle: (rank[bundle.reach], -bundle.delay_s, bundle.topic))


# Selection: which bundles go to which acceptor [ePEER §4.4.4.1, figure 4-15].


@dataclass
class Acceptor:
    """A broker that may accept bundles, and the capacity that this plan has left it."""

    report: BrokerReport
    room: Load
    gained: set[TopicName] = field(default_factory=set)

    def may_take(self, bundle: Bundle) -> bool:
        """False if this broker belongs to another site and the topic's flow is not there, or the delay requirement of
        the topic does not allow for the longer way [ePEER §4.4.3.2]."""
        report = self.report
        is_there = report.offers is None or bundle.topic in report.offers
        return is_there and (report.delay_s == 0.0 or bundle.latency_s + report.delay_s <= bundle.delay_s)

    def influence(self, bundle: Bundle, clients: int, sent_bytes_per_s: float) -> Load:
        """L_t: the load that some clients of a bundle add. Publishers bring their input to a head. Subscribers bring
        an edge their output; only the first of a topic brings its input and the matching that all share."""
        if self.report.is_head:
            return bundle.load._replace(out_bytes_per_s=sent_bytes_per_s)
        own = clients * bundle.client_matched_per_s
        if bundle.topic in self.report.topics or bundle.topic in self.gained:
            return Load(0.0, sent_bytes_per_s, own)
        shared = bundle.load.matched_per_s - len(bundle.clients) * bundle.client_matched_per_s
        return Load(bundle.load.in_bytes_per_s, sent_bytes_per_s, own + shared)

    def influence_of_all(self, bundle: Bundle) -> Load:
        return self.influence(bundle, len(bundle.clients), bundle.load.out_bytes_per_s)


def acceptors_of(reports: Iterable[BrokerReport], thresholds: LoadThresholds) -> list[Acceptor]:
    """The brokers that may accept, the one with most capacity left first."""
    ordered = sorted(reports, key=lambda report: (-report.headroom(thresholds), report.broker))
    return [Acceptor(report, report.remaining(thresholds)) for report in ordered]


class OffloadSelection:
    """One walk over figure 4-15. The caller orders the bundles and decides when to offload."""

    def __init__(self, source: BrokerReport, thresholds: LoadThresholds) -> None:
        self.source = source
        self.moves: list[SiteMove] = []
        self._moved: Counter[TopicName] = Counter()
        """The number of clients of each chosen topic that move."""
        self._load = source.load
        self._thresholds = thresholds

    def overload(self) -> dict[Metric, float]:
        """C_req per metric that is still overloaded."""
        excess = {
            metric: self._load.of(metric) - self._thresholds.high * self.source.capacity.of(metric) for metric in Metric
        }
        return {metric: required for metric, required in excess.items() if required > 1e-6}

    def take(self, bundles: Sequence[Bundle], acceptors: Sequence[Acceptor]) -> None:
        """Move whole bundles until the source is no longer overloaded. Figure 4-15 walks the list of topics again for
        every acceptor; a topic is chosen only once."""
        for acceptor in acceptors:
            for bundle in bundles:
                overload = self.overload()
                if not overload:
                    return
                helps = any(bundle.load.of(metric) > 0.0 for metric in overload)
                if not helps or self._is_chosen(bundle) or not acceptor.may_take(bundle):
                    continue
                influence = acceptor.influence_of_all(bundle)
                if influence.fits(acceptor.room):
                    self._move(bundle, bundle.clients, acceptor, influence, bundle.load)

    def split(self, bundles: Sequence[Bundle], acceptors: Sequence[Acceptor]) -> None:
        """Move single clients of bundles that no acceptor could take whole.

        A subscriber that leaves others of its bundle behind relieves its edge of output and of its own matching
        [ePEER table 4-3: U_i^s = U_m^s = 0], a publisher its head of input only. If these metrics are not overloaded,
        splitting is useless.
        """
        for bundle in bundles:
            if self._relieved(bundle) & self.overload().keys() and not self._is_chosen(bundle):
                for acceptor in acceptors:
                    if acceptor.may_take(bundle):
                        self._split_to(bundle, acceptor)

    def _relieved(self, bundle: Bundle) -> set[Metric]:
        """The metrics of which a part of the bundle relieves the source."""
        if self.source.is_head:
            return {Metric.INPUT}
        return {Metric.OUTPUT, Metric.MATCHING} if bundle.client_matched_per_s else {Metric.OUTPUT}

    def _is_chosen(self, bundle: Bundle) -> bool:
        return bundle.topic in self._moved

    def _split_to(self, bundle: Bundle, acceptor: Acceptor) -> None:
        moved = self._moved[bundle.topic]
        chosen: list[ClientId] = []
        sent, influence, relief = 0.0, NO_LOAD, NO_LOAD
        # The last client stays: with it the bundle would move whole, and that did not fit.
        for client, rate in list(zip(bundle.clients, bundle.client_bytes_per_s, strict=True))[moved:-1]:
            if self.source.is_head:  # these publishers bring their input; it may have to go out to all subscribers
                more, less = Load(sent + rate, bundle.load.out_bytes_per_s, 0.0), Load(sent + rate, 0.0, 0.0)
            else:
                more = acceptor.influence(bundle, len(chosen) + 1, sent + rate)
                less = Load(0.0, sent + rate, (len(chosen) + 1) * bundle.client_matched_per_s)
            overload = self.overload()
            is_enough = all(overload.get(metric, 0.0) <= relief.of(metric) for metric in self._relieved(bundle))
            if is_enough or not more.fits(acceptor.room):
                break
            chosen.append(client)
            sent, influence, relief = sent + rate, more, less
        if chosen:
            self._move(bundle, tuple(chosen), acceptor, influence, relief)

    def _move(
        self, bundle: Bundle, clients: tuple[ClientId, ...], acceptor: Acceptor, influence: Load, relief: Load
    ) -> None:
        target, is_whole = acceptor.report, len(clients) == len(bundle.clients)
        self._moved[bundle.topic] += len(clients)
        self.moves.append(
            SiteMove(bundle.topic, clients, self.source.broker, target.broker, target.site, influence, is_whole)
        )
        acceptor.room = acceptor.room.minus(influence)
        acceptor.gained.add(bundle.topic)
        self._load = self._load.minus(relief)
