"""Bulkheads between webhooks: endpoints that answer slowly delay only themselves and each other.

An endpoint is a host name with a port. It gets a few calls at a time, for however many subscribers. All calls start in
the quick lane. A call that lasts longer moves on to the slow lane and leaves its place in the quick lane to others; if
the slow lane is full, the call fails. An endpoint whose last call was slow waits for the slow lane from the start,
until it answers quickly again. `WebhookCaller` drives it; only waiting happens here, no I/O.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

T = TypeVar("T")

QUICK_S = 2.0
"""A call that takes longer than this is slow."""
QUICK_CALLS = 256
SLOW_CALLS = 256
CALLS_EACH = 4
"""Calls to one endpoint at the same time."""
_REMEMBERED = 10_000
"""Most endpoints that are known as slow."""


class TooManySlowCalls(Exception):
    """The call is slow, and so are too many others."""


class Bulkheads:
    def __init__(self, quick: int = QUICK_CALLS, slow: int = SLOW_CALLS, quick_s: float = QUICK_S) -> None:
        self._quick = asyncio.Semaphore(quick)
        self._slow = asyncio.Semaphore(slow)
        self._quick_s = quick_s
        self._endpoints: dict[str, tuple[asyncio.Semaphore, int]] = {}
        """Endpoint → (its places, calls that use or wait for one)."""
        self._slow_endpoints: dict[str, None] = {}
        """Endpoints whose last call was slow, oldest first."""

    def is_slow(self, endpoint: str) -> bool:
        return endpoint in self._slow_endpoints

    async def run(self, endpoint: str, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Make the call when there is a place for it, and return its outcome."""
        async with self._place_of(endpoint):
            lane: asyncio.Semaphore | None = self._slow if self.is_slow(endpoint) else self._quick
            assert lane is not None
            await lane.acquire()
            task = asyncio.create_task(call())
            try:
                _, late = await asyncio.wait((task,), timeout=self._quick_s)
                self._remember(endpoint, is_slow=bool(late))
                if late and lane is self._quick:
                    lane.release()
                    lane = None
                    if self._slow.locked():
                        raise TooManySlowCalls
                    await self._slow.acquire()  # does not wait
                    lane = self._slow
                return await task
            finally:
                if not task.done():
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)
                if lane is not None:
                    lane.release()

    def _remember(self, endpoint: str, *, is_slow: bool) -> None:
        self._slow_endpoints.pop(endpoint, None)
        if is_slow:
            self._slow_endpoints[endpoint] = None
            if len(self._slow_endpoints) > _REMEMBERED:
                del self._slow_endpoints[next(iter(self._slow_endpoints))]

    @asynccontextmanager
    async def _place_of(self, endpoint: str) -> AsyncIterator[None]:
        places, users = self._endpoints.get(endpoint) or (asyncio.Semaphore(CALLS_EACH), 0)
        self._endpoints[endpoint] = places, users + 1
        try:
            async with places:
                yield
        finally:
            places, users = self._endpoints[endpoint]
            self._endpoints[endpoint] = places, users - 1
            if users == 1:
                del self._endpoints[endpoint]
