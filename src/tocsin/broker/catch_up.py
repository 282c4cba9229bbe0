"""Catch-up: bring each session that is behind to the position of its backend subscription, then make it live.

Results come from the cache if it reaches back far enough, else from a backfill (`tocsin.broker.backfill`). One step
sends at most one queue's worth of results. Then the session waits until its connection drains, so a slow session never
delays another. A session that is catching up gets new results from the cache too, in order.
"""

from __future__ import annotations

from collections.abc import Callable

from tocsin.broker.backfill import Backfills
from tocsin.broker.effects import AwaitDrain
from tocsin.broker.hosted import BackendSubscription, FrontendSubscription, HostedSession
from tocsin.broker.state import BrokerState
from tocsin.model.cursor import Cursor
from tocsin.wire import session as wire


class CatchUp:
    def __init__(self, state: BrokerState, lost: Callable[[BackendSubscription], None]) -> None:
        """`lost` is called with a subscription that the data cluster no longer knows."""
        self._state = state
        self.backfill = Backfills(state, self.report_gap, self.step, lost)

    def begin(self, session: HostedSession, frontend: FrontendSubscription, start: Cursor) -> None:
        """Start to catch up from `start`; the next `step` sends the first results.

        Nothing is sent if the session's token does not permit the channel: another token made the subscription.
        """
        if not session.rights.permit(frontend.backend.channel):
            return
        frontend.sent, frontend.live, frontend.has_gap = start, False, False
        session.behind[frontend.backend.id] = frontend

    def leave_live(self, session: HostedSession) -> None:
        """Take a session with a full queue out of live delivery.

        Its queue contains every result before the positions and none after them.
        """
        for frontend in session.subscriber.frontends.values():
            if frontend.live:
                self._leave(session, frontend)
                self.begin(session, frontend, frontend.backend.position)

    def _leave(self, session: HostedSession, frontend: FrontendSubscription) -> None:
        backend = frontend.backend
        frontend.live = False
        if (group := backend.live.get(session.encoding)) is not None:
            group.pop(session.id, None)
            if not group:
                del backend.live[session.encoding]

    def drop(self, session: HostedSession, frontend: FrontendSubscription) -> None:
        """Stop sending this subscription: the session or the subscription has ended."""
        backend = frontend.backend
        self._leave(session, frontend)
        frontend.sent = None
        frontend.reports_recovery = False
        session.behind.pop(backend.id, None)
        backend.ahead.pop(session.id, None)
        self.backfill.withdraw(session, backend)

    def step(self, session: HostedSession) -> None:
        """Advance a session until it is live, its queue is full, or it needs a backfill."""
        if not session.writable:
            return
        room_bytes = self._state.limits.queue_bytes
        for frontend in list(session.behind.values()):
            while room_bytes > 0:
                sent_bytes = self._advance(session, frontend)
                if sent_bytes is None:
                    break
                room_bytes -= sent_bytes
        if room_bytes <= 0 and session.behind:
            session.writable = False
            self._state.effects.append(AwaitDrain(session.id))

    def _advance(self, session: HostedSession, frontend: FrontendSubscription) -> int | None:
        """Send the next batch and return its bytes; None when there is nothing more to send now."""
        backend, sent = frontend.backend, frontend.sent
        assert sent is not None
        if sent == backend.position:
            self._join_live(session, frontend)
            return None
        if sent > backend.position:
            backend.ahead[session.id] = frontend
            self._state.pulls[backend.id] = None
            return None
        if sent < backend.kept_from:
            self.backfill.request(session, frontend)
            return None
        batch = self._state.cache.after(backend, sent)
        if batch is None:
            frontend.sent = backend.position
            return 0
        part = batch.between(sent, backend.position)
        frontend.sent = batch.end
        return 0 if part is None else self._state.send_results(session, part)

    def _join_live(self, session: HostedSession, frontend: FrontendSubscription) -> None:
        backend = frontend.backend
        session.behind.pop(backend.id, None)
        frontend.sent, frontend.live = None, True
        backend.live.setdefault(session.encoding, {})[session.id] = None
        if frontend.reports_recovery:
            self._state.send(session, wire.Recovered(backend.id, str(backend.position), not frontend.has_gap))
        frontend.reports_recovery = frontend.has_gap = False

    def report_gap(self, session: HostedSession, frontend: FrontendSubscription, cursor: Cursor) -> None:
        """Report to the session that its missing results before `cursor` are lost; continue at `cursor`."""
        self._leave(session, frontend)
        self.begin(session, frontend, cursor)
        frontend.has_gap = frontend.reports_recovery = True
        self._state.send(session, wire.Gap(frontend.backend.id, str(cursor)))

    def mark_incomplete(self, backend: BackendSubscription) -> None:
        """Record that results before the position may be missing, for every session that is still catching up.

        Such a session must not report a full recovery.
        """
        for session in self._state.sessions.values():
            frontend = session.behind.get(backend.id)
            if frontend is not None:
                frontend.has_gap = frontend.reports_recovery = True

    def on_position_moved(self, backend: BackendSubscription, *, complete: bool) -> None:
        """Advance the sessions that were ahead of this broker and no longer are.

        `complete` is true if the position covers all results that the data cluster has now. The cursor of a session
        that is still ahead belongs to results that no longer exist, so the session gets a gap.
        """
        for identity, frontend in list(backend.ahead.items()):
            session = self._state.sessions.get(identity)
            if session is None or frontend.sent is None:
                del backend.ahead[identity]
            elif frontend.sent <= backend.position:
                del backend.ahead[identity]
                self.step(session)
            elif complete:
                del backend.ahead[identity]
                self.report_gap(session, frontend, backend.position)
                self.step(session)
