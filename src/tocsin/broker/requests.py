"""Requests of subscribers: subscribe, unsubscribe, list, ack, ping, logout [BAD §3.1]; `updates` handles updates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from tocsin.broker.backend_subscriptions import BackendSubscriptions, SubscriptionRequest, key_of
from tocsin.broker.catch_up import CatchUp
from tocsin.broker.effects import CallWebhook
from tocsin.broker.events import RequestReceived
from tocsin.broker.hosted import FrontendSubscription, HostedSubscriber, Requester
from tocsin.broker.outbox import Outbox
from tocsin.broker.sessions import Sessions, held, parse_cursor, parse_cursors
from tocsin.broker.state import BrokerState
from tocsin.broker.updates import Updates
from tocsin.model.ids import SubscriberId, SubscriptionId
from tocsin.model.permission import Rights
from tocsin.wire import session as wire
from tocsin.wire.errors import Code

_LONGEST_ID = 64
"""The most characters of an id in a request: twice the length of a subscription id."""
MOST_PENDING = 50_000
"""The most backend subscriptions that wait for the data cluster. While it is down, new ones could pile up for ever."""
_RETRY_S = 5.0


@dataclass(frozen=True, slots=True)
class _UnstoredSubscription:
    """A granted subscription; the subscriber gets the answer when the coordinator has stored it."""

    number: int
    until_s: float
    request: SubscriptionRequest
    frontend: FrontendSubscription


class SubscriberRequests:
    def __init__(
        self,
        state: BrokerState,
        backends: BackendSubscriptions,
        catch_up: CatchUp,
        outbox: Outbox,
        sessions: Sessions,
        updates: Updates,
    ) -> None:
        self._state = state
        self._backends = backends
        self._catch_up = catch_up
        self._outbox = outbox
        self._sessions = sessions
        self._updates = updates
        self._unstored: list[_UnstoredSubscription] = []

    @property
    def idle(self) -> bool:
        return not self._unstored

    def handle(self, event: RequestReceived) -> None:
        requester, request, name = event.requester, event.request, event.subscriber
        if requester.session is not None and requester.session not in self._state.sessions:
            return  # the session has ended in the meantime
        match request:
            case wire.Ping():
                self._state.answer(requester, wire.Pong(request.id, self._state.now_s))
            case wire.List():
                listed = [held(frontend) for frontend in self._frontends(name).values()]
                self._state.answer(requester, wire.Subscriptions(request.id, listed))
            case wire.Ack():
                self._ack(requester, name, request)
            case wire.Subscribe():
                self._subscribe(requester, name, request, event.rights)
            case wire.Unsubscribe():
                self._unsubscribe(requester, name, request)
            case wire.Update():
                self._updates.request(requester, name, request)
            case wire.Logout():
                self._logout(requester, name, request)
            case _:
                self._state.refuse(requester, request.id, Code.BAD_REQUEST, "this session has begun already")

    def _frontends(self, name: SubscriberId) -> dict[SubscriptionId, FrontendSubscription]:
        subscriber = self._state.subscribers.get(name)
        return {} if subscriber is None else subscriber.frontends

    def _logout(self, requester: Requester, name: SubscriberId, request: wire.Logout) -> None:
        self._state.answer(requester, wire.LoggedOut(request.id))
        subscriber = self._state.subscribers.get(name)
        if subscriber is not None and subscriber.session is not None and not subscriber.session.is_webhook:
            self._sessions.end(subscriber.session, "logged_out", "you logged out")

    def _ack(self, requester: Requester, name: SubscriberId, request: wire.Ack) -> None:
        cursors = parse_cursors(request.cursors)
        if cursors is None:
            self._state.refuse(requester, request.id, Code.BAD_CURSOR, "a cursor is epoch-offset, such as 3-1048576")
            return
        frontends = self._frontends(name)
        for identity in cursors:
            if identity not in frontends:
                self._state.refuse(requester, request.id, Code.UNKNOWN_SUBSCRIPTION, _unknown(identity))
                return
        for identity, cursor in cursors.items():
            self._sessions.acknowledge(self._state.subscribers[name], frontends[identity], cursor)
        self._state.answer(requester, wire.Acked(request.id))

    # -- subscribe -------------------------------------------------------------------------------------------------

    def _subscribe(self, requester: Requester, name: SubscriberId, request: wire.Subscribe, rights: Rights) -> None:
        if not rights.permit(request.channel):
            message = f"your token does not permit the channel {request.channel[:128]}"
            self._state.refuse(requester, request.id, Code.FORBIDDEN, message)
            return
        after = None if request.after is None else parse_cursor(request.after)
        if request.after is not None and after is None:
            message = f"{request.after[:40]!r} is no cursor: expected epoch-offset, such as 3-1048576"
            self._state.refuse(requester, request.id, Code.BAD_CURSOR, message)
            return
        problem = self._problem_with(name, request, rights)
        if problem is not None:
            code, message = problem
            self._state.refuse(requester, request.id, code, message, _RETRY_S if code is Code.BACKLOGGED else None)
            return
        pending = SubscriptionRequest(name, request.parameters, after, self._state.now_s, requester, request.id)
        self._backends.request(request.channel, pending)

    def _problem_with(self, name: SubscriberId, request: wire.Subscribe, rights: Rights) -> tuple[Code, str] | None:
        """The limit that the request exceeds. Pending requests count: a subscriber may send many before an answer."""
        limits = self._state.limits
        most = limits.subscriptions
        if rights.most_subscriptions is not None:
            most = min(most, rights.most_subscriptions)
        if len(self._frontends(name)) + self._backends.pending_of(name) >= most:
            return Code.TOO_LARGE, f"a subscriber holds at most {most:,} subscriptions; end one first"
        try:
            _, parameters = key_of(request.channel, request.parameters)
        except (TypeError, ValueError, RecursionError, msgspec.MsgspecError):
            return Code.BAD_PARAMETER, "a parameter has a value that JSON cannot carry"
        if len(parameters) > limits.parameter_bytes or len(request.channel) > limits.parameter_bytes:
            return Code.TOO_LARGE, f"the parameters of a subscription have at most {limits.parameter_bytes:,} bytes"
        if self._backends.pending >= MOST_PENDING:
            return Code.BACKLOGGED, "too many subscriptions wait for the data cluster; try again"
        return None

    def on_granted(self, request: SubscriptionRequest, frontend: FrontendSubscription) -> None:
        """Answer a granted request, and start its results, once the coordinator has stored the subscription too."""
        frontend.requested_here = True
        self._outbox.added(request.subscriber, frontend)
        if not self._outbox.connected:
            self._confirm(request, frontend, stored=False)
            return
        until_s = self._state.now_s + self._state.limits.stored_s
        self._unstored.append(_UnstoredSubscription(self._outbox.flush(), until_s, request, frontend))

    def on_refused(self, request: SubscriptionRequest, code: str, message: str) -> None:
        if request.requester is not None:
            retry_after_s = _RETRY_S if code == Code.NOT_READY else None
            self._state.refuse(request.requester, request.request, code, message, retry_after_s)

    def on_stored(self, upto: int) -> None:
        self._confirm_if(lambda unstored: unstored.number <= upto, stored=True)

    def on_link_lost(self) -> None:
        self._confirm_if(lambda unstored: True, stored=False)

    def confirm_late(self) -> None:
        """Answer `stored: false` for subscriptions that the coordinator did not store in time."""
        self._confirm_if(lambda unstored: unstored.until_s <= self._state.now_s, stored=False)

    def _confirm_if(self, is_due: Callable[[_UnstoredSubscription], bool], *, stored: bool) -> None:
        due = [unstored for unstored in self._unstored if is_due(unstored)]
        self._unstored = [unstored for unstored in self._unstored if not is_due(unstored)]
        for unstored in due:
            self._confirm(unstored.request, unstored.frontend, stored=stored)

    def _confirm(self, request: SubscriptionRequest, frontend: FrontendSubscription, *, stored: bool) -> None:
        """Answer the subscriber and start sending results."""
        subscriber = self._state.subscribers.get(request.subscriber)
        if subscriber is None or subscriber.frontends.get(frontend.backend.id) is not frontend:
            return  # unsubscribed in the meantime
        session = subscriber.session
        is_served = frontend.live or frontend.sent is not None
        if session is not None and (request.after is not None or not is_served):
            self._catch_up.drop(session, frontend)
            self._catch_up.begin(session, frontend, request.after or frontend.acked)
            frontend.reports_recovery = request.after is not None
        if request.requester is not None:
            self._state.answer(request.requester, wire.Subscribed(request.request, held(frontend), stored))
        if session is not None:
            self._catch_up.step(session)
        elif subscriber.webhook is not None:
            self._state.effects.append(CallWebhook(subscriber.id, subscriber.webhook))

    # -- unsubscribe -----------------------------------------------------------------------------------------------

    def _unsubscribe(self, requester: Requester, name: SubscriberId, request: wire.Unsubscribe) -> None:
        subscriber = self._state.subscribers.get(name)
        frontend = None if subscriber is None else subscriber.frontends.get(request.subscription)
        if subscriber is None or frontend is None:
            self._record_early_unsubscribe(name, request.subscription)
            self._state.refuse(requester, request.id, Code.UNKNOWN_SUBSCRIPTION, _unknown(request.subscription))
            return
        self._outbox.removed(name, request.subscription)
        self._outbox.flush()
        self.release(subscriber, frontend)
        self._state.answer(requester, wire.Unsubscribed(request.id, request.subscription))
        self._state.forget_if_empty(subscriber)

    def _record_early_unsubscribe(self, name: SubscriberId, identity: SubscriptionId) -> None:
        """Remember the removal so that a pending adoption cannot restore it, and report it to the coordinator.

        The subscriber treats the refusal as success, but the coordinator may still list the subscription. Limits bound
        what one subscriber can make the broker remember.
        """
        limit = self._state.limits.subscriptions
        if len(identity) > _LONGEST_ID or self._outbox.unsent_removals(name) >= limit:
            return
        self._outbox.removed(name, identity)
        self._outbox.flush()
        if name in self._state.adopting:
            removed = self._state.early_unsubscribes.setdefault(name, set())
            if len(removed) < limit:
                removed.add(identity)

    def release(self, subscriber: HostedSubscriber, frontend: FrontendSubscription) -> None:
        """End a frontend subscription at this broker."""
        if subscriber.session is not None:
            self._catch_up.drop(subscriber.session, frontend)
        self._backends.detach(subscriber, frontend)


def _unknown(identity: str) -> str:
    return f"you hold no subscription {identity[:64]!r} here; `list` shows those you hold"
