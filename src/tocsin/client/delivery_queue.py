"""Results that wait for the application: a queue per subscription. Readers take from all in turn, or from one.

The queue has no hard bound: the driver stops reading from the network while `full` is true.
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
"""How long a reader of one subscription waits while the queue is full of results that no reader takes."""


class DeliveryQueue:
    def __init__(self, limit: int, unread_s: float = UNREAD_S) -> None:
        """The queue is full with `limit` items or more."""
        self._limit = limit
        self._unread_s = unread_s
        self._queues: dict[SubscriptionId, deque[Item]] = {}
        self._ready: dict[SubscriptionId, None] = {}
        """Subscriptions with items, in the order of their turns."""
        self._readers: dict[SubscriptionId | None, set[asyncio.Future[None]]] = {}
        """Waiting readers by subscription; None for readers of any subscription."""
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
        self._wake(subscription)
        self._wake(None)
        if self.count == self._limit:
            self._wake_all()

    def end(self, error: ClientError) -> None:
        """End the queue. Readers take the items that are queued, and then get this error."""
        self._end = self._end or error
        self._wake_all()

    def drop(self, subscription: SubscriptionId) -> None:
        self.count -= len(self._queues.pop(subscription, ()))
        self._ready.pop(subscription, None)

    async def take(self, subscription: SubscriptionId | None) -> Item:
        """Wait for the next item of one subscription, or of any if `subscription` is None."""
        while True:
            item = self._next(subscription) or self._end
            if item is not None:
                return item
            taken = self._taken
            if await self._sleep(subscription) or not self.full or self._taken != taken:
                continue
            return Unread(
                Code.BACKLOGGED,
                f"{self.count:,} results of other subscriptions are not taken, so nothing more is read: "
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
            self._ready[chosen] = None  # its next turn is after all others
        return item

    async def _sleep(self, subscription: SubscriptionId | None) -> bool:
        """Wait until there may be an item. False if the queue is full and the time-out passed."""
        sleeping: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        readers = self._readers.setdefault(subscription, set())
        readers.add(sleeping)
        try:
            async with asyncio.timeout(self._unread_s if self.full else None):
                await sleeping
            return True
        except TimeoutError:
            return False
        finally:
            readers.discard(sleeping)

    def _wake(self, subscription: SubscriptionId | None) -> None:
        for sleeping in self._readers.get(subscription, ()):
            if not sleeping.done():
                sleeping.set_result(None)

    def _wake_all(self) -> None:
        for subscription in self._readers:
            self._wake(subscription)
