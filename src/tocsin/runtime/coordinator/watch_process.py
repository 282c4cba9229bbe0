"""The live watch as a running part of the coordinator: its frames, the data cluster's taps, streets, the recording."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec

from tocsin.coordinator.drawing import street_rows
from tocsin.model.trace import TraceRow
from tocsin.runtime.coordinator.process import CoordinatorProcess
from tocsin.runtime.coordinator.settings import CoordinatorSettings
from tocsin.runtime.coordinator.taps import ClusterTaps
from tocsin.runtime.coordinator.watch import CoordinatorWatch
from tocsin.runtime.http.credentials import Signer
from tocsin.runtime.http.logs import logger
from tocsin.runtime.http.trace_recording import Recording, unused_path
from tocsin.wire.errors import Code, TocsinError


class WatchProcess:
    def __init__(self, settings: CoordinatorSettings, signer: Signer, process: CoordinatorProcess) -> None:
        self._settings = settings
        self._process = process
        self.watch = CoordinatorWatch(process.now_s)
        process.watch = self.watch.happened
        self._taps = ClusterTaps(settings, signer, self.watch)
        self._tasks: list[asyncio.Task[None]] = []
        self._recording: Recording | None = None

    async def start(self) -> None:
        """Raises TocsinError if a file that was set cannot be read or written."""
        self.watch.happened(self._process.core, (), self._process.now_s())
        if self._settings.streets is not None:
            for row in await asyncio.to_thread(streets, Path(self._settings.streets), self._process.now_s()):
                self.watch.tell(row)
        if self._settings.trace is not None:
            self._recording = await asyncio.to_thread(_begin, Path(self._settings.trace))
            logger().info("recording", path=str(self._recording.path))
            self.watch.record(self._recording.add)
        self._tasks = [asyncio.create_task(self.watch.run()), asyncio.create_task(self._taps.run())]

    async def stop(self) -> None:
        """Streams end; the recording is closed. Twice does no harm."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        if self._recording is not None:
            self.watch.frame()
            recording, self._recording = self._recording, None
            self.watch.record(None)
            try:
                await asyncio.to_thread(recording.close)
            except OSError as error:
                logger().error("the recording stays a part", path=str(recording.path), reason=str(error))
        self.watch.stream.close()


def streets(path: Path, time_s: float) -> list[TraceRow]:
    """From a GeoJSON file."""
    try:
        return list(street_rows(msgspec.json.decode(path.read_bytes()), time_s))
    except (OSError, msgspec.DecodeError) as error:
        raise TocsinError(Code.BAD_REQUEST, f"streets: {path} cannot be read as GeoJSON: {error}") from None


def _begin(path: Path) -> Recording:
    try:
        return Recording(unused_path(path))
    except OSError as error:
        raise TocsinError(Code.BAD_REQUEST, f"trace: {path} cannot be written: {error.strerror or error}") from None
