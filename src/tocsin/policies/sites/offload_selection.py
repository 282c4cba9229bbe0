"""Filling acceptors: which bundles go where until a broker is no longer overloaded [ePEER §4.4.4.1, figure 4-15].

A `Selection` is the state of one walk over figure 4-15: what the source must still lose, what each candidate has left,
what was chosen. It knows nothing of priorities or triggers: bundles come in the order the caller wants.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tocsin.policies.sites.offload_types import (
    NO_LOAD,
    BrokerReport,
    Bundle,
    BundleMove,
    ClientId,
    Load,
    Metric,
    Thresholds,
)
from tocsin.policies.topics.types import TopicName


@dataclass
class Candidate:
    """A broker that may accept, and what it has left after what it was given in this plan."""

    report: BrokerReport
    room: Load
    gained: set[TopicName] = field(default_factory=set)

    def influence(self, bundle: Bundle, clients_bytes_per_s: float) -> Load:
        """L_t: what these clients add. Input and matching are paid once per topic, by its first client here."""
        if bundle.topic in self.report.topics or bundle.topic in self.gained:
            return Load(0.0, clients_bytes_per_s, 0.0)
        return Load(bundle.load.in_bytes_per_s, clients_bytes_per_s, bundle.load.matched_per_s)


def candidates(reports: Iterable[BrokerReport], thresholds: Thresholds) -> list[Candidate]:
    """The one with most capacity left first."""
    ordered = sorted(reports, key=lambda report: (-report.headroom(thresholds), report.broker))
    return [Candidate(report, report.remaining(thresholds)) for report in ordered]


class Selection:
    def __init__(self, source: BrokerReport, thresholds: Thresholds) -> None:
        self.source = source
        self.moves: list[BundleMove] = []
        self._load = source.load
        self._thresholds = thresholds

    def overload(self) -> dict[Metric, float]:
        """C_req per metric that is still overloaded."""
        excess = {
            metric: self._load.of(metric) - self._thresholds.high * self.source.capacity.of(metric) for metric in Metric
        }
        return {metric: required for metric, required in excess.items() if required > 1e-6}

    def take(self, bundles: Sequence[Bundle], acceptors: Sequence[Candidate]) -> None:
        """Whole bundles, until the source is no longer overloaded. A topic chosen once is not chosen again: in figure
        4-15 the list of topics is walked afresh for every candidate."""
        for candidate in acceptors:
            for bundle in bundles:
                if not self.overload():
                    return
                if not self._helps(bundle) or any(move.topic == bundle.topic for move in self.moves):
                    continue
                influence = candidate.influence(bundle, bundle.load.out_bytes_per_s)
                if influence.fits(candidate.room):
                    self._move(bundle, bundle.clients, candidate, influence, bundle.load)

    def split(self, bundles: Sequence[Bundle], acceptors: Sequence[Candidate]) -> None:
        """Client by client, of bundles that nobody could take whole. A subscriber that leaves others behind relieves
        its edge of output only [ePEER table 4-3: U_i^s = U_m^s = 0], a publisher its head of input only: without that
        metric in trouble there is no point in splitting."""
        eases = Metric.INPUT if self.source.is_head else Metric.OUTPUT
        for bundle in bundles:
            if eases not in self.overload():
                return
            if not any(move.topic == bundle.topic for move in self.moves) and len(bundle.clients) > 1:
                for candidate in acceptors:
                    self._split_to(bundle, candidate, eases)

    def _split_to(self, bundle: Bundle, candidate: Candidate, eases: Metric) -> None:
        gone = sum(len(move.clients) for move in self.moves if move.topic == bundle.topic)
        chosen: list[ClientId] = []
        sent = 0.0
        influence = NO_LOAD
        # The last one stays: with it the bundle would have moved whole, and that did not fit.
        for client, rate in list(zip(bundle.clients, bundle.client_bytes_per_s, strict=True))[gone:-1]:
            more = self._split_influence(bundle, candidate, sent + rate)
            if not more.fits(candidate.room) or self.overload().get(eases, 0.0) <= sent:
                break
            chosen.append(client)
            sent, influence = sent + rate, more
        if chosen:
            relief = Load(sent, 0.0, 0.0) if self.source.is_head else Load(0.0, sent, 0.0)
            self._move(bundle, tuple(chosen), candidate, influence, relief, is_whole=False)

    def _split_influence(self, bundle: Bundle, candidate: Candidate, bytes_per_s: float) -> Load:
        # A part of the publishers brings its own input, which may have to go out to all subscribers.
        if self.source.is_head:
            return Load(bytes_per_s, bundle.load.out_bytes_per_s, 0.0)
        return candidate.influence(bundle, bytes_per_s)

    def _helps(self, bundle: Bundle) -> bool:
        return any(bundle.load.of(metric) > 0.0 for metric in self.overload())

    def _move(
        self,
        bundle: Bundle,
        clients: tuple[ClientId, ...],
        candidate: Candidate,
        influence: Load,
        relief: Load,
        is_whole: bool = True,
    ) -> None:
        report = candidate.report
        self.moves.append(
            BundleMove(bundle.topic, clients, self.source.broker, report.broker, report.site, influence, is_whole)
        )
        candidate.room = candidate.room.minus(influence)
        candidate.gained.add(bundle.topic)
        self._load = self._load.minus(relief)
