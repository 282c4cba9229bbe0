"""Publishers of a data cluster: the work that each wastes, and the memory that its bodies take.

A body that is refused costs more than one that is stored: the gateway decodes it record by record, to report which
record is wrong and why. A publisher may waste some processor time at once, and a small share of it after that. Then it
is refused before its body is read. Work for records that are stored does not count, and neither does the good part of a
body with some wrong records. One object per caller, on the event loop; the clock is an argument.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from tocsin.runtime.http.work_budget import ALLOWANCE_S, WorkBudget

SHARE = 0.02
"""Share of a processor that a publisher may waste when its allowance is used up; unused time refills it."""
LONGEST_PAUSE_S = 30.0
"""A publisher that mends its program waits no longer."""
S_PER_BYTE = 1.5e-9
"""Work to receive a byte. An estimate: deliveries took up to 0.4 s longer while 32 bodies of 8 MiB arrived."""
MOST_IDLE = 1_000
"""Publishers without a request in progress that the data cluster remembers."""


class Publisher:
    """One caller: its wasted work, and its turn."""

    __slots__ = ("_wasted", "requests", "turn")

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        """Held while a body of this publisher is decoded and appended. Its bodies enter a dataset in the order in which
        they came, and it occupies one thread at most; other publishers do not wait for it."""
        self.requests = 0
        """Requests in progress."""
        self._wasted = WorkBudget(SHARE)

    def waste(self, work_s: float, now_s: float) -> None:
        """Record work for a body that was refused, or did not arrive completely."""
        self._wasted.charge(work_s, now_s, ALLOWANCE_S + SHARE * LONGEST_PAUSE_S)

    def pause_s(self, now_s: float) -> float:
        """Seconds until the next request is admitted; 0 if it is admitted now."""
        return self._wasted.pause_s(now_s)

    def has_debt(self, now_s: float) -> bool:
        return self._wasted.has_debt(now_s)


class Publishers:
    """All publishers with requests in progress or with debt. Of those without requests, the oldest leave first."""

    def __init__(self, most_idle: int = MOST_IDLE) -> None:
        self._most_idle = most_idle
        self._busy: dict[str, Publisher] = {}
        self._idle: OrderedDict[str, Publisher] = OrderedDict()

    def begin(self, caller: str) -> Publisher:
        """The publisher, with one more request in progress. Call `end` when the request is answered."""
        publisher = self._busy.get(caller)
        if publisher is None:
            publisher = self._busy[caller] = self._idle.pop(caller) if caller in self._idle else Publisher()
        publisher.requests += 1
        return publisher

    def end(self, caller: str, now_s: float) -> None:
        publisher = self._busy[caller]
        publisher.requests -= 1
        if publisher.requests:
            return
        del self._busy[caller]
        if publisher.has_debt(now_s):
            self._idle[caller] = publisher
            if len(self._idle) > self._most_idle:
                self._idle.popitem(last=False)

    def __len__(self) -> int:
        return len(self._busy) + len(self._idle)
