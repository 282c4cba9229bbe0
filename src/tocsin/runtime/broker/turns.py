"""Turns on the event loop: how long one client's requests may keep the broker busy.

A client may send thousands of requests in one packet, and `list` costs more than its few bytes suggest. A turn
therefore has a maximal duration, and the turns of one user together get a share of the loop's time beyond a first
allowance, however many connections the user has and however often it connects. The reader of a connection drives it;
the clock is an argument.
"""

from __future__ import annotations

from collections import deque
from weakref import WeakValueDictionary

from tocsin.runtime.http.work_budget import WorkBudget

TURN_S = 0.002
"""Longest turn, apart from the request that crosses the limit. The other connections get a turn in between."""
PACKET_S = 10e-6
"""Work of the event loop and the kernel for a packet, besides its requests [measured: 12.6 µs with uvloop, of which an
answer of 30 bytes takes a part]."""
LONGEST_S = 0.01
"""Longest time that counts. A single request takes less [measured: 5 ms for a `list` of 4,500 subscriptions]; the rest
of a longer turn is time in which the machine ran other processes, and no work of the client."""
SHARE = 0.1
"""Share of the loop's time that a user's sessions get when their allowance is used up; unused time refills it."""
MOST_DEBTORS = 1_000
"""Users whose debt the broker remembers after their last connection ended."""


class TurnBudget(WorkBudget):
    """The budget of a connection before its login, then of all connections of its user."""

    __slots__ = ()

    def __init__(self, share: float = SHARE) -> None:
        super().__init__(share)

    def spend(self, work_s: float, now_s: float) -> float:
        """Record a turn that ended now and return the pause in seconds before the next one.

        A long turn counts more than its time: every other connection waits for its end, so one turn of 10 ms delays
        more results than five of 2 ms.
        """
        work_s = min(work_s, LONGEST_S)
        return self.charge(work_s * max(1.0, work_s / TURN_S), now_s)


class UserBudgets:
    """One budget for all connections of a user that have the same share."""

    def __init__(self) -> None:
        self._budgets: WeakValueDictionary[tuple[str, float], TurnBudget] = WeakValueDictionary()
        self._debtors: deque[TurnBudget] = deque(maxlen=MOST_DEBTORS)
        """Keeps budgets with debt alive when no connection refers to them: a user that connects again has its debt."""

    def of(self, user: str, share: float = SHARE) -> TurnBudget:
        return self._budgets.setdefault((user, share), TurnBudget(share))

    def release(self, budget: TurnBudget, now_s: float) -> None:
        """A connection with this budget has ended."""
        if budget.has_debt(now_s) and budget not in self._debtors:
            self._debtors.append(budget)
