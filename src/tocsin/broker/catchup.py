"""Sessions that are behind: each is brought to its backend subscription's position and then joins the live flow.

From the cache if that reaches back far enough, else from the data cluster: one fetch per backend subscription brings
everybody who is behind on it along, and few run at a time. A session takes at most its queue's worth at once and then
waits for its connection to drain, so one that lags never holds up another. Live results never pass by a session that
is catching up; they reach it through the cache, in order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tocsin.broker.batches import Batch
from tocsin.broker.effects import AskDrained, CancelFetch, Fetch
from tocsin.broker.entities import Backend, Frontend, Session, SessionId
from tocsin.broker.events import FetchEnded, FetchFailed, GapFound, ResultsFetched
from tocsin.broker.world import World
from tocsin.model.cursor import Cursor
from tocsin.model.ids import SubscriptionId
from tocsin.wire import session as wire

RETRY_S = 1.0
KEEP_SHARE = 8
"""A backfill of at most this fraction of the cache is kept there, for whoever comes next with as old a cursor."""


@dataclass(slots=True)
class Backfill:
    """One fetch of results older than what the cache holds, and who waits for it."""

    backend: Backend
    start: Cursor
    waiting: dict[SessionId, Frontend]
    upto: Cursor
    """Where the live flow stood when this began. It goes no further, though the data cluster may: what is cut off here
    is not what is read next, and by then the live flow may have passed both."""
    read_upto: Cursor
    keep_upto: Cursor
    """Where the cache began when this did; if that has moved since, what was read no longer reaches it."""
    prepares: bool = False
    """Also for somebody who is not here yet."""
    kept: list[Batch] | None = field(default_factory=list)
    kept_bytes: int = 0


class CatchUp:
    """Driven by the sessions' side (`begin`, `step`, `drop`) and by what was fetched for it."""

    def __init__(self, world: World, lost: Callable[[Backend], None]) -> None:
        """`lost` is told of a subscription the data cluster does not know any more."""
        self._world = world
        self._lost = lost
        self._wanted: dict[SubscriptionId, dict[SessionId, Frontend]] = {}
        """Waiting for a backfill that has not begun."""
        self._running: dict[int, Backfill] = {}
        self._preparing: dict[SubscriptionId, Cursor] = {}
        """Wanted in the cache without a session, for a subscriber that is about to come."""
        self._retry_at_s: dict[SubscriptionId, float] = {}
        self._number = 0

    @property
    def idle(self) -> bool:
        return not (self._wanted or self._running or self._preparing)

    # -- sessions --------------------------------------------------------------------------------------------------

    def begin(self, session: Session, frontend: Frontend, start: Cursor) -> None:
        """This session stands at `start`."""
        frontend.sent, frontend.live, frontend.gap = start, False, False
        session.behind[frontend.backend.id] = frontend

    def leave_live(self, session: Session) -> None:
        """Its connection is full: everything up to the positions is on its way, nothing after them."""
        for frontend in session.subscriber.frontends.values():
            if frontend.live:
                self._leave(session, frontend)
                self.begin(session, frontend, frontend.backend.position)

    def _leave(self, session: Session, frontend: Frontend) -> None:
        backend = frontend.backend
        frontend.live = False
        if (group := backend.live.get(session.encoding)) is not None:
            group.pop(session.id, None)
            if not group:
                del backend.live[session.encoding]

    def drop(self, session: Session, frontend: Frontend) -> None:
        """The session, or its hold on this subscription, has ended."""
        backend = frontend.backend
        self._leave(session, frontend)
        frontend.sent = None
        frontend.tells_recovery = False
        session.behind.pop(backend.id, None)
        backend.ahead.pop(session.id, None)
        if (waiting := self._wanted.get(backend.id)) is not None:
            waiting.pop(session.id, None)
            if not waiting:
                del self._wanted[backend.id]
        for backfill in self._running.values():
            if backfill.backend is backend:
                backfill.waiting.pop(session.id, None)

    def step(self, session: Session) -> None:
        """Bring a session as far as it goes: to the live flow, to its queue's end, or to a wait for a backfill."""
        if not session.flowing:
            return
        room_bytes = self._world.limits.queue_bytes
        for frontend in list(session.behind.values()):
            while room_bytes > 0:
                sent_bytes = self._advance(session, frontend)
                if sent_bytes is None:
                    break
                room_bytes -= sent_bytes
        if room_bytes <= 0 and session.behind:
            session.flowing = False
            self._world.out.append(AskDrained(session.id))

    def _advance(self, session: Session, frontend: Frontend) -> int | None:
        """One batch further; None when this subscription is done for now."""
        backend, sent = frontend.backend, frontend.sent
        assert sent is not None
        if sent == backend.position:
            self._join(session, frontend)
            return None
        if sent > backend.position:
            backend.ahead[session.id] = frontend
            self._world.pulls[backend.id] = None
            return None
        if sent < backend.kept_from:
            self._want_backfill(session, frontend)
            return None
        batch = self._world.cache.after(backend, sent)
        if batch is None:
            frontend.sent = backend.position
            return 0
        part = batch.between(sent, backend.position)
        frontend.sent = batch.end
        return 0 if part is None else self._world.deliver(session, part)

    def _join(self, session: Session, frontend: Frontend) -> None:
        backend = frontend.backend
        session.behind.pop(backend.id, None)
        frontend.sent, frontend.live = None, True
        backend.live.setdefault(session.encoding, {})[session.id] = None
        if frontend.tells_recovery:
            message = wire.Recovered(backend.id, str(backend.position), not frontend.gap)
            self._world.send(session, message)
        frontend.tells_recovery = frontend.gap = False

    def told_gap(self, session: Session, frontend: Frontend, cursor: Cursor) -> None:
        """What this session misses before `cursor` is gone; it goes on from there."""
        self._leave(session, frontend)
        self.begin(session, frontend, cursor)
        frontend.gap = frontend.tells_recovery = True
        self._world.send(session, wire.Gap(frontend.backend.id, str(cursor)))

    def doubt(self, backend: Backend) -> None:
        """Something may be missing before its position: who is still on the way there is not told that it has all."""
        for session in self._world.sessions.values():
            frontend = session.behind.get(backend.id)
            if frontend is not None:
                frontend.gap = frontend.tells_recovery = True

    def position_moved(self, backend: Backend, *, asked: bool) -> None:
        """Those who were ahead of us may be level now. `asked`: with all that the data cluster has at this moment, so
        whoever is still ahead has a cursor into something that no longer is."""
        for identity, frontend in list(backend.ahead.items()):
            session = self._world.sessions.get(identity)
            if session is None or frontend.sent is None:
                del backend.ahead[identity]
            elif frontend.sent <= backend.position:
                del backend.ahead[identity]
                self.step(session)
            elif asked:
                del backend.ahead[identity]
                self.told_gap(session, frontend, backend.position)
                self.step(session)

    # -- backfills -------------------------------------------------------------------------------------------------

    def _want_backfill(self, session: Session, frontend: Frontend) -> None:
        if any(session.id in backfill.waiting and backfill.waiting[session.id] is frontend
               for backfill in self._running.values()):  # fmt: skip
            return
        self._wanted.setdefault(frontend.backend.id, {})[session.id] = frontend

    def prepare(self, backend: Backend, cursor: Cursor) -> None:
        """Have the cache reach back to `cursor`, if the data cluster still has that."""
        if cursor < backend.kept_from and cursor.epoch == backend.kept_from.epoch:
            known = self._preparing.get(backend.id, cursor)
            self._preparing[backend.id] = min(known, cursor)

    def prepared(self, backend: Backend) -> bool:
        running = any(backfill.backend is backend for backfill in self._running.values())
        return backend.id not in self._preparing and not running

    def start_backfills(self) -> None:
        """As many as may run at a time."""
        for identity in list(dict.fromkeys((*self._wanted, *self._preparing))):
            if len(self._running) >= self._world.limits.catch_ups:
                return
            backend = self._world.backends.get(identity)
            if backend is None:
                self._wanted.pop(identity, None)
                self._preparing.pop(identity, None)
            elif (
                backend.held
                and self._retry_at_s.get(identity, 0.0) <= self._world.now_s
                and not any(backfill.backend is backend for backfill in self._running.values())
            ):
                self._start(backend)

    def _start(self, backend: Backend) -> None:
        waiting = self._wanted.pop(backend.id, {})
        starts = [frontend.sent for frontend in waiting.values() if frontend.sent is not None]
        if (prepared := self._preparing.pop(backend.id, None)) is not None:
            starts.append(prepared)
        if not starts:
            return
        start = min(starts)
        self._number -= 1  # live fetches count upwards
        self._running[self._number] = Backfill(
            backend, start, waiting, backend.position, start, backend.kept_from, prepared is not None
        )
        self._world.out.append(Fetch(self._number, backend.channel, {backend.id: start}))

    def gap_found(self, event: GapFound) -> None:
        backfill = self._running.get(event.fetch)
        if backfill is None:
            return
        backfill.kept = None
        for session, frontend in self._present(backfill):
            if frontend.sent is not None and frontend.sent < event.cursor:
                self.told_gap(session, frontend, min(event.cursor, max(frontend.backend.position, frontend.sent)))
        backfill.read_upto = event.cursor

    def fetched(self, event: ResultsFetched) -> None:
        backfill = self._running.get(event.fetch)
        if backfill is None:
            return
        backend = backfill.backend
        batch = Batch(
            backend.id, backend.channel, backfill.read_upto, event.epoch, event.offsets, event.rows
        ).between(backfill.read_upto, backfill.upto)  # fmt: skip
        if batch is None:
            return
        self._world.load.fetched(batch.raw_bytes, self._world.now_s)
        present = self._present(backfill)
        if not present and not backfill.prepares:
            self._world.out.append(CancelFetch(event.fetch))
            del self._running[event.fetch]
            return
        for session, frontend in present:
            part = None if frontend.sent is None else batch.between(frontend.sent, backfill.upto)
            if part is not None:
                self._world.deliver(session, part)
                frontend.sent = part.end
        backfill.read_upto = batch.end
        self._keep(backfill, batch)

    def _keep(self, backfill: Backfill, batch: Batch) -> None:
        if backfill.kept is None:
            return
        older = batch.between(batch.start, backfill.keep_upto)
        if older is not None:
            backfill.kept.append(older)
            backfill.kept_bytes += older.footprint_bytes
            if backfill.kept_bytes > self._world.cache.limit_bytes // KEEP_SHARE:
                backfill.kept = None

    def _present(self, backfill: Backfill) -> list[tuple[Session, Frontend]]:
        """Who still waits and can take something; one that cannot asks again when it drains."""
        found = []
        for identity, frontend in list(backfill.waiting.items()):
            session = self._world.sessions.get(identity)
            if session is None or not session.flowing or frontend.sent is None:
                del backfill.waiting[identity]
            else:
                found.append((session, frontend))
        return found

    def ended(self, event: FetchEnded) -> None:
        backfill = self._running.pop(event.fetch, None)
        if backfill is None:
            return
        backend = backfill.backend
        reached = min(event.upto, backfill.upto)
        self._retry_at_s.pop(backend.id, None)
        self._store(backfill, reached)
        for session, frontend in self._present(backfill):
            if frontend.sent is not None:
                frontend.sent = max(frontend.sent, reached)
            self.step(session)

    def _store(self, backfill: Backfill, reached: Cursor) -> None:
        """Into the cache, if it joins what is there and does not push newer results out."""
        backend, cache = backfill.backend, self._world.cache
        joins = reached >= backend.kept_from == backfill.keep_upto > backfill.start
        if backfill.kept is not None and joins and backfill.kept_bytes < cache.limit_bytes - cache.used_bytes:
            cache.prepend(backend, backfill.kept, backfill.start)

    def failed(self, event: FetchFailed) -> None:
        """The data cluster is away, or does not know the subscription: wait, and try again from where each stands."""
        backfill = self._running.pop(event.fetch, None)
        if backfill is None:
            return
        backend = backfill.backend
        self._retry_at_s[backend.id] = self._world.now_s + RETRY_S * (1 + self._world.jitter())
        for session, frontend in self._present(backfill):
            self._wanted.setdefault(backend.id, {})[session.id] = frontend
        if backfill.prepares:
            self._preparing.setdefault(backend.id, backfill.start)
        if event.unknown:
            self._lost(backend)

    def forget(self, backend: Backend) -> None:
        self._wanted.pop(backend.id, None)
        self._preparing.pop(backend.id, None)
        self._retry_at_s.pop(backend.id, None)
        for number in [number for number, backfill in self._running.items() if backfill.backend is backend]:
            del self._running[number]
