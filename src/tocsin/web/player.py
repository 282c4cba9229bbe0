"""A trace that is played: where it stands, what is new as time passes, what the present is at any moment.

No clock and no sockets: whoever drives it (`replay_server`, a test) says how much time has passed. Seeking folds the
rows from the nearest checkpoint on; checkpoints are left on the way, so that going back is no slower than going on.
Thread-safe: far seeks take seconds and belong in a thread.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from tocsin.model.trace import Kind, TraceRow, from_table
from tocsin.model.trace_state import TraceState

_CHECKPOINTS: Final = 20
_LEAST_BETWEEN: Final = 20_000
"""Rows from one checkpoint to the next, at least."""
_AT_ONCE: Final = 20_000
"""Rows that are decoded together; and in one frame: whoever plays faster gets pictures instead."""


@dataclass(frozen=True, slots=True)
class Frame:
    rows: list[TraceRow]
    jumped: bool = False
    """The rows do not lead from what was shown to the present: it takes a new picture."""


class Player:
    def __init__(self, table: pa.Table, speed: float = 1.0) -> None:
        """Of at least one row, in order of time."""
        self._table = table
        self._times = table.column("time_s").to_numpy()
        self._between = max(_LEAST_BETWEEN, table.num_rows // _CHECKPOINTS)
        self._checkpoints: list[tuple[int, TraceState]] = [(0, TraceState())]
        self._present = TraceState()
        self._turn = threading.RLock()
        self._next = 0
        """The first row that has not been folded."""
        self.from_s, self.to_s = float(self._times[0]), float(self._times[-1])
        self.at_s = self.from_s
        self.speed = speed
        self.playing = True
        self._fold(self._rows_until(self.from_s))

    def advance(self, elapsed_s: float) -> Frame:
        """Play on for as long as this takes at the present speed; it stops by itself at the end."""
        with self._turn:
            if not self.playing:
                return Frame([])
            self.at_s = min(self.to_s, self.at_s + elapsed_s * self.speed)
            self.playing = self.at_s < self.to_s
            upto = self._rows_until(self.at_s)
            too_many = upto - self._next > _AT_ONCE
            rows = self._fold(upto)
        if too_many:
            return Frame([], jumped=True)
        return Frame([*rows, TraceRow(self.at_s, Kind.TICK)], jumped=any(row.kind == Kind.PICTURE for row in rows))

    def play(self, on: bool) -> bool:
        """Whether that meant to begin anew: at the end, playing starts at the beginning."""
        with self._turn:
            begins = on and self.at_s >= self.to_s
            if begins:
                self.seek(self.from_s)
            self.playing = on
            return begins

    def seek(self, at_s: float) -> None:
        with self._turn:
            self.at_s = min(self.to_s, max(self.from_s, at_s))
            upto = self._rows_until(self.at_s)
            row, present = max((one for one in self._checkpoints if one[0] <= upto), key=lambda one: one[0])
            if not row <= self._next <= upto:
                self._next, self._present = row, present.copy()
            self._fold(upto)

    def picture(self) -> list[TraceRow]:
        with self._turn:
            return self._present.picture(self.at_s)

    def _rows_until(self, at_s: float) -> int:
        return int(np.searchsorted(self._times, at_s, side="right"))

    def _fold(self, upto: int) -> list[TraceRow]:
        """The rows before `upto` that had not been folded: all of them if they were few, else the last ones."""
        rows: list[TraceRow] = []
        while self._next < upto:
            last = self._checkpoints[-1][0]
            count = min(_AT_ONCE, upto - self._next)
            if self._next < last + self._between:
                count = min(count, last + self._between - self._next)
            rows = [*rows[-_AT_ONCE:], *from_table(self._table.slice(self._next, count))]
            for row in rows[-count:]:
                self._present.fold(row)
            self._next += count
            if self._next == last + self._between:
                self._checkpoints.append((self._next, self._present.copy()))
        return rows
