"""Weighted max-min fair rates under several shared limits.

Pure arithmetic: congestion control calls it to divide the capacity that is left among publishers. All rates rise
together, each in proportion to its weight. A rate stops rising when its demand is met or when a resource that it uses
is full. So no capacity stays idle that a demand with a weight could use, and no rate can rise without lowering another
one that is lower in proportion to its weight.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_ROUNDING = 1e-9


def max_min(demand: Floats, weight: Floats, cost: Floats, room: Floats) -> Floats:
    """The rate of each demand. `cost[d, r]` is what one unit of demand `d` takes of resource `r`.

    A demand without weight gets nothing. Each round fills one resource, so there are at most as many rounds as
    resources. Within a round, sums over demands in the order in which they are met give the level of the next full
    resource at once.
    """
    granted = np.zeros(len(demand))
    left = np.maximum(room, 0.0).astype(np.float64)
    active = (demand > 0.0) & (weight > 0.0) & ~(cost[:, left <= 0.0] > 0.0).any(axis=1)
    while active.any():
        at = np.flatnonzero(active)
        missing, share = demand[at] - granted[at], weight[at]
        at = at[np.argsort(missing / share, kind="stable")]
        missing, share, taken = demand[at] - granted[at], weight[at], cost[at]
        met_at = missing / share
        whole, rising = taken * missing[:, None], taken * share[:, None]
        met_before = np.cumsum(whole, axis=0) - whole
        still_rising = np.cumsum(rising[::-1], axis=0)[::-1]
        over = met_before + met_at[:, None] * still_rising > left * (1.0 + _ROUNDING) + _ROUNDING
        if not over.any():
            granted[at] = demand[at]
            return granted
        row = int(over.any(axis=1).argmax())
        levels = np.full(len(left), np.inf)
        levels[over[row]] = (left - met_before[row])[over[row]] / still_rising[row][over[row]]
        full = int(levels.argmin())
        more = np.minimum(missing, share * max(float(levels[full]), 0.0))
        granted[at] += more
        left = np.maximum(left - more @ taken, 0.0)
        left[full] = 0.0
        met = at[missing - more <= _ROUNDING * demand[at]]
        granted[met] = demand[met]
        active[met] = False
        active &= ~(cost[:, full] > 0.0)
    return granted
