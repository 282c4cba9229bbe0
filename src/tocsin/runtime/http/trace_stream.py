"""Trace rows for all watchers of a dashboard, as server-sent events: first a picture, then frames of new rows.

The driver (the live coordinator or a replay) sends the frames and supplies the picture. A frame is encoded once for all
watchers. A watcher that cannot keep up loses its backlog and gets a new picture instead, so that a slow watcher costs a
bounded amount of memory.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence

from tocsin.model.trace import DRAWN, TraceRow, to_json
from tocsin.wire.errors import Code, TocsinError

WATCHERS = 200
FRAMES = 16
"""Most frames that may wait for one watcher, which is then a quarter of a minute behind."""
FRAME_BYTES = 8 << 20
"""Most bytes of the frames that wait for one watcher."""
RETRY_MS = 2_000


class _Watcher:
    def __init__(self, positions: bool) -> None:
        self.positions = positions
        self.frames: deque[bytes] = deque()
        self.frames_bytes = 0
        self.needs_picture = True
        self.woken = asyncio.Event()

    def offer(self, frame: bytes) -> None:
        if not self.needs_picture:
            self.frames.append(frame)
            self.frames_bytes += len(frame)
            if len(self.frames) > FRAMES or self.frames_bytes > FRAME_BYTES:
                self.start_over()
        self.woken.set()

    def start_over(self) -> None:
        self.needs_picture = True
        self.frames.clear()
        self.frames_bytes = 0
        self.woken.set()

    def take(self) -> bytes:
        frame = self.frames.popleft()
        self.frames_bytes -= len(frame)
        return frame


class TraceStream:
    """Belongs to one event loop. `picture` returns the rows that rebuild the present state."""

    def __init__(self, picture: Callable[[], list[TraceRow]]) -> None:
        self._picture = picture
        self._watchers: set[_Watcher] = set()
        self._number = 0
        """Number of the last frame."""
        self._pictures: dict[bool, bytes] = {}
        """Encoded picture with positions (True) or without. Watchers that start before the next frame share it."""
        self._closed = False

    @property
    def watchers(self) -> int:
        return len(self._watchers)

    def send(self, rows: Sequence[TraceRow]) -> None:
        """Send a frame to every watcher; a frame without rows is not sent."""
        self._pictures.clear()
        if not rows:
            return
        self._number += 1
        frames: dict[bool, bytes] = {}
        for watcher in self._watchers:
            if watcher.positions not in frames:
                frames[watcher.positions] = self._encoded("rows", rows, watcher.positions)
            watcher.offer(frames[watcher.positions])

    def start_over(self) -> None:
        """Send every watcher a new picture, because frames cannot lead from its state to the present one."""
        self._pictures.clear()
        self._number += 1
        for watcher in self._watchers:
            watcher.start_over()

    def close(self) -> None:
        self._closed = True
        for watcher in self._watchers:
            watcher.woken.set()

    def watch(self, positions: bool = True) -> AsyncIterator[bytes]:
        """Server-sent events until the stream is closed. Raises at once if there are too many watchers."""
        if len(self._watchers) >= WATCHERS:
            message = f"there are {WATCHERS} watchers already; try again later"
            raise TocsinError(Code.BACKLOGGED, message, retry_after_s=30)
        return self._events(_Watcher(positions))

    async def _events(self, watcher: _Watcher) -> AsyncIterator[bytes]:
        self._watchers.add(watcher)
        try:
            yield b"retry: %d\n\n" % RETRY_MS
            while not self._closed:
                if watcher.needs_picture:
                    watcher.needs_picture = False
                    yield self._encoded_picture(watcher.positions)
                elif watcher.frames:
                    yield watcher.take()
                else:
                    watcher.woken.clear()
                    await watcher.woken.wait()
        finally:
            self._watchers.discard(watcher)

    def _encoded_picture(self, positions: bool) -> bytes:
        if positions not in self._pictures:
            self._pictures[positions] = self._encoded("picture", self._picture(), positions)
        return self._pictures[positions]

    def _encoded(self, event: str, rows: Sequence[TraceRow], positions: bool) -> bytes:
        shown = rows if positions else [row for row in rows if row.kind not in DRAWN]
        return b"id: %d\nevent: %s\ndata: %s\n\n" % (self._number, event.encode(), to_json(shown))
