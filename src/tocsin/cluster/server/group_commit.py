"""Group commit: many publishers share one fsync. Requests accepted while a sync runs are answered by the next one.
A body is decoded in its publisher's turn: publishers do not wait for each other's bodies. Only one request at a time is
appended to the feed log.

One object per dataset, on one event loop. A thread syncs, and starts the next sync by itself while requests wait, so
the disk never waits for the event loop. An acknowledgement takes as long as one or two syncs, for any number of waiting
requests.
"""

from __future__ import annotations

import asyncio
import math
import sqlite3
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from sqlalchemy.exc import SQLAlchemyError

from tocsin.cluster.feed.gateway import (
    Accepted,
    Backlogged,
    KeyConflict,
    Malformed,
    Outcome,
    Prepared,
    RecordedRange,
    RecordForm,
    Refused,
    SyncGroup,
    TooLarge,
    Unavailable,
)
from tocsin.cluster.feed.shared_gateway import Gateway, SharedGateway
from tocsin.cluster.server.publishers import S_PER_BYTE, Publisher
from tocsin.runtime.http.logs import logger

INLINE_BYTES = 256 << 10
"""Bodies up to this size are checked on the event loop: it takes a few milliseconds, a thread would take longer."""
CLOSELY_INLINE_BYTES = 2 << 10
"""Bodies with an error up to this size: 3 ms at most. A larger one, decoded record by record, takes up to 0.4 s."""
AT_ONCE_BYTES = 32 << 10
"""A body of this size is written at once. With a smaller one, the sync begins when all requests that have arrived are
accepted: it costs more than they do. With large bodies the disk and the publishers would wait for the event loop
meanwhile, and the event loop for them afterwards."""
PAUSE_S = 0.001
"""Pause between two slices of decoding in a thread."""
UPKEEP_RETRY_S = 5.0
"""Pause after upkeep that failed."""
_SYNCS_IN_A_ROW = 32
"""After this many syncs the thread is released, so that busy datasets cannot occupy all threads of the process."""
_WASTED = "your last bodies were refused or incomplete; mend them, and send less until then"
_NOT_STORED = Unavailable("the disk refused to write; nothing of this request is stored, try again")


_NOT_LEADING = Unavailable("this data cluster does not lead, and stores nothing; send the request to the leader")

_NO_GROUP = SyncGroup()


@dataclass(frozen=True, slots=True)
class _Request:
    body: bytes
    form: RecordForm
    idempotency_key: str | None
    recorded: RecordedRange | None


def _let_others_run() -> None:
    """Release the interpreter. Otherwise the event loop waits up to 5 ms for it, again and again for one record."""
    time.sleep(PAUSE_S)


def wasteful(pause_s: float) -> Backlogged:
    """The answer to a publisher that must pause."""
    return Backlogged(math.ceil(pause_s), _WASTED)


def _wasted_share(outcome: Accepted | Refused) -> float:
    """The share of the work for a request that was for nothing: that for its refused records."""
    if isinstance(outcome, Accepted):
        good = outcome.accepted + outcome.duplicates
        return outcome.refused_total / (good + outcome.refused_total) if outcome.refused_total else 0.0
    return 1.0 if isinstance(outcome, Malformed | TooLarge | KeyConflict) else 0.0


