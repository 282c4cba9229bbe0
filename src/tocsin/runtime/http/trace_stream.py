"""Trace rows to everybody who watches: server-sent events, a picture first, then frames of what is new.

Whoever drives it (the live coordinator, a replay) hands in frames and says what a picture is. A frame is encoded once
for all watchers. One that cannot keep up is not sent its backlog: it is forgotten, and a new picture comes instead, so
that a watcher costs a bounded amount of memory however slow it is.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence

from tocsin.model.trace import DRAWN, TraceRow, to_json
from tocsin.wire.errors import Code, TocsinError

WATCHERS = 200
FRAMES = 16
"""Waiting for one watcher; it is then a quarter of a minute behind."""
FRAME_BYTES = 8 << 20
"""Of the frames that wait for one watcher."""
RETRY_MS = 2_000


class _Watcher:
    def __init__(self, positions: bool) -> None:
        self.positions = positions
        self.waiting: deque[bytes] = deque()
        self.waiting_bytes = 0
        self.behind = True
        """It gets a picture next."""
        self.woken = asyncio.Event()

    def offer(self, frame: bytes) -> None:
        if not self.behind:
            self.waiting.append(frame)
            self.waiting_bytes += len(frame)
            if len(self.waiting) > FRAMES or self.waiting_bytes > FRAME_BYTES:
                self.start_over()
        self.woken.set()

    def start_over(self) -> None:
        self.behind = True
        self.waiting.clear()
        self.waiting_bytes = 0
        self.woken.set()

    def take(self) -> bytes:
        frame = self.waiting.popleft()
        self.waiting_bytes -= len(frame)
        return frame


class TraceStream:
    """One loop's; `picture` gives the rows that rebuild the present."""

    def __init__(self, picture: Callable[[], list[TraceRow]]) -> None:
        self._picture = picture
        self._watchers: set[_Watcher] = set()
        self._number = 0
        self._pictures: dict[bool, bytes] = {}
        """Encoded since the last frame: many who come at once share one."""
        self._closed = False

    @property
    def watchers(self) -> int:
        return len(self._watchers)

    @property
    def number(self) -> int:
        """Of the last frame."""
        return self._number

    def send(self, rows: Sequence[TraceRow]) -> None:
        """A frame; of no rows at all nothing is sent."""
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
        """Everybody gets a new picture: what they know does not lead to the present."""
        self._pictures.clear()
        self._number += 1
        for watcher in self._watchers:
            watcher.start_over()

    def close(self) -> None:
        self._closed = True
        for watcher in self._watchers:
            watcher.woken.set()

    def watch(self, positions: bool = True) -> AsyncIterator[bytes]:
        """Server-sent events until the stream is closed; raises at once when too many are watching."""
        if len(self._watchers) >= WATCHERS:
            raise TocsinError(Code.BACKLOGGED, f"{WATCHERS} are watching already; try again later", retry_after_s=30)
        return self._events(_Watcher(positions))

    async def _events(self, watcher: _Watcher) -> AsyncIterator[bytes]:
        self._watchers.add(watcher)
        try:
            yield b"retry: %d\n\n" % RETRY_MS
            while not self._closed:
                if watcher.behind:
                    watcher.behind = False
                    yield self._encoded_picture(watcher.positions)
                elif watcher.waiting:
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
