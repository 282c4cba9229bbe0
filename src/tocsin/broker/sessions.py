"""Sessions: login, replacement, slow connections, expiry and the end of a session [BAD §3.1].

A subscriber has at most one session, and a new login replaces it. Subscriptions stay while the subscriber is offline.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping

from tocsin.broker.catch_up import CatchUp
from tocsin.broker.effects import AnswerCall, CallWebhook, CloseSession, SendToSessions
from tocsin.broker.events import LoginRequested, SessionBlocked, SessionDrained, WebhookChangeRequested
from tocsin.broker.hosted import FrontendSubscription, HostedSession, HostedSubscriber, SessionId
from tocsin.broker.outbox import Outbox
from tocsin.broker.state import BrokerState
from tocsin.model.cursor import Cursor
from tocsin.model.ids import SubscriptionId
from tocsin.wire import session as wire
from tocsin.wire.errors import Code
from tocsin.wire.link import SessionClosed, SessionOpened

_LAST_OFFSET = 2**53


def parse_cursor(text: str) -> Cursor | None:
    """The cursor that the text spells; None if the text is no cursor or its numbers are too large."""
    cursor = Cursor.parse(text) if len(text) <= 40 else None
    return None if cursor is None or cursor.offset > _LAST_OFFSET or cursor.epoch > _LAST_OFFSET else cursor


def parse_cursors(texts: Mapping[SubscriptionId, str]) -> dict[SubscriptionId, Cursor] | None:
    """The cursors that the texts spell; None if any of the texts is no cursor."""
    cursors = {}
    for identity, text in texts.items():
        cursor = parse_cursor(text)
        if cursor is None:
            return None
        cursors[identity] = cursor
    return cursors


def held(frontend: FrontendSubscription) -> wire.Held:
    """The description of a subscription in answers to its subscriber."""
    backend = frontend.backend
    position = frontend.sent if frontend.sent is not None else frontend.acked
    if frontend.live:
        position = backend.position
    return wire.Held(backend.id, backend.channel, frontend.parameters, str(position))


class Sessions:
    def __init__(self, state: BrokerState, catch_up: CatchUp, outbox: Outbox) -> None:
        self._state = state
        self._catch_up = catch_up
        self._outbox = outbox
        self._expiries: list[tuple[float, SessionId]] = []

    @property
    def idle(self) -> bool:
        return not self._expiries

    # -- login -----------------------------------------------------------------------------------------------------

    def refuse_login(self, event: LoginRequested, code: Code, message: str, retry_after_s: float | None = None) -> None:
        self._answer_login(event, wire.Refused(event.request, str(code), message, retry_after_s))

    def _answer_login(self, event: LoginRequested, message: wire.ToSubscriber) -> None:
        """Answer without looking the session up: a refused login has none."""
        requester = event.requester
        if requester.call is not None:
            self._state.effects.append(AnswerCall(requester.call, message))
        elif requester.session is not None:
            data = self._state.encode(message, event.encoding)
            self._state.effects.append(SendToSessions((requester.session,), message, data))

    def login(self, event: LoginRequested) -> None:
        resume = parse_cursors(event.resume)
        if resume is None:
            self.refuse_login(event, Code.BAD_CURSOR, "resume: a cursor is epoch-offset, such as 3-1048576")
            return
        subscriber = self._state.subscriber(event.subscriber)
        for identity, cursor in resume.items():
            if (frontend := subscriber.frontends.get(identity)) is not None:
                self.acknowledge(subscriber, frontend, cursor)
        if event.requester.session is None:
            self._answer_login(event, self._logged_in(event, subscriber))
            self._state.forget_if_empty(subscriber)
        else:
            self._open(event, event.requester.session, subscriber, resume)

    def _logged_in(self, event: LoginRequested, subscriber: HostedSubscriber) -> wire.LoggedIn:
        state, session = self._state, event.requester.session
        name = "" if session is None else f"{state.incarnation}-{session}"
        listed = [held(frontend) for frontend in subscriber.frontends.values()]
        return wire.LoggedIn(event.request, event.subscriber, state.broker, name, listed, state.limits.progress_s)

    def _open(
        self,
        event: LoginRequested,
        identity: SessionId,
        subscriber: HostedSubscriber,
        resume: dict[SubscriptionId, Cursor],
    ) -> None:
        if subscriber.session is not None:
            if event.is_webhook and not subscriber.session.is_webhook:
                self._state.effects.append(CloseSession(identity, "replaced"))
                return
            self.end(subscriber.session, "replaced", "another session of this subscriber has begun", replaced=True)
        session = HostedSession(identity, subscriber, event.encoding, event.is_webhook, event.rights)
        self._state.subscribers[subscriber.id] = subscriber
        self._state.sessions[identity] = session
        subscriber.session = session
        if event.expires_s is not None:
            heapq.heappush(self._expiries, (event.expires_s, identity))
        for subscription, frontend in subscriber.frontends.items():
            start = resume.get(subscription, frontend.acked)
            self._catch_up.begin(session, frontend, start)
            frontend.reports_recovery = subscription in resume or start != frontend.backend.position
        self._answer_login(event, self._logged_in(event, subscriber))
        if not session.is_webhook:
            self._state.send_to_coordinator(SessionOpened(subscriber.id, event.migration))
        self._catch_up.step(session)

    def acknowledge(self, subscriber: HostedSubscriber, frontend: FrontendSubscription, cursor: Cursor) -> None:
        """Advance `acked`. It never moves backwards nor beyond the broker's position: later results are sent again."""
        reached = min(cursor, frontend.backend.position)
        if reached > frontend.acked:
            frontend.acked = reached
            self._outbox.acked(subscriber.id, frontend.backend.id, reached)

    # -- slow connections ------------------------------------------------------------------------------------------

    def on_blocked(self, event: SessionBlocked) -> None:
        session = self._state.sessions.get(event.session)
        if session is None:
            return
        if self._state.limits.slow == "disconnect" and not session.is_webhook:
            self.end(session, "slow", "results arrive faster than you read them; reconnect and resume")
            return
        self._catch_up.leave_live(session)
        session.writable = False

    def on_drained(self, event: SessionDrained) -> None:
        session = self._state.sessions.get(event.session)
        if session is not None:
            session.writable = True
            self._catch_up.step(session)

    # -- the end of a session --------------------------------------------------------------------------------------

    def end(self, session: HostedSession, reason: str, message: str, *, replaced: bool = False) -> None:
        """Send the reason, close the connection and forget the session."""
        if self._state.sessions.get(session.id) is session:
            self._state.close(session, reason, message)
            self.forget(session, reason, replaced=replaced)

    def forget(self, session: HostedSession, reason: str, *, replaced: bool = False) -> None:
        """Forget a session whose connection has ended or will end. The subscriptions stay."""
        if self._state.sessions.pop(session.id, None) is None:
            return
        subscriber = session.subscriber
        for frontend in subscriber.frontends.values():
            self._catch_up.drop(session, frontend)
        subscriber.session = None
        if not session.is_webhook:
            self._state.send_to_coordinator(SessionClosed(subscriber.id, reason))
            if subscriber.webhook is not None and not replaced:
                self._state.effects.append(CallWebhook(subscriber.id, subscriber.webhook))
        if not replaced:
            self._state.forget_if_empty(subscriber)

    def end_expired(self) -> None:
        """End the sessions whose token has expired."""
        while self._expiries and self._expiries[0][0] <= self._state.now_s:
            _, identity = heapq.heappop(self._expiries)
            session = self._state.sessions.get(identity)
            if session is not None:
                self.end(session, "expired", "the token has expired; reconnect with a new one")
        if not self._state.sessions:
            self._expiries.clear()

    def end_all(self) -> None:
        for session in list(self._state.sessions.values()):
            self.end(session, "stopping", "this broker is stopping; reconnect to this or another broker")

    # -- webhooks --------------------------------------------------------------------------------------------------

    def change_webhook(self, event: WebhookChangeRequested) -> None:
        subscriber = self._state.subscriber(event.subscriber)
        subscriber.webhook = event.webhook
        self._outbox.webhook(subscriber.id, event.webhook)
        self._outbox.flush()
        session = subscriber.session
        if session is not None and session.is_webhook:
            self.end(session, "replaced", "the webhook was changed", replaced=True)
            session = None
        if event.webhook is not None and session is None:
            self._state.effects.append(CallWebhook(subscriber.id, event.webhook))
        self._state.answer(event.requester, wire.Acked(0))
        self._state.forget_if_empty(subscriber)
