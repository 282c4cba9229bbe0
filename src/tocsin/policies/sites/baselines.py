"""PEER-LB and PEER-DRD, the baselines of [ePEER §3.3–3.4, §4.5.4], and the names of all three policies.

PEER lets subscribers connect to a random edge and balances whenever the loads of two edges differ by more than a tenth,
overloaded or not. It moves single subscriptions [ePEER §3.4]: those that relieve the offloading broker with the least
side effect for the accepting one. It ignores delay requirements. PEER-DRD is PEER with the priorities of DRD-LB.

Undisclosed, and therefore ours: any of the three metrics may differ; a side effect is the load added at the acceptor
per load removed at the source, with ties broken at random; see also `settles` and `OffloadParams.balanced`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tocsin.model.ids import BrokerId
from tocsin.policies.sites.load import overloaded_metrics
from tocsin.policies.sites.offload import (
    DEFAULT_PARAMS,
    DRD_LB,
    Acceptor,
    Balancer,
    acceptors_of,
    subscribers_first,
    without_help,
)
from tocsin.policies.sites.types import (
    NO_LOAD,
    BrokerReport,
    Bundle,
    ClientId,
    Load,
    LoadState,
    Metric,
    Offload,
    OffloadParams,
    OffloadPlan,
    OffloadSnapshot,
    SiteMove,
    Utilisation,
    total,
    utilisation,
)
from tocsin.policies.topics.types import TopicName


@dataclass(frozen=True)
class PeerPolicy:
    name: str
    by_delay: bool
    """True for PEER-DRD."""
    largest_first: bool = False
    """Choose the largest subscriptions first, not at random: another reading of PEER, for the sensitivity table."""
    whole_topics: bool = False
    """Move only subscriptions that reduce the load in every metric: by table 4-3 all subscriptions of a topic at the
    broker together. False: also single subscriptions, where they reduce the metric that differs."""
    settles: bool = True
    """True if a move that does not end an overload must make the pair more even over all metrics.

    The sum that measures it only falls, and no acceptor becomes overloaded, so balancing reaches a fixed point on an
    unchanged world. False: PEER as chapter 3 words it, which only requires that the acceptor is not overloaded; then a
    move for one metric is undone by a move for another, without end.
    """

    def edge_for(
        self, topic: TopicName, edges: Sequence[BrokerReport], params: OffloadParams, rng: np.random.Generator
    ) -> BrokerId | None:
        return edges[int(rng.integers(len(edges)))].broker if edges else None

    def plan(
        self, snapshot: OffloadSnapshot, params: OffloadParams = DEFAULT_PARAMS, rng: np.random.Generator | None = None
    ) -> OffloadPlan:
        """Balance pairs of edges, the most different pair first. An edge is in one pair at most (then it is BUSY)."""
        rng = np.random.default_rng(snapshot.generation) if rng is None else rng
        edges = [report for report in snapshot.brokers if not report.is_head]
        if not edges:
            return OffloadPlan(snapshot.generation, self.name)
        settled = [edge for edge in edges if edge.state is not LoadState.BUSY]
        used = {edge.broker: edge.used for edge in edges}
        mean = Utilisation(*(sum(parts) / len(parts) for parts in zip(*used.values(), strict=True)))
        pairs: list[tuple[float, BrokerReport, BrokerReport]] = []
        for source in settled:
            limit = params.balanced if source.state is LoadState.OVERLOAD else params.imbalance
            for target in settled:
                gap = _widest_gap(used[source.broker], used[target.broker], params)[1]
                if target.state is LoadState.LOW and gap > limit:
                    pairs.append((gap, source, target))
        pairs.sort(key=lambda pair: (-pair[0], pair[1].broker, pair[2].broker))
        offloads: list[Offload] = []
        taken: set[BrokerId] = set()
        for gap, source, target in pairs:
            if source.broker in taken or target.broker in taken:
                continue
            moves = self._balance(source, target, snapshot.bundles.get(source.broker, ()), mean, params, rng)
            if moves:
                offloads.append(Offload(source.broker, moves, f"loads differ by {100 * gap:.1f} %"))
                taken |= {source.broker, target.broker}
        helpless = [edge for edge in settled if edge.state is LoadState.OVERLOAD and edge.broker not in taken]
        waiting, limited = without_help(helpless, snapshot, offloads, params)
        return OffloadPlan(snapshot.generation, self.name, tuple(offloads), waiting, limited)

    def _balance(
        self,
        source: BrokerReport,
        target: BrokerReport,
        bundles: Sequence[Bundle],
        mean: Utilisation,
        params: OffloadParams,
        rng: np.random.Generator,
    ) -> tuple[SiteMove, ...]:
        (acceptor,) = acceptors_of([target], params.thresholds)
        metric, gap = _widest_gap(source.used, target.used, params)
        overloaded = overloaded_metrics(source.used, params.thresholds)
        if overloaded:
            metric = max(overloaded, key=source.used.of)
        uneven = _unevenness(source.used, target.used, mean)
        source_load, target_load = source.load, target.load
        staying = {bundle.topic: len(bundle.clients) for bundle in bundles}
        moved: dict[TopicName, list[_Unit]] = {}
        for unit in self._ordered(self._units(bundles, metric), acceptor, metric, rng):
            is_relief = utilisation(source_load, source.capacity).of(metric) > params.thresholds.high
            if gap <= params.balanced and not is_relief:
                break
            is_last = staying[unit.bundle.topic] == len(unit.clients)
            influence = acceptor.influence(unit.bundle, len(unit.clients), unit.sent_bytes_per_s)
            source_after = source_load.minus(unit.relief(is_last))
            target_after = target_load.plus(influence)
            source_used = utilisation(source_after, source.capacity)
            target_used = utilisation(target_after, target.capacity)
            uneven_after = _unevenness(source_used, target_used, mean)
            evens = uneven_after < uneven * (1.0 - _NOISE)
            if influence.fits(acceptor.room) and (evens or is_relief or not self.settles):
                moved.setdefault(unit.bundle.topic, []).append(replace(unit, accepted=influence))
                staying[unit.bundle.topic] -= len(unit.clients)
                acceptor.room = acceptor.room.minus(influence)
                acceptor.gained.add(unit.bundle.topic)
                source_load, target_load, uneven = source_after, target_after, uneven_after
                gap = _gap(source_used.of(metric), target_used.of(metric), params)
        return tuple(_as_move(units, source, target) for units in moved.values())

    def _units(self, bundles: Sequence[Bundle], metric: Metric) -> list[_Unit]:
        """The subscriptions that can reduce the load of the source: one by one or, where only all subscriptions of a
        topic together reduce it [ePEER table 4-3], together."""
        units: list[_Unit] = []
        for bundle in bundles:
            alone = metric is Metric.OUTPUT or (metric is Metric.MATCHING and bundle.client_matched_per_s > 0.0)
            if bundle.load.of(metric) <= 0.0:
                continue
            if self.whole_topics or not alone:
                units.append(_Unit(bundle, bundle.clients, bundle.load.out_bytes_per_s))
            else:
                pairs = zip(bundle.clients, bundle.client_bytes_per_s, strict=True)
                units += [_Unit(bundle, (client,), sent) for client, sent in pairs]
        return units

    def _ordered(
        self, units: Sequence[_Unit], acceptor: Acceptor, metric: Metric, rng: np.random.Generator
    ) -> list[_Unit]:
        if self.by_delay:
            ranks = {
                bundle.topic: rank
                for rank, bundle in enumerate(subscribers_first([unit.bundle for unit in units], between_sites=False))
            }
            return sorted(units, key=lambda unit: ranks[unit.bundle.topic])
        if self.largest_first:
            return sorted(units, key=lambda unit: (-unit.relief(True).of(metric), unit.bundle.topic))
        side_effects = [
            acceptor.influence(unit.bundle, len(unit.clients), unit.sent_bytes_per_s).of(metric)
            / unit.relief(True).of(metric)
            for unit in units
        ]
        ties = rng.random(len(units))
        return [units[at] for at in np.lexsort((ties, np.asarray(side_effects)))]


@dataclass(frozen=True)
class _Unit:
    """Subscriptions of one topic that move together."""

    bundle: Bundle
    clients: tuple[ClientId, ...]
    sent_bytes_per_s: float
    accepted: Load = NO_LOAD

    def relief(self, is_last: bool) -> Load:
        """The load that leaves the source. Input and shared matching leave with the last subscription of the topic."""
        bundle, staying = self.bundle, len(self.bundle.clients) - len(self.clients)
        if is_last:
            matched = bundle.load.matched_per_s - staying * bundle.client_matched_per_s
            return Load(bundle.load.in_bytes_per_s, self.sent_bytes_per_s, matched)
        return Load(0.0, self.sent_bytes_per_s, len(self.clients) * bundle.client_matched_per_s)


def _as_move(units: Sequence[_Unit], source: BrokerReport, target: BrokerReport) -> SiteMove:
    bundle, clients = units[0].bundle, tuple(client for unit in units for client in unit.clients)
    accepted, is_whole = total(unit.accepted for unit in units), len(clients) == len(bundle.clients)
    return SiteMove(bundle.topic, clients, source.broker, target.broker, target.site, accepted, is_whole)


def _widest_gap(high: Utilisation, low: Utilisation, params: OffloadParams) -> tuple[Metric, float]:
    """The metric in which the first broker is most above the second, and by how much."""
    gaps = [_gap(*pair, params) for pair in zip(high, low, strict=True)]
    largest = max(gaps)
    return _METRICS[gaps.index(largest)], largest


def _unevenness(source: Utilisation, target: Utilisation, mean: Utilisation) -> float:
    """Sum of squares of each metric over its mean. The moves of a pair change no other broker's part of the sum."""
    return sum((part / m) ** 2 for used in (source, target) for part, m in zip(used, mean, strict=True) if m > 0)


def _gap(high: float, low: float, params: OffloadParams) -> float:
    if not params.imbalance_is_relative:
        return high - low
    return (high - low) / high if high > 0.0 else 0.0


_METRICS = tuple(Metric)
_NOISE = 1e-9
"""Rounding error must not make a swap of two equal loads look like progress."""
PEER_LB = PeerPolicy("peer-lb", by_delay=False)
PEER_DRD = PeerPolicy("peer-drd", by_delay=True)
POLICIES: Mapping[str, Balancer] = {policy.name: policy for policy in (DRD_LB, PEER_LB, PEER_DRD)}
