"""A process in the simulated network: it runs, is paused as SIGSTOP does, resumes, or is killed.

While it is paused, events wait; ticks are lost, as a timer that fires late fires once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

E = TypeVar("E")


class ProcessState(Generic[E]):
    def __init__(self, handle: Callable[[E], object], tick: type) -> None:
        """`handle` gets the events of the running process; events of the type `tick` are not kept for later."""
        self.running = True
        self.paused = False
        self._handle = handle
        self._tick = tick
        self._backlog: list[E] = []

    def happened(self, event: E) -> None:
        if not self.running:
            return
        if not self.paused:
            self._handle(event)
        elif not isinstance(event, self._tick):
            self._backlog.append(event)

    def resume(self) -> None:
        """End a pause: handle everything that arrived meanwhile, at once."""
        self.paused = False
        backlog, self._backlog = self._backlog, []
        for event in backlog:
            self.happened(event)
