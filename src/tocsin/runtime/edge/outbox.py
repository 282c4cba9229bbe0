"""Publishes the entries of the outbox to the data cluster, in order, and deletes what the data cluster has stored."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import sqlalchemy as sa

from tocsin.client.errors import ClientError
from tocsin.client.publisher import Publisher
from tocsin.runtime.edge.root_store import OutboxEntry, RootStore
from tocsin.runtime.http.logs import is_worth_logging, logger

_GIVE_UP_S = 30.0
"""After this the failure is logged; the entry stays and is tried again."""
_LONGEST_S = 2.0
_RETRY_S = 2.0


class OutboxPublisher:
    def __init__(self, store: RootStore, gateway: str, token: str | None, on_published: Callable[[int], None]) -> None:
        """`on_published` is called with the number of each entry that the data cluster has stored."""
        self._store = store
        self._gateway = gateway
        self._token = token
        self._on_published = on_published
        self._more = asyncio.Event()
        self._more.set()
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
                await self._more.wait()
                self._more.clear()
                try:
                    while entries := await asyncio.to_thread(self._store.outbox):
                        for entry in entries:
                            await self._publish(publisher, entry)
                except (sa.exc.OperationalError, OSError) as error:  # the disk is full, for example
                    logger().error("the outbox cannot be read or written; retrying", exc_info=error)
                    await asyncio.sleep(_RETRY_S)
                    self._more.set()

    async def _publish(self, publisher: Publisher, entry: OutboxEntry) -> None:
        """Retry until the data cluster has stored the entry. Its key keeps the data cluster from storing it twice."""
        failures = 0
        while True:
            try:
                published = await publisher.publish_lines(entry.dataset, entry.body.split(b"\n"), entry.key)
                break
            except ClientError as error:
                failures += 1
                self.failures += 1
                if is_worth_logging(failures):
                    logger().error("results cannot be published; retrying", dataset=entry.dataset, reason=str(error))
                await asyncio.sleep(_RETRY_S)
        if published.refused_total:
            first = published.refused[0].reason if published.refused else ""
            logger().error(
                "the dataset refuses results", dataset=entry.dataset, rows=published.refused_total, reason=first
            )
        self.refused_rows += published.refused_total
        self.published_rows += entry.rows - published.refused_total
        await asyncio.to_thread(self._store.delete, entry.number)
        self._on_published(entry.number)
