"""Adoption, hand-over and release: which subscribers this broker serves, as the coordinator decides [BAD §3.3].

A subscriber that this broker does not know waits at login until the coordinator has sent its subscriptions (`Adopt`).
The source of a migration serves the subscriber until the session at the target has begun (`Release`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tocsin.broker.backend_subscriptions import BackendSubscriptions, SubscriptionRequest
from tocsin.broker.catch_up import CatchUp
from tocsin.broker.effects import CallWebhook
from tocsin.broker.events import LoginRequested
from tocsin.broker.hosted import FrontendSubscription, HostedSubscriber, SessionId
from tocsin.broker.outbox import Outbox
from tocsin.broker.preparations import Preparations
from tocsin.broker.requests import SubscriberRequests
from tocsin.broker.sessions import Sessions, parse_cursor
from tocsin.broker.state import BrokerState
from tocsin.model.ids import SubscriberId
from tocsin.wire import link
from tocsin.wire import session as wire

ADOPTION_S = 5.0
"""How long a login waits for the coordinator to send the subscriber's subscriptions."""


@dataclass(slots=True)
class _WaitingLogin:
    """Logins of a subscriber whose subscriptions this broker does not know yet."""

    until_s: float
    answered: bool
    """True if the coordinator has sent the subscriptions; the data cluster may not have granted them yet."""
    logins: list[LoginRequested] = field(default_factory=list)


