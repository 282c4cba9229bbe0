"""A broker's lease on its topics, as the broker counts it [decision 13].

The lease counts from the moment at which the broker *requested* it. The coordinator counts a longer time from the
moment at which it received the request, so the lease always ends here first. Pure: the caller passes the time, from a
clock that does not stop while the machine sleeps.
"""

from __future__ import annotations

from collections import OrderedDict

RENEWALS_PER_LEASE = 4
"""Requests in the time of one lease: three may be lost."""
_FIRST_RETRY_S = 0.25
_MOST_REQUESTS = 64


class Lease:
    def __init__(self) -> None:
        self.until_s = float("-inf")
        self._lease_s = 0.0
        self._number = 0
        self._next_s = float("inf")
        self._sent_s: OrderedDict[int, float] = OrderedDict()

    def valid(self, now_s: float) -> bool:
        return now_s < self.until_s

    def start(self, now_s: float) -> None:
        """The link is ready for renewals."""
        self._next_s = now_s

    def stop(self) -> None:
        """The link is down. Answers to earlier requests are lost with it; the present lease runs out."""
        self._next_s = float("inf")
        self._sent_s.clear()

    def give_back(self) -> None:
        """End the lease at once and request no other."""
        self.stop()
        self.until_s = float("-inf")

    def request(self, now_s: float) -> int | None:
        """The number of a renewal to send now; None if none is due."""
        if now_s < self._next_s:
            return None
        self._number += 1
        self._sent_s[self._number] = now_s
        if len(self._sent_s) > _MOST_REQUESTS:
            self._sent_s.popitem(last=False)
        self._next_s = now_s + (self._lease_s / RENEWALS_PER_LEASE or _FIRST_RETRY_S)
        return self._number

    def renewed(self, number: int, lease_s: float) -> None:
        sent_s = self._sent_s.pop(number, None)
        if sent_s is not None and lease_s > 0:
            self._lease_s = lease_s
            self.until_s = max(self.until_s, sent_s + lease_s)
            self._next_s = max(self._next_s, sent_s + lease_s / RENEWALS_PER_LEASE)
