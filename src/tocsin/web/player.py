"""Plays a trace: its position, the new rows as time passes, and the state at any time.

It has no clock and no sockets: its driver (`replay_server`, a test) passes in the elapsed time. A seek folds the rows
from the nearest checkpoint on. Checkpoints are added while rows are folded, so that a seek back is as fast as a seek
forward. Thread-safe: a far seek takes seconds and should run in a thread.
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
_CHECKPOINT_ROWS: Final = 20_000
"""Least number of rows between two checkpoints."""
_CHUNK_ROWS: Final = 20_000
"""Rows that are decoded together. Also the limit of a frame: at a higher speed, watchers get pictures instead."""


@dataclass(frozen=True, slots=True)
class ReplayFrame:
    rows: list[TraceRow]
    jumped: bool = False
    """True if the rows do not lead from the last frame to the present state: watchers need a new picture."""


class Player:
    def __init__(self, table: pa.Table, speed: float = 1.0) -> None:
        """`table` has at least one row, and its rows are in order of time."""
        self._table = table
        self._times = table.column("time_s").to_numpy()
        self._checkpoint_rows = max(_CHECKPOINT_ROWS, table.num_rows // _CHECKPOINTS)
        self._checkpoints: list[tuple[int, TraceState]] = [(0, TraceState())]
        self._present = TraceState()
        self._lock = threading.RLock()
        self._next = 0
        """The first row that has not been folded."""
        self.from_s, self.to_s = float(self._times[0]), float(self._times[-1])
        self.at_s = self.from_s
        self.speed = speed
        self.playing = True
        self._fold(self._rows_until(self.from_s))

    def advance(self, elapsed_s: float) -> ReplayFrame:
        """Play for `elapsed_s` times the speed. Playing stops at the end of the trace."""
        with self._lock:
            if not self.playing:
                return ReplayFrame([])
            self.at_s = min(self.to_s, self.at_s + elapsed_s * self.speed)
            self.playing = self.at_s < self.to_s
            upto = self._rows_until(self.at_s)
            is_too_large = upto - self._next > _CHUNK_ROWS
            rows = self._fold(upto)
        if is_too_large:
            return ReplayFrame([], jumped=True)
        return ReplayFrame(
            [*rows, TraceRow(self.at_s, Kind.TICK)], jumped=any(row.kind == Kind.PICTURE for row in rows)
        )

    def play(self, on: bool) -> bool:
        """Play or pause. At the end of the trace, playing restarts at the beginning; returns True in that case."""
        with self._lock:
            restarts = on and self.at_s >= self.to_s
            if restarts:
                self.seek(self.from_s)
            self.playing = on
            return restarts

    def seek(self, at_s: float) -> None:
        with self._lock:
            self.at_s = min(self.to_s, max(self.from_s, at_s))
            upto = self._rows_until(self.at_s)
            row, present = max((entry for entry in self._checkpoints if entry[0] <= upto), key=lambda entry: entry[0])
            if not row <= self._next <= upto:
                self._next, self._present = row, present.copy()
            self._fold(upto)

    def picture(self) -> list[TraceRow]:
        with self._lock:
            return self._present.picture(self.at_s)

    def _rows_until(self, at_s: float) -> int:
        return int(np.searchsorted(self._times, at_s, side="right"))

    def _fold(self, upto: int) -> list[TraceRow]:
        """Fold the next rows before `upto` and return them; of very many, only the last `_CHUNK_ROWS` or more."""
        rows: list[TraceRow] = []
        while self._next < upto:
            last = self._checkpoints[-1][0]
            count = min(_CHUNK_ROWS, upto - self._next)
            if self._next < last + self._checkpoint_rows:
                count = min(count, last + self._checkpoint_rows - self._next)
            rows = [*rows[-_CHUNK_ROWS:], *from_table(self._table.slice(self._next, count))]
            for row in rows[-count:]:
                self._present.fold(row)
            self._next += count
            if self._next == last + self._checkpoint_rows:
                self._checkpoints.append((self._next, self._present.copy()))
        return rows
