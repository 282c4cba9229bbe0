"""The live watch of a coordinator: what happened, once a second, to everybody who looks and to the recording.

While nobody looks and nothing is recorded it does nothing. Rows come from the process when they are on disk, from
`coordinator_taps` as the data cluster tells them, and are put in order of time, positions thinned to the newest each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

from msgspec.structs import replace

from tocsin.coordinator.core import Coordinator
from tocsin.coordinator.effects import Effect, RecordTrace
from tocsin.coordinator.watching import BrokerChanges, measured, picture
from tocsin.model.trace import Kind, TraceRow
from tocsin.model.trace_state import TraceState
from tocsin.runtime.http.trace_stream import TraceStream

FRAME_S = 1.0
MEASURE_S = 2.0
"""Between samples of the brokers."""
_ROWS = 100_000
"""In one frame; beyond, everybody gets a new picture instead."""

Record = Callable[[Sequence[TraceRow], bool], None]
"""Is given each frame; True when it is a picture."""


class CoordinatorWatch:
    def __init__(self, now_s: Callable[[], float], frame_s: float = FRAME_S) -> None:
        self.now_s = now_s
        self.frame_s = frame_s
        self._core: Coordinator | None = None
        self._changes = BrokerChanges()
        self._pending: list[TraceRow] = []
        self._positions: dict[str, TraceRow] = {}
        """Of this frame, the newest of each."""
        self._cut_s = 0.0
        self._measured_s = 0.0
        self._record: Record | None = None
        self.beyond = TraceState()
        """What is shown and not in the registry: places, positions, channels."""
        self.stream = TraceStream(self.picture)

    @property
    def is_wanted(self) -> bool:
        return self.stream.watchers > 0 or self._record is not None

    def record(self, record: Record | None) -> None:
        """From now on every frame goes there too, a picture first."""
        self._record = record
        if record is not None:
            record(self.picture(), True)

    # -- what comes in -------------------------------------------------------------------------------------------------

    def happened(self, core: Coordinator | None, effects: Iterable[Effect], began_s: float) -> None:
        """The process has handled some events, begun at `began_s`, and everything to be stored is stored."""
        if core is not self._core:
            begins_again, self._core = self._core is not None, core
            if begins_again:
                self._start_over()
                return
        if core is None or not self.is_wanted:
            return
        # Brokers first: somebody may join one that is new.
        self._pending += self._changes.since(core, began_s)
        self._pending += [effect.row for effect in effects if isinstance(effect, RecordTrace)]

    def tell(self, row: TraceRow) -> None:
        """Something the data cluster said, or that was loaded."""
        self.beyond.fold(row)
        if not self.is_wanted:
            return
        if row.kind == Kind.POSITION and row.subscriber is not None:
            self._positions[row.subscriber] = row
        else:
            self._pending.append(row)

    # -- what goes out -------------------------------------------------------------------------------------------------

    def picture(self) -> list[TraceRow]:
        now_s = self.now_s()
        known = [] if self._core is None else picture(self._core, now_s)
        return self.beyond.picture(now_s)[:-1] + known + [TraceRow(now_s, Kind.TICK)]

    async def run(self) -> None:
        """Frames until cancelled."""
        loop = asyncio.get_running_loop()
        at_s = loop.time()
        while True:
            at_s = max(at_s + self.frame_s, loop.time())
            await asyncio.sleep(at_s - loop.time())
            self.frame()

    def frame(self) -> None:
        if not self.is_wanted:
            self._clear()
            return
        if len(self._pending) > _ROWS:
            self._start_over()
            return
        rows = self._cut(self.now_s())
        self.stream.send(rows)
        if self._record is not None:
            self._record(rows, False)

    def _cut(self, now_s: float) -> list[TraceRow]:
        """The rows of this frame, in order of time; what took long to store is dated after the last frame."""
        rows = [*self._pending, *self._positions.values()]
        if self._core is not None and now_s - self._measured_s >= MEASURE_S:
            self._measured_s = now_s
            rows += measured(self._core, now_s)
        rows.append(TraceRow(now_s, Kind.TICK))
        rows = [row if row.time_s >= self._cut_s else replace(row, time_s=self._cut_s) for row in rows]
        self._cut_s = now_s
        self._clear()
        return sorted(rows, key=lambda row: row.time_s)

    def _start_over(self) -> None:
        self._clear()
        self.stream.start_over()
        if self._record is not None:
            self._record(self.picture(), True)

    def _clear(self) -> None:
        self._pending = []
        self._positions = {}