class Adoption:
    def __init__(
        self,
        state: BrokerState,
        backends: BackendSubscriptions,
        catch_up: CatchUp,
        outbox: Outbox,
        sessions: Sessions,
        requests: SubscriberRequests,
        preparations: Preparations,
    ) -> None:
        self._state = state
        self._backends = backends
        self._catch_up = catch_up
        self._outbox = outbox
        self._sessions = sessions
        self._requests = requests
        self._preparations = preparations
        self._waiting: dict[SubscriberId, _WaitingLogin] = {}
        self._unconfirmed: set[SubscriberId] = set()
        """Subscribers admitted without the coordinator's answer: the question was not sent, or may have been lost."""
        self._unsubscribed: list[tuple[HostedSubscriber, FrontendSubscription]] = []
        """Granted subscriptions that the subscriber removed before the grant.

        The broker releases them after the event.
        """

    @property
    def idle(self) -> bool:
        return self._preparations.idle and not (self._waiting or self._state.adopting)

    # -- logins ----------------------------------------------------------------------------------------------------

    def login(self, event: LoginRequested) -> None:
        """Log in at once if this broker hosts the subscriber or the link is down; else wait for the coordinator."""
        name, adopting = event.subscriber, event.subscriber in self._state.adopting
        if adopting or (name not in self._state.subscribers and self._outbox.connected):
            waiting = self._waiting.get(name)
            if waiting is None:
                waiting = self._waiting[name] = _WaitingLogin(self._state.now_s + ADOPTION_S, adopting)
                if not adopting:
                    self._state.send_to_coordinator(link.StateRequest(name))
            waiting.logins.append(event)
        else:
            if name not in self._state.subscribers:
                self._unconfirmed.add(name)
            self._log_in(event)

    def on_registered(self) -> None:
        """Ask the coordinator about subscribers admitted while the link was down.

        They may hold more subscriptions than their programs remembered. This includes subscribers that have
        disconnected but left subscriptions here: the coordinator assumes that this broker holds all their
        subscriptions.
        """
        self._unconfirmed &= self._state.subscribers.keys()
        for name in sorted(self._unconfirmed):
            self._state.send_to_coordinator(link.StateRequest(name))

    def _log_in(self, event: LoginRequested) -> None:
        """Open the session and take over prepared subscriptions, including those not granted yet."""
        self._sessions.login(event)
        if event.requester.session not in self._state.sessions:
            return
        subscriber = self._state.subscriber(event.subscriber)
        for preparation in self._preparations.end_for(subscriber.id):
            subscriber.webhook = subscriber.webhook or preparation.webhook
            held = subscriber.frontends
            self._request(subscriber.id, [entry for entry in preparation.requested if entry.subscription not in held])

    def on_connection_lost(self, session: SessionId) -> None:
        for waiting in self._waiting.values():
            waiting.logins = [login for login in waiting.logins if login.requester.session != session]

    def on_link_lost(self) -> None:
        self._preparations.on_link_lost()
        for name in list(self._waiting):
            self._unconfirmed.add(name)
            self._admit(name)

    def _admit(self, name: SubscriberId) -> None:
        waiting = self._waiting.pop(name, None)
        for login in [] if waiting is None else waiting.logins:
            self._log_in(login)

    def admit_late(self) -> None:
        """Admit logins that have waited for `ADOPTION_S`, with the subscriptions known so far."""
        for name, waiting in list(self._waiting.items()):
            if waiting.until_s <= self._state.now_s:
                if not waiting.answered:
                    self._unconfirmed.add(name)
                self._admit(name)

    # -- adoption --------------------------------------------------------------------------------------------------

    def adopt(self, message: link.Adopt) -> None:
        for state in message.subscribers:
            name = state.subscriber
            subscriber = self._state.subscriber(name)
            subscriber.webhook = subscriber.webhook or state.webhook
            self._unconfirmed.discard(name)
            self._preparations.end_for(name)
            self._report_unlisted(subscriber, state)
            self._release_unlisted(subscriber, state)
            self._request(name, self._not_removed(state))
            if name in self._waiting:
                self._waiting[name].answered = True
            self._finish(name)

    def _not_removed(self, state: link.SubscriberState) -> list[link.Frontend]:
        """The listed subscriptions, without those whose removal the coordinator has not confirmed."""
        name = state.subscriber
        return [listed for listed in state.subscriptions if not self._outbox.is_removing(name, listed.subscription)]

    def _request(self, name: SubscriberId, listed: list[link.Frontend]) -> None:
        """Request subscriptions of a subscriber that this broker serves."""
        if not listed:
            return
        self._state.early_unsubscribes.get(name, set()).difference_update(entry.subscription for entry in listed)
        self._state.adopting[name] = self._state.adopting.get(name, 0) + len(listed)
        for entry in listed:
            cursor = parse_cursor(entry.cursor)
            request = SubscriptionRequest(name, entry.parameters, cursor, self._state.now_s)
            self._backends.request(entry.channel, request)

    def _report_unlisted(self, subscriber: HostedSubscriber, state: link.SubscriberState) -> None:
        """Report subscriptions requested here that the coordinator does not list.

        The coordinator does not know them yet, or applied an older unsubscription from another broker. Without the
        report they would be lost together with this broker.
        """
        unlisted = [frontend for frontend in _unlisted(subscriber, state) if frontend.requested_here]
        for frontend in unlisted:
            self._outbox.added(subscriber.id, frontend)
        if unlisted:
            self._outbox.flush()

    def _release_unlisted(self, subscriber: HostedSubscriber, state: link.SubscriberState) -> None:
        """Release subscriptions that the coordinator sent earlier and no longer lists: they were removed elsewhere."""
        for frontend in _unlisted(subscriber, state):
            if not frontend.requested_here:
                self._requests.release(subscriber, frontend)

    def on_granted(self, request: SubscriptionRequest, frontend: FrontendSubscription) -> None:
        name = request.subscriber
        removed = self._state.early_unsubscribes.get(name, ())
        is_unsubscribed = frontend.backend.id in removed and not frontend.requested_here
        self._count_answer(name)
        if is_unsubscribed:
            self._unsubscribed.append((self._state.subscriber(name), frontend))
        else:
            self._join_open_session(name, frontend)

    def on_refused(self, request: SubscriptionRequest) -> None:
        self._count_answer(request.subscriber)

    def _count_answer(self, name: SubscriberId) -> None:
        """Record that the data cluster has answered one of the subscriber's pending subscriptions."""
        pending = self._state.adopting.get(name, 0) - 1
        if pending > 0:
            self._state.adopting[name] = pending
        else:
            self._state.adopting.pop(name, None)
            self._state.early_unsubscribes.pop(name, None)
            self._finish(name)

    def _finish(self, name: SubscriberId) -> None:
        """If the data cluster has answered all subscriptions, admit the waiting logins or call the webhook."""
        if name in self._state.adopting:
            return
        waiting = self._waiting.get(name)
        if waiting is not None and waiting.answered:
            self._admit(name)
        subscriber = self._state.subscribers.get(name)
        if subscriber is None:
            return
        if subscriber.webhook is not None and subscriber.session is None:
            self._state.effects.append(CallWebhook(name, subscriber.webhook))
        self._state.forget_if_empty(subscriber)

    def _join_open_session(self, name: SubscriberId, frontend: FrontendSubscription) -> None:
        """Add a granted subscription to the session of a subscriber that logged in before the grant."""
        subscriber = self._state.subscribers.get(name)
        session = None if subscriber is None else subscriber.session
        if session is not None and not frontend.live and frontend.sent is None:
            self._catch_up.begin(session, frontend, frontend.acked)
            frontend.reports_recovery = True
            self._catch_up.step(session)

    def release_unsubscribed(self) -> None:
        """Release subscriptions that were unsubscribed before their grant.

        The release waits for the end of the event, because the same grant may still attach other subscribers to the
        backend subscription.
        """
        unsubscribed, self._unsubscribed = self._unsubscribed, []
        for subscriber, frontend in unsubscribed:
            if subscriber.frontends.get(frontend.backend.id) is frontend and not frontend.requested_here:
                self._requests.release(subscriber, frontend)
                self._state.forget_if_empty(subscriber)

    # -- migration -------------------------------------------------------------------------------------------------

    def prepare(self, message: link.Prepare) -> None:
        """Prepare a migration as its target. Called again if the subscriptions change before it is complete."""
        name = message.state.subscriber
        created = self._preparations.cancel(message.migration, name)
        subscriber = self._state.subscribers.get(name)
        if subscriber is not None:
            self._release_unlisted(subscriber, message.state)
        held = {} if subscriber is None else subscriber.frontends
        missing = [entry for entry in self._not_removed(message.state) if entry.subscription not in held]
        if subscriber is not None and subscriber.session is not None and not subscriber.session.is_webhook:
            self._request(name, missing)  # the subscriber has a session here already; its report is on the way
        else:
            self._preparations.begin(message, missing, created)

    def hand_over(self, message: link.HandOver) -> None:
        """As the source, request the subscriber to move to the target, and serve it until `Release`."""
        subscriber = self._state.subscribers.get(message.subscriber)
        session = None if subscriber is None else subscriber.session
        if session is None or session.is_webhook:
            text = f"{message.subscriber} has no session here"
            self._state.send_to_coordinator(link.HandOverFailed(message.migration, "offline", text))
            return
        move = wire.Move(message.migration, message.broker, message.address, message.token, message.deadline_s)
        self._state.send(session, move)

    def release(self, message: link.Release) -> None:
        """Forget a subscriber. If this broker does not host it, end its pending adoption or preparation."""
        subscriber = self._state.subscriber(message.subscriber)
        name = subscriber.id
        self._backends.withdraw(name)
        self._unconfirmed.discard(name)
        self._state.adopting.pop(name, None)
        self._state.early_unsubscribes.pop(name, None)
        self._preparations.end_for(name)
        self._outbox.flush()
        subscriber.webhook = None
        if subscriber.session is not None:
            self._sessions.end(subscriber.session, "moved", "this subscriber is served by another broker now")
        for frontend in list(subscriber.frontends.values()):
            self._requests.release(subscriber, frontend)
        self._state.forget_if_empty(subscriber)
        self._state.send_to_coordinator(link.Released(name, message.migration))


def _unlisted(subscriber: HostedSubscriber, state: link.SubscriberState) -> list[FrontendSubscription]:
    """The subscriptions held here that the coordinator does not list."""
    listed = {frontend.subscription for frontend in state.subscriptions}
    return [frontend for frontend in subscriber.frontends.values() if frontend.backend.id not in listed]
