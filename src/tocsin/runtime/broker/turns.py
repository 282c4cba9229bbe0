"""Turns on the event loop: how long one client's requests may keep the broker busy.

A client may send thousands of requests in one packet, and `list` costs more than its few bytes suggest. A turn
therefore has a maximal duration, and the turns of one connection together get a share of the loop's time beyond a first
allowance. The connection's reader drives it; the clock is an argument.
"""

from __future__ import annotations

TURN_S = 0.002
"""Longest turn, apart from the request that crosses the limit. The other connections get a turn in between."""
PACKET_S = 10e-6
"""Work of the event loop and the kernel for a packet, besides its requests [measured: 12.6 µs with uvloop, of which an
answer of 30 bytes takes a part]."""
ALLOWANCE_S = 0.25
"""Work that a connection may cause at once: enough for some ten thousand requests, such as all subscriptions."""
SHARE = 0.1
"""Share of the loop's time that a connection gets when its allowance is used up; unused time refills the allowance."""


class TurnBudget:
    """The budget of one connection."""

    __slots__ = ("_debt_s", "_share", "_since_s")

    def __init__(self, share: float = SHARE) -> None:
        self._share = share
        self._debt_s = 0.0
        self._since_s = 0.0

    def spend(self, work_s: float, now_s: float) -> float:
        """Record a turn that ended now and return the pause in seconds before the next one.

        A long turn counts more than its time: every other connection waits for its end, so one turn of 10 ms delays
        more results than five of 2 ms.
        """
        earned_s = self._share * (now_s - self._since_s)
        self._debt_s = max(0.0, self._debt_s - earned_s) + work_s * max(1.0, work_s / TURN_S)
        self._since_s = now_s
        return max(0.0, self._debt_s - ALLOWANCE_S) / self._share
