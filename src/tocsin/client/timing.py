"""How long a subscriber's session waits: time-outs, back-off and the pace of acknowledgements. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tocsin.model.backoff import retry_delay_s

Jitter = Callable[[], float]
"""Returns a random number in [0, 1)."""


@dataclass(frozen=True, slots=True)
class Patience:
    """Durations in seconds."""

    shortest_s: float = 0.5
    """Upper bound of the first wait after a failure; it doubles with every further failure."""
    longest_s: float = 30.0
    """Upper bound of every wait after a failure."""
    open_s: float = 10.0
    """Time-out for connecting and logging in."""
    leave_s: float = 600.0
    """How long after an unsubscription a broker may still hold the subscription.

    No message about the unsubscription has reached that broker: a coordinator may be down for about this long. A
    subscription that a broker holds later than that is a new one.
    """
    steady_s: float = 10.0
    """A session that lasted this long resets the count of failures."""
    ack_s: float = 1.0
    """Acknowledgements are collected for this long."""
    idle_ack_s: float = 30.0
    """Pace of acknowledgements that report progress without results. They keep cursors ahead of the retention."""
    fade_s: float = 5.0
    """How long a move waits for the new broker to hold every subscription before the session leaves the old one."""
    stop_s: float = 2.0
    """Time-out for logging out."""
    denials: int = 3
    """Tokens refused in a row before the session fails: a broker that has just started may not have the keys yet."""

    def delay_s(self, failures: int, jitter: Jitter) -> float:
        """Back-off with full jitter: a uniform draw below the bound, so that many clients do not return together."""
        return retry_delay_s(max(failures, 1), shortest_s=self.shortest_s, longest_s=self.longest_s, jitter=jitter())

    def stall_after_s(self, progress_s: float) -> float:
        """Seconds of silence after which a broker counts as stalled.

        It promised a message every `progress_s` seconds.
        """
        return 2.0 * progress_s + 1.0
