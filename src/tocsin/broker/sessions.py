"""What subscribers ask for: login, logout, subscribe, unsubscribe, list, ack, ping [BAD §3.1].

A subscriber has one session at most; a new login replaces the old one. Its subscriptions stay while it is away.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass

from tocsin.broker.backends import Backends, Want
from tocsin.broker.catchup import CatchUp
from tocsin.broker.effects import AnswerCall, CallWebhook, CloseSession, SendMessage, TellCoordinator
from tocsin.broker.entities import Asker, Frontend, Session, SessionId, Subscriber
from tocsin.broker.events import LoginRequested, RequestReceived, WebhookChosen
from tocsin.broker.outbox import Outbox
from tocsin.broker.world import World, held
from tocsin.model.cursor import Cursor
from tocsin.model.ids import SubscriberId, SubscriptionId
from tocsin.wire import session as wire
from tocsin.wire.errors import Code
from tocsin.wire.link import Frontend as FrontendState
from tocsin.wire.link import SessionClosed, SessionOpened

_LAST_OFFSET = 2**53
_LONGEST_ID = 64
"""Characters; twice what ids have."""


def parsed_cursor(text: str) -> Cursor | None:
    cursor = Cursor.parse(text) if len(text) <= 40 else None
    return None if cursor is None or cursor.offset > _LAST_OFFSET or cursor.epoch > _LAST_OFFSET else cursor


@dataclass(frozen=True, slots=True)
class _Unstored:
    """A subscription whose subscriber is told about it once the coordinator has it on disk."""

    number: int
    until_s: float
    want: Want
    frontend: Frontend


class Sessions:
    def __init__(self, world: World, backends: Backends, catch_up: CatchUp, outbox: Outbox) -> None:
        self._world = world
        self._backends = backends
        self._catch_up = catch_up
        self._outbox = outbox
        self._unstored: list[_Unstored] = []
        self.adopting: dict[SubscriberId, int] = {}
        """Subscriptions of adopted subscribers that the data cluster has not confirmed yet; `migration` counts them."""
        self.given_up: dict[SubscriberId, set[SubscriptionId]] = {}
        """Of those, what was unsubscribed meanwhile."""
        self._expiries: list[tuple[float, SessionId]] = []

    @property
    def idle(self) -> bool:
        return not self._unstored and not self._expiries

    # -- login and logout ------------------------------------------------------------------------------------------

    def refuse_login(self, event: LoginRequested, code: Code, message: str, retry_after_s: float | None = None) -> None:
        refused = wire.Refused(event.request, str(code), message, retry_after_s)
        self._answer_login(event, refused)

    def _answer_login(self, event: LoginRequested, message: wire.ToSubscriber) -> None:
        """The session may not exist."""
        if event.asker.call is not None:
            self._world.out.append(AnswerCall(event.asker.call, message))
        elif event.asker.session is not None:
            data = self._world.encode(message, event.encoding)
            self._world.out.append(SendMessage((event.asker.session,), message, data))

    def cursors_of(self, given: Mapping[SubscriptionId, str]) -> dict[SubscriptionId, Cursor] | None:
        found = {}
        for identity, text in given.items():
            cursor = parsed_cursor(text)
            if cursor is None:
                return None
            found[identity] = cursor
        return found

    def login(self, event: LoginRequested) -> None:
        resume = self.cursors_of(event.resume)
        if resume is None:
            self.refuse_login(event, Code.BAD_CURSOR, "resume: a cursor is epoch-offset, such as 3-1048576")
            return
        subscriber = self._world.subscriber(event.subscriber)
        for identity, cursor in resume.items():
            if (frontend := subscriber.frontends.get(identity)) is not None:
                self._acked(subscriber, identity, frontend, cursor)
        if event.asker.session is None:
            listed = [held(identity, frontend) for identity, frontend in subscriber.frontends.items()]
            self._answer_login(event, self._logged_in(event, listed))
            self.forget_if_empty(subscriber)
        else:
            self._open(event, event.asker.session, subscriber, resume)

    def _logged_in(self, event: LoginRequested, listed: list[wire.Held]) -> wire.LoggedIn:
        world = self._world
        name = "" if event.asker.session is None else f"{world.incarnation}-{event.asker.session}"
        return wire.LoggedIn(event.request, event.subscriber, world.broker, name, listed, world.limits.progress_s)

    def _open(
        self, event: LoginRequested, identity: SessionId, subscriber: Subscriber, resume: dict[SubscriptionId, Cursor]
    ) -> None:
        if subscriber.session is not None:
            if event.is_webhook and not subscriber.session.is_webhook:
                self._world.out.append(CloseSession(identity, "replaced"))
                return
            self.end(subscriber.session, "replaced", "another session of this subscriber has begun", replaced=True)
        session = Session(identity, subscriber, event.encoding, event.expires_s, event.is_webhook)
        self._world.subscribers[subscriber.id] = subscriber
        self._world.sessions[identity] = session
        subscriber.session = session
        if event.expires_s is not None:
            heapq.heappush(self._expiries, (event.expires_s, identity))
        for subscription, frontend in subscriber.frontends.items():
            start = resume.get(subscription, frontend.acked)
            self._catch_up.begin(session, frontend, start)
            frontend.tells_recovery = subscription in resume or start != frontend.backend.position
        listed = [held(subscription, frontend) for subscription, frontend in subscriber.frontends.items()]
        self._answer_login(event, self._logged_in(event, listed))
        if not session.is_webhook:
            self._world.out.append(TellCoordinator(SessionOpened(subscriber.id, event.migration)))
        self._catch_up.step(session)

    def end(self, session: Session, reason: str, message: str, *, replaced: bool = False) -> None:
        """From our side: say why, close, and forget."""
        if self._world.sessions.get(session.id) is session:
            self._world.close(session, reason, message)
            self.lost(session, reason, replaced=replaced)

    def lost(self, session: Session, reason: str, *, replaced: bool = False) -> None:
        """The connection is gone, or as good as gone. Subscriptions stay."""
        if self._world.sessions.pop(session.id, None) is None:
            return
        subscriber = session.subscriber
        for frontend in subscriber.frontends.values():
            self._catch_up.drop(session, frontend)
        subscriber.session = None
        if not session.is_webhook:
            self._world.out.append(TellCoordinator(SessionClosed(subscriber.id, reason)))
            if subscriber.webhook is not None and not replaced:
                self._world.out.append(CallWebhook(subscriber.id, subscriber.webhook))
        if not replaced:
            self.forget_if_empty(subscriber)

    # -- requests --------------------------------------------------------------------------------------------------

    def requested(self, event: RequestReceived) -> None:
        asker, request = event.asker, event.request
        if asker.session is not None and asker.session not in self._world.sessions:
            return  # it has ended meanwhile
        match request:
            case wire.Ping():
                self._world.answer(asker, wire.Pong(request.id, self._world.now_s))
            case wire.List():
                frontends = self._frontends(event.subscriber)
                listed = [held(identity, frontend) for identity, frontend in frontends.items()]
                self._world.answer(asker, wire.Subscriptions(request.id, listed))
            case wire.Ack():
                self._ack(asker, event.subscriber, request)
            case wire.Subscribe():
                self._subscribe(asker, event.subscriber, request)
            case wire.Unsubscribe():
                self._unsubscribe(asker, event.subscriber, request)
            case wire.Logout():
                self._logout(asker, event.subscriber, request)
            case _:
                self._world.refuse(asker, request.id, Code.BAD_REQUEST, "this session has begun already")

    def _frontends(self, name: SubscriberId) -> dict[SubscriptionId, Frontend]:
        subscriber = self._world.subscribers.get(name)
        return {} if subscriber is None else subscriber.frontends

    def _logout(self, asker: Asker, name: SubscriberId, request: wire.Logout) -> None:
        self._world.answer(asker, wire.LoggedOut(request.id))
        subscriber = self._world.subscribers.get(name)
        if subscriber is not None and subscriber.session is not None and not subscriber.session.is_webhook:
            self.end(subscriber.session, "logged_out", "as asked for")

    def _ack(self, asker: Asker, name: SubscriberId, request: wire.Ack) -> None:
        cursors = self.cursors_of(request.cursors)
        if cursors is None:
            self._world.refuse(asker, request.id, Code.BAD_CURSOR, "a cursor is epoch-offset, such as 3-1048576")
            return
        frontends = self._frontends(name)
        for identity in cursors:
            if identity not in frontends:
                self._world.refuse(asker, request.id, Code.UNKNOWN_SUBSCRIPTION, _unknown(identity))
                return
        subscriber = self._world.subscribers[name] if cursors else None
        for identity, cursor in cursors.items():
            assert subscriber is not None
            self._acked(subscriber, identity, frontends[identity], cursor)
        self._world.answer(asker, wire.Acked(request.id))

    def _acked(self, subscriber: Subscriber, identity: SubscriptionId, frontend: Frontend, cursor: Cursor) -> None:
        """Never backwards, and never beyond what this broker has seen: who claims more gets it again."""
        reached = min(cursor, frontend.backend.position)
        if reached > frontend.acked:
            frontend.acked = reached
            self._outbox.acked(subscriber.id, identity, reached)

    def _subscribe(self, asker: Asker, name: SubscriberId, request: wire.Subscribe) -> None:
        after = None
        if request.after is not None:
            after = parsed_cursor(request.after)
            if after is None:
                message = f"{request.after[:40]!r} is no cursor: expected epoch-offset, such as 3-1048576"
                self._world.refuse(asker, request.id, Code.BAD_CURSOR, message)
                return
        limit = self._world.limits.subscriptions
        if len(self._frontends(name)) >= limit:
            message = f"a subscriber holds at most {limit:,} subscriptions; end one first"
            self._world.refuse(asker, request.id, Code.TOO_LARGE, message)
            return
        want = Want(name, request.parameters, after, self._world.now_s, asker, request.id)
        self._backends.want(request.channel, want)

    def held(self, want: Want, frontend: Frontend) -> None:
        """The data cluster has it. Its subscriber is told, and gets results, once the coordinator has it too."""
        frontend.own = True
        self.hand_in(want.subscriber, frontend)
        if not self._outbox.connected:
            self._tell_held(want, frontend, stored=False)
            return
        until_s = self._world.now_s + self._world.limits.stored_s
        self._unstored.append(_Unstored(self._outbox.flush(), until_s, want, frontend))

    def hand_in(self, name: SubscriberId, frontend: Frontend) -> None:
        """To the coordinator, with what goes to it next."""
        backend = frontend.backend
        state = FrontendState(backend.id, backend.channel, frontend.parameters, str(frontend.acked))
        self._outbox.added(name, state)

    def refused(self, want: Want, code: str, message: str) -> None:
        if want.asker is not None:
            retry_after_s = 5.0 if code == Code.NOT_READY else None
            self._world.refuse(want.asker, want.request, code, message, retry_after_s)

    def stored(self, upto: int) -> None:
        due = [one for one in self._unstored if one.number <= upto]
        self._unstored = [one for one in self._unstored if one.number > upto]
        for one in due:
            self._tell_held(one.want, one.frontend, stored=True)

    def link_lost(self) -> None:
        due, self._unstored = self._unstored, []
        for one in due:
            self._tell_held(one.want, one.frontend, stored=False)

    def _tell_held(self, want: Want, frontend: Frontend, *, stored: bool) -> None:
        subscriber = self._world.subscribers.get(want.subscriber)
        if subscriber is None or subscriber.frontends.get(frontend.backend.id) is not frontend:
            return  # it has been given up meanwhile
        session = subscriber.session
        if session is not None and (want.after is not None or not (frontend.live or frontend.sent is not None)):
            self._catch_up.drop(session, frontend)
            self._catch_up.begin(session, frontend, want.after or frontend.acked)
            frontend.tells_recovery = want.after is not None
        if want.asker is not None:
            self._world.answer(want.asker, wire.Subscribed(want.request, held(frontend.backend.id, frontend), stored))
        if session is not None:
            self._catch_up.step(session)
        elif subscriber.webhook is not None:
            self._world.out.append(CallWebhook(subscriber.id, subscriber.webhook))

    def _unsubscribe(self, asker: Asker, name: SubscriberId, request: wire.Unsubscribe) -> None:
        subscriber = self._world.subscribers.get(name)
        frontend = None if subscriber is None else subscriber.frontends.get(request.subscription)
        if subscriber is None or frontend is None:
            self._give_up_unknown(name, request.subscription)
            self._world.refuse(asker, request.id, Code.UNKNOWN_SUBSCRIPTION, _unknown(request.subscription))
            return
        self._outbox.removed(name, request.subscription)
        self._outbox.flush()
        self.let_go(subscriber, frontend)
        self._world.answer(asker, wire.Unsubscribed(request.id, request.subscription))
        self.forget_if_empty(subscriber)

    def _give_up_unknown(self, name: SubscriberId, identity: SubscriptionId) -> None:
        """Not held here, but the coordinator may believe in it, or have said so already, and it is about to be. Whoever
        hears that it is not there takes that for done. There are bounds to what anybody may give up in advance."""
        limit = self._world.limits.subscriptions
        if len(identity) > _LONGEST_ID or self._outbox.removals(name) >= limit:
            return
        self._outbox.removed(name, identity)
        self._outbox.flush()
        if name in self.adopting and len(some := self.given_up.setdefault(name, set())) < limit:
            some.add(identity)

    def let_go(self, subscriber: Subscriber, frontend: Frontend) -> None:
        if subscriber.session is not None:
            self._catch_up.drop(subscriber.session, frontend)
        self._backends.detach(subscriber, frontend)

    def forget_if_empty(self, subscriber: Subscriber) -> None:
        """Unless it is being adopted: then it is ours, though nothing of it is here yet, and we say so when we
        register."""
        if subscriber.id not in self.adopting:
            self._world.forget_if_empty(subscriber)

    def webhook_chosen(self, event: WebhookChosen) -> None:
        subscriber = self._world.subscriber(event.subscriber)
        subscriber.webhook = event.webhook
        self._outbox.webhook(subscriber.id, event.webhook)
        self._outbox.flush()
        session = subscriber.session
        if session is not None and session.is_webhook:
            self.end(session, "replaced", "the webhook was changed", replaced=True)
            session = None
        if event.webhook is not None and session is None:
            self._world.out.append(CallWebhook(subscriber.id, event.webhook))
        self._world.answer(event.asker, wire.Acked(0))
        self.forget_if_empty(subscriber)

    # -- time ------------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        now_s = self._world.now_s
        late = [one for one in self._unstored if one.until_s <= now_s]
        self._unstored = [one for one in self._unstored if one.until_s > now_s]
        for one in late:
            self._tell_held(one.want, one.frontend, stored=False)
        while self._expiries and self._expiries[0][0] <= now_s:
            _, identity = heapq.heappop(self._expiries)
            session = self._world.sessions.get(identity)
            if session is not None:
                self.end(session, "expired", "the token has expired; come back with a new one")
        if not self._world.sessions:
            self._expiries.clear()


def _unknown(identity: str) -> str:
    return f"you hold no subscription {identity[:64]!r} here; `list` shows those you hold"
