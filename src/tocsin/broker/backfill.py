"""Backfills: fetch results that are older than the cache, for sessions that are behind.

One backfill per backend subscription serves every session that is behind on it, and few backfills run at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tocsin.broker.effects import CancelFetch, Fetch
from tocsin.broker.events import FetchEnded, FetchFailed, GapFound, ResultsFetched
from tocsin.broker.hosted import BackendSubscription, FrontendSubscription, HostedSession, SessionId
from tocsin.broker.result_batch import Batch
from tocsin.broker.state import BrokerState
from tocsin.model.cursor import Cursor
from tocsin.model.ids import SubscriptionId

RETRY_S = 1.0
CACHE_FRACTION = 8
"""The cache keeps a backfill of at most 1/8 of its size, for the next session with an equally old cursor."""


@dataclass(slots=True)
class _Backfill:
    """A running fetch of results older than the cache, and the sessions that wait for it."""

    backend: BackendSubscription
    start: Cursor
    waiting: dict[SessionId, FrontendSubscription]
    upto: Cursor
    """The live position when the backfill started. Results after it are ignored, even if the data cluster sends some:
    the next read would not start at this position, and the live position may have moved on."""
    read_upto: Cursor
    keep_upto: Cursor
    """`kept_from` when the backfill started. If `kept_from` has moved since, the results no longer adjoin the cache."""
    prepares: bool = False
    """True if a migration needs these results in the cache, for a subscriber that has no session here yet."""
    kept: list[Batch] | None = field(default_factory=list)
    kept_bytes: int = 0


class Backfills:
    def __init__(
        self,
        state: BrokerState,
        report_gap: Callable[[HostedSession, FrontendSubscription, Cursor], None],
        step: Callable[[HostedSession], None],
        lost: Callable[[BackendSubscription], None],
    ) -> None:
        """`report_gap` and `step` belong to `CatchUp`; `lost` gets a subscription the data cluster no longer knows."""
        self._state = state
        self._report_gap = report_gap
        self._step = step
        self._lost = lost
        self._requested: dict[SubscriptionId, dict[SessionId, FrontendSubscription]] = {}
        """Sessions that wait for a backfill that has not started."""
        self._running: dict[int, _Backfill] = {}
        self._preparing: dict[SubscriptionId, Cursor] = {}
        """Cursors that the cache must reach back to, for subscribers that will move here."""
        self._retry_at_s: dict[SubscriptionId, float] = {}
        self._number = 0

    @property
    def idle(self) -> bool:
        return not (self._requested or self._running or self._preparing)

    def request(self, session: HostedSession, frontend: FrontendSubscription) -> None:
        """Queue a backfill for this session, unless a running one serves it."""
        if not any(backfill.waiting.get(session.id) is frontend for backfill in self._running.values()):
            self._requested.setdefault(frontend.backend.id, {})[session.id] = frontend

    def withdraw(self, session: HostedSession, backend: BackendSubscription) -> None:
        """Remove a session that no longer waits for results of this subscription."""
        if (waiting := self._requested.get(backend.id)) is not None:
            waiting.pop(session.id, None)
            if not waiting:
                del self._requested[backend.id]
        for backfill in self._running.values():
            if backfill.backend is backend:
                backfill.waiting.pop(session.id, None)

    def prepare(self, backend: BackendSubscription, cursor: Cursor) -> None:
        """Make the cache reach back to `cursor`, if the data cluster still has those results."""
        if cursor < backend.kept_from and cursor.epoch == backend.kept_from.epoch:
            earliest = self._preparing.get(backend.id, cursor)
            self._preparing[backend.id] = min(earliest, cursor)

    def prepared(self, backend: BackendSubscription) -> bool:
        running = any(backfill.backend is backend for backfill in self._running.values())
        return backend.id not in self._preparing and not running

    def start(self) -> None:
        """Start as many queued backfills as the limit allows."""
        for identity in list(dict.fromkeys((*self._requested, *self._preparing))):
            if len(self._running) >= self._state.limits.catch_ups:
                return
            backend = self._state.backends.get(identity)
            if backend is None:
                self._requested.pop(identity, None)
                self._preparing.pop(identity, None)
            elif (
                backend.held
                and self._retry_at_s.get(identity, 0.0) <= self._state.now_s
                and not any(backfill.backend is backend for backfill in self._running.values())
            ):
                self._start(backend)

    def _start(self, backend: BackendSubscription) -> None:
        waiting = self._requested.pop(backend.id, {})
        starts = [frontend.sent for frontend in waiting.values() if frontend.sent is not None]
        if (prepared := self._preparing.pop(backend.id, None)) is not None:
            starts.append(prepared)
        if not starts:
            return
        start = min(starts)
        self._number -= 1  # numbers of live fetches count upwards, those of backfills downwards
        self._running[self._number] = _Backfill(
            backend, start, waiting, backend.position, start, backend.kept_from, prepared is not None
        )
        self._state.effects.append(Fetch(self._number, backend.channel, {backend.id: start}))

    def on_gap(self, event: GapFound) -> None:
        backfill = self._running.get(event.fetch)
        if backfill is None:
            return
        backfill.kept = None
        for session, frontend in self._receivers(backfill):
            if frontend.sent is not None and frontend.sent < event.cursor:
                self._report_gap(session, frontend, min(event.cursor, max(frontend.backend.position, frontend.sent)))
        backfill.read_upto = event.cursor

    def on_results(self, event: ResultsFetched) -> None:
        backfill = self._running.get(event.fetch)
        if backfill is None:
            return
        backend = backfill.backend
        whole = Batch(backend.id, backend.channel, backfill.read_upto, event.epoch, event.offsets, event.rows)
        batch = whole.between(backfill.read_upto, backfill.upto)
        if batch is None:
            return
        size_bytes = event.size_bytes or batch.raw_bytes
        self._state.load.fetched(size_bytes, batch.raw_bytes, self._state.now_s, catches_up=True)
        receivers = self._receivers(backfill)
        if not receivers and not backfill.prepares:
            self._state.effects.append(CancelFetch(event.fetch))
            del self._running[event.fetch]
            return
        for session, frontend in receivers:
            part = None if frontend.sent is None else batch.between(frontend.sent, backfill.upto)
            if part is not None:
                self._state.send_results(session, part)
                frontend.sent = part.end
        backfill.read_upto = batch.end
        self._keep(backfill, batch)

    def _keep(self, backfill: _Backfill, batch: Batch) -> None:
        """Collect the results before the cache, until they exceed the cache's share for backfills."""
        if backfill.kept is None:
            return
        older = batch.between(batch.start, backfill.keep_upto)
        if older is not None:
            backfill.kept.append(older)
            backfill.kept_bytes += older.footprint_bytes
            if backfill.kept_bytes > self._state.cache.limit_bytes // CACHE_FRACTION:
                backfill.kept = None

    def _receivers(self, backfill: _Backfill) -> list[tuple[HostedSession, FrontendSubscription]]:
        """The waiting sessions that are writable.

        The other sessions are removed: each requests a backfill again when its queue drains.
        """
        receivers = []
        for identity, frontend in list(backfill.waiting.items()):
            session = self._state.sessions.get(identity)
            if session is None or not session.writable or frontend.sent is None:
                del backfill.waiting[identity]
            else:
                receivers.append((session, frontend))
        return receivers

    def on_ended(self, event: FetchEnded) -> None:
        backfill = self._running.pop(event.fetch, None)
        if backfill is None:
            return
        reached = min(event.upto, backfill.upto)
        self._retry_at_s.pop(backfill.backend.id, None)
        self._store(backfill, reached)
        for session, frontend in self._receivers(backfill):
            if frontend.sent is not None:
                frontend.sent = max(frontend.sent, reached)
            self._step(session)

    def _store(self, backfill: _Backfill, reached: Cursor) -> None:
        """Put the results into the cache if they adjoin its content and do not push newer results out."""
        backend, cache = backfill.backend, self._state.cache
        adjoins = reached >= backend.kept_from == backfill.keep_upto > backfill.start
        if backfill.kept is not None and adjoins and backfill.kept_bytes < cache.limit_bytes - cache.used_bytes:
            cache.prepend(backend, backfill.kept, backfill.start)

    def on_failed(self, event: FetchFailed) -> None:
        """Retry after a delay, from the position that each session has reached."""
        backfill = self._running.pop(event.fetch, None)
        if backfill is None:
            return
        backend = backfill.backend
        self._retry_at_s[backend.id] = self._state.now_s + RETRY_S * (1 + self._state.jitter())
        for session, frontend in self._receivers(backfill):
            self._requested.setdefault(backend.id, {})[session.id] = frontend
        if backfill.prepares:
            self._preparing.setdefault(backend.id, backfill.start)
        if event.unknown:
            self._lost(backend)

    def forget(self, backend: BackendSubscription) -> None:
        self._requested.pop(backend.id, None)
        self._preparing.pop(backend.id, None)
        self._retry_at_s.pop(backend.id, None)
        for number in [number for number, backfill in self._running.items() if backfill.backend is backend]:
            del self._running[number]
