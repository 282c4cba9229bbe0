"""Many publishers share one fsync: requests are accepted while a sync runs, and the next one answers them all.

One of these per dataset, on one event loop. The latency of an acknowledgement is that of one or two syncs however many
requests are waiting.
"""

from __future__ import annotations

import asyncio

from tocsin.cluster.feed.gateway import Accepted, FeedGateway, RecordForm, Refused, Unavailable

INLINE_BYTES = 256 << 10
"""A body this small is checked in a few milliseconds: involving another thread would take longer under load."""


class GroupCommit:
    def __init__(self, gateway: FeedGateway) -> None:
        self.gateway = gateway
        # One at a time, so that nobody on the event loop ever waits for the gateway's own lock behind a large body.
        self._accepting = asyncio.Lock()
        self._next: asyncio.Future[None] | None = None
        self._syncing: asyncio.Task[None] | None = None

    async def accept(self, body: bytes, form: RecordForm, idempotency_key: str | None) -> Accepted | Refused:
        """Check and append; the outcome may be told to the publisher after `durable`."""
        async with self._accepting:
            # An alert's lineage is fsynced on the way: never on the event loop.
            if len(body) <= INLINE_BYTES and form is not RecordForm.CAP:
                return self.gateway.accept(body, form, idempotency_key)
            return await asyncio.to_thread(self.gateway.accept, body, form, idempotency_key)

    async def durable(self) -> Unavailable | None:
        """Return when a sync that began after this call has ended; the reason if it failed."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
        waiting = self._next
        if self._syncing is None:
            self._syncing = asyncio.create_task(self._sync())
        try:
            await asyncio.shield(waiting)
        except OSError:
            return Unavailable("the disk refused to write; nothing of this request is stored, try again")
        return None

    async def _sync(self) -> None:
        try:
            while (waiting := self._next) is not None:
                self._next = None
                try:
                    await asyncio.to_thread(self.gateway.sync)
                except Exception as error:
                    waiting.set_exception(OSError(str(error)))
                    waiting.exception()  # everybody who waited may have gone away
                else:
                    waiting.set_result(None)
        finally:
            self._syncing = None
