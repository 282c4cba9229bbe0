"""Drives a core without I/O: handles one event at a time and carries out its effects before the next.

Everything runs on one asyncio loop. Connections and links report events here and receive effects; they do not know each
other. `process` drives the broker core this way, and `topics` the topics core.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from tocsin.runtime.http.logs import logger

Event = TypeVar("Event")
Handle = Callable[[Event, float], Sequence[Any]]
"""`handle(event, now_s) -> effects` of a core."""


class CoreDriver(Generic[Event]):
    def __init__(self, now_s: Callable[[], float], tick_s: float, ticked: Event, stop_requested: Event) -> None:
        self.now_s = now_s
        self.handle: Handle[Event]
        """The core's; set before the first event."""
        self.handlers: dict[type, Callable[[Any], None]] = {}
        """The handler of each kind of effect."""
        self.observe: Callable[[Event, Sequence[Any]], None] | None = None
        """Called with each event and its effects before they are carried out."""
        self._tick_s = tick_s
        self._ticked = ticked
        self._stop_requested = stop_requested
        self._events: deque[Event] = deque()
        self._handling = False
        self._ticking: asyncio.Task[None] | None = None
        self._log = logger()

    def start_ticking(self) -> None:
        self._ticking = asyncio.create_task(self._tick())

    async def stop_ticking(self) -> None:
        """Tell the core to stop. Does nothing if it was not started."""
        if self._ticking is not None:
            self._ticking.cancel()
            await asyncio.gather(self._ticking, return_exceptions=True)
            self.happened(self._stop_requested)

    async def _tick(self) -> None:
        while True:
            self.happened(self._ticked)
            await asyncio.sleep(self._tick_s)

    def happened(self, event: Event) -> None:
        """Handle an event; call it from the loop's thread.

        An event that an effect reports waits until the earlier effects are carried out.
        """
        if self._handling:
            self._events.append(event)
            return
        self._handling = True
        try:
            self._handle(event)
            while self._events:
                self._handle(self._events.popleft())
        finally:
            self._handling = False

    def _handle(self, event: Event) -> None:
        try:
            effects = self.handle(event, self.now_s())
        except Exception as error:
            self._log.error("an event could not be handled", kind=type(event).__name__, exc_info=error)
            return
        if self.observe is not None:
            self.observe(event, effects)
        for effect in effects:
            try:
                self.handlers[type(effect)](effect)
            except Exception as error:
                self._log.error("an effect failed", kind=type(effect).__name__, exc_info=error)
