"""Group commit: many publishers share one fsync. Requests accepted while a sync runs are answered by the next one.

One object per dataset, on one event loop. A thread syncs, and starts the next sync by itself while requests wait, so
the disk never waits for the event loop. An acknowledgement takes as long as one or two syncs, for any number of waiting
requests.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from tocsin.cluster.feed.gateway import (
    Accepted,
    FeedGateway,
    RecordedRange,
    RecordForm,
    Refused,
    SyncGroup,
    Unavailable,
)
from tocsin.runtime.http.logs import logger

INLINE_BYTES = 256 << 10
"""Bodies up to this size are checked on the event loop: it takes a few milliseconds, a thread would take longer."""
_SYNCS_IN_A_ROW = 32
"""After this many syncs the thread is released, so that busy datasets cannot occupy all threads of the process."""
_NOT_STORED = Unavailable("the disk refused to write; nothing of this request is stored, try again")


class GroupCommit:
    def __init__(self, gateway: FeedGateway) -> None:
        self.gateway = gateway
        # One request at a time, so that the event loop never blocks on the gateway's own lock behind a large body.
        self._accepting = asyncio.Lock()
        self._waiting: dict[SyncGroup, list[asyncio.Future[None]]] = {}
        """The requests that wait for each group. The event loop writes it; the syncing thread only reads the keys."""
        self._syncing: asyncio.Task[None] | None = None
        self._log = logger()

    async def store(
        self, body: bytes, form: RecordForm, idempotency_key: str | None, recorded: RecordedRange | None = None
    ) -> Accepted | Refused:
        """Check and append a body of records. Returns when they are on disk, or refused."""
        outcome, group = await self._accept(body, form, idempotency_key, recorded)
        if not isinstance(outcome, Accepted):
            return outcome
        # The group decides, not the outcome of one sync: a sync that began before this request was accepted may still
        # have included it, and then the result of the next sync does not concern this request.
        if group.stored is None:
            decided = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(group, []).append(decided)
            self._start_syncing()
            await decided
        return outcome if group.stored else _NOT_STORED

    async def _accept(
        self, body: bytes, form: RecordForm, idempotency_key: str | None, recorded: RecordedRange | None
    ) -> tuple[Accepted | Refused, SyncGroup]:
        async with self._accepting:
            # The gateway fsyncs the lineage of a CAP alert while it accepts it: never on the event loop.
            if len(body) <= INLINE_BYTES and form is not RecordForm.CAP:
                return self.gateway.accept_into_group(body, form, idempotency_key, recorded)
            return await asyncio.to_thread(self.gateway.accept_into_group, body, form, idempotency_key, recorded)

    def _start_syncing(self) -> None:
        if self._syncing is None:
            self._syncing = asyncio.create_task(self._sync())

    async def _sync(self) -> None:
        try:
            await asyncio.to_thread(self._sync_in_a_row, asyncio.get_running_loop())
        except Exception as error:  # the group reports it to each publisher
            self._log.error("a sync failed", dataset=self.gateway.dataset.name, reason=str(error))
        finally:
            self._syncing = None
        self._answer_decided()
        if self._waiting:
            self._start_syncing()

    def _sync_in_a_row(self, loop: asyncio.AbstractEventLoop) -> None:
        """Sync until no request waits. Runs in a thread."""
        for _ in range(_SYNCS_IN_A_ROW):
            self.gateway.sync()
            if all(group.stored is not None for group in tuple(self._waiting)):
                return
            with suppress(RuntimeError):  # the loop is closed: no publisher is left
                loop.call_soon_threadsafe(self._answer_decided)

    def _answer_decided(self) -> None:
        for group in [group for group in self._waiting if group.stored is not None]:
            for decided in self._waiting.pop(group):
                if not decided.done():  # its publisher may have disconnected
                    decided.set_result(None)
