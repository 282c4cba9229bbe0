"""Who is offloaded first: classes of clients and their priorities [ePEER §4.4.3.2, tables 4-4 to 4-7].

Within a class the more delay-tolerant topic goes first: moving delays messages, and those who can wait should be the
ones to wait.
"""

from __future__ import annotations

from collections.abc import Iterable

from tocsin.policies.sites.offload_types import Bundle, Metric, Reach

_PUBLISHERS = {
    Metric.INPUT: (Reach.NOBODY, Reach.REMOTE, Reach.BOTH, Reach.LOCAL),
    Metric.OUTPUT: (Reach.REMOTE, Reach.BOTH, Reach.LOCAL, Reach.NOBODY),
}
"""[ePEER table 4-5]. Publishers nobody listens to only cost input."""
_SUBSCRIBERS_BETWEEN_SITES = (Reach.REMOTE, Reach.BOTH, Reach.LOCAL, Reach.NOBODY)
"""[ePEER table 4-7]. Within a site the first three are equal and the last is last."""


def reach(local: bool, remote: bool) -> Reach:
    """Where the other side of a topic is."""
    if local:
        return Reach.BOTH if remote else Reach.LOCAL
    return Reach.REMOTE if remote else Reach.NOBODY


def publishers_first(bundles: Iterable[Bundle], metric: Metric) -> list[Bundle]:
    """For a head; its matching is never what overloads it."""
    rank = {one: place for place, one in enumerate(_PUBLISHERS[metric])}
    return sorted(bundles, key=lambda bundle: (rank[bundle.reach], -bundle.delay_s, bundle.topic))


def subscribers_first(bundles: Iterable[Bundle], between_sites: bool) -> list[Bundle]:
    """For an edge; the same whichever metric is overloaded."""
    if between_sites:
        rank = {one: place for place, one in enumerate(_SUBSCRIBERS_BETWEEN_SITES)}
    else:
        rank = {one: int(one is Reach.NOBODY) for one in Reach}
    return sorted(bundles, key=lambda bundle: (rank[bundle.reach], -bundle.delay_s, bundle.topic))
