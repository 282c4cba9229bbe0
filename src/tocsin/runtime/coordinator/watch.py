"""The live watch of a coordinator: one frame of trace rows a second, for watchers and a recording.

Rows come from two sources: the process, once its changes are stored, and `cluster_watch`, which reads the data cluster.
A frame has its rows in order of time, and for each subscriber only the newest position. A picture is the list of rows
that rebuilds the present state. Without watchers and without a recording, nothing is collected.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec
from msgspec.structs import replace

from tocsin.coordinator.core import Coordinator
from tocsin.coordinator.drawing import street_rows
from tocsin.coordinator.effects import Effect, RecordTrace
from tocsin.coordinator.topic_watching import changed_topics
from tocsin.coordinator.watching import BrokerChanges, measured, picture, registered_places
from tocsin.model.trace import Kind, TraceRow
from tocsin.model.trace_state import TraceState
from tocsin.runtime.coordinator.settings import CoordinatorSettings
from tocsin.runtime.http.logs import logger
from tocsin.runtime.http.trace_recording import Recording, unused_path
from tocsin.runtime.http.trace_stream import TraceStream
from tocsin.wire.errors import Code, TocsinError

FRAME_S = 1.0
MEASURE_S = 2.0
"""Pause between two samples of the brokers' loads."""
_FRAME_ROWS = 100_000
"""Most rows in a frame; when there are more, watchers get a new picture instead."""


class CoordinatorWatch:
    def __init__(self, settings: CoordinatorSettings, now_s: Callable[[], float]) -> None:
        self.now_s = now_s
        self.frame_s = FRAME_S
        self._settings = settings
        self._core: Coordinator | None = None
        self._changes = BrokerChanges()
        self._pending: list[TraceRow] = []
        self._positions: dict[str, TraceRow] = {}
        """The newest position of each subscriber in this frame."""
        self._frame_end_s = 0.0
        self._measured_s = 0.0
        self._recording: Recording | None = None
        self._task: asyncio.Task[None] | None = None
        self.outside = TraceState()
        """Shown state that is not in the coordinator's registry: places, positions, channels."""
        self.stream = TraceStream(self.picture)

    @property
    def is_watched(self) -> bool:
        return self.stream.watchers > 0 or self._recording is not None

    async def start(self, core: Coordinator | None) -> None:
        """Load the streets, begin the recording and the frames.

        Raises TocsinError if the file of streets cannot be read or the recording cannot be written.
        """
        self._core = core
        if self._settings.streets is not None:
            for row in await asyncio.to_thread(_streets, Path(self._settings.streets), self.now_s()):
                self.add(row)
        if self._settings.trace is not None:
            self._recording = await asyncio.to_thread(_begin_recording, Path(self._settings.trace))
            logger().info("recording", path=str(self._recording.path))
            self._recording.add(self.picture(), True)
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Close the recording and end the watchers' streams. May be called twice."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        if self._recording is not None:
            self.send_frame()
            recording, self._recording = self._recording, None
            try:
                await asyncio.to_thread(recording.close)
            except OSError as error:
                logger().error("the recording cannot be finished", path=str(recording.path), reason=str(error))
        self.stream.close()

    # -- rows in -------------------------------------------------------------------------------------------------------

    def handled(self, core: Coordinator | None, effects: Iterable[Effect], began_s: float) -> None:
        """Add the rows of a batch of events, handled from `began_s` on, whose changes are stored."""
        if core is not self._core:
            core_was_restarted, self._core = self._core is not None, core
            if core_was_restarted:
                self._send_picture()
                return
        if core is None:
            return
        if not self.is_watched:
            core.registry.topics.changed.clear()  # the next watcher gets a picture of all topics
            return
        # Rows of brokers come first: a subscriber may join a broker that is new.
        self._pending += self._changes.since(core, began_s)
        self._pending += changed_topics(core, began_s)
        self._pending += [effect.row for effect in effects if isinstance(effect, RecordTrace)]

    def add(self, row: TraceRow) -> None:
        """Add a row that does not come from the coordinator's core."""
        self.outside.fold(row)
        if not self.is_watched:
            return
        if row.kind == Kind.POSITION and row.subscriber is not None:
            self._positions[row.subscriber] = row
        else:
            self._pending.append(row)

    # -- frames out ----------------------------------------------------------------------------------------------------

    def picture(self) -> list[TraceRow]:
        now_s = self.now_s()
        # Positions from datasets replace those of the registration: they are newer.
        places = [] if self._core is None else registered_places(self._core, now_s)
        core_rows = [] if self._core is None else picture(self._core, now_s)
        return [*places, *self.outside.picture(now_s)[:-1], *core_rows, TraceRow(now_s, Kind.TICK)]

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        at_s = loop.time()
        while True:
            at_s = max(at_s + self.frame_s, loop.time())
            await asyncio.sleep(at_s - loop.time())
            self.send_frame()

    def send_frame(self) -> None:
        if not self.is_watched:
            self._clear()
        elif len(self._pending) > _FRAME_ROWS:
            self._send_picture()
        else:
            rows = self._take_frame(self.now_s())
            self.stream.send(rows)
            if self._recording is not None:
                self._recording.add(rows, False)

    def _take_frame(self, now_s: float) -> list[TraceRow]:
        """Rows in order of time. A row from before the last frame, whose commit took long, gets that frame's time."""
        rows = [*self._pending, *self._positions.values()]
        if self._core is not None and now_s - self._measured_s >= MEASURE_S:
            self._measured_s = now_s
            rows += measured(self._core, now_s)
        rows.append(TraceRow(now_s, Kind.TICK))
        rows = [row if row.time_s >= self._frame_end_s else replace(row, time_s=self._frame_end_s) for row in rows]
        self._frame_end_s = now_s
        self._clear()
        return sorted(rows, key=lambda row: row.time_s)

    def _send_picture(self) -> None:
        self._clear()
        self.stream.start_over()
        if self._recording is not None:
            self._recording.add(self.picture(), True)

    def _clear(self) -> None:
        self._pending = []
        self._positions = {}


def _streets(path: Path, time_s: float) -> list[TraceRow]:
    try:
        return list(street_rows(msgspec.json.decode(path.read_bytes()), time_s))
    except (OSError, msgspec.DecodeError) as error:
        raise TocsinError(Code.BAD_REQUEST, f"streets: {path} cannot be read as GeoJSON: {error}") from None


def _begin_recording(path: Path) -> Recording:
    try:
        return Recording(unused_path(path))
    except OSError as error:
        raise TocsinError(Code.BAD_REQUEST, f"trace: {path} cannot be written: {error.strerror or error}") from None
