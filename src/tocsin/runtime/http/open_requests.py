"""Requests in progress, by caller: streams end when the caller's token expires or is revoked.

Authentication checks a token once, when a request begins. An event stream or a WebSocket may last for days after that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tocsin.runtime.http.callers import Caller

CALLER = "tocsin.caller"
"""Key of the authenticated caller in the ASGI scope."""


class OpenRequests:
    """Use it on the event loop."""

    def __init__(self) -> None:
        self._callers: dict[asyncio.Task[object], Caller] = {}
        self._ended: set[asyncio.Task[object]] = set()

    def __len__(self) -> int:
        return len(self._callers)

    @contextmanager
    def of(self, caller: Caller | None) -> Iterator[None]:
        """Count the current task as a request of this caller while the block runs."""
        task = asyncio.current_task()
        if caller is None or task is None:
            yield
            return
        self._callers[task] = caller
        try:
            yield
        finally:
            self._callers.pop(task, None)

    def end(self, is_over: Callable[[Caller], bool]) -> int:
        """Cancel the requests of the callers for which `is_over` is true, and return how many there are."""
        current = asyncio.current_task()  # the request that revokes its own token gets its answer
        over = [task for task, caller in self._callers.items() if is_over(caller) and task is not current]
        for task in over:
            self._ended.add(task)
            task.cancel()
        return len(over)

    def was_ended(self) -> bool:
        """Whether `end` cancelled the current task; then the cancellation is over, and the task goes on."""
        task = asyncio.current_task()
        if task is None or task not in self._ended:
            return False
        self._ended.discard(task)
        task.uncancel()
        return True

    def end_expired(self, now_s: float) -> int:
        return self.end(lambda caller: caller.expires_s is not None and caller.expires_s < now_s)
