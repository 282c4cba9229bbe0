"""Load distribution: which edge a new subscriber gets [ePEER §4.4.2, figure 4-13].

Publishers always get the head. Subscribers of one topic share an edge, so that messages cross to one edge only; a topic
that is new to the site goes where most capacity is left (sites in one LAN) or nearest to its first subscriber (sites
over a WAN). PEER lets clients connect anywhere: a random edge.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tocsin.model.ids import BrokerId
from tocsin.policies.sites.offload_types import BrokerReport, LoadState, Thresholds
from tocsin.policies.topics.types import TopicName


def drd_edge(
    topic: TopicName,
    edges: Sequence[BrokerReport],
    thresholds: Thresholds,
    delay_s: Mapping[BrokerId, float] | None = None,
) -> BrokerId | None:
    """`delay_s` from the subscriber to each edge makes it the WAN rule. None while the site has no edge.

    If no edge is LOW, the thesis leaves open what happens; the least loaded that is not BUSY takes the client, because
    a client without an edge gets nothing at all.
    """
    for edge in edges:
        if topic in edge.topics:
            return edge.broker
    open_ = [edge for edge in edges if edge.state is LoadState.LOW]
    if delay_s is not None and open_:
        return min(open_, key=lambda edge: (delay_s.get(edge.broker, float("inf")), edge.broker)).broker
    choice = open_ or [edge for edge in edges if edge.state is not LoadState.BUSY] or list(edges)
    if not choice:
        return None
    return min(choice, key=lambda edge: (-edge.headroom(thresholds), edge.broker)).broker


def random_edge(edges: Sequence[BrokerReport], rng: np.random.Generator) -> BrokerId | None:
    return edges[int(rng.integers(len(edges)))].broker if edges else None
