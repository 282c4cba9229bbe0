"""Wakes a shaper when its next item may leave: the timer of `Egress` and `Matching`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from tocsin.policies.sites.shaping import Shaper

M = TypeVar("M")

WAKE_S = 0.005
"""Shortest pause between two releases. Items that become due in between leave together: less work, the same rate."""
CallLater = Callable[[float, Callable[[], None]], object]


class Pace(Generic[M]):
    def __init__(
        self,
        shaper: Shaper[M],
        leave: Callable[[list[M]], None],
        now_s: Callable[[], float],
        call_later: CallLater,
    ) -> None:
        """`leave` gets the items that may leave. `call_later(delay_s, callback)` is the event loop's."""
        self._shaper = shaper
        self._leave = leave
        self._now_s = now_s
        self._call_later = call_later
        self._is_scheduled = False

    def schedule(self) -> None:
        """Wake up for the next item, if one waits."""
        if self._is_scheduled or (next_s := self._shaper.next_s()) is None:
            return
        self._is_scheduled = True
        self._call_later(max(WAKE_S, next_s - self._now_s()), self._wake)

    def _wake(self) -> None:
        self._is_scheduled = False
        self._leave(self._shaper.release(self._now_s()))
        self.schedule()
