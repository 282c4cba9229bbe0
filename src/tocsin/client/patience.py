"""How long a client waits for what. Pure: the clock and the dice are handed in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Dice = Callable[[], float]
"""A number in [0, 1)."""


@dataclass(frozen=True, slots=True)
class Patience:
    shortest_s: float = 0.5
    """The longest possible first wait after a failure; it doubles from there."""
    longest_s: float = 30.0
    open_s: float = 10.0
    """For connecting and logging in."""
    leave_s: float = 600.0
    """How long after an unsubscription a broker may turn up that has not heard of it: as long as the coordinator may be
    away, more or less. What is held later than that was made by somebody else."""
    steady_s: float = 10.0
    """A session that lasted this long was a good one: the count of failures starts anew."""
    ack_s: float = 1.0
    """Acknowledgements are collected for this long."""
    idle_ack_s: float = 30.0
    """Those that only say that nothing came are not urgent: they keep cursors ahead of the retention."""
    fade_s: float = 5.0
    """How long a move waits for the new broker to take over every subscription before the old one is left."""
    stop_s: float = 2.0
    """For saying goodbye."""
    denials: int = 3
    """Tokens refused in a row before giving up: a broker that has just started may not have the keys yet."""

    def delay_s(self, failures: int, dice: Dice) -> float:
        """Full jitter: anywhere up to the bound, so that a crowd that lost its broker does not return as one."""
        return dice() * min(self.longest_s, self.shortest_s * 2.0 ** min(max(failures, 1) - 1, 16))

    def stalled(self, silent_s: float, progress_s: float) -> bool:
        """A broker that promised a sign of life every `progress_s` missed one, with some grace for slow networks."""
        return silent_s > self.stall_after_s(progress_s)

    def stall_after_s(self, progress_s: float) -> float:
        return 2.0 * progress_s + 1.0
