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
from tocsin.policies.offload_distribution import random_edge
from tocsin.policies.offload_priority import subscribers_first
from tocsin.policies.offload_selection import Candidate, candidates
from tocsin.policies.offload_types import (
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
from tocsin.policies.partition_types import TopicName

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
        pairs = sorted(
            ((giver, taker) for giver in settled for taker in low if _is_triggered(giver, taker, params)),
            key=lambda pair: (-_worst(pair[0].used, pair[1].used, params)[1], pair[0].broker, pair[1].broker),
        )
        everyone = [one.used for one in snapshot.brokers if not one.is_head]
        usual = Utilisation(*(sum(parts) / len(parts) for parts in zip(*everyone, strict=True)))
        offloads: list[Offload] = []
        taken: set[BrokerId] = set()
        for giver, taker in pairs:
            if giver.broker in taken or taker.broker in taken:
                continue
            moves = self._balance(giver, taker, snapshot.bundles.get(giver.broker, ()), usual, params, rng)
            if moves:
                metric, gap = _worst(giver.used, taker.used, params)
                why = f"{metric} differs by {100 * gap:.1f} %"
                offloads.append(Offload(giver.broker, moves, why))
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
            if influence.fits(candidate.room) and (not self.settles or _unevenness(less, more, usual) < uneven):
                moves.append(
                    BundleMove(bundle.topic, bundle.clients, giver.broker, taker.broker, taker.site, influence)
                )
                candidate.room = candidate.room.minus(influence)
                given, accepted = given.minus(bundle.load), accepted.plus(influence)
                gap, uneven = _gap(less, more, metric, params), _unevenness(less, more, usual)
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


def _is_triggered(giver: BrokerReport, taker: BrokerReport, params: OffloadParams) -> bool:
    limit = params.balanced if giver.state is LoadState.OVERLOAD else params.imbalance
    return _worst(giver.used, taker.used, params)[1] > limit


def _worst(high: Utilisation, low: Utilisation, params: OffloadParams) -> tuple[Metric, float]:
    """The metric in which the first is most above the second, and by how much."""
    metric = max(Metric, key=lambda one: _gap(high, low, one, params))
    return metric, _gap(high, low, metric, params)


def _unevenness(one: Utilisation, other: Utilisation, usual: Utilisation) -> float:
    """Σ of squares of each metric over its usual value. A pair's moves change no other broker's part of the sum."""
    return sum(
        (part / mean) ** 2 for used in (one, other) for part, mean in zip(used, usual, strict=True) if mean > 0.0
    )


def _gap(high: Utilisation, low: Utilisation, metric: Metric, params: OffloadParams) -> float:
    points = high.of(metric) - low.of(metric)
    if not params.imbalance_is_relative:
        return points
    return points / high.of(metric) if high.of(metric) > 0.0 else 0.0


PEER_LB = Peer("peer-lb", by_delay=False)
PEER_DRD = Peer("peer-drd", by_delay=True)
