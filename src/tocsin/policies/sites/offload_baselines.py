"""PEER-LB and PEER-DRD, the baselines of [ePEER §3.3–3.4, §4.5.4], behind the interface of `offload.Balancer`.

PEER lets subscribers connect to a random edge and balances whenever the loads of two edges differ by more than a tenth,
overloaded or not. It chooses the subscriptions that relieve the offloading broker with the least side effect for the
accepting one, and asks nobody how urgent their messages are. PEER-DRD is PEER with the priorities of DRD-LB.

Undisclosed, and therefore ours: any of the three metrics may differ; a side effect is load added there per load saved
here, with ties broken at random, so that nobody's delay requirement is favoured; balancing ends at half the difference
that starts it; and a bundle moves only if the loads of the two become more even by it (`settles`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tocsin.model.ids import BrokerId
from tocsin.policies.sites.offload_distribution import random_edge
from tocsin.policies.sites.offload_priority import subscribers_first
from tocsin.policies.sites.offload_selection import Candidate, candidates
from tocsin.policies.sites.offload_types import (
    BrokerReport,
    Bundle,
    BundleMove,
    LoadState,
    Metric,
    Offload,
    OffloadParams,
    OffloadPlan,
    OffloadSnapshot,
    Utilisation,
    utilisation,
)
from tocsin.policies.topics.types import TopicName

_DEFAULT = OffloadParams()


@dataclass(frozen=True)
class Peer:
    name: str
    by_delay: bool
    """True for PEER-DRD."""
    largest_first: bool = False
    """Instead of at random: another reading of PEER, for the sensitivity of its figures."""
    settles: bool = True
    """A move must make the pair more even over all metrics. The sum that measures it only falls, so on an unchanged
    world balancing comes to rest. False: PEER as chapter 3 words it, which asks only that the taker is not overloaded;
    then what was moved for one metric is moved back for another, without end."""

    def edge_for(
        self, topic: TopicName, edges: Sequence[BrokerReport], params: OffloadParams, rng: np.random.Generator
    ) -> BrokerId | None:
        return random_edge(edges, rng)

    def plan(
        self, snapshot: OffloadSnapshot, params: OffloadParams = _DEFAULT, rng: np.random.Generator | None = None
    ) -> OffloadPlan:
        """Pairs of edges, the most different first; nobody is in two pairs at once (the others are BUSY)."""
        rng = np.random.default_rng(snapshot.generation) if rng is None else rng
        settled = [one for one in snapshot.brokers if not one.is_head and one.state is not LoadState.BUSY]
        low = [one for one in settled if one.state is LoadState.LOW]
        used = {one.broker: one.used for one in snapshot.brokers if not one.is_head}
        if not used:
            return OffloadPlan(snapshot.generation, self.name)
        usual = Utilisation(*(sum(parts) / len(parts) for parts in zip(*used.values(), strict=True)))
        pairs: list[tuple[float, BrokerReport, BrokerReport]] = []
        for giver in settled:
            limit = params.balanced if giver.state is LoadState.OVERLOAD else params.imbalance
            for taker in low:
                gap = _worst(used[giver.broker], used[taker.broker], params)[1]
                if gap > limit:
                    pairs.append((gap, giver, taker))
        pairs.sort(key=lambda pair: (-pair[0], pair[1].broker, pair[2].broker))
        offloads: list[Offload] = []
        taken: set[BrokerId] = set()
        for gap, giver, taker in pairs:
            if giver.broker in taken or taker.broker in taken:
                continue
            moves = self._balance(giver, taker, snapshot.bundles.get(giver.broker, ()), usual, params, rng)
            if moves:
                offloads.append(Offload(giver.broker, moves, f"loads differ by {100 * gap:.1f} %"))
                taken |= {giver.broker, taker.broker}
        over = [one.broker for one in settled if one.state is LoadState.OVERLOAD and one.broker not in taken]
        return OffloadPlan(snapshot.generation, self.name, tuple(offloads), tuple(over))

    def _balance(
        self,
        giver: BrokerReport,
        taker: BrokerReport,
        bundles: Sequence[Bundle],
        usual: Utilisation,
        params: OffloadParams,
        rng: np.random.Generator,
    ) -> tuple[BundleMove, ...]:
        (candidate,) = candidates([taker], params.thresholds)
        metric, gap = _worst(giver.used, taker.used, params)
        uneven = _unevenness(giver.used, taker.used, usual)
        given, accepted = giver.load, taker.load
        moves: list[BundleMove] = []
        for bundle in self._ordered(bundles, candidate, metric, rng):
            if gap <= params.balanced:
                break
            influence = candidate.influence(bundle, bundle.load.out_bytes_per_s)
            less = utilisation(given.minus(bundle.load), giver.capacity)
            more = utilisation(accepted.plus(influence), taker.capacity)
            evened = _unevenness(less, more, usual) < uneven * (1.0 - _NOISE)
            if influence.fits(candidate.room) and (evened or not self.settles):
                moves.append(
                    BundleMove(bundle.topic, bundle.clients, giver.broker, taker.broker, taker.site, influence)
                )
                candidate.room = candidate.room.minus(influence)
                given, accepted = given.minus(bundle.load), accepted.plus(influence)
                gap = _gap(less.of(metric), more.of(metric), params)
                uneven = _unevenness(less, more, usual)
        return tuple(moves)

    def _ordered(
        self, bundles: Sequence[Bundle], candidate: Candidate, metric: Metric, rng: np.random.Generator
    ) -> list[Bundle]:
        helping = [bundle for bundle in bundles if bundle.load.of(metric) > 0.0]
        if self.by_delay:
            return subscribers_first(helping, between_sites=False)
        if self.largest_first:
            return sorted(helping, key=lambda bundle: (-bundle.load.of(metric), bundle.topic))
        effects = [
            candidate.influence(bundle, bundle.load.out_bytes_per_s).of(metric) / bundle.load.of(metric)
            for bundle in helping
        ]
        ties = rng.random(len(helping))
        return [helping[at] for at in np.lexsort((ties, np.asarray(effects)))]


def _worst(high: Utilisation, low: Utilisation, params: OffloadParams) -> tuple[Metric, float]:
    """The metric in which the first is most above the second, and by how much."""
    gaps = [_gap(mine, theirs, params) for mine, theirs in zip(high, low, strict=True)]
    largest = max(gaps)
    return _METRICS[gaps.index(largest)], largest


def _unevenness(one: Utilisation, other: Utilisation, usual: Utilisation) -> float:
    """Σ of squares of each metric over its usual value. A pair's moves change no other broker's part of the sum."""
    return sum((part / mean) ** 2 for used in (one, other) for part, mean in zip(used, usual, strict=True) if mean > 0)


def _gap(high: float, low: float, params: OffloadParams) -> float:
    if not params.imbalance_is_relative:
        return high - low
    return (high - low) / high if high > 0.0 else 0.0


_METRICS = tuple(Metric)
_NOISE = 1e-9
"""A swap of two equal loads must not look like progress because a sum was rounded."""
PEER_LB = Peer("peer-lb", by_delay=False)
PEER_DRD = Peer("peer-drd", by_delay=True)
