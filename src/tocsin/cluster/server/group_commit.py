"""Many publishers share one fsync: requests are accepted while a sync runs, and the next one answers them all.

One of these per dataset, on one event loop. The latency of an acknowledgement is that of one or two syncs however many
requests are waiting.
"""

from __future__ import annotations

import asyncio

from tocsin.cluster.feed.gateway import Accepted, FeedGateway, RecordForm, Refused, SyncGroup, Unavailable
from tocsin.runtime.http.logs import logger

INLINE_BYTES = 256 << 10
"""A body this small is checked in a few milliseconds: involving another thread would take longer under load."""
_NOT_STORED = Unavailable("the disk refused to write; nothing of this request is stored, try again")


class GroupCommit:
    def __init__(self, gateway: FeedGateway) -> None:
        self.gateway = gateway
        # One at a time, so that nobody on the event loop ever waits for the gateway's own lock behind a large body.
        self._accepting = asyncio.Lock()
        self._syncing: asyncio.Task[None] | None = None
        self._log = logger()

    async def store(self, body: bytes, form: RecordForm, idempotency_key: str | None) -> Accepted | Refused:
        """Check, append and make durable; what may be told to the publisher now."""
        outcome, group = await self._accept(body, form, idempotency_key)
        if not isinstance(outcome, Accepted):
            return outcome
        # Only the group knows. A sync that began before this request was accepted may still have taken it up, and the
        # fate of the sync after that one would be another's.
        while group.stored is None:
            if self._syncing is None:
                self._syncing = asyncio.create_task(self._sync())
            await asyncio.shield(self._syncing)
        return outcome if group.stored else _NOT_STORED

    async def _accept(
        self, body: bytes, form: RecordForm, idempotency_key: str | None
    ) -> tuple[Accepted | Refused, SyncGroup]:
        async with self._accepting:
            # An alert's lineage is fsynced on the way: never on the event loop.
            if len(body) <= INLINE_BYTES and form is not RecordForm.CAP:
                return self.gateway.accept_into_group(body, form, idempotency_key)
            return await asyncio.to_thread(self.gateway.accept_into_group, body, form, idempotency_key)

    async def _sync(self) -> None:
        try:
            await asyncio.to_thread(self.gateway.sync)
        except Exception as error:  # whoever is concerned learns it from the group
            self._log.error("a sync failed", dataset=self.gateway.dataset.name, reason=str(error))
        finally:
            self._syncing = None
