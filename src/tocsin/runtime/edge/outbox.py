"""Publishes the entries of the outbox to the data cluster and deletes what the data cluster has stored.

The entries of one dataset are published in order.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

import sqlalchemy as sa

from tocsin.client.errors import ClientError
from tocsin.client.publisher import Publisher
from tocsin.runtime.edge.root_store import OutboxEntry, RootStore
from tocsin.runtime.http.logs import is_worth_logging, logger

_GIVE_UP_S = 30.0
"""After this the failure is logged; the entry stays and is tried again."""
_LONGEST_S = 2.0
_ENTRIES = 100
"""Most entries that are read from the database at once."""
_RETRY_S = 2.0


class OutboxPublisher:
    def __init__(self, store: RootStore, gateway: str, token: str | None, on_published: Callable[[int], None]) -> None:
        """`on_published` is called with the number of each entry that the data cluster has stored."""
        self._store = store
        self._gateway = gateway
        self._token = token
        self._on_published = on_published
        self._more = asyncio.Event()
        self._refused: dict[str, tuple[int, float]] = {}
        """Dataset → how often it has refused its oldest entry, and when to try again."""
        self._task: asyncio.Task[None] | None = None
        self.published_rows = 0
        self.refused_rows = 0
        self.failures = 0

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    def wake(self) -> None:
        self._more.set()

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        publisher = Publisher(self._gateway, self._token, give_up_s=_GIVE_UP_S, longest_s=_LONGEST_S)
        async with publisher:
            while True:
                self._more.clear()
                try:
                    if await self._publish_oldest(publisher):
                        continue
                except (sa.exc.OperationalError, OSError) as error:  # the disk is full, for example
                    logger().error("the outbox cannot be read or written; retrying", exc_info=error)
                    await asyncio.sleep(_RETRY_S)
                    continue
                with suppress(TimeoutError):
                    async with asyncio.timeout(_RETRY_S if self._refused else None):
                        await self._more.wait()

    async def _publish_oldest(self, publisher: Publisher) -> bool:
        """Publish the oldest entries in order. False if there are none but those whose dataset refused them just now.

        A dataset that does not exist holds up its own results only.
        """
        now_s = time.monotonic()
        waiting = {dataset for dataset, (_, retry_s) in self._refused.items() if retry_s > now_s}
        entries = await asyncio.to_thread(self._store.outbox, 0, _ENTRIES, waiting)
        for entry in entries:
            if entry.dataset not in waiting and not await self._publish(publisher, entry):
                waiting.add(entry.dataset)
        return bool(entries)

    async def _publish(self, publisher: Publisher, entry: OutboxEntry) -> bool:
        """Publish an entry. Its key keeps the data cluster from storing it twice. False if it has to be retried."""
        try:
            published = await publisher.publish_lines(entry.dataset, entry.body.split(b"\n"), entry.key)
        except ClientError as error:
            failures = 1 + self._refused.get(entry.dataset, (0, 0.0))[0]
            self._refused[entry.dataset] = (failures, time.monotonic() + _RETRY_S)
            self.failures += 1
            if is_worth_logging(failures):
                logger().error("results cannot be published; retrying", dataset=entry.dataset, reason=str(error))
            return False
        self._refused.pop(entry.dataset, None)
        if published.refused_total:
            first = published.refused[0].reason if published.refused else ""
            logger().error(
                "the dataset refuses results", dataset=entry.dataset, rows=published.refused_total, reason=first
            )
        self.refused_rows += published.refused_total
        self.published_rows += entry.rows - published.refused_total
        await asyncio.to_thread(self._store.delete, entry.number)
        self._on_published(entry.number)
        return True
