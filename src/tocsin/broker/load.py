"""The load of a broker: moving averages in bytes/s, and totals [BAD §4, eq. 1–5; §6.1.2].

λ_k and I_j are measured where results arrive (eq. 1), O_j where results are handed to sessions (eq. 4). All count what
crosses the network: rows with their envelopes. A session's encoding may be shorter or longer than the data cluster's;
`delivery_ratio` is how much. The load of one subscriber follows from its subscriptions, Σ_k y_ik λ_k, so a subscriber
has no counter of its own: a counter would cost one more write per delivery.
"""

from __future__ import annotations

from dataclasses import dataclass

from tocsin.model.rate import WINDOW_S, MovingAverage


@dataclass(slots=True)
class LoadMeter:
    """Load of the whole broker. Totals count from the start of the process."""

    in_rate: MovingAverage
    out_rate: MovingAverage
    notification_rate: MovingAverage
    in_bytes: int = 0
    """Fetched, rows with their envelopes."""
    in_row_bytes: int = 0
    """The rows in `in_bytes`."""
    out_bytes: int = 0
    """Handed to sessions, as frames. Server-sent events and webhooks count without their envelopes."""
    out_row_bytes: int = 0
    """The rows in `out_bytes`."""
    catch_up_bytes: int = 0
    """The part of `in_bytes` and `out_bytes` that brought sessions up to date after a login, a move or a pause. λ does
    not predict it: it is traffic of the past."""
    notifications: int = 0

    @classmethod
    def fresh(cls, window_s: float = WINDOW_S) -> LoadMeter:
        return cls(MovingAverage(window_s), MovingAverage(window_s), MovingAverage(window_s))

    def begin(self, now_s: float) -> None:
        """Measure from now on: the broker has begun to serve."""
        for rate in (self.in_rate, self.out_rate, self.notification_rate):
            rate.began_s = now_s

    def fetched(self, size_bytes: int, row_bytes: int, now_s: float, *, catches_up: bool = False) -> None:
        self.in_bytes += size_bytes
        self.in_row_bytes += row_bytes
        self.catch_up_bytes += size_bytes if catches_up else 0
        self.in_rate.add(size_bytes, now_s)

    def delivered(
        self, size_bytes: int, row_bytes: int, notifications: int, now_s: float, *, catches_up: bool = False
    ) -> None:
        self.out_bytes += size_bytes
        self.catch_up_bytes += size_bytes if catches_up else 0
        self.out_row_bytes += row_bytes
        self.notifications += notifications
        self.out_rate.add(size_bytes, now_s)
        self.notification_rate.add(notifications, now_s)

    def fetched_size_of(self, row_bytes: int) -> float:
        """The bytes that these rows will have when they are fetched, at the ratio of all fetches so far."""
        return row_bytes * self.in_bytes / self.in_row_bytes if self.in_row_bytes else float(row_bytes)

    @property
    def delivery_ratio(self) -> float | None:
        """Bytes that one session gets per byte that is fetched for it; None before the first delivery."""
        if not (self.out_row_bytes and self.in_bytes and self.in_row_bytes):
            return None
        return (self.out_bytes / self.out_row_bytes) / (self.in_bytes / self.in_row_bytes)
