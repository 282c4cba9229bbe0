"""PEER-LB and PEER-DRD, the baselines of [ePEER §3.3–3.4, §4.5.4], and the names of all three policies.

PEER lets subscribers connect to a random edge and balances whenever the loads of two edges differ by more than a tenth,
overloaded or not. It chooses the subscriptions that relieve the offloading broker with the least side effect for the
accepting one, and ignores delay requirements. PEER-DRD is PEER with the priorities of DRD-LB.

Undisclosed, and therefore ours: any of the three metrics may differ; a side effect is the load added at the acceptor
per load removed at the source, with ties broken at random; see also `settles` and `OffloadParams.balanced`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tocsin.model.ids import BrokerId
from tocsin.policies.sites.offload import DEFAULT_PARAMS, DRD_LB, Acceptor, Balancer, acceptors_of, subscribers_first
from tocsin.policies.sites.types import (
    BrokerReport,
    Bundle,
    LoadState,
    Metric,
    Offload,
    OffloadParams,
    OffloadPlan,
    OffloadSnapshot,
    SiteMove,
    Utilisation,
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
    settles: bool = True
    """True if a move must make the pair more even over all metrics.

    The sum that measures it only falls, so balancing reaches a fixed point on an unchanged world. False: PEER as
    chapter 3 words it, which only requires that the acceptor is not overloaded; then a move for one metric is undone by
    a move for another, without end.
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
        limited = [edge.broker for edge in settled if edge.state is LoadState.OVERLOAD and edge.broker not in taken]
        return OffloadPlan(snapshot.generation, self.name, tuple(offloads), tuple(limited))

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
        uneven = _unevenness(source.used, target.used, mean)
        source_load, target_load = source.load, target.load
        moves: list[SiteMove] = []
        for bundle in self._ordered(bundles, acceptor, metric, rng):
            if gap <= params.balanced:
                break
            influence = acceptor.influence(bundle, bundle.load.out_bytes_per_s)
            source_after, target_after = source_load.minus(bundle.load), target_load.plus(influence)
            source_used = utilisation(source_after, source.capacity)
            target_used = utilisation(target_after, target.capacity)
            uneven_after = _unevenness(source_used, target_used, mean)
            evens = uneven_after < uneven * (1.0 - _NOISE)
            if influence.fits(acceptor.room) and (evens or not self.settles):
                moves.append(
                    SiteMove(bundle.topic, bundle.clients, source.broker, target.broker, target.site, influence)
                )
                acceptor.room = acceptor.room.minus(influence)
                source_load, target_load, uneven = source_after, target_after, uneven_after
                gap = _gap(source_used.of(metric), target_used.of(metric), params)
        return tuple(moves)

    def _ordered(
        self, bundles: Sequence[Bundle], acceptor: Acceptor, metric: Metric, rng: np.random.Generator
    ) -> list[Bundle]:
        helping = [bundle for bundle in bundles if bundle.load.of(metric) > 0.0]
        if self.by_delay:
            return subscribers_first(helping, between_sites=False)
        if self.largest_first:
            return sorted(helping, key=lambda bundle: (-bundle.load.of(metric), bundle.topic))
        side_effects = [
            acceptor.influence(bundle, bundle.load.out_bytes_per_s).of(metric) / bundle.load.of(metric)
            for bundle in helping
        ]
        ties = rng.random(len(helping))
        return [helping[at] for at in np.lexsort((ties, np.asarray(side_effects)))]


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