class GroupCommit:
    def __init__(self, gateway: Gateway, leads: Callable[[], bool] = lambda: True) -> None:
        """`leads` returns True if no other process can have taken over this feed yet."""
        self.gateway = gateway
        self._leads = leads
        # One request at a time, so that the event loop never blocks on the gateway's own lock behind a large body.
        self._appending = asyncio.Lock()
        self._unnamed = Publisher()
        """The turn of all requests without a publisher. No waste counts for it."""
        self._waiting: dict[SyncGroup, list[asyncio.Future[None]]] = {}
        """The requests that wait for each group. The event loop writes it; the syncing thread only reads the keys."""
        self._syncing: asyncio.Task[None] | None = None
        self._syncs: set[asyncio.Task[None]] = set()
        """The running syncs of a gateway that allows several."""
        self._upkeep: asyncio.Task[None] | None = None
        self._log = logger()

    async def store(
        self,
        body: bytes,
        form: RecordForm,
        idempotency_key: str | None,
        recorded: RecordedRange | None = None,
        publisher: Publisher | None = None,
    ) -> Accepted | Refused:
        """Check and append a body of records. Returns when they are on disk, or refused.

        Bodies of one publisher are stored in the order of the calls. Work for a refused body counts for its publisher.
        """
        if not self._leads():
            return _NOT_LEADING
        outcome, group = await self._accept(_Request(body, form, idempotency_key, recorded), publisher or self._unnamed)
        if not isinstance(outcome, Accepted):
            # An outcome may depend on records that this process appended after another one had taken over.
            return outcome if self._leads() else _NOT_LEADING
        # The group decides, not the outcome of one sync: a sync that began before this request was accepted may still
        # have included it, and then the result of the next sync does not concern this request.
        if group.stored is None:
            decided = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(group, []).append(decided)
            self._start_syncing(at_once=len(body) >= AT_ONCE_BYTES)
            await decided
        # Only now: the records were on disk before this look at the lease, so a later leader has them.
        if not self._leads():
            return _NOT_LEADING
        return group.answer_to(outcome) if group.stored else _NOT_STORED

    async def _accept(self, request: _Request, publisher: Publisher) -> Outcome:
        async with publisher.turn:
            # Earlier bodies of this publisher may have been refused since this one was admitted.
            pause_s = publisher.pause_s(time.monotonic())
            if pause_s:
                return wasteful(pause_s), _NO_GROUP
            await self._look(len(request.body))
            prepared, work_s = await self._prepare(request)
            if not isinstance(prepared, Prepared):
                outcome, group = prepared
            else:
                async with self._appending:
                    await self._look(prepared.body_bytes)
                    if prepared.body_bytes <= INLINE_BYTES and request.form is not RecordForm.CAP:
                        outcome, group = self.gateway.append(prepared)
                    else:
                        # The gateway fsyncs the lineage of a CAP alert while it appends it: never on the event loop.
                        outcome, group = await asyncio.to_thread(self.gateway.append, prepared)
            wasted = _wasted_share(outcome)
            if wasted and publisher is not self._unnamed:
                publisher.waste(wasted * (work_s + S_PER_BYTE * len(request.body)), time.monotonic())
            return outcome, group

    async def _look(self, body_bytes: int) -> None:
        """Let a thread ask the catalog whether a full backlog has room again: the event loop would wait for it."""
        if isinstance(self.gateway, SharedGateway) and self.gateway.must_look(body_bytes):
            with suppress(SQLAlchemyError):  # the publisher tries again
                await asyncio.to_thread(self.gateway.look)

    async def _prepare(self, request: _Request) -> tuple[Prepared | Outcome, float]:
        """The prepared request, and the processor time in seconds that it took."""
        size_bytes = len(request.body)
        if size_bytes <= INLINE_BYTES and request.form is not RecordForm.CAP:
            prepared, work_s = self._prepare_now(request, closely=size_bytes <= CLOSELY_INLINE_BYTES)
            if prepared is not None:
                return prepared, work_s
        prepared, work_s = await asyncio.to_thread(self._prepare_now, request, closely=True, pause=_let_others_run)
        assert prepared is not None
        return prepared, work_s

    def _prepare_now(
        self, request: _Request, closely: bool, pause: Callable[[], None] | None = None
    ) -> tuple[Prepared | Outcome | None, float]:
        started_s = time.thread_time()
        prepared = self.gateway.prepare(
            request.body, request.form, request.idempotency_key, request.recorded, closely, pause
        )
        return prepared, time.thread_time() - started_s

    def _start_syncing(self, at_once: bool = False) -> None:
        if isinstance(self.gateway, SharedGateway):
            if len(self._syncs) < self.gateway.syncs_at_once:
                sync = asyncio.create_task(self._sync_shared(self.gateway))
                self._syncs.add(sync)
            return
        if self._syncing is None:
            syncing = self._in_thread() if at_once else None
            self._syncing = asyncio.create_task(self._sync(syncing))

    def _in_thread(self) -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        return loop.run_in_executor(None, self._sync_in_a_row, loop)

    async def _sync(self, syncing: asyncio.Future[None] | None) -> None:
        """Wait for the syncs in a thread; start them if they have not been started."""
        try:
            await (syncing or self._in_thread())
        except Exception as error:  # the group reports it to each publisher
            self._log.error("a sync failed", dataset=self.gateway.dataset.name, reason=str(error))
        finally:
            self._syncing = None
        self._answer_decided()
        if self._waiting:
            self._start_syncing()

    async def _sync_shared(self, gateway: SharedGateway) -> None:
        """Store groups until no request waits. Requests that arrive meanwhile become another group."""
        try:
            while gateway.has_collected:
                try:
                    await asyncio.to_thread(gateway.sync)
                except Exception as error:  # the group reports it to each publisher
                    self._log.error("a sync failed", dataset=gateway.dataset.name, reason=str(error))
                self._answer_decided()
            self._answer_decided()  # those whose gateway was closed before a sync took them
        finally:
            # At once after the last look: the next request starts a sync of its own.
            task = asyncio.current_task()
            assert task is not None
            self._syncs.discard(task)

    def _sync_in_a_row(self, loop: asyncio.AbstractEventLoop) -> None:
        """Sync until no request waits. Runs in a thread."""
        for _ in range(_SYNCS_IN_A_ROW):
            self.gateway.sync()
            if all(group.stored is not None for group in tuple(self._waiting)):
                return
            with suppress(RuntimeError):  # the loop is closed: no publisher is left
                loop.call_soon_threadsafe(self._answer_decided)

    async def _maintain(self) -> None:
        """Run upkeep in a thread of its own. In the syncing thread every publisher would wait for it."""
        try:
            await asyncio.to_thread(self.gateway.maintain)
        except (OSError, sqlite3.Error) as error:
            self._log.error("upkeep of a feed failed", dataset=self.gateway.dataset.name, reason=str(error))
            await asyncio.sleep(UPKEEP_RETRY_S)
        finally:
            self._upkeep = None

    def _answer_decided(self) -> None:
        if self._upkeep is None and self._leads() and self.gateway.is_due_for_upkeep():
            self._upkeep = asyncio.create_task(self._maintain())
        for group in [group for group in self._waiting if group.stored is not None]:
            for decided in self._waiting.pop(group):
                if not decided.done():  # its publisher may have disconnected
                    decided.set_result(None)
