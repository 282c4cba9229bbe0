"""What all connections of clients share: reading pauses while the client does not read, and between its turns.

Requests of one connection are handled in turns, and each turn is charged to the budget of its user (`turns`). While
reading is paused, bytes that have arrived wait in the connection, and TCP slows the client down. Subclasses say what
the bytes mean.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from typing import ClassVar

from tocsin.runtime.broker.turns import PACKET_S, SHARE, TurnBudget


class PacedReading(asyncio.Protocol, ABC):
    __slots__ = ("_budget", "_loop", "_next_turn", "_reading_paused", "_transport")

    turn_share: ClassVar[float] = SHARE
    """Share of the loop's time for a user whose requests have used up their allowance."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._budget: TurnBudget | None = None
        self._next_turn: asyncio.Handle | None = None
        self._reading_paused = False

    @abstractmethod
    def _read_on(self) -> None:
        """Continue with the bytes that arrived before reading was paused. Sets `_next_turn` to None first."""

    def _pause_s(self, started_s: float) -> float:
        """Charge the turn to the user, or to a connection without one, and return the pause before the next turn.

        Every turn counts, not only long ones: a flood of packets with one request each has only short turns.
        """
        if self._budget is None:
            self._budget = TurnBudget(self.turn_share)
        now_s = time.perf_counter()
        return self._budget.spend(PACKET_S + now_s - started_s, now_s)

    def _read_on_soon(self) -> None:
        if self._next_turn is None:
            self._next_turn = self._loop.call_soon(self._read_on)

    def _wait_for_turn(self, pause_s: float) -> None:
        self._pause_reading()
        if self._next_turn is None:
            self._next_turn = self._loop.call_later(pause_s, self._read_on)

    def _pause_reading(self) -> None:
        if not self._reading_paused and not self._transport.is_closing():
            self._reading_paused = True
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        if self._reading_paused and not self._transport.is_closing():
            self._reading_paused = False
            self._transport.resume_reading()
