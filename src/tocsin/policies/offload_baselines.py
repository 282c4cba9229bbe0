"""PEER-LB and PEER-DRD, the baselines of [ePEER §3.3–3.4, §4.5.4], behind the interface of `offload.Balancer`.

PEER lets subscribers connect to a random edge and balances whenever two edges differ by more than a tenth, overloaded
or not. It chooses the subscriptions that relieve the offloading broker with the least side effect for the accepting
one, and asks nobody how urgent their messages are. PEER-DRD is PEER with the priorities of DRD-LB.

Undisclosed, and therefore ours: what a side effect is (load added there per load saved here), how ties are broken (at
random, so that nobody's delay requirement is favoured), and that balancing ends at half the difference that starts it.
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
    Load,
    LoadState,
    Metric,
    Offload,
    OffloadParams,
    OffloadPlan,
    OffloadSnapshot,
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
            key=lambda pair: (-_difference(*pair)[1], pair[0].broker, pair[1].broker),
        )
        offloads: list[Offload] = []
        taken: set[BrokerId] = set()
        for giver, taker in pairs:
            if giver.broker in taken or taker.broker in taken:
                continue
            moves = self._balance(giver, taker, snapshot.bundles.get(giver.broker, ()), params, rng)
            if moves:
                metric, gap = _difference(giver, taker)
                why = f"{metric} differs by {100 * gap:.1f} points"
                offloads.append(Offload(giver.broker, moves, why))
                taken |= {giver.broker, taker.broker}
        over = [one.broker for one in settled if one.state is LoadState.OVERLOAD and one.broker not in taken]
        return OffloadPlan(snapshot.generation, self.name, tuple(offloads), tuple(over))

    def _balance(
        self,
        giver: BrokerReport,
        taker: BrokerReport,
        bundles: Sequence[Bundle],
        params: OffloadParams,
        rng: np.random.Generator,
    ) -> tuple[BundleMove, ...]:
        (candidate,) = candidates([taker], params.thresholds)
        metric, gap = _difference(giver, taker)
        given, accepted = giver.load, taker.load
        moves: list[BundleMove] = []
        for bundle in self._ordered(bundles, candidate, metric, rng):
            if gap <= params.balanced:
                break
            influence = candidate.influence(bundle, bundle.load.out_bytes_per_s)
            after = _gap(given.minus(bundle.load), giver, accepted.plus(influence), taker, metric)
            if abs(after) < gap and influence.fits(candidate.room):
                moves.append(
                    BundleMove(bundle.topic, bundle.clients, giver.broker, taker.broker, taker.site, influence)
                )
                candidate.room = candidate.room.minus(influence)
                given, accepted, gap = given.minus(bundle.load), accepted.plus(influence), after
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
    gap = _difference(giver, taker)[1]
    return gap > params.imbalance or (giver.state is LoadState.OVERLOAD and gap > params.balanced)


def _difference(giver: BrokerReport, taker: BrokerReport) -> tuple[Metric, float]:
    """The metric in which the giver is most above the taker."""
    mine, theirs = giver.used, taker.used
    metric = max(Metric, key=lambda one: mine.of(one) - theirs.of(one))
    return metric, mine.of(metric) - theirs.of(metric)


def _gap(given: Load, giver: BrokerReport, accepted: Load, taker: BrokerReport, metric: Metric) -> float:
    return utilisation(given, giver.capacity).of(metric) - utilisation(accepted, taker.capacity).of(metric)


PEER_LB = Peer("peer-lb", by_delay=False)
PEER_DRD = Peer("peer-drd", by_delay=True)
