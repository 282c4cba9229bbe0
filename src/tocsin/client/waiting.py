"""Results on their way to the application: a queue per subscription, taken in turn or one subscription at a time.

Not bounded by itself: whoever fills it stops reading from the network while `full` is true.
"""

from __future__ import annotations

import asyncio
from collections import deque

from tocsin.client.errors import ClientError, Unread
from tocsin.model.ids import SubscriptionId
from tocsin.wire.errors import Code
from tocsin.wire.session import Gap, Recovered, Result

Item = Result | Gap | Recovered | ClientError
UNREAD_S = 30.0
"""How long one who waits puts up with others who take nothing while the memory for waiting results is full."""


class Waiting:
    def __init__(self, limit: int, unread_s: float = UNREAD_S) -> None:
        self._limit = limit
        self._unread_s = unread_s
        self._queues: dict[SubscriptionId, deque[Item]] = {}
        self._ready: dict[SubscriptionId, None] = {}
        """Those with something to take, in the order they get their turn."""
        self._takers: dict[SubscriptionId | None, set[asyncio.Future[None]]] = {}
        self._end: ClientError | None = None
        self.count = 0
        self._taken = 0

    @property
    def full(self) -> bool:
        return self.count >= self._limit

    def put(self, subscription: SubscriptionId, item: Item) -> None:
        self._queues.setdefault(subscription, deque()).append(item)
        self._ready.setdefault(subscription)
        self.count += 1
        for waits_for in (subscription, None):
            self._wake(waits_for)
        if self.count == self._limit:
            self._wake_all()

    def end(self, error: ClientError) -> None:
        """Nothing comes any more: what is there can still be taken, then everybody gets this error."""
        self._end = self._end or error
        self._wake_all()

    def drop(self, subscription: SubscriptionId) -> None:
        self.count -= len(self._queues.pop(subscription, ()))
        self._ready.pop(subscription, None)

    async def take(self, subscription: SubscriptionId | None) -> Item:
        """The next of one subscription, or of any; waits for it."""
        while True:
            found = self._next(subscription) or self._end
            if found is not None:
                return found
            taken = self._taken
            if await self._sleep(subscription) or not self.full or self._taken != taken:
                continue
            return Unread(
                Code.BACKLOGGED,
                f"{self.count:,} results of other subscriptions wait and nobody takes them, so nothing more is read: "
                "iterate over them (or over the subscriber), or unsubscribe from them",
            )

    def _next(self, subscription: SubscriptionId | None) -> Item | None:
        chosen = next(iter(self._ready), None) if subscription is None else subscription
        queue = None if chosen is None else self._queues.get(chosen)
        if chosen is None or not queue:
            return None
        item = queue.popleft()
        self.count -= 1
        self._taken += 1
        self._ready.pop(chosen, None)
        if queue:
            self._ready[chosen] = None  # behind the others
        return item

    async def _sleep(self, subscription: SubscriptionId | None) -> bool:
        """Until there may be news; False if the patience with those who take nothing ended."""
        sleeping: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        takers = self._takers.setdefault(subscription, set())
        takers.add(sleeping)
        try:
            async with asyncio.timeout(self._unread_s if self.full else None):
                await sleeping
            return True
        except TimeoutError:
            return False
        finally:
            takers.discard(sleeping)

    def _wake(self, subscription: SubscriptionId | None) -> None:
        for sleeping in self._takers.get(subscription, ()):
            if not sleeping.done():
                sleeping.set_result(None)

    def _wake_all(self) -> None:
        for subscription in self._takers:
            self._wake(subscription)
