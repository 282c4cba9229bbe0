"""DRD-LB: delay requirements driven load balancing [ePEER §4.4.3–4.4.4], and the names of all three policies.

`plan(snapshot, params, rng) -> plan`. An overloaded edge gives subscribers to LOW edges of its site, and what they
cannot take to LOW edges of neighbouring sites; an overloaded head gives publishers to LOW heads of neighbouring sites.
Nobody is overloaded by what it accepts. If all of that is not enough, nothing moves and the broker is `limited`: half
an offloading would delay people without ending the overload.

The thesis drops what it had chosen inside the site as soon as that is not enough, and chooses anew among other sites.
Here the choice inside stands and other sites take the rest, so that fewer clients leave their site.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from tocsin.model.ids import BrokerId
from tocsin.policies.sites.offload_baselines import PEER_DRD, PEER_LB
from tocsin.policies.sites.offload_detection import overloaded_metrics
from tocsin.policies.sites.offload_distribution import drd_edge
from tocsin.policies.sites.offload_priority import publishers_first, subscribers_first
from tocsin.policies.sites.offload_selection import Selection, candidates
from tocsin.policies.sites.offload_types import (
    BrokerReport,
    LoadState,
    Metric,
    Offload,
    OffloadParams,
    OffloadPlan,
    OffloadSnapshot,
)
from tocsin.policies.topics.types import TopicName

DEFAULT_PARAMS = OffloadParams()


class Balancer(Protocol):
    """What the three policies have in common."""

    @property
    def name(self) -> str: ...

    def edge_for(
        self, topic: TopicName, edges: Sequence[BrokerReport], params: OffloadParams, rng: np.random.Generator
    ) -> BrokerId | None:
        """The edge for a new subscriber of `topic` [ePEER §4.4.2]."""

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
        self,
        snapshot: OffloadSnapshot,
        params: OffloadParams = DEFAULT_PARAMS,
        rng: np.random.Generator | None = None,
    ) -> OffloadPlan:
        """The most overloaded first; who gives or takes in one offloading takes part in no other."""
        offloads: list[Offload] = []
        limited: list[BrokerId] = []
        taken: set[BrokerId] = set()
        overloaded = [report for report in snapshot.brokers if report.state is LoadState.OVERLOAD]
        for report in sorted(overloaded, key=lambda one: (-max(one.used), one.broker)):
            chosen = _relieve(report, snapshot, params, taken)
            if chosen is None:
                limited.append(report.broker)
            elif chosen.moves:
                offloads.append(chosen)
                taken |= set(chosen.brokers)
        return OffloadPlan(snapshot.generation, self.name, tuple(offloads), tuple(limited))


def _relieve(
    source: BrokerReport, snapshot: OffloadSnapshot, params: OffloadParams, taken: set[BrokerId]
) -> Offload | None:
    """None when all acceptors together are not enough."""
    selection = Selection(source, params.thresholds)
    metrics = overloaded_metrics(source.used, params.thresholds)
    bundles = snapshot.bundles.get(source.broker, ())
    for between_sites in (False, True):
        near = snapshot.neighbours if between_sites else snapshot.brokers
        open_ = [
            report
            for report in near
            if report.state is LoadState.LOW and report.is_head == source.is_head and report.broker not in taken
        ]
        acceptors = candidates(open_, params.thresholds)
        if source.is_head:
            first = publishers_first(bundles, Metric.INPUT if Metric.INPUT in metrics else Metric.OUTPUT)
        else:
            first = subscribers_first(bundles, between_sites)
        selection.take(first, acceptors)
        selection.split(first, acceptors)
    if selection.overload():
        return None
    worst = ", ".join(f"{metric} {100 * source.used.of(metric):.1f} %" for metric in metrics)
    return Offload(source.broker, tuple(selection.moves), f"overloaded: {worst}")


DRD_LB = DrdLb()
POLICIES: Mapping[str, Balancer] = {policy.name: policy for policy in (DRD_LB, PEER_LB, PEER_DRD)}
