"""The work that one user may cause: an allowance at once, and a share of the time after that.

A broker charges the requests of a subscriber, a data cluster the refused bodies of a publisher. Work is a debt that the
share pays off; beyond the allowance, the user must pause. Pure: the clock is an argument.
"""

from __future__ import annotations

import math

ALLOWANCE_S = 0.25
"""Work that a user may cause at once: some ten thousand requests, such as all subscriptions; thousands of bodies with
one wrong record, or one body with 80,000 of them."""


class WorkBudget:
    __slots__ = ("__weakref__", "_debt_s", "_share", "_since_s")

    def __init__(self, share: float) -> None:
        """`share` is that of the time which pays off the debt."""
        self._share = share
        self._debt_s = 0.0
        self._since_s = 0.0

    def charge(self, work_s: float, now_s: float, most_s: float = math.inf) -> float:
        """Record work that ended now, up to a debt of `most_s`. Return the pause in seconds before more may follow."""
        self._debt_s = min(max(0.0, self._debt_s - self._share * (now_s - self._since_s)) + work_s, most_s)
        self._since_s = now_s
        return max(0.0, self._debt_s - ALLOWANCE_S) / self._share

    def pause_s(self, now_s: float) -> float:
        """Seconds until more work may follow; 0 if it may now."""
        return max(0.0, self._debt_s - self._share * (now_s - self._since_s) - ALLOWANCE_S) / self._share

    def has_debt(self, now_s: float) -> bool:
        return self._debt_s > self._share * (now_s - self._since_s)
